"""How far the work is, and how long it will take: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, Self

LINE_EVERY = 15.0  # seconds


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(0.4), duration(75), duration(4000)
    ('0.4 s', '1 min 15 s', '1 h 06 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


class Display:
    """Shows the progress of cells on standard error; `done(cost)` counts one."""

    def __init__(self, count: int, cost: float, what: str, terminal: bool | None = None) -> None:
        self.count, self.cost, self.what = count, max(cost, 1e-9), what
        self.terminal = sys.stderr.isatty() if terminal is None else terminal
        self.finished, self.spent = 0, 0.0
        self.begun = self.said = time.monotonic()
        self.bar: Any = None
        self.task: Any = None

    def __enter__(self) -> Self:
        self.begun = self.said = time.monotonic()
        if self.terminal and self.count:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self.bar = Progress(
                TextColumn(self.what),
                BarColumn(),
                TextColumn("{task.fields[cells]}"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"),
                console=Console(stderr=True),
                transient=True,
            )
            self.bar.start()
            self.task = self.bar.add_task(self.what, total=self.cost, cells=self._cells(), left="")
        return self

    def done(self, cost: float) -> None:
        """One more cell is finished."""
        self.finished += 1
        self.spent += cost
        if self.bar is not None:
            self.bar.update(self.task, completed=self.spent, cells=self._cells(), left=self._left())
        elif not self.terminal and time.monotonic() - self.said > LINE_EVERY:
            self.said = time.monotonic()
            print(f"{self.what}: {self._cells()}, {self._left()}", file=sys.stderr, flush=True)

    def _cells(self) -> str:
        return f"{self.finished} of {self.count} cells"

    def _left(self) -> str:
        share = self.spent / self.cost
        elapsed = time.monotonic() - self.begun
        return f"about {duration(elapsed * (1 - share) / max(share, 1e-9))} left" if share < 1 else "done"

    def __exit__(self, *exception: object) -> None:
        if self.bar is not None:
            self.bar.stop()
