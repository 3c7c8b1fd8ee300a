"""Checkpoints: the whole state of a run in one file, from which it continues bit for bit.

A checkpoint knows which run it belongs to: its fingerprint names the method, its options, the
problem and the start, and a difference is refused by the name of the field.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mast import files
from mast.arrays import Array
from mast.errors import CheckpointError
from mast.locks import exclusive
from mast.methods import Method
from mast.methods.base import State
from mast.randomness import LAYOUT
from mast.sketches import Sketch
from mast.trace import COLUMNS, rows_of, table_of, trace_steps

FORMAT = 1
#: what a checkpoint's description holds, and of which types
FIELDS: dict[str, Any] = {
    "identity": dict,
    "step": int,
    "seconds": int | float,
    "diverged_at": int | None,
    "step_size": int | float | None,
    "schedule": str,
    "numbers": dict,
}


def fingerprint(
    method: Method, step_size: float | str | Callable[[int], float], regime: str | None, x0: Array
) -> dict[str, str]:
    """What must agree for a checkpoint to continue a run, field by field; the number of steps need not.

    A schedule is compared by its values, when the checkpoint is read.
    """
    problems = method.problem.problems
    spelled = "a schedule" if callable(step_size) else str(step_size)
    return {
        "key layout": str(LAYOUT),
        "method": method.name,
        "options": ", ".join(f"{name}={value!r}" for name, value in sorted(method.options().items())),
        "step_size": f"theory, {regime or 'sharpest'}" if spelled == "theory" else spelled,
        "seed": str(method.seed),
        "objective": _joined(f"{p.objective!r} {p.objective.fingerprint()}" for p in problems),
        "sketch": _joined(f"{p.sketch!r} {files.digest(describe(p.sketch))}" for p in problems),
        "shift": files.digest(method.problem.shift),
        "x0": files.digest(x0),
    }


def _joined(parts: Iterable[str]) -> str:
    """The parts, if they are few; else their sum. Addresses in default reprs do not count."""
    texts = [re.sub(r" at 0x[0-9a-f]+", "", part) for part in parts]
    return "; ".join(texts) if len(texts) <= 3 else f"{len(texts)} of them, {files.digest(*texts)}"


def _schedule_digest(schedule: Callable[[int, int], Array], t: int) -> str:
    """A sum of the step sizes that the steps before t used, at some of them."""
    return files.digest(*(float(schedule(s, 1)[0]) for s in trace_steps(max(t - 1, 0), "log"))) if t else ""


def describe(sketch: Sketch) -> str:
    """A sketch by its type and the values of its public attributes."""
    parts = [type(sketch).__name__]
    for name, value in sorted(vars(sketch).items()):
        if name == "_made":  # a cache
            continue
        parts.append(f"{name}={_describe_value(value)}")
    return "(" + ", ".join(parts) + ")"


def _describe_value(value: Any) -> str:
    if isinstance(value, Sketch):
        return describe(value)
    if isinstance(value, np.ndarray):
        return files.digest(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_describe_value, value)) + "]"
    return repr(value)


@dataclass(frozen=True)
class Stored:
    """What a checkpoint holds."""

    t: int
    seconds: float
    rows: list[dict[str, Any]]
    diverged_at: int | None
    numbers: dict[str, Any]
    arrays: dict[str, Any]

    def restore(self, state: State) -> tuple[int, float, list[dict[str, Any]], int | None]:
        """Fill in the state; returns the step, the seconds, the rows, and where it diverged."""
        for part in fields(state):
            fresh = getattr(state, part.name)
            stored = self.arrays.get(part.name, self.numbers.get(part.name))
            if stored is None:
                raise CheckpointError(f"the checkpoint has no {part.name!r}: it is not of this version")
            if not _alike(stored, fresh):
                raise CheckpointError(
                    f"the checkpoint is damaged: its {part.name!r} does not fit the problem"
                )
            setattr(state, part.name, stored)
        return self.t, self.seconds, self.rows, self.diverged_at


def _alike(stored: Any, fresh: Any) -> bool:
    """Whether a stored part of a state can take the place of that of a fresh one."""
    if isinstance(fresh, np.ndarray):
        return (
            isinstance(stored, np.ndarray)
            and stored.dtype == fresh.dtype
            and stored.shape == (fresh.shape if fresh.size else stored.shape)
        )
    return isinstance(stored, int if isinstance(fresh, int) else int | float)


class Checkpoint:
    """A file that a run saves to and continues from."""

    def __init__(self, path: Path, identity: dict[str, str]) -> None:
        self.path, self.identity = path, identity
        if not path.parent.is_dir():
            raise CheckpointError(f"the folder of the checkpoint {str(path)!r} does not exist")

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the file for one run: another process that asks for it meanwhile is refused."""
        with exclusive(self.path):
            files.clear_leftovers(self.path.parent, self.path.name)
            yield

    def step_size(self) -> float | None:
        """The step size of the stored run, if there is one with a constant step size."""
        loaded = self._loaded
        return None if loaded is None else loaded[0]["step_size"]

    @cached_property
    def _loaded(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        if not self.path.exists():
            return None
        description, arrays = files.load(self.path)
        if description.get("kind") != "checkpoint" or description.get("format") != FORMAT:
            raise CheckpointError(f"{self.path} is not a checkpoint of this version of MAST")
        wrong = [name for name, kinds in FIELDS.items() if not isinstance(description.get(name), kinds)]
        table = arrays.get("trace", np.zeros(0))
        if wrong or table.shape[1:] != (len(COLUMNS),) or table.dtype != np.float64:
            raise CheckpointError(f"{self.path} is damaged: its {(wrong or ['trace'])[0]!r} is not right")
        return description, arrays

    def read(self, steps: int, schedule: Callable[[int, int], Array]) -> Stored | None:
        """What is stored, or None if there is no file yet; another run's checkpoint is refused."""
        loaded = self._loaded
        if loaded is None:
            return None
        description, arrays = loaded
        for name, value in self.identity.items():
            stored = description["identity"].get(name)
            if stored != value:
                raise CheckpointError(
                    f"{self.path} belongs to another run: its {name} is {stored}, here it is {value}; "
                    "use another file, or delete this one"
                )
        if description["step"] > steps:
            raise CheckpointError(
                f"{self.path} is already at step {description['step']}, beyond steps={steps}: ask for more"
            )
        scheduled = self.identity["step_size"] == "a schedule"
        if scheduled and description["schedule"] != _schedule_digest(schedule, description["step"]):
            raise CheckpointError(
                f"{self.path} belongs to another run: its step_size followed another schedule"
            )
        return Stored(
            description["step"],
            description["seconds"],
            rows_of(arrays["trace"]),
            description["diverged_at"],
            description["numbers"],
            arrays,
        )

    def write(
        self,
        state: State,
        t: int,
        seconds: float,
        rows: list[dict[str, Any]],
        diverged_at: int | None,
        schedule: Callable[[int, int], Array],
    ) -> None:
        """Replace the file by the state after step t."""
        values = {part.name: getattr(state, part.name) for part in fields(state)}
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        description = {
            "kind": "checkpoint",
            "format": FORMAT,
            "identity": self.identity,
            "step": t,
            "seconds": seconds,
            "diverged_at": diverged_at,
            "step_size": None if self.identity["step_size"] == "a schedule" else float(schedule(0, 1)[0]),
            "schedule": _schedule_digest(schedule, t) if self.identity["step_size"] == "a schedule" else "",
            "numbers": {name: value for name, value in values.items() if name not in arrays},
        }
        files.save(self.path, description, {**arrays, "trace": table_of(rows)})
