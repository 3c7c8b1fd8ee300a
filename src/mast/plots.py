"""Pictures of runs. matplotlib is the extra `plots`, imported here only."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from mast.errors import ArgumentError, optional_module
from mast.support.checks import Array

if TYPE_CHECKING:
    import matplotlib.axes

    from mast.results import Result

# Okabe and Ito's colours, which people with any colour vision can tell apart
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")

# How all our figures look, whoever draws them.
SETTINGS: Any = {
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "figure.autolayout": False,
    "figure.constrained_layout.use": False,
    "savefig.facecolor": "white",
    "pdf.fonttype": 42,
}

LABELS = {
    "passes": "Passes over the data",
    "seconds": "Seconds",
    "bytes": "Bytes sent",
    "f": r"$f(x)$",
    "f_D": r"$f_D(x) - f_D^{\inf}$",
    "grad_sq": r"$\|\nabla f_D(x)\|^2$",
    "dist_sq": r"$\|x - x_D^\star\|^2$",
}
BOUNDED = {"strongly_convex": "dist_sq", "convex": "f_D", "nonconvex": "grad_sq"}


def pyplot() -> Any:
    """matplotlib.pyplot, or an error that says how to get it."""
    return optional_module("matplotlib.pyplot", "pictures need matplotlib", "plots")


@contextlib.contextmanager
def look() -> Iterator[None]:
    """Our settings, inside a block only: the user's are not touched, nor is the backend."""
    import matplotlib

    with matplotlib.rc_context(SETTINGS):
        yield


def new_axes(columns: int = 1, width: float = 6.0, height: float = 4.0) -> Any:
    """The axes of a new figure that looks like ours; an array of them if there are several columns."""
    with look():
        _, axes = pyplot().subplots(1, columns, figsize=(width, height), layout="constrained")
    return axes


def plot_result(result: Result, column: str | None, ax: matplotlib.axes.Axes | None) -> matplotlib.axes.Axes:
    """The curve of a run on log-log axes, with the bound of its guarantee where there is one."""
    guarantee = result.guarantee
    bounded = BOUNDED[guarantee.regime] if guarantee is not None else None
    column = column or bounded or ("seconds" if result.nodes else "f_D")
    trace = result.trace
    if column not in trace or column == "step":
        names = ", ".join(name for name in trace if name != "step")
        raise ArgumentError(f"column must be one of {names}, got {column!r}")
    if ax is None:
        ax = cast("matplotlib.axes.Axes", new_axes())
    values = trace[column].to_numpy(dtype=float)
    if column == "f_D":
        values = values - result.infimum
    ax.plot(trace["step"] + 1, values, color=COLOURS[0], label=result.method)
    bound = bound_along(result)
    if column == bounded and np.isfinite(bound).any():
        ax.plot(trace["step"] + 1, bound, color=COLOURS[1], linestyle="--", label="bound of the theory")
    if np.nanmax(values, initial=0.0) > 0:
        ax.set_yscale("log")
    ax.set_xscale("log")
    ax.set_xlabel("Step + 1")
    ax.set_ylabel(LABELS.get(column, column))
    size = f"step size {result.step_size:.3g}" if isinstance(result.step_size, float) else "a schedule"
    ax.set_title(f"{result.method}, {size}: {result.status}")
    ax.legend()
    return ax


def bound_along(result: Result, Psi0: float | None = None) -> Array:
    """The guarantee's bound at each row of the trace, from the measured start; infinite where there is none.

    Psi0 is what the statement starts from, if that is not the gap of f_D.
    """
    guarantee, steps = result.guarantee, np.array([row["step"] for row in result.rows])
    if guarantee is not None and isinstance(result.step_size, float):
        start = result.rows[0]
        delta0 = start["f_D"] - result.infimum
        Psi0 = delta0 if Psi0 is None and guarantee.regime == "nonconvex" else Psi0
        known = {"r0sq": start["dist_sq"], "delta0": delta0, "Psi0": Psi0, "D0": None, "sigma_sq": None}
        with contextlib.suppress(ArgumentError), np.errstate(divide="ignore"):
            return np.asarray(guarantee.bound(result.step_size, steps, **known), dtype=np.float64)
    return np.full(steps.size, np.inf)


# ---- nodes of clusters and federations ----------------------------------------------------------


def plot_nodes(result: Result) -> matplotlib.axes.Axes:
    """Scores by capacity, bytes by node, seconds by round; returns the axes of the first."""
    scores, sizes, times = new_axes(3, 12.0, 3.8)
    with look():
        _draw_scores(scores, result)
        places = np.arange(len(result.nodes))
        for shift, column, colour, label in (
            (-0.2, "down", 0, "to the node"),
            (0.2, "up", 1, "from the node"),
        ):
            heights = [row[column] / 1000 for row in result.nodes]
            sizes.bar(places + shift, heights, 0.4, color=COLOURS[colour], label=label)
        whole = {"color": "0.4", "linestyle": "--", "linewidth": 1, "label": "the whole model"}
        sizes.axhline(result.x.nbytes / 1000, **whole)
        sizes.set(title="Traffic of a node", xlabel="Node", ylabel="Bytes per round (kB)")
        sizes.legend(loc="upper right")
        for column, colour, label in (("took", 0, "the round"), ("compute", 1, "work of the slowest node")):
            seconds = result.trace[column].clip(lower=1e-4)
            times.plot(result.trace["step"], seconds, "o-", color=COLOURS[colour], markersize=3, label=label)
        times.set(title="Time of a round", xlabel="Round", ylabel="Seconds", yscale="log")
        times.legend()
    return cast("matplotlib.axes.Axes", scores)


def _draw_scores(axes: Any, result: Result) -> None:
    """The mean by capacity, with the lowest and the highest draw."""
    axes.set(title="Scores of submodels by capacity", xlabel="Capacity (share kept)")
    names = [name.removesuffix(" lowest") for row in result.nodes for name in row if name.endswith(" lowest")]
    if not names:
        axes.text(0.5, 0.5, "nothing was scored", ha="center", transform=axes.transAxes)
        return
    name, groups = names[0], result.by_capacity()
    for at, group in enumerate(groups):
        rows = [row for row in result.nodes if row["capacity"] == group["capacity"] and name in row]
        if rows:
            lowest, highest = min(r[f"{name} lowest"] for r in rows), max(r[f"{name} highest"] for r in rows)
            axes.plot([at, at], [lowest, highest], color=COLOURS[0], linewidth=2)
            axes.plot([at], [group[name]], "o", color=COLOURS[1])
    axes.set_xticks(range(len(groups)), [_short(group["capacity"]) for group in groups], fontsize=7)
    axes.set_ylabel(name)


def _short(label: str) -> str:
    """A capacity's name in two short lines: what is kept, and how much of it."""
    share = re.search(r"keeps ([^,)]*)", label)
    return f"{label.partition('(')[0]}\n{share[1] if share else ''}"
