"""Cells: the pieces an experiment is computed in, each kept on disk under the hash of all it depends on.

A cell is a function of a JSON-able configuration and a data set. Its result, numbers and arrays,
is written whole or not at all, so an experiment that was killed continues with what is missing,
and a changed configuration recomputes the cells that it changes.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mast import files
from mast.errors import DataError, StepSizeWarning
from mast.experiments.datasets import Dataset
from mast.randomness import LAYOUT

Result = dict[str, Any]  # of numbers, text and arrays
Compute = Callable[[Mapping[str, Any], Dataset], Result]


@dataclass(frozen=True)
class Cell:
    """One piece of work: a module-level function, its configuration, its data."""

    experiment: str
    version: int  # of the experiment's code: a new number makes all its cells new
    compute: Compute
    config: Mapping[str, Any]
    dataset: Dataset
    cost: float = field(default=1.0, compare=False)  # about how many seconds it takes

    @property
    def key(self) -> str:
        """The hash of all that the result depends on; the path of the data is not among it."""
        identity = {
            "experiment": self.experiment,
            "version": self.version,
            "cell": self.compute.__name__,
            "config": dict(self.config),
            "data": self.dataset.sha256,
            "layout": LAYOUT,
        }
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]

    def file(self, folder: Path) -> Path:
        """Where the result is kept."""
        return folder / f"{self.experiment}-{self.key}.cell"


@dataclass(frozen=True)
class Done:
    """A cell with its result and the processor's seconds it took."""

    cell: Cell
    result: Result
    seconds: float

    def __getitem__(self, name: str) -> Any:
        return self.result[name] if name in self.result else self.cell.config[name]


def stored(cell: Cell, folder: Path) -> Done | None:
    """The cell's result if it is there and whole; a damaged file counts as not there."""
    path = cell.file(folder)
    if not path.exists():
        return None
    try:
        description, arrays = files.load(path)
    except DataError:
        return None
    if description.get("kind") != "cell" or description.get("key") != cell.key:
        return None
    return Done(cell, {**description["numbers"], **arrays}, description["seconds"])


def perform(cell: Cell, folder: Path) -> float:
    """Compute the cell, keep its result, and return the seconds it took."""
    from threadpoolctl import threadpool_limits

    begun = time.process_time()  # of this processor: what other processes take does not count
    # one thread: the cells are what runs in parallel, and results do not depend on the machine's cores
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", StepSizeWarning)  # steps above the limit are the point of some cells
        result = cell.compute(cell.config, cell.dataset)
    seconds = time.process_time() - begun
    arrays = {name: value for name, value in result.items() if isinstance(value, np.ndarray)}
    description = {
        "kind": "cell",
        "key": cell.key,
        "experiment": cell.experiment,
        "config": dict(cell.config),
        "data": cell.dataset.name,
        "seconds": seconds,
        "numbers": {name: value for name, value in result.items() if name not in arrays},
    }
    files.save(cell.file(folder), description, arrays)
    return seconds
