"""How our figures look: one frame, one set of colours, boxes and swarms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mast.plots import COLOURS
from mast.support.checks import Array

PALETTE = COLOURS
BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, BLACK, YELLOW = PALETTE
ERM, MAST = VERMILION, BLUE
GREY = "#666666"

RELATIVE_GAP = r"$(f_D(x) - f_D^{\inf})\,/\,(f_D(x^0) - f_D^{\inf})$"
RELATIVE_DISTANCE = r"$|x - x_D^\star|^2\,/\,|x^0 - x_D^\star|^2$"


def frames(
    rows: int, columns: int, width: float = 3.6, height: float = 3.2, **options: Any
) -> tuple[Any, Any]:
    """A figure that no window belongs to, and a grid of axes in it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, axes


def legend_below(figure: Any, axes: Any, columns: int) -> None:
    """One legend for all frames, under them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def band(
    axes: Any, x: Array, curves: Array, colour: str, label: str, line: str = "-", **options: Any
) -> None:
    """The median curve over seeds (rows) and the range of all seeds around it."""
    axes.plot(x, np.median(curves, axis=0), line, color=colour, label=label, **options)
    if len(curves) > 1:
        low, high = curves.min(axis=0), curves.max(axis=0)
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def quartiles(
    axes: Any, x: Array, values: Sequence[Array], colour: str, label: str, line: str = "-", **options: Any
) -> None:
    """The median of the values at each x, and the quartiles around it."""
    low, middle, high = np.array([np.quantile(v, [0.25, 0.5, 0.75]) for v in values]).T
    axes.plot(x, middle, line, color=colour, label=label, **options)
    axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def box(axes: Any, values: Array, position: float, width: float, colour: str) -> None:
    """A box plot with its median in white: quartiles, and whiskers at 1.5 times their distance."""
    from matplotlib.patheffects import Normal, Stroke

    # a rim keeps the white line visible where the box has no height
    rim = [Stroke(linewidth=3.2, foreground=colour), Normal()]
    axes.boxplot(
        [values],
        positions=[position],
        widths=width,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": colour, "edgecolor": colour, "linewidth": 0.8},
        whiskerprops={"color": colour, "linewidth": 1.1},
        capprops={"color": colour, "linewidth": 1.1},
        medianprops={"color": "white", "linewidth": 2.0, "path_effects": rim},
        flierprops={"marker": "d", "markersize": 2.6, "markerfacecolor": colour, "markeredgewidth": 0},
    )


def swarm_places(values: Array, diameter: float, widest: float) -> tuple[Array, Array]:
    """Where each dot goes: dots of about the same value stand side by side, at one height.

    `diameter` is that of a dot, in units of the values. Offsets are in diameters, and at most `widest`.

    >>> offsets, heights = swarm_places(np.array([0.1, -0.1, 5.0]), diameter=1.0, widest=3.0)
    >>> offsets.tolist(), heights.tolist()
    ([-0.5, 0.5, 0.0], [0.0, 0.0, 5.0])
    """
    levels, level_of = np.unique(np.round(values / diameter), return_inverse=True)
    offsets = np.empty(values.size)
    for level in range(levels.size):
        here = np.flatnonzero(level_of == level)
        row = np.arange(here.size) - (here.size - 1) / 2
        offsets[here] = row * min(1.0, widest / max(row[-1], 1e-9))
    return offsets, levels[level_of] * diameter


def swarm(
    axes: Any, groups: Sequence[tuple[float, Array, str]], half_width: float, size: float = 2.6
) -> None:
    """Swarms of dots: (position, values, colour) each. The frame's limits must be set before."""
    figure = axes.figure
    figure.draw_without_rendering()  # lays it out: points on paper can be turned into the frame's units
    box_ = axes.get_window_extent()
    points = 72 / figure.dpi
    y_low, y_high = axes.get_ylim()
    x_low, x_high = axes.get_xlim()
    dot_y = size * 1.05 / (box_.height * points) * (y_high - y_low)
    dot_x = size * 1.05 / (box_.width * points) * (x_high - x_low)
    for position, values, colour in groups:
        offsets, heights = swarm_places(values, dot_y, half_width / dot_x)
        look = {"color": colour, "markersize": size, "markeredgewidth": 0, "alpha": 0.9}
        axes.plot(position + offsets * dot_x, heights, "o", **look)
