"""What a run ends with, and the files that hold it: x.npy, result.json, trace.jsonl."""

from __future__ import annotations

import io
import json
import math
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from mast import files
from mast.errors import DataError
from mast.methods.distributed.messages import Values

if TYPE_CHECKING:
    import pandas

CHECKPOINT, TRACE, SUMMARY, VECTOR = "checkpoint.mast", "trace.jsonl", "result.json", "x.npy"


@dataclass
class ClusterResult:
    """What a run on a cluster ended with.

    Attributes
    ----------
    x : the last point, one vector.
    status : "finished" or "diverged".
    rounds : how many rounds were done.
    step_size : of the server.
    note : the statement that gives the step size its guarantee, or why there is none.
    metric : what the scores are.
    score : of the whole model, on the test rows or else the mean over the nodes' own.
    scores : one dict per node: its capacity, the share it keeps, the mean, lowest and highest score of its
        submodels, the whole model's on the same rows, and its bytes per round each way.
    folder : where the files are.
    """

    x: Values = field(repr=False)
    status: str
    rounds: int
    step_size: float
    note: str
    metric: str
    score: float
    scores: list[dict[str, Any]] = field(repr=False)
    folder: Path

    @property
    def trace(self) -> pandas.DataFrame:
        """One row per round, with the columns of `RoundRow`."""
        import pandas

        return pandas.DataFrame(read_trace(self.folder / TRACE))

    def save(self) -> None:
        """Write x.npy and result.json; each is whole or not there."""
        vector = io.BytesIO()
        np.save(vector, self.x, allow_pickle=False)
        files.write(self.folder / VECTOR, vector.getvalue())
        summary = {name: value for name, value in vars(self).items() if name not in ("x", "folder")}
        files.write_json(self.folder / SUMMARY, summary)

    @classmethod
    def load(cls, folder: Path) -> ClusterResult:
        """What a finished run left in its folder."""
        try:
            summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
            x = files.load_array(folder / VECTOR)
            summary["score"] = _number(summary["score"])
            for row in summary["scores"]:
                row |= {name: _number(row[name]) for name in ("mean", "lowest", "highest", "whole")}
            return cls(x=x, folder=folder, **summary)
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise DataError(f"{folder} does not hold a finished run: {error}") from error

    def table(self) -> str:
        """The scores by capacity, for people."""
        scored = f"{self.metric:>8} {'lowest':>8} {'highest':>8}"
        lines = [f"{'node':>4}  {'capacity':<22} {'keeps':>6}  {'to node':>9} {'back':>9}  {scored}"]
        for row in self.scores:
            scored = (
                f"{row['mean']:8.4f} {row['lowest']:8.4f} {row['highest']:8.4f}"
                if row["draws"]
                else f"{'-':>8} {'-':>8} {'-':>8}"
            )
            lines.append(
                f"{row['node']:>4}  {row['capacity']:<22} {100 * row['keeps']:5.1f}%  "
                f"{size_of(row['down']):>9} {size_of(row['up']):>9}  {scored}"
            )
        lines.append(f"{'':>4}  {'the whole model':<22} {100.0:5.1f}%  {'':>9} {'':>9}  {self.score:8.4f}")
        return "\n".join(lines)


def size_of(count: float) -> str:
    """A number of bytes as people read it.

    >>> size_of(999), size_of(12_345), size_of(2.5e9)
    ('999 B', '12.3 kB', '2.5 GB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g} B"


def _number(value: float | None) -> float:
    return math.nan if value is None else value


# ---- the trace -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RoundRow:
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


class TraceFile:
    """One line of JSON per round, appended; what a continued run does again is taken out first."""

    def __init__(self, path: Path, round: int) -> None:
        """Continue the trace of a run that is at `round`."""
        kept = [row for row in read_trace(path) if row["round"] < round]
        files.write(path, "".join(json.dumps(row) + "\n" for row in kept).encode())
        self.file: IO[str] = path.open("a", encoding="utf-8")

    def add(self, row: RoundRow) -> None:
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


def read_trace(path: Path) -> list[dict[str, Any]]:
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
