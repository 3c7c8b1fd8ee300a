"""The figure of the experiment `rand1`."""

from __future__ import annotations

from typing import Any

import numpy as np

from mast.arrays import Array
from mast.experiments import style
from mast.experiments.cells import Done

COLOUR = {1: style.BLUE, 10: style.GREEN, 20: style.ORANGE, 50: style.VERMILION}


def draw(curves: dict[str, dict[int, Done]], sweeps: dict[str, tuple[Array, Array]]) -> Any:
    """Three frames a data set: curves by steps and by sketched gradients, and where all step sizes end."""
    with style.look():
        figure, axes = style.frames(len(curves), 3, width=4.3, height=3.7)
        for row, name in zip(axes, curves, strict=True):
            for ax, by_gradients in ((row[0], False), (row[1], True)):
                _curves(ax, curves[name], by_gradients)
            row[0].set_ylabel(r"$(f_D(x) - f_D^{\inf})\,/\,(f_D(x^0) - f_D^{\inf})$")
            row[0].set_title(f"{name}: by steps")
            row[1].set_title("by sketched gradients")
            _sweep(row[2], curves[name][1], *sweeps[name])
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=6)
        return figure


def _curves(ax: Any, curves: dict[int, Done], by_gradients: bool) -> None:
    exact = curves[0]
    cost = exact["d"] if by_gradients else 1
    label = r"GD, $1/(L_f L_D)$"
    style.band(ax, exact["stops"] * cost + (not by_gradients), _relative(exact), style.BLACK, label)
    for m, colour in COLOUR.items():
        curve = curves[m]
        label = r"DSGD, $\gamma_0$" if m == 1 else rf"${m}\,\gamma_0$"
        style.band(ax, curve["stops"] + (not by_gradients), _relative(curve), colour, label)
        if np.isfinite(curve["bound"]).all():
            bound = curve["bound"] / curve["gaps"][0, 0]
            ax.plot(
                curve["stops"] + (not by_gradients), bound, color=style.GREY, linewidth=0.8, label="bound"
            )
    ax.set_yscale("log")
    if by_gradients:
        ax.set_xlabel("Sketched gradients computed")
        ax.ticklabel_format(axis="x", style="sci", scilimits=(0, 4), useMathText=True)
    else:
        ax.set_xscale("log")
        ax.set_xlabel("Steps + 1")
    ax.axhline(1, color=style.GREY, linewidth=0.6)


def _relative(curve: Done) -> Array:
    relative: Array = np.maximum(curve["gaps"] / curve["gaps"][:, :1], 1e-16)
    return relative


def _sweep(ax: Any, one: Done, multiples: Array, ends: Array) -> None:
    ax.plot(multiples, np.maximum(ends, 1e-16), "o-", color=style.PINK, markersize=3)
    for key, line in (("stable_anywhere", ":"), ("stable_at_solution", "--")):
        ax.axvline(one[key], color=style.BLACK, linestyle=line, linewidth=1.1)
        ax.annotate(
            f"{one[key]:.3g}",
            (one[key], 1),
            xycoords=("data", "axes fraction"),
            xytext=(-3 if line == ":" else 3, -2),
            textcoords="offset points",
            ha="right" if line == ":" else "left",
            va="top",
            fontsize=8,
        )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    ax.minorticks_off()
    ax.set_xlabel(r"Step size, in multiples of $\gamma_0$")
    ax.set_ylabel("Relative gap at the end")
    ax.set_title("predicted and observed limit")
