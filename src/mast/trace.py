"""The record of a run: what is measured, at which steps, and the file that rounds are appended to.

A row is a dict. Every run's rows have `step`, `seconds` and `bytes`, counted from the start of the run; what
else they have depends on who measured.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Iterable, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mast.errors import ArgumentError, DataError, MastError
from mast.problem import AbstractProblem
from mast.support import files
from mast.support.checks import Array, check_int, refuse_too_large

if TYPE_CHECKING:
    import pandas

#: what `mast.minimize` measures
COLUMNS = ("step", "passes", "seconds", "f", "f_D", "grad_sq", "dist_sq", "bytes")
POINTS_PER_DECADE = 16
SAMPLES = 100  #: draws that estimate f_D at a point where it has no cheap exact form
SOLVABLE = 5000  #: up to this dimension a run may solve its problem, for the distance and the bound


def trace_steps(steps: int, trace: str | int | Iterable[int]) -> list[int]:
    """The steps after which a run is measured, always with 0 and the last.

    "log" (the same grid for every length of run, so that a continued run measures where a long one
    does), a number k (every k-th step), or the steps themselves.

    >>> trace_steps(20, "log")[-6:], trace_steps(10, 4)
    ([10, 12, 13, 15, 18, 20], [0, 4, 8, 10])
    """
    if isinstance(trace, str):
        if trace != "log":
            raise ArgumentError(f'trace must be "log", a number of steps, or a list of steps, got {trace!r}')
        decades = math.log10(max(steps, 1))
        grid = {round(10 ** (i / POINTS_PER_DECADE)) for i in range(int(decades * POINTS_PER_DECADE) + 1)}
    elif isinstance(trace, Iterable):
        if isinstance(trace, Sized):
            refuse_too_large(f"a trace of {len(trace):,} rows", 100.0 * len(trace))
        grid = {check_int("trace", step) for step in trace}
        if any(not 0 <= step <= steps for step in grid):
            raise ArgumentError(f"the steps of trace must lie in 0 .. {steps}")
    else:
        every = check_int("trace", trace)
        if every < 1:
            raise ArgumentError(f"trace, the steps between two measurements, must be at least 1, got {every}")
        refuse_too_large(f"a trace of {steps // every:,} rows", 100.0 * (steps // every))
        grid = set(range(0, steps, every))
    return sorted({step for step in grid if step < steps} | {0, steps})


class Measure:
    """Measures a point of a run: f, f_D, the squared gradient and distance, where they can be had.

    The distance needs the solution, which is computed in up to `SOLVABLE` dimensions.

    Where f_D has no cheap exact form, value and gradient are estimated from `samples` draws, the same
    at each point; with none they are NaN.
    """

    def __init__(self, problem: AbstractProblem, samples: int = SAMPLES) -> None:
        self.problem, self.samples, self.exact = problem, samples, problem.cheap
        self.solution: Array | None = None
        if self.exact and problem.dim <= SOLVABLE:
            with contextlib.suppress(MastError):
                self.solution = problem.minimizer()

    @property
    def infimum(self) -> float:
        """f_D^inf, or NaN."""
        return math.nan if self.solution is None else self.problem.infimum()

    def at(self, x: Array) -> dict[str, float]:
        """The measured columns at x."""
        row = dict.fromkeys(("f", "f_D", "grad_sq", "dist_sq"), math.nan)
        with np.errstate(over="ignore", invalid="ignore"):
            row["f"] = float(np.mean([p.objective.value(x) for p in self.problem.problems]))
            if self.exact:
                row["f_D"], gradient = self.problem.value_and_gradient(x)
                row["grad_sq"] = float(gradient @ gradient)
            elif self.samples:
                estimate = self.problem.estimate(x, self.samples)
                row["f_D"] = estimate.value
                # too large by the variance of the estimate, so that nothing converges by accident
                row["grad_sq"] = float(estimate.gradient @ estimate.gradient)
            if self.solution is not None:
                row["dist_sq"] = float(np.sum((x - self.solution) ** 2))
        return row


def table_of(rows: list[dict[str, Any]]) -> Array:
    """The rows as an array, for files."""
    return np.array([[float(row[name]) for name in COLUMNS] for row in rows])


def rows_of(table: Array) -> list[dict[str, Any]]:
    """The rows of such an array."""
    rows: list[dict[str, Any]] = [dict(zip(COLUMNS, values, strict=True)) for values in table.tolist()]
    return [row | {"step": int(row["step"]), "bytes": int(row["bytes"])} for row in rows]


def frame(rows: list[dict[str, Any]]) -> pandas.DataFrame:
    """The rows as a pandas DataFrame; without rows it has the columns of `COLUMNS`."""
    import pandas

    table = pandas.DataFrame(rows, columns=None if rows else list(COLUMNS))
    table = table[[*(c for c in COLUMNS if c in table), *(c for c in table if c not in COLUMNS)]]
    return table.astype({"step": "int64", "bytes": "int64"})


class TraceFile:
    """The rows of a run, one line of JSON each, in a file that they are appended to.

    A line that is damaged is refused by its number, and so is a file of somebody else's.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     trace = TraceFile(Path(folder) / "trace.jsonl")
    ...     trace.add({"step": 1, "seconds": 0.5, "bytes": 80})
    ...     trace.rows()
    [{'step': 1, 'seconds': 0.5, 'bytes': 80}]
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> list[dict[str, Any]]:
        """All rows, but for a last one that a kill cut short."""
        return [row for row, _ in self._lines()]

    def _lines(self) -> list[tuple[dict[str, Any], int]]:
        """Each row, with the number of bytes up to its end."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror or error}") from error
        found: list[tuple[dict[str, Any], int]] = []
        end = 0
        for number, line in enumerate(content.splitlines(keepends=True), 1):
            try:
                row = _row(line)
                if found and row["step"] <= found[-1][0]["step"]:
                    raise ValueError("its step is not above that of the line before")
                if "passes" in {*row, *(found[0][0] if found else ())} and set(row) != set(COLUMNS):
                    raise ValueError("its columns are not those of a run")
            except (ValueError, RecursionError) as error:
                if end + len(line) == len(content) and _CUT_SHORT.fullmatch(line.rstrip(b"\0")):
                    break
                raise DataError(
                    f"{self.path}: line {number} is not a row of a trace ({error}); move the file away"
                ) from error
            end += len(line)
            found.append((row, end))
        return found

    def replace(self, rows: list[dict[str, Any]]) -> None:
        """These rows instead of all; a file that is not a trace stays."""
        self._lines()
        files.write(self.path, "".join(json_text(row) for row in rows).encode())

    def truncate_after(self, step: int) -> None:
        """Drop the rows beyond `step`, which a run that continues there will measure again."""
        end = max((end for row, end in self._lines() if row["step"] <= step), default=0)
        try:
            if self.path.exists():
                with self.path.open("r+b") as file:
                    file.truncate(end)
                    file.seek(max(end - 1, 0))
                    if file.read(1) not in (b"", b"\n"):
                        file.write(b"\n")
                    os.fsync(file.fileno())
        except OSError as error:
            raise DataError(f"{self.path} cannot be written: {error.strerror or error}") from error

    def add(self, row: dict[str, Any], durable: bool = False) -> None:
        """One more row; a `durable` one is on the disk afterwards, with all before: a checkpoint needs it."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json_text(row))
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            raise DataError(f"{self.path} cannot be written: {error.strerror or error}") from error


