"""How a run of `mast.minimize` is saved and continued: its identity, and its position in a checkpoint."""

from __future__ import annotations

import contextlib
import inspect
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from mast.errors import CheckpointError, DataError
from mast.methods import METHODS, Method
from mast.methods.base import State
from mast.problem import AbstractProblem, Problem
from mast.randomness import LAYOUT, Key
from mast.support import files
from mast.support.checkpoint import Checkpoint, check_fields, describe, joined
from mast.support.checks import Array
from mast.trace import COLUMNS, rows_of, table_of, trace_steps

KIND = "run"
_NUMBER = int | float
NUMBERS: dict[str, Any] = {"step": int, "seconds": _NUMBER, "diverged_at": int | None}
NUMBERS |= {"step_size": _NUMBER | None, "schedule": str, "state": dict}
Schedule = Callable[[int, int], Array]
SCHEDULED = "a schedule"
_PROBES = tuple(Key(seed) for seed in range(4))


@dataclass
class Position:
    """Where a run is: all that a checkpoint holds of it."""

    state: State
    t: int = 0
    seconds: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)
    diverged_at: int | None = None


def identity_of(
    method: Method, seed: int, step_size: float | str | Callable[[int], float], regime: str | None, x0: Array
) -> dict[str, str]:
    """What must agree for a checkpoint to continue a run, beside the problem; the number of steps need not.

    A schedule is compared by its values, when the checkpoint is read.
    """
    size = SCHEDULED if callable(step_size) else str(step_size)
    return {
        "key layout": str(LAYOUT),
        "method": method.name,
        "options": ", ".join(f"{name}={describe(value)}" for name, value in sorted(method.options().items())),
        "step_size": f"theory, {regime or 'sharpest'}" if size == "theory" else size,
        "seed": str(seed),
        "x0": files.digest(x0),
        **({} if type(method) in METHODS.values() else {"method of one's own": describe(method)}),
    }


def problem_identity(problem: AbstractProblem) -> dict[str, str]:
    """What tells a problem from others."""
    problems = problem.problems
    return {
        "objective": joined(f"{p.objective!r} {p.objective.fingerprint()}" for p in problems),
        "sketch": joined(f"{p.sketch!r} {_sketch_digest(p)}" for p in problems),
        "shift": files.digest(problem.shift),
    }


def _sketch_digest(problem: Problem) -> str:
    """A sum of what the sketch was made with; of a few draws too, where an argument is kept out of sight."""
    sketch = problem.sketch
    hidden = inspect.signature(type(sketch)).parameters.keys() - sketch.arguments().keys()
    probe = np.arange(1.0, problem.dim + 1)
    draws = [sketch.sample(problem.dim, key).apply(probe) for key in _PROBES] if hidden else []
    return files.digest(describe(sketch), *draws)


class Terminated(KeyboardInterrupt):
    """SIGTERM: the process is asked to end. It saves first, as after Ctrl-C."""


