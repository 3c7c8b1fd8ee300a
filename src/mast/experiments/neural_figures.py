"""The figures of the neural experiment: six panels as in the paper, and where each run ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mast.experiments import style
from mast.experiments.cells import Done
from mast.experiments.neural_claims import SPARSE, Curves, best, curves_of
from mast.experiments.neural_runs import KEEPS, STEP_SIZES, Curve, advised

BY_STEP = dict(
    zip(STEP_SIZES, (style.SKY, style.GREEN, style.BLUE, style.ORANGE, style.VERMILION), strict=True)
)
BY_KEEP = dict(zip(KEEPS, (style.VERMILION, style.ORANGE, style.BLUE, style.BLACK), strict=True))
SPARSITY = {0.5: "High sparsity", 0.7: "Mid sparsity", 0.9: "Low sparsity"}
SIZES = {0.5: "Large step size", 0.1: "Medium step size", 0.01: "Small step size"}
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


def panels(done: Sequence[Done], name: str) -> Any:
    """Left by sparsity, a curve a step size; right by step size, a curve a keep probability."""
    curves = curves_of(done, name)
    sizes = {k: advised(done, name, k) for k in KEEPS}
    with style.look():
        figure, axes = style.frames(3, 2, width=5.2, height=3.1, sharex=True)
        for ax, (keep, title) in zip(axes[:, 0], SPARSITY.items(), strict=True):
            for s in STEP_SIZES:
                show(ax, curves[keep, s], BY_STEP[s], f"γ = {s:g}")
            show(ax, curves[keep, "advised"], style.BLACK, "advised γ", "--", linewidth=1.2)
            ax.set_title(f"{name}: {title.lower()}, keep {keep:g} (advised γ = {sizes[keep]:.2g})")
        for ax, (s, title) in zip(axes[:, 1], SIZES.items(), strict=True):
            for keep in KEEPS:
                within = s <= sizes[keep]
                label = f"{_named(keep)} (advised γ = {sizes[keep]:.2g})"
                show(ax, curves[keep, s], BY_KEEP[keep], label, "-" if within else "--")
            ax.set_title(f"{name}: {title.lower()}, γ = {s:g}")
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
        ax.set_ylabel("loss $f$ (S = I)")


def levels(done: Sequence[Done], name: str) -> Any:
    """Where runs end by step size, a line a keep probability; the advised step size is marked."""
    curves = curves_of(done, name)
    begin = max(float(c.loss[:, 0].max()) for c in curves.values())
    with style.look():
        figure, axes = style.frames(1, 2, width=5.0, height=3.9)
        left, right = axes[0]
        for keep in KEEPS:
            colour, size = BY_KEEP[keep], advised(done, name, keep)
            rows = np.array([curves[keep, s].levels for s in STEP_SIZES]).T
            style.band(
                left, np.array(STEP_SIZES), np.minimum(rows, OUTSIDE * begin), colour, _named(keep), "o-"
            )
            left.plot(
                [size],
                [curves[keep, "advised"].level],
                "*",
                color=colour,
                markersize=13,
                markeredgecolor="white",
            )
            left.axvline(size, color=colour, linewidth=0.8, linestyle=":")
            if keep in SPARSE:
                noise = np.array([curves[keep, s].fluctuations for s in STEP_SIZES]).T
                style.band(right, np.array(STEP_SIZES), np.minimum(noise, 10), colour, _named(keep), "o-")
        left.plot([], [], "*", color=style.GREY, markersize=11, label="at the advised γ")
        left.set_ylabel("loss $f$ at the end")
        right.set_ylabel("fluctuation of log $f$ at the end")
        for ax, title in ((left, "where runs end"), (right, "how much they fluctuate")):
            ax.set_xscale("log")
            ax.set_yscale("log")
            ax.set_xlabel("Step size γ")
            ax.set_title(f"{name}: {title}")
            ax.legend()
        ends = [c.level for c in curves.values() if np.isfinite(c.level)]
        log_losses(left)
        left.set_ylim(0.6 * min(ends), CEILING * begin)
        return figure


def _named(keep: float) -> str:
    return "dense" if keep == 1 else f"keep {keep:g}"


def end_table(done: Sequence[Done], name: str) -> list[dict[str, Any]]:
    """Where each curve ends."""
    curves = curves_of(done, name)
    rows = []
    for (keep, lane), c in curves.items():
        size = advised(done, name, keep) if lane == "advised" else lane
        rows.append(
            {
                "dataset": name,
                "keep": keep,
                "step_size": size,
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
        )
    return rows
