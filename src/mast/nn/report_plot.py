"""The picture of a report: scores against density, and what the submodels cost beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mast.plots import COLOURS, pyplot

if TYPE_CHECKING:
    import matplotlib.axes

    from mast.nn.report import Report

_BLUE, _VERMILION, _GREEN, _PINK = COLOURS[:4]
_COSTS = {"parameters": (_BLUE, "-", "parameters"), "flops": (_GREEN, "--", "operations"),
          "seconds": (_PINK, ":", "time")}  # fmt: skip


def plot(report: Report, ax: matplotlib.axes.Axes | None) -> matplotlib.axes.Axes:
    """Median, quartiles and range of the scores; into `ax`, or into a new figure with the costs beside it."""
    table = report.to_frame().sort_values("density")
    if ax is None:
        _, (ax, beside) = pyplot().subplots(1, 2, figsize=(8.4, 3.6), layout="constrained")
        _costs(beside, table)
    names = [("", _BLUE, "-", "trained sparse")]
    if "plain_mean" in table:
        names.append(("plain_", _VERMILION, "--", "trained plainly"))
    for prefix, colour, line, label in names:
        x = 100 * table["density"]
        low, high = table[prefix + "quartile_1"], table[prefix + "quartile_3"]
        ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        ax.plot(x, table[prefix + "median"], line, marker="o", markersize=4, color=colour, label=label)
        for end, mark in (("lowest", "v"), ("highest", "^")):
            ax.plot(x, table[prefix + end], mark, markersize=3, color=colour, alpha=0.6, linestyle="none")
    ax.set_xlabel("density, % kept")
    ax.set_ylabel(report.metric)
    ax.set_title("median, quartiles (band), extremes (triangles)", fontsize="medium")
    _finish(ax)
    return ax


def _costs(ax: Any, table: Any) -> None:
    """Each cost as a share of the largest."""
    for name, (colour, line, label) in _COSTS.items():
        if name in table:
            share = 100 * table[name] / table[name].max()
            ax.plot(100 * table["density"], share, line, marker="o", markersize=4, color=colour, label=label)
    ax.set_xlabel("density, % kept")
    ax.set_ylabel("% of the largest submodel here")
    ax.set_ylim(bottom=0)
    ax.set_title("what a submodel costs", fontsize="medium")
    _finish(ax)


def _finish(ax: Any) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color="#e4e4e4", linewidth=0.7)
    ax.set_axisbelow(True)
    ax.legend(frameon=False)