class SavedRun(Checkpoint):
    """The checkpoint of one run."""

    def __init__(self, path: str | Path, identity: dict[str, str]) -> None:
        super().__init__(path, KIND, identity)
        self.scheduled = identity["step_size"] == SCHEDULED
        self._unwritable: DataError | None = None
        self._terminated = False
        self._stored: tuple[int, int] | None = None  # the step and the rows that the file has

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the file for this run, and save before SIGTERM ends the process.

        Where nothing can be written, a run that has ended can still be read.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self.alone())
            except DataError as error:
                if not self.path.exists():
                    raise
                self._unwritable = error
            main = threading.current_thread() is threading.main_thread()
            # unless the program has a way of its own to take it
            if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                stack.callback(signal.signal, signal.SIGTERM, signal.SIG_DFL)
                signal.signal(signal.SIGTERM, self._terminate)
            try:
                yield
            except Terminated:
                raise SystemExit(128 + signal.SIGTERM) from None

    def _terminate(self, number: int, frame: object) -> None:
        self._terminated = True
        raise Terminated

    def check(self) -> None:
        """Refuse to go on after SIGTERM, and where nothing can be saved."""
        if self._terminated:  # raising it was in vain if that happened in a callback of C code
            raise Terminated
        if self._unwritable is not None:
            raise self._unwritable

    def step_size(self) -> float | None:
        """The step size of the stored run, if there is one with a constant step size."""
        loaded = self.read()
        return None if loaded is None else self._checked(*loaded)["step_size"]

    def restore(self, position: Position, stops: list[int], schedule: Schedule) -> None:
        """Put a fresh run where the stored one is, if there is one; another run's checkpoint is refused."""
        loaded = self.read()
        if loaded is None:
            return
        numbers, arrays = self._checked(*loaded), loaded[1]
        t, path, steps = numbers["step"], self.path, stops[-1]
        if t > steps:
            raise CheckpointError(f"{path} is already at step {t}, beyond steps={steps}: ask for more")
        if self.scheduled and numbers["schedule"] != _schedule_digest(schedule, t):
            raise CheckpointError(f"{path} belongs to another run: its step_size followed another schedule")
        _restore_state(position.state, {**numbers["state"], **arrays}, numbers["diverged_at"] is None)
        position.t, position.seconds, position.diverged_at = t, numbers["seconds"], numbers["diverged_at"]
        position.rows = rows_of(arrays["trace"])
        self._stored = t, len(position.rows)
        if position.diverged_at is None and position.rows and position.rows[-1]["step"] not in stops:
            position.rows.pop()  # the end of a shorter run, where a straight one would not measure

    def save(self, position: Position, schedule: Schedule) -> None:
        """Replace the file by the present position, unless that is what it holds."""
        if self._unwritable is not None or self._stored == (position.t, len(position.rows)):
            return  # where nothing can be written, nothing has changed either
        values = {part.name: getattr(position.state, part.name) for part in fields(position.state)}
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        numbers = {
            "step": position.t,
            "seconds": position.seconds,
            "diverged_at": position.diverged_at,
            "step_size": None if self.scheduled else float(schedule(0, 1)[0]),
            "schedule": _schedule_digest(schedule, position.t) if self.scheduled else "",
            "state": {name: value for name, value in values.items() if name not in arrays},
        }
        self.write(numbers, {**arrays, "trace": table_of(position.rows)})
        self._stored = position.t, len(position.rows)

    def _checked(self, numbers: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any]:
        """The numbers, if each of them is one that a run may have."""
        check_fields(numbers, NUMBERS, str(self.path))
        numbers = {"diverged_at": None, "step_size": None, **numbers}
        right = {
            "step_size": bool(numbers["step_size"]) != self.scheduled,
            "diverged_at": numbers["diverged_at"] is None or numbers["diverged_at"] < numbers["step"],
            "trace": _is_trace(arrays.get("trace"), numbers["step"]),
        }
        for name, fits in right.items():
            if not fits:
                raise CheckpointError(f"{self.path} is damaged: its {name!r} is not right")
        return numbers


def _is_trace(table: Any, step: int) -> bool:
    """Whether it holds rows of a trace: from step 0 on, ascending, and not beyond the last step."""
    if not isinstance(table, np.ndarray) or table.dtype != np.float64 or table.shape[1:] != (len(COLUMNS),):
        return False
    whole = table[:, [COLUMNS.index("step"), COLUMNS.index("bytes")]]
    steps = table[:, COLUMNS.index("step")]
    return bool(
        len(table) > 0
        and ((whole >= 0) & (whole < 2**53) & (whole == np.floor(whole))).all()
        and steps[0] == 0
        and steps[-1] <= step
        and (np.diff(steps) > 0).all()
    )


def _schedule_digest(schedule: Schedule, t: int) -> str:
    """A sum of the step sizes that the steps before t used, at some of them."""
    return files.digest(*(float(schedule(s, 1)[0]) for s in trace_steps(max(t - 1, 0), "log"))) if t else ""


def _restore_state(state: State, stored: dict[str, Any], finite: bool) -> None:
    for part in fields(state):
        value: Any = stored.get(part.name)
        fits = _alike(value, getattr(state, part.name))
        if not fits or (part.name == "x" and finite and not np.isfinite(value).all()):
            raise CheckpointError(f"the checkpoint is damaged: its {part.name!r} does not fit the problem")
        setattr(state, part.name, value)


def _alike(stored: Any, fresh: Any) -> bool:
    """Whether a stored part of a state can take the place of that of a fresh one."""
    if isinstance(fresh, np.ndarray):
        same_kind = isinstance(stored, np.ndarray) and stored.dtype == fresh.dtype
        return same_kind and stored.ndim == fresh.ndim and (not fresh.size or stored.shape == fresh.shape)
    if isinstance(stored, int) and not isinstance(stored, bool):
        return abs(stored) < 2**63
    return isinstance(stored, float) and not isinstance(fresh, int)
