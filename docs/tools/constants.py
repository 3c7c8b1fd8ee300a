"""One small picture for each constant of the theory page: `python docs/tools/constants.py`.

Every picture is drawn from numbers: a function of one or two variables, and Bernoulli sketches of it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mast.plots import COLOURS, look
from mast.theory import zeta

IMAGES = Path(__file__).parents[1] / "images"
BLUE, RED, GREEN = COLOURS[:3]
GREY = "#868e96"
X = np.linspace(-2.2, 2.6, 200)


def f(x: Any) -> Any:
    """A smooth and strongly convex function with its minimum at 1."""
    return 0.25 * (x - 1) ** 2 + 0.5 * np.log(np.cosh(1.4 * (x - 1)))


def f_D(x: Any, keep: float = 0.6) -> Any:
    """Its mean over one weight that is kept with probability 0.6, and scaled."""
    return keep * f(x / keep) + (1 - keep) * f(0 * x)


def curvature(ax: Any) -> None:
    """L_f and mu_f: f between two parabolas."""
    ax.plot(X, f(X), color=BLUE)
    for bend, colour, name in ((1.48, RED, "$L_f$"), (0.5, GREEN, r"$\mu_f$")):
        ax.plot(X, bend * (X - 1) ** 2 / 2, "--", color=colour, lw=1)
        at = 1 + (1.3 if bend > 1 else 1.45)
        ax.text(
            at, bend * (at - 1) ** 2 / 2, name, color=colour, ha="right" if bend > 1 else "left", va="bottom"
        )
    ax.set(ylim=(-0.1, 1.7), xlim=(-0.9, 2.9))


def moments(ax: Any) -> None:
    """L_D and mu_D: the mean squared scale 1/p of each coordinate, the largest and the smallest."""
    keeps = np.array([0.9, 0.6, 0.35, 0.5, 0.75])
    colours = [RED if p == keeps.min() else GREEN if p == keeps.max() else GREY for p in keeps]
    ax.bar(range(len(keeps)), 1 / keeps, color=colours, width=0.6)
    ax.text(2, 1 / 0.35, r"$L_{\mathcal{D}}$", color=RED, ha="center", va="bottom")
    ax.text(0, 1 / 0.9, r"$\mu_{\mathcal{D}}$", color=GREEN, ha="center", va="bottom")
    ax.axhline(1, color=GREY, lw=0.8, ls=":")
    ax.set(ylim=(0, 3.9))


def largest(ax: Any) -> None:
    """L_max: squared scales over many draws; the largest counts, however rare."""
    scales = np.random.default_rng(0).choice([0, 1.2, 1.7, 2.4], 40, p=[0.2, 0.45, 0.28, 0.07])
    top = scales.max() ** 2
    ax.plot(np.arange(40), scales**2, "o", ms=2.5, color=GREY)
    ax.plot(np.flatnonzero(scales**2 == top), scales[scales**2 == top] ** 2, "o", ms=4, color=RED)
    ax.axhline(top, color=RED, lw=0.8, ls="--")
    ax.text(39, top, r"$L_{\max}$", color=RED, ha="right", va="bottom")
    ax.set(ylim=(-0.5, 8))


def conditioning(ax: Any) -> None:
    """kappa_D: the ratio of the axes of E[S'S]."""
    angle = np.linspace(0, 2 * np.pi, 100)
    ax.plot(np.cos(angle), np.sin(angle), color=GREY, lw=1)
    ax.plot(2.2 * np.cos(angle), 1.1 * np.sin(angle), color=BLUE)
    ax.annotate("", (2.2, 0), (0, 0), arrowprops={"arrowstyle": "->", "color": RED})
    ax.annotate("", (0, 1.1), (0, 0), arrowprops={"arrowstyle": "->", "color": GREEN})
    ax.set(aspect="equal", xlim=(-2.5, 2.5), ylim=(-1.3, 1.3))


def gap(ax: Any) -> None:
    """The gap: how far the lowest mean lies above the lowest value."""
    ax.plot(X, f(X), color=GREY)
    ax.plot(X, f_D(X), color=BLUE)
    low = f_D(X).min()
    ax.annotate("", (1.75, low), (1.75, 0), arrowprops={"arrowstyle": "<->", "color": RED})
    ax.plot([0.2, 2], [low, low], ":", color=BLUE, lw=0.8)
    ax.plot([0.6, 2], [0, 0], ":", color=GREY, lw=0.8)
    ax.text(1.85, low / 2, r"$\Delta$", color=RED, va="center")
    ax.text(-0.75, f(-0.75), "$f$", color=GREY, ha="right")
    ax.text(1.7, f_D(1.7), r"$f_{\mathcal{D}}$", color=BLUE, va="bottom")
    ax.set(ylim=(-0.1, 1.8), xlim=(-1.1, 2.5))


def distance(ax: Any) -> None:
    """r_0: from the start to the solution."""
    grid = np.meshgrid(np.linspace(-2, 2, 80), np.linspace(-1.2, 1.2, 60))
    ax.contour(*grid, grid[0] ** 2 + 2.5 * grid[1] ** 2, levels=5, colors=[GREY], linewidths=0.6)
    ax.plot([0, -1.6], [0, 0.8], "-o", color=RED, ms=3)
    ax.text(-1.6, 0.85, "$x^0$", ha="right")
    ax.text(0.1, -0.1, r"$x_{\mathcal{D}}^*$", va="top")
    ax.text(-0.7, 0.5, "$r_0$", color=RED)
    ax.set(aspect="equal")


def height(ax: Any) -> None:
    """delta_0: from the value at the start down to the lowest."""
    ax.plot(X, f_D(X), color=BLUE)
    start, low = -0.7, f_D(X).min()
    ax.plot(start, f_D(start), "o", color=RED, ms=3)
    ax.annotate("", (start, low), (start, f_D(start)), arrowprops={"arrowstyle": "<->", "color": RED})
    ax.axhline(low, color=GREY, lw=0.8, ls=":")
    ax.text(start - 0.1, (low + f_D(start)) / 2, r"$\delta_0$", color=RED, ha="right", va="center")
    ax.text(start + 0.1, f_D(start), "$x^0$", va="bottom")
    ax.set(ylim=(0.2, 2), xlim=(-1.4, 1.8))


def steps(ax: Any) -> None:
    """gamma and T: so many steps of that length along the slope."""
    x = [-1.3]
    for _ in range(6):
        slope = (f(x[-1] + 1e-6) - f(x[-1])) / 1e-6
        x.append(x[-1] - 0.45 * slope)
    ax.plot(X, f(X), color=GREY)
    ax.plot(x, f(np.array(x)), "o-", color=BLUE, ms=3, lw=1)
    ax.text(x[0] + 0.1, f(x[0]), r"$\gamma$ long", color=RED, va="bottom")
    ax.text(x[-1], f(x[-1]) + 0.2, "$T$ steps", color=RED, ha="center")
    ax.set(ylim=(-0.1, 2.6), xlim=(-1.7, 2.4))


def batches(ax: Any) -> None:
    """zeta(N, b): the noise of a mean of b of N = 10 things; none if all are there."""
    counts = np.arange(1, 11)
    ax.plot(counts, [zeta(10, int(b)) for b in counts], "o-", color=BLUE, ms=3)
    ax.text(10, 0.06, "$b = N$", ha="right", va="bottom", color=RED)
    ax.text(1.3, 0.95, "$b = 1$", va="top", color=RED)
    ax.set(ylim=(-0.08, 1.1))


PICTURES: dict[str, Callable[[Any], None]] = {
    function.__name__: function
    for function in (curvature, moments, largest, conditioning, gap, distance, height, steps, batches)
}


def main() -> None:
    """Draw all of them."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with look(), rc_context({"font.size": 11, "mathtext.fontset": "stix", "svg.hashsalt": "mast"}):
        for name, draw in PICTURES.items():
            figure = Figure(figsize=(1.75, 1.0), layout="constrained")
            ax = figure.add_subplot()
            draw(ax)
            ax.axis("off")
            figure.savefig(IMAGES / f"constant-{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
