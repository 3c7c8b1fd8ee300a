"""Runs cells: those that are not on disk yet, in parallel processes, with their progress shown."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mast import files
from mast.errors import ArgumentError, DataError
from mast.experiments.cells import Cell, Done, perform, stored
from mast.experiments.display import Display

ALONE = 3.0  # seconds: processes take as long to start, so shorter work is done without them


@dataclass(frozen=True)
class Finished:
    """All cells with their results, in the order they were asked for."""

    cells: list[Done]
    computed: int  # cells, in this run
    reused: int  # cells that were on disk


def run(
    cells: Sequence[Cell], folder: Path, jobs: int | None = None, terminal: bool | None = None
) -> Finished:
    """Compute what is missing and return everything; a cell that is asked for twice is computed once."""
    jobs = _jobs(jobs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: the folder cannot be made: {error.strerror or error}") from error
    files.clear_leftovers(folder)
    known = {cell.key: stored(cell, folder) for cell in cells}
    missing = list({cell.key: cell for cell in cells if known[cell.key] is None}.values())
    # the longest first, so that no process is left alone with it at the end
    missing.sort(key=lambda cell: -cell.cost)
    with Display(len(missing), sum(cell.cost for cell in missing), "computing", terminal) as display:
        _perform_all(missing, folder, jobs, display)
    everything = []
    for cell in cells:
        done = known[cell.key] or stored(cell, folder)
        assert done is not None, f"the result of {cell} is not on disk although it was computed"
        everything.append(done)
    return Finished(everything, len(missing), len(known) - len(missing))


def _perform_all(missing: list[Cell], folder: Path, jobs: int, display: Display) -> None:
    waiting = list(missing)
    begun = time.monotonic()
    # The first cells run here, the shortest first: that fills Numba's cache on disk, which the other
    # processes then find filled, and short work ends before they would have started.
    while waiting and (jobs == 1 or time.monotonic() - begun < ALONE):
        cell = waiting.pop() if jobs > 1 else waiting.pop(0)
        perform(cell, folder)
        display.done(cell.cost)
    if not waiting:
        return
    from joblib import Parallel, delayed

    workers = Parallel(
        n_jobs=min(jobs, len(waiting)), return_as="generator_unordered", pre_dispatch="2*n_jobs"
    )
    for cost in workers(delayed(_perform_elsewhere)(cell, folder, os.getpid()) for cell in waiting):
        display.done(cost)


def _perform_elsewhere(cell: Cell, folder: Path, parent: int) -> float:
    _die_with(parent)
    perform(cell, folder)
    return cell.cost


_watching: set[int] = set()


def _die_with(parent: int) -> None:
    """End this process soon after the one that started it was killed, so that nothing keeps computing."""
    if os.getpid() == parent or parent in _watching or os.getppid() != parent:
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    _watching.add(parent)
    threading.Thread(target=watch, daemon=True).start()


def _jobs(jobs: int | None) -> int:
    if jobs is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if jobs < 1:
        raise ArgumentError(f"--jobs must be at least 1, got {jobs}")
    return jobs
