"""Pictures of runs. matplotlib is the extra `plots`, imported here only."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from mast.errors import ArgumentError, optional_module

if TYPE_CHECKING:
    import matplotlib.axes

    from mast.results import Result

# Okabe and Ito's colours, which people with any colour vision can tell apart
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")

LABELS = {
    "f": r"$f(x)$",
    "f_D": r"$f_D(x) - f_D^{\inf}$",
    "grad_sq": r"$\|\nabla f_D(x)\|^2$",
    "dist_sq": r"$\|x - x_D^\star\|^2$",
}
BOUNDED = {"strongly_convex": "dist_sq", "convex": "f_D", "nonconvex": "grad_sq"}


def pyplot() -> Any:
    """matplotlib.pyplot, or an error that says how to get it."""
    return optional_module("matplotlib.pyplot", "pictures need matplotlib", "plots")


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
        _, ax = pyplot().subplots(figsize=(6, 4), layout="constrained")
    values = trace[column].to_numpy(dtype=float)
    if column == "f_D":
        values = values - result.infimum
    ax.plot(trace["step"] + 1, values, color=COLOURS[0], label=result.method)
    bound = _bound(result, trace) if column == bounded else None
    if bound is not None and np.isfinite(bound).any():
        ax.plot(trace["step"] + 1, bound, color=COLOURS[1], linestyle="--", label="bound of the theory")
    if np.nanmax(values, initial=0.0) > 0:
        ax.set_yscale("log")
    ax.set_xscale("log")
    ax.set_xlabel("step + 1")
    ax.set_ylabel(LABELS.get(column, column))
    size = f"step size {result.step_size:.3g}" if isinstance(result.step_size, float) else "a schedule"
    ax.set_title(f"{result.method}, {size}: {result.status}")
    ax.legend()
    return ax


def _bound(result: Result, trace: Any) -> Any:
    """The guarantee's bound along the run, from its measured start; None where it cannot be had."""
    assert result.guarantee is not None
    if not isinstance(result.step_size, float):
        return None
    start = trace.iloc[0]
    known = {
        "r0sq": float(start["dist_sq"]),
        "delta0": float(start["f_D"]) - result.infimum,
        "Psi0": float(start["f_D"]) - result.infimum if result.guarantee.regime == "nonconvex" else None,
        "D0": None,
        "sigma_sq": None,
    }
    try:
        return result.guarantee.bound(result.step_size, trace["step"].to_numpy(), **known)
    except ArgumentError:
        return None


# ---- nodes of clusters and federations ----------------------------------------------------------


def plot_nodes(result: Result) -> matplotlib.axes.Axes:
    """Scores by capacity, bytes by node, seconds by round; returns the axes of the first."""
    _, (scores, sizes, times) = pyplot().subplots(1, 3, figsize=(12, 3.8), layout="constrained")
    _draw_scores(scores, result)
    _draw_bytes(sizes, result)
    _draw_seconds(times, result)
    return cast("matplotlib.axes.Axes", scores)


def _draw_scores(axes: Any, result: Result) -> None:
    """The mean by capacity, with the lowest and the highest draw."""
    axes.set_title("scores of submodels by capacity", fontsize=10)
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


def _draw_bytes(axes: Any, result: Result) -> None:
    places = np.arange(len(result.nodes))
    for shift, column, colour, label in ((-0.2, "down", 0, "to the node"), (0.2, "up", 1, "from the node")):
        heights = [row[column] / 1000 for row in result.nodes]
        axes.bar(places + shift, heights, 0.4, color=COLOURS[colour], label=label)
    axes.axhline(result.x.nbytes / 1000, color="0.4", linestyle="--", linewidth=1, label="the whole model")
    axes.set_title("bytes per round", fontsize=10)
    axes.set_xlabel("node")
    axes.set_ylabel("kB")
    axes.legend(fontsize=8, loc="upper right")


def _draw_seconds(axes: Any, result: Result) -> None:
    rounds = [row["step"] for row in result.rows]
    for column, colour, label in (("took", 0, "the round"), ("compute", 1, "work of the slowest node")):
        seconds = [max(row[column], 1e-4) for row in result.rows]
        axes.plot(rounds, seconds, "o-", color=COLOURS[colour], markersize=3, label=label)
    axes.set_yscale("log")
    axes.set_title("seconds", fontsize=10)
    axes.set_xlabel("round")
    axes.legend(fontsize=8)


def _short(label: str) -> str:
    """A capacity's name in two short lines: what is kept, and how much of it."""
    share = re.search(r"keeps ([^,)]*)", label)
    return f"{label.partition('(')[0]}\n{share[1] if share else ''}"
