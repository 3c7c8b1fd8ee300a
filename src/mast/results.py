"""What a run ends with: one form for `mast.minimize`, for clusters and for federations."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mast.errors import ArgumentError, DataError
from mast.support import files
from mast.support.cards import card
from mast.support.progress import size_of
from mast.theory import Guarantee
from mast.trace import TraceFile, frame, json_text, with_nan

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas

TRACE, SUMMARY, VECTOR = "trace.jsonl", "result.json", "x.npy"
#: what `result.json` holds, and its types; null stands for NaN and infinity
_SUMMARY: dict[str, Any] = {
    "status": str,
    "steps": int,
    "step_size": int | float,
    "note": str,
    "method": str,
    "nodes": list,
}


@dataclass
class Result:
    """What a run ended with.

    Attributes
    ----------
    x : the last point.
    trace : a pandas DataFrame. Its columns step, seconds and bytes count from the start of the run; those of
        `mast.minimize` are step, passes, seconds, f, f_D, grad_sq, dist_sq, bytes. Clusters and federations
        have one row per round, with what its parts cost.
    status : "finished", "converged", "diverged" or "interrupted".
    steps : how many steps, or rounds, were taken.
    step_size : the step size, or the schedule, that was used.
    guarantee : the statement that applies, or None; then `note` says why.
    diverged_at : the step at which a run began to diverge, else None.
    state : the method's last state.
    infimum : f_D^inf, or NaN where it is not known.
    estimated : whether f_D and grad_sq in the trace are Monte Carlo estimates.
    nodes : of clusters and federations, one row per node: its capacity, the share that it keeps, how often it
        answered, its bytes per round each way, and the scores of its submodels.
    folder : where `save` wrote the files, or `load` read them.
    """

    x: Any = field(repr=False)
    status: str
    steps: int
    step_size: float | Callable[[int], float]
    guarantee: Guarantee | None
    note: str
    method: str
    rows: list[dict[str, Any]] = field(repr=False)
    diverged_at: int | None = None
    state: Any = None
    infimum: float = math.nan
    estimated: bool = False
    nodes: list[dict[str, Any]] = field(default_factory=list, repr=False)
    folder: Path | None = None

    @property
    def trace(self) -> pandas.DataFrame:
        """The measurements as a DataFrame."""
        return frame(self.rows)

    def plot(self, column: str | None = None, ax: matplotlib.axes.Axes | None = None) -> matplotlib.axes.Axes:
        """Draw the curve that the guarantee speaks of, with its bound; or a column of the trace.

        A run with nodes has three panels instead: scores by capacity, bytes by node, and seconds by round.
        """
        from mast.plots import plot_nodes, plot_result

        return plot_nodes(self) if self.nodes and not (column or ax) else plot_result(self, column, ax)

    def __repr__(self) -> str:
        last = self.rows[-1] if self.rows else {}
        numbers = [f"{name} = {last[name]:.6g}" for name in ("f", "f_D", "grad_sq") if _known(last.get(name))]
        parts = ", ".join([f"{self.status} after {self.steps:,} steps", *numbers])
        return f"<Result of {self.method}: {parts}>"

    def _repr_html_(self) -> str:
        last = self.rows[-1] if self.rows else {}
        size = "a schedule" if callable(self.step_size) else float(self.step_size)
        guarantee = self.note if self.guarantee is None else self.guarantee.statement
        measured = {name: last[name] for name in ("f", "f_D", "grad_sq", "dist_sq") if _known(last.get(name))}
        facts = {"status": self.status, "steps": f"{self.steps:,}", "step size": size, "guarantee": guarantee}
        return card(f"Result of {self.method}", facts | measured | {"nodes": len(self.nodes) or None})

    # ---- nodes -----------------------------------------------------------------------------

    def table(self) -> str:
        """The nodes, one row each, for a terminal."""
        import pandas

        rows = [
            row
            | {"keeps": f"{100 * row['keeps']:.1f}%", "down": size_of(row["down"]), "up": size_of(row["up"])}
            for row in self.nodes
        ]
        table = pandas.DataFrame(rows).astype(object)
        text: str = table.where(table.notna(), "").to_string(index=False, float_format="{:.4g}".format)
        return text

    def by_capacity(self) -> list[dict[str, Any]]:
        """One row per capacity: how many nodes it has, and the means of their numbers."""
        import pandas

        groups = pandas.DataFrame(self.nodes).drop(columns="node").groupby("capacity", sort=False)
        table = groups.mean().assign(nodes=groups.size()).reset_index()
        return list(table.to_dict("records"))

    # ---- files -----------------------------------------------------------------------------

    def save(self, folder: str | Path | None = None) -> Path:
        """Write trace.jsonl, x.npy and result.json; each is whole or not there.

        Returns the folder. A file named trace.jsonl that is not a trace is refused.
        """
        if callable(self.step_size):
            raise ArgumentError("a run with a schedule of step sizes cannot be saved: a function has no file")
        self.folder = files.as_path("folder", folder or self.folder or ".")
        files.make_folder(self.folder)
        TraceFile(self.folder / TRACE).replace(self.rows)
        vector = io.BytesIO()
        np.save(vector, self.x, allow_pickle=False)
        files.write(self.folder / VECTOR, vector.getvalue())
        known = {name: getattr(self, name) for name in _SUMMARY}
        summary = json_text(known | {"rows": len(self.rows)}, indent=2)
        files.write(self.folder / SUMMARY, summary.encode())
        return self.folder

    @classmethod
    def load(cls, folder: str | Path) -> Result:
        """What `save` left in a folder."""
        folder = files.as_path("folder", folder)
        try:
            summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
            for name, kinds in _SUMMARY.items():
                if not isinstance(summary[name], kinds):
                    raise DataError(f"its {name!r} is not right")
            summary["nodes"] = [with_nan(row) for row in summary["nodes"]]
            known = with_nan({name: summary[name] for name in _SUMMARY})
            rows, x = TraceFile(folder / TRACE).rows(), files.load_array(folder / VECTOR)
            if len(rows) != summary.get("rows", len(rows)):
                raise DataError(f"{TRACE} has {len(rows)} rows, and had {summary['rows']}")
            return cls(x=x, rows=rows, guarantee=None, folder=folder, **known)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, DataError) as error:
            raise DataError(f"{folder} does not hold a finished run: {error}") from error


def score_columns(metric: str, scores: Sequence[float]) -> dict[str, float]:
    """The columns of a node's row about the scores of its submodels.

    >>> score_columns("accuracy", [0.5, 0.75])
    {'draws': 2, 'accuracy': 0.625, 'accuracy lowest': 0.5, 'accuracy highest': 0.75}
    """
    if not scores:
        return {}
    mean = sum(scores) / len(scores)
    lowest, highest = min(scores), max(scores)
    return {"draws": len(scores), metric: mean, f"{metric} lowest": lowest, f"{metric} highest": highest}


def _known(value: float | None) -> bool:
    return value is not None and value == value
