"""Cells: pieces of work whose results are kept on disk, each under the hash of all that it depends on.

A cell is a module-level function of a configuration (JSON) and of data. Its result, numbers and arrays,
is written whole or not at all, so work that was killed continues with what is missing, and a changed
configuration recomputes the cells that it changes. Sweeps and experiments are made of cells.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mast.errors import DataError, MastError, StepSizeWarning
from mast.randomness import LAYOUT
from mast.support import files
from mast.support.progress import Progress

LONGEST_WAIT = 3600.0  # seconds, for another process that computes the same cell
ALONE = 3.0  # seconds: processes take as long to start, so shorter work is done without them

Values = dict[str, Any]  # of numbers, text and arrays


@dataclass(frozen=True)
class Cell:
    """One piece of work: a module-level function, its configuration, its data."""

    experiment: str
    version: int | str  # of the code: a new one makes all cells of the experiment new
    compute: Callable[..., Values]  # called as compute(config, dataset)
    config: Mapping[str, Any]
    dataset: Any  # anything that has a sha256
    cost: float = field(default=1.0, compare=False)  # about how many seconds it takes
    #: whether `compute` also takes `part=`, a file in which it may keep what it has when it is stopped
    resumable: bool = False

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
    result: Values
    seconds: float
    reused: bool = False  # whether the result was on disk

    def __getitem__(self, name: str) -> Any:
        return self.result[name] if name in self.result else self.cell.config[name]


def run_cells(
    cells: Sequence[Cell],
    folder: Path | None,
    jobs: int | None = None,
    show: bool | None = True,
    what: str = "computing",
    unit: str = "cells",
    wait: float = LONGEST_WAIT,
) -> list[Done]:
    """Compute what is missing and return everything, in order; what is asked for twice is computed once.

    Without a folder nothing is kept. `jobs` processes work at the same time, by default one for each
    processor. A cell that another process computes is waited for, at most `wait` seconds.
    """
    keys = [cell.key for cell in cells]
    missing, known = dict(zip(keys, cells, strict=True)), {}
    if folder is not None:
        files.make_folder(folder)
        known = {key: done for key, cell in missing.items() if (done := stored(cell, folder))}
        missing = {key: cell for key, cell in missing.items() if key not in known}
    # the longest first, so that no process is left alone with it at the end
    waiting = sorted(missing.items(), key=lambda item: -item[1].cost)
    spent, total = 0.0, max(sum(cell.cost for cell in missing.values()), 1e-9)
    with Progress(len(missing), what, show, unit=unit, work=total) as progress:
        for count, (key, done) in enumerate(_perform_all(waiting, folder, jobs or processors(), wait), 1):
            known[key] = done
            spent += done.cell.cost
            progress.advance(count, spent)
    return [known[key] for key in keys]


def stored(cell: Cell, folder: Path) -> Done | None:
    """The cell's result if it is there and whole; a damaged file counts as not there."""
    path = cell.file(folder)
    if not path.exists():
        return None
    try:
        description, arrays = files.load(path)
    except DataError:
        return None
    numbers: Any = description.get("numbers")
    seconds: Any = description.get("seconds")
    if description.get("kind") != "cell" or description.get("key") != cell.key:
        return None
    if not isinstance(numbers, dict) or description.get("sum") != _sum(numbers, arrays, seconds):
        return None
    # what a process left that was killed right after writing
    with contextlib.suppress(OSError):
        files.remove(_part(path))
    if files.lock_of(path).exists():
        with contextlib.suppress(MastError), files.exclusive(path):
            pass
    return Done(cell, {**numbers, **arrays}, seconds, reused=True)


def perform(cell: Cell, folder: Path | None, wait: float = LONGEST_WAIT) -> Done:
    """Compute the cell and keep its result; if another process is at it, wait (seconds) for that one's."""
    if folder is None:
        return _computed(cell, None)
    path = cell.file(folder)
    with files.exclusive(path, wait):
        done = stored(cell, folder)
        if done is None:
            done = _computed(cell, _part(path))
            arrays = {name: value for name, value in done.result.items() if isinstance(value, np.ndarray)}
            numbers = {name: value for name, value in done.result.items() if name not in arrays}
            description = {
                "kind": "cell",
                "key": cell.key,
                "experiment": cell.experiment,
                "config": dict(cell.config),
                "seconds": done.seconds,
                "numbers": numbers,
                "sum": _sum(numbers, arrays, done.seconds),
            }
            files.save(path, description, arrays)
            files.remove(_part(path))
        return done


def _sum(numbers: Values, arrays: Values, seconds: Any) -> str:
    """Of a whole result, so that one with a part that was changed or lost counts as absent."""
    parts = [part for name in sorted(arrays) for part in (name, arrays[name])]
    return files.digest(json.dumps(numbers, sort_keys=True), seconds, *parts)


def _computed(cell: Cell, part: Path | None) -> Done:
    from threadpoolctl import threadpool_limits

    begun = time.process_time()  # of this processor: what other processes take does not count
    # one thread: the cells are what runs in parallel, and results do not depend on the machine's cores
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", StepSizeWarning)  # steps above the limit are the point of some cells
        extra = {"part": part} if cell.resumable else {}
        result = cell.compute(cell.config, cell.dataset, **extra)
    return Done(cell, result, time.process_time() - begun)


def _part(path: Path) -> Path:
    return path.with_suffix(".part")


# ---- processes -----------------------------------------------------------------------------------


def _perform_all(
    waiting: list[tuple[str, Cell]], folder: Path | None, jobs: int, wait: float
) -> Iterator[tuple[str, Done]]:
    """Each cell under its key, as they get done."""
    begun = time.monotonic()
    # The first cells run here, the shortest first: that fills Numba's cache on disk, which the other
    # processes then find filled, and short work ends before they would have started.
    while waiting and (jobs == 1 or time.monotonic() - begun < ALONE):
        key, cell = waiting.pop() if jobs > 1 else waiting.pop(0)
        yield key, perform(cell, folder, wait)
    if not waiting:
        return
    from joblib import Parallel, delayed

    workers = Parallel(
        n_jobs=min(jobs, len(waiting)),
        return_as="generator_unordered",
        pre_dispatch="2*n_jobs",
        backend="loky",
        initializer=die_with,
        initargs=(os.getpid(),),
    )
    cells = dict(waiting)
    tasks = (delayed(_perform_elsewhere)(key, cell, folder, wait) for key, cell in waiting)
    for key, result, seconds in workers(tasks):
        yield key, Done(cells[key], result, seconds)


def _perform_elsewhere(key: str, cell: Cell, folder: Path | None, wait: float) -> tuple[str, Values, float]:
    done = perform(cell, folder, wait)
    return key, done.result, done.seconds  # not the cell: its data may be large


def die_with(parent: int) -> None:
    """End this process within a second after the one that started it, so that nothing keeps computing."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
