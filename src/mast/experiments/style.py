"""How our figures look: one frame, one set of colours, boxes and swarms."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import numpy as np

from mast.arrays import Array
from mast.plots import COLOURS, SETTINGS

P = ParamSpec("P")
PALETTE = COLOURS
BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, BLACK, YELLOW = PALETTE
ERM, MAST = VERMILION, BLUE
GREY = "#666666"

RELATIVE_GAP = r"$(f_D(x) - f_D^{\inf})\,/\,(f_D(x^0) - f_D^{\inf})$"
RELATIVE_DISTANCE = r"$|x - x_D^\star|^2\,/\,|x^0 - x_D^\star|^2$"


def look() -> Any:
    """A block in which figures look like ours."""
    import matplotlib

    return matplotlib.rc_context(SETTINGS)


def drawing(draw: Callable[P, Any]) -> Callable[P, Any]:
    """A function that draws a figure, with our settings."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Any:
        with look():
            return draw(*args, **kwargs)

    return drawn


def frames(
    rows: int, columns: int, width: float = 3.6, height: float = 3.2, **options: Any
) -> tuple[Any, Any]:
    """A figure that no window belongs to, and a grid of axes in it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, axes


def settle(figure: Any) -> None:
    """Lay the figure out now, once, and not again for each file that it is saved to."""
    with look():
        figure.draw_without_rendering()
        figure.set_layout_engine(None)  # even with "none", saving begins with a drawing that nobody sees


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


def swarm_offsets(values: Array, diameter: float, widest: float) -> Array:
    """Where to put each dot beside the others of about the same value: no two overlap, if there is room.

    `diameter` is that of a dot in units of the values, the offsets are in diameters.

    >>> swarm_offsets(np.array([0.0, 0.0, 5.0]), diameter=1.0, widest=3.0).tolist()
    [0.0, 1.0, 0.0]
    """
    offsets = np.zeros(values.size)
    order = np.argsort(values, kind="stable")
    for rank, i in enumerate(order):
        near = [j for j in order[max(0, rank - 60) : rank] if values[i] - values[j] < diameter]
        offsets[i] = _free_place(values[i], values[near] / 1.0, offsets[near], diameter, widest)
    return offsets


def _free_place(value: float, others: Array, taken: Array, diameter: float, widest: float) -> float:
    """The place nearest to the middle that is a diameter away from all dots placed so far."""
    if not others.size:
        return 0.0
    reach = np.sqrt(np.maximum(1 - ((value - others) / diameter) ** 2, 0.0))
    candidates = np.concatenate([[0.0], taken + reach, taken - reach])
    for place in candidates[np.argsort(np.abs(candidates), kind="stable")]:
        if abs(place) > widest:
            break
        if np.all((place - taken) ** 2 + ((value - others) / diameter) ** 2 >= 1 - 1e-9):
            return float(place)
    return float(widest * (1 if others.size % 2 else -1))


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
        offsets = swarm_offsets(values, dot_y, half_width / dot_x)
        axes.plot(
            position + offsets * dot_x,
            values,
            "o",
            color=colour,
            markersize=size,
            markeredgewidth=0,
            alpha=0.9,
        )
