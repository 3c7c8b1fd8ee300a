"""Checkpoints: the whole state of a run in one file, from which it continues bit for bit.

A checkpoint knows which run it belongs to: its fingerprint names the method, its options, the
problem and the start, and a difference is refused by the name of the field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from mast import files
from mast.arrays import Array
from mast.errors import CheckpointError
from mast.methods import Method
from mast.methods.base import State
from mast.randomness import LAYOUT
from mast.sketches import Sketch
from mast.trace import rows_of, table_of

FORMAT = 1
_PROBES = (0, 1, 2, 3, 10, 100, 1000, 10**6)


def fingerprint(
    method: Method,
    schedule: Callable[[int, int], Array],
    step_size: float | Callable[[int], float],
    x0: Array,
) -> dict[str, str]:
    """What must agree for a checkpoint to continue a run, field by field; the number of steps need not."""
    sizes = [float(schedule(t, 1)[0]) for t in (_PROBES if callable(step_size) else (0,))]
    problems = method.problem.problems
    return {
        "key layout": str(LAYOUT),
        "method": method.name,
        "options": ", ".join(f"{name}={value!r}" for name, value in sorted(method.options().items())),
        "step_size": files.digest(*sizes) if callable(step_size) else repr(sizes[0]),
        "seed": str(method.seed),
        "objective": files.digest(*(p.objective.fingerprint() for p in problems)),
        "sketch": files.digest(*(describe(p.sketch) for p in problems)),
        "shift": files.digest(method.problem.shift),
        "x0": files.digest(x0),
    }


def describe(sketch: Sketch) -> str:
    """A sketch by its type and the values of its public attributes."""
    parts = [type(sketch).__name__]
    for name, value in sorted(vars(sketch).items()):
        if name.startswith("_"):
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
            stored = self.arrays.get(part.name, self.numbers.get(part.name))
            if stored is None:
                raise CheckpointError(f"the checkpoint has no {part.name!r}: it is not of this version")
            setattr(state, part.name, stored)
        return self.t, self.seconds, self.rows, self.diverged_at


class Checkpoint:
    """A file that a run saves to and continues from."""

    def __init__(self, path: Path, identity: dict[str, str]) -> None:
        self.path, self.identity = path, identity
        if not path.parent.is_dir():
            raise CheckpointError(f"the folder of the checkpoint {str(path)!r} does not exist")

    def read(self, steps: int) -> Stored | None:
        """What is stored, or None if there is no file yet; another run's checkpoint is refused."""
        if not self.path.exists():
            return None
        description, arrays = files.load(self.path)
        if description.get("kind") != "checkpoint" or description.get("format") != FORMAT:
            raise CheckpointError(f"{self.path} is not a checkpoint of this version of MAST")
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
        rows = rows_of(arrays.pop("trace"))
        return Stored(
            description["step"],
            description["seconds"],
            rows,
            description["diverged_at"],
            description["numbers"],
            arrays,
        )

    def write(
        self, state: State, t: int, seconds: float, rows: list[dict[str, Any]], diverged_at: int | None
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
            "numbers": {name: value for name, value in values.items() if name not in arrays},
        }
        files.save(self.path, description, {**arrays, "trace": table_of(rows)})
