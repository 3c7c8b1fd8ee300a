"""The figures of the neural experiment: six panels as in the paper, and where each run ends."""

from __future__ import annotations

from typing import Any

import numpy as np

from mast.experiments import style
from mast.experiments.experiment import Results
from mast.experiments.neural.claims import SPARSE, Curves, best, curves_of
from mast.experiments.neural.runs import KEEPS, STEP_SIZES, Curve, advised

BY_STEP = dict(
    zip(STEP_SIZES, (style.SKY, style.GREEN, style.BLUE, style.ORANGE, style.VERMILION), strict=True)
)
BY_KEEP = dict(zip(KEEPS, (style.VERMILION, style.ORANGE, style.BLUE, style.BLACK), strict=True))
SPARSITY = {0.5: "high sparsity", 0.7: "mid sparsity", 0.9: "low sparsity"}
SIZES = {0.5: "large step size", 0.1: "medium step size", 0.01: "small step size"}
CEILING = 1.6  # times the loss at the start: the top of a frame
OUTSIDE = 100.0  # times that loss: where infinity is drawn, which is out of the frame


def show(ax: Any, curve: Curve, colour: str, label: str, line: str = "-", **options: Any) -> None:
    """A curve with its band; where it diverged it leaves the frame."""
    high = OUTSIDE * curve.loss[:, :1]
    style.band(ax, curve.rounds, np.minimum(curve.loss, high), colour, label, line, **options)


def log_losses(ax: Any) -> None:
    """A logarithmic axis with numbers at 1, 2 and 5, written as numbers: losses span a decade or two."""
    from matplotlib.ticker import LogLocator

    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter("")


def panels(results: Results) -> Any:
    """Left by sparsity, one curve per step size; right by step size, one curve per keep probability."""
    curves, name = curves_of(results), results.datasets[0]
    sizes = {k: advised(results, k) for k in KEEPS}
    figure, axes = style.frames(3, 2, width=5.2, height=3.1, sharex=True)
    for ax, (keep, title) in zip(axes[:, 0], SPARSITY.items(), strict=True):
        for s in STEP_SIZES:
            show(ax, curves[keep, s], BY_STEP[s], f"γ = {s:g}")
        show(ax, curves[keep, "advised"], style.BLACK, "advised γ", "--", linewidth=1.2)
        ax.set_title(f"{name}: {title}, keep {keep:g} (advised γ = {sizes[keep]:.2g})")
    for ax, (s, title) in zip(axes[:, 1], SIZES.items(), strict=True):
        for keep in KEEPS:
            label = f"{_label(keep)} (advised γ = {sizes[keep]:.2g})"
            show(ax, curves[keep, s], BY_KEEP[keep], label, "-" if s <= sizes[keep] else "--")
        ax.set_title(f"{name}: {title}, γ = {s:g}")
    _frames(axes, curves)
    return figure


def _frames(axes: Any, curves: Curves) -> None:
    """The same limits in every frame, so that frames can be compared."""
    begin = max(float(c.loss[:, 0].max()) for c in curves.values())
    ends = [c.loss[np.isfinite(c.loss)].min() for c in curves.values()]
    for ax in axes.flat:
        log_losses(ax)
        ax.set_ylim(0.8 * min(ends), CEILING * begin)
    for ax, columns in zip(axes[-1], (3, 2), strict=True):
        ax.set_xlabel("Rounds")
        ax.legend(ncols=columns, loc="upper center", bbox_to_anchor=(0.5, -0.2))  # one for the whole column
    for ax in axes[:, 0]:
        ax.set_ylabel("Loss $f$ (S = I)")


def levels(results: Results) -> Any:
    """Where runs end by step size, one line per keep probability; the advised step size is marked."""
    curves, x = curves_of(results), np.array(STEP_SIZES)
    begin = max(float(c.loss[:, 0].max()) for c in curves.values())
    figure, ((left, right),) = style.frames(1, 2, width=5.0, height=3.9)
    star = {"markersize": 13, "markeredgecolor": "white"}
    for keep, colour in BY_KEEP.items():
        size = advised(results, keep)
        rows = np.array([curves[keep, s].levels for s in STEP_SIZES]).T
        style.band(left, x, np.minimum(rows, OUTSIDE * begin), colour, _label(keep), "o-")
        left.plot([size], [curves[keep, "advised"].level], "*", color=colour, **star)
        left.axvline(size, color=colour, linewidth=0.8, linestyle=":")
        if keep in SPARSE:
            noise = np.array([curves[keep, s].fluctuations for s in STEP_SIZES]).T
            style.band(right, x, np.minimum(noise, 10), colour, _label(keep), "o-")
    left.plot([], [], "*", color=style.GREY, markersize=11, label="at the advised γ")
    left.set_ylabel("Loss $f$ at the end")
    right.set_ylabel("Fluctuation of log $f$ at the end")
    for ax, title in ((left, "where runs end"), (right, "how much they fluctuate")):
        ax.set(xscale="log", yscale="log", xlabel="Step size γ", title=f"{results.datasets[0]}: {title}")
        ax.legend()
    log_losses(left)
    ends = [c.level for c in curves.values() if np.isfinite(c.level)]
    left.set_ylim(0.6 * min(ends), CEILING * begin)
    return figure


def _label(keep: float) -> str:
    return "dense" if keep == 1 else f"keep {keep:g}"


def level_rows(results: Results) -> list[dict[str, Any]]:
    """Where each curve of one data set ends."""
    curves = curves_of(results)
    return [
        {
            "dataset": results.datasets[0],
            "keep": keep,
            "step_size": advised(results, keep) if lane == "advised" else lane,
            "advised": lane == "advised",
            "best": lane == best(curves, keep),
            "level": c.level,
            "lowest": c.levels.min(),
            "highest": c.levels.max(),
            "fluctuation": np.median(c.fluctuations),
            "fall_in_second_half": np.median(c.falls),
            "diverged": int(np.isinf(c.loss[:, -1]).sum()),
            "seeds": len(c.loss),
        }
        for (keep, lane), c in curves.items()
    ]
