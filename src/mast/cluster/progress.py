"""The progress line of rank 0: one that is overwritten on a terminal, one every few seconds in a log."""

from __future__ import annotations

import sys
import time

from mast.cluster.tracing import Row

ON_TERMINAL = 0.2  # seconds between lines
IN_LOG = 5.0


class ProgressLine:
    """How far a run is, how fast, and what it sends."""

    def __init__(self, rounds: int, first: int, show: bool) -> None:
        self.rounds, self.first, self.show = rounds, first, show
        self.terminal = sys.stderr.isatty()
        self.begun = self.last = time.monotonic()
        self.row: Row | None = None

    def advance(self, row: Row) -> None:
        """A round is done."""
        self.row, now = row, time.monotonic()
        if self.show and now - self.last >= (ON_TERMINAL if self.terminal else IN_LOG):
            self.last = now
            self._write(row, now)

    def end(self) -> None:
        """The last round's line, so that a run of any length has one."""
        if self.show and self.row is not None:
            self._write(self.row, time.monotonic())
            sys.stderr.write("\n" if self.terminal else "")
            sys.stderr.flush()

    def _write(self, row: Row, now: float) -> None:
        done = row.round + 1
        rate = (done - self.first) / max(now - self.begun, 1e-9)
        text = (
            f"round {done:,} of {self.rounds:,}, {rate:.3g} a second, {size_of(row.down + row.up)} a round, "
            f"{(self.rounds - done) / rate:,.0f} s left"
        )
        sys.stderr.write(f"\r\x1b[K{text}" if self.terminal else f"{text}\n")
        sys.stderr.flush()


def size_of(count: float) -> str:
    """A number of bytes as people read it.

    >>> size_of(999), size_of(12_345), size_of(2.5e9)
    ('999 B', '12.3 kB', '2.5 GB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g} B"
