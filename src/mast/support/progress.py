"""How far some work is: a bar on a terminal, elsewhere one line every few seconds; with the time left."""

from __future__ import annotations

import sys
import time
from typing import Any, Self

BAR_AFTER = 1.0  # seconds: short work needs no bar
BAR_EVERY = 0.1
LINE_EVERY = 5.0
ENOUGH = 4  # pieces, or a tenth of the work, before the time left is guessed


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


def size_of(count: float) -> str:
    """A number of bytes as people read it.

    >>> size_of(999), size_of(12_345), size_of(2.5e9)
    ('999 B', '12.3 kB', '2.5 GB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g} B"


class Progress:
    """Shows on standard error how many of `total` pieces of work are done.

    Parameters
    ----------
    total, what, unit
        How many pieces there are, what is being done, and what a piece is called.
    show
        None shows a bar on a terminal and nothing elsewhere, True also writes lines elsewhere, and
        a last line at the end; False shows nothing.
    first
        How many pieces were done before: a continued run's speed does not count them.
    work
        The effort of all pieces, where they differ in it; `advance` is then told the effort so far. The
        first piece often waits for imports and compilation, so that the time left is judged by the others.

    >>> with Progress(3, "sweep", show=False) as progress:
    ...     progress.advance(1)
    """

    def __init__(
        self,
        total: int,
        what: str,
        show: bool | None = None,
        *,
        unit: str = "",
        first: int = 0,
        work: float | None = None,
    ) -> None:
        self.total, self.what, self.unit, self.first, self.work = total, what, unit, first, work
        self.terminal = sys.stderr.isatty()
        self.show = self.terminal if show is None else show
        self.begun = time.monotonic()
        self.next_time = self.begun + (BAR_AFTER if self.terminal else LINE_EVERY)
        self.unshown: tuple[int, float | None, str] | None = None  # what `advance` was told last
        self.warm: tuple[float, float] | None = None  # when the first piece was done, and its effort
        self.bar: Any = None
        self.task: Any = None

    def __enter__(self) -> Self:
        return self

    def advance(self, done: int, work: float | None = None, note: str = "") -> None:
        """`done` pieces are done by now, with this much `work`; the note is shown beside the speed."""
        if self.warm is None and work is not None:
            self.warm = time.monotonic() - self.begun, work
        if self.show:
            self.unshown = done, work, note
            if time.monotonic() >= self.next_time:
                self._display()

    def __exit__(self, *exception: object) -> None:
        if self.bar is not None:
            self.bar.stop()
        elif self.unshown is not None and not self.terminal:
            self._display()

    def _display(self) -> None:
        assert self.unshown is not None
        done, work, note = self.unshown
        self.unshown, now = None, time.monotonic()
        self.next_time = now + (BAR_EVERY if self.terminal else LINE_EVERY)
        text = self._text(done, work, note, now - self.begun)
        if not self.terminal:
            print(f"{self.what}: {text}", file=sys.stderr, flush=True)
            return
        if self.bar is None:
            self._start_bar()
        share = done / max(self.total, 1) if work is None or not self.work else work / self.work
        self.bar.update(self.task, completed=share, text=text)

    def _text(self, done: int, work: float | None, note: str, seconds: float) -> str:
        """How many pieces are done, how fast, and how long the rest will take."""
        parts = [f"{done:,} of {self.total:,}{self.unit and ' ' + self.unit}"]
        if work is None or not self.work:
            rate = (done - self.first) / max(seconds, 1e-9)
            parts.append(f"{rate:,.3g} per second" if rate < 1000 else f"{rate:,.0f} per second")
            rest = (self.total - done) / rate if rate > 0 else None
        else:
            start, first = self.warm or (0.0, 0.0)
            known = work > first and (done >= ENOUGH or work >= self.work / 10)
            rest = (seconds - start) * (self.work - work) / (work - first) if known else None
        left = "starting" if rest is None else f"about {duration(rest)} left"
        return ", ".join([*parts, *([note] if note else []), left if done < self.total else "done"])

    def _start_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = TextColumn(self.what), BarColumn(), TextColumn("{task.fields[text]}")
        self.bar = Bar(*columns, console=Console(stderr=True), transient=True)
        self.bar.start()
        self.task = self.bar.add_task(self.what, total=1.0, text="")
