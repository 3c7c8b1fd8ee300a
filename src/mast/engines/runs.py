"""What runs of a server have in common, whichever engine drives them: their files, and their result."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mast.distributed import Server
from mast.results import Result
from mast.support import files
from mast.theory import Guarantee
from mast.trace import TraceFile

Row = dict[str, Any]  #: of the trace, or of the table of nodes


class RunFiles:
    """The checkpoint of a run, and the trace beside it, in a file with the ending ``.trace.jsonl``.

    Without a checkpoint nothing is written, and the trace stays in memory.
    """

    def __init__(self, server: Server, checkpoint: str | Path | None) -> None:
        self.server = server
        self.checkpoint = None if checkpoint is None else files.as_path("checkpoint", checkpoint)
        if self.checkpoint is not None and self.checkpoint.is_symlink():
            self.checkpoint = Path(os.path.realpath(self.checkpoint))  # one lock and one trace for all links
        self._rows: list[Row] = []
        self._before = self._bytes()  # to and from all nodes before this round
        self._trace: TraceFile | None = None
        if self.checkpoint is not None:
            self._trace = TraceFile(self.checkpoint.with_name(f"{self.checkpoint.name}.trace.jsonl"))

    @contextlib.contextmanager
    def locked(self, wait: float = 0.0) -> Iterator[None]:
        """One process at a time on a checkpoint; `wait` seconds for another one that is about to end."""
        if self.checkpoint is None:
            yield
            return
        files.make_folder(self.checkpoint.parent)
        with files.exclusive(self.checkpoint, wait=wait):
            yield

    def truncate_trace(self) -> None:
        """Take out of the trace what a run that continues at the server's round will do again."""
        if self._trace is not None:
            self._trace.truncate_after(self.server.t)

    def _bytes(self) -> tuple[int, int]:
        return int(self.server.state.received.sum()), int(self.server.state.sent.sum())

    def add_round(self, seconds: float, durable: bool, columns: Row) -> Row:
        """The row of the trace for the round that was finished last; a checkpoint needs a `durable` one."""
        state = self.server.state
        (down, up), before = self._bytes(), self._before
        self._before = down, up
        state.seconds += seconds
        row = {"step": state.t, "seconds": state.seconds, "bytes": down + up, "took": seconds}
        row = {**columns, **row, "down": down - before[0], "up": up - before[1]}
        if self._trace is None:
            self._rows.append(row)
        else:
            self._trace.add(row, durable=durable)
        return row

    def load(self) -> dict[str, Any] | None:
        """Continue from the checkpoint if there is one; returns what else it holds, or None."""
        extra = None if self.checkpoint is None else self.server.load(self.checkpoint)
        self._before = self._bytes()
        return extra

    def save(self, extra: Mapping[str, Any] | None = None) -> None:
        """Write the checkpoint, if there is one; the old one stays until the new one is whole."""
        if self.checkpoint is not None:
            self.server.save(self.checkpoint, extra)

    @property
    def rows(self) -> list[Row]:
        """The trace, one row per round."""
        return list(self._rows) if self._trace is None else self._trace.rows()


def node_table(server: Server) -> list[Row]:
    """One row per node: its capacity, the share of x it got, its answers, its bytes per round."""
    state = server.state
    asked, answered = np.maximum(state.asked, 1), np.maximum(state.answered, 1)
    keeps, down, up = state.values / asked / state.x.size, state.received / asked, state.sent / answered
    return [
        {
            "node": i,
            "capacity": capacity.label,
            "keeps": float(keeps[i]),
            "answers": int(state.answered[i]),
            "down": float(down[i]),
            "up": float(up[i]),
        }
        for i, capacity in enumerate(server.capacities)
    ]


def result_of(
    server: Server, rows: list[Row], nodes: list[Row], note: str, guarantee: Guarantee | None = None
) -> Result:
    """What a run ended with so far."""
    return Result(
        x=server.x.copy(),
        status="diverged" if server.diverged else "finished",
        steps=server.t,
        step_size=server.step_size,
        guarantee=guarantee,
        note=note,
        method="distributed",
        rows=rows,
        nodes=nodes,
    )
