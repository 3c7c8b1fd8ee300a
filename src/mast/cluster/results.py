"""What a run ends with, and the files that hold it."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mast import files
from mast.cluster import tracing
from mast.cluster.progress import size_of
from mast.errors import DataError
from mast.methods.distributed.messages import Values

if TYPE_CHECKING:
    import pandas

CHECKPOINT, TRACE, SUMMARY, VECTOR = "checkpoint.mast", "trace.jsonl", "result.json", "x.npy"


@dataclass
class Result:
    """What a run ended with.

    Attributes
    ----------
    x : the last point, one vector.
    status : "finished" or "diverged".
    rounds : how many rounds were done.
    step_size : of the server.
    note : the statement that gives the step size its guarantee, or why there is none.
    metric : what the scores are.
    score : of the whole model, on the test rows or else the mean over the nodes' own.
    scores : one dict a node: its capacity, the share it keeps, the mean, lowest and highest score of its
        submodels, the whole model's on the same rows, and its bytes a round each way.
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
        """One row a round, with the columns of `mast.cluster.tracing.Row`."""
        import pandas

        return pandas.DataFrame(tracing.read(self.folder / TRACE))

    def save(self) -> None:
        """Write x.npy and result.json; each is whole or not there."""
        vector = io.BytesIO()
        np.save(vector, self.x, allow_pickle=False)
        files.write(self.folder / VECTOR, vector.getvalue())
        said = {name: value for name, value in vars(self).items() if name not in ("x", "folder")}
        text = json.dumps(_finite(said), indent=2, allow_nan=False)
        files.write(self.folder / SUMMARY, (text + "\n").encode())

    @classmethod
    def load(cls, folder: Path) -> Result:
        """What a finished run left in its folder."""
        try:
            said = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
            x = files.load_array(folder / VECTOR)
            said["score"] = _number(said["score"])
            for row in said["scores"]:
                row |= {name: _number(row[name]) for name in ("mean", "lowest", "highest", "whole")}
            return cls(x=x, folder=folder, **said)
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


def _finite(value: Any) -> Any:
    """The same with null for NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: float | None) -> float:
    return math.nan if value is None else value
