"""A progress bar with speed and time left, on a terminal; silence elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, Self

APPEARS_AFTER = 1.0  # seconds: short work needs no bar


class Progress:
    """A bar for `total` pieces of work; `advance(done)` moves it, at most some ten times a second."""

    def __init__(self, total: int, what: str, show: bool | None = None) -> None:
        self.total, self.what = total, what
        self.show = sys.stderr.isatty() if show is None else show
        self.begun = self.shown = time.monotonic()
        self.bar: Any = None
        self.task: Any = None

    def __enter__(self) -> Self:
        self.begun = self.shown = time.monotonic()
        return self

    def advance(self, done: int) -> None:
        """`done` pieces are done by now."""
        now = time.monotonic()
        if not self.show or now - self.begun < APPEARS_AFTER or now - self.shown < 0.1:
            return
        self.shown = now
        if self.bar is None:
            self._appear()
        self.bar.update(self.task, completed=done, speed=f"{done / (now - self.begun):,.0f}/s")

    def _appear(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self.bar = Bar(
            TextColumn(self.what),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self.bar.start()
        self.task = self.bar.add_task(self.what, total=self.total, speed="")

    def __exit__(self, *exception: object) -> None:
        if self.bar is not None:
            self.bar.stop()
