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
        self.written = False

    def advance(self, row: Row) -> None:
        """A round is done."""
        now, every = time.monotonic(), ON_TERMINAL if self.terminal else IN_LOG
        if not self.show or now - self.last < every:
            return
        self.last = now
        done = row.round + 1
        rate = (done - self.first) / (now - self.begun)
        text = (
            f"round {done:,} of {self.rounds:,}, {rate:.3g} a second, {size_of(row.down + row.up)} a round, "
            f"{(self.rounds - done) / rate:,.0f} s left"
        )
        self.written = True
        sys.stderr.write(f"\r\x1b[K{text}" if self.terminal else f"{text}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Clear the line."""
        if self.written and self.terminal:
            sys.stderr.write("\r\x1b[K")
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
