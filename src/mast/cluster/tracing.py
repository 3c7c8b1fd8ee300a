"""The trace of a run: one line of JSON a round, appended; after a restart no round is there twice."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Self

from mast import files


@dataclass(frozen=True)
class Row:
    """One round: seconds of its four parts, and the bytes of all messages each way.

    `broadcast` is making and handing over the server's messages, `compute` the work of the slowest node,
    `update` what the server does with the answers, and `gather` the rest: the wire, and waiting.
    """

    round: int
    nodes: int
    seconds: float
    broadcast: float
    compute: float
    gather: float
    update: float
    down: int
    up: int


class Trace:
    """A file of rows that survives kills: what a continued run does again is taken out first."""

    def __init__(self, path: Path, round: int) -> None:
        """Continue the trace of a run that is at `round`."""
        self.path = path
        kept = [row for row in read(path) if row["round"] < round]
        files.write(path, "".join(json.dumps(row) + "\n" for row in kept).encode())
        self.file: IO[str] = path.open("a", encoding="utf-8")

    def add(self, row: Row) -> None:
        """One more round."""
        self.file.write(json.dumps(asdict(row)) + "\n")

    def flush(self) -> None:
        """All rows so far reach the disk; before a checkpoint counts on them."""
        self.file.flush()
        os.fsync(self.file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.file.close()


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a trace, up to the first that a kill cut short."""
    rows: list[dict[str, Any]] = []
    if not path.exists():
        return rows
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
            if row["round"] != len(rows):
                break
        except (ValueError, KeyError, TypeError):
            break
        rows.append(row)
    return rows