_LIMITS: dict[type, float] = {int: 2**63, float: math.inf}
#: a row whose writing was cut short anywhere
_CUT_SHORT = re.compile(
    rb'(?:\{(?:"(?:[^"\\\x00-\x1f]|\\.)*": (?:-?[0-9][-+.0-9eE]*|null), )*'
    rb'(?:"(?:[^"\\\x00-\x1f]|\\.)*(?:"(?:: ?(?:-?[-+.0-9eE]*|n|nu|nul|null),?)?)?\\?)?)?'
)


def _row(line: bytes) -> dict[str, Any]:
    """The row that a line holds; a ValueError says what is wrong with it."""
    row = json.loads(line.decode(), object_pairs_hook=list)
    if not isinstance(row, list) or not all(isinstance(pair, tuple) for pair in row):
        raise ValueError("it holds no names with numbers")
    if len(row) != len({name for name, _ in row}):
        raise ValueError("a name is there twice")
    row = dict(row)
    for name, value in row.items():
        if value is not None and not (type(value) in (int, float) and abs(value) < _LIMITS[type(value)]):
            raise ValueError(f"its {name!r} is not a number")
    for name in ("step", "bytes"):
        if type(row.get(name)) is not int or row[name] < 0:
            raise ValueError(f"its {name!r} is not a whole number")
    if not isinstance(row.get("seconds"), int | float) or row["seconds"] < 0:
        raise ValueError("its 'seconds' are not a number")
    return with_nan(row)


def json_text(content: Any, indent: int | None = None) -> str:
    """A value as JSON, with the end of the line; null stands for NaN and infinity, which it does not have."""
    return json.dumps(_finite(content), indent=indent, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def with_nan(row: dict[str, Any]) -> dict[str, Any]:
    """A row as it was before it was written: null stands for NaN and infinity, which JSON does not have."""
    return {name: math.nan if value is None else value for name, value in row.items()}
