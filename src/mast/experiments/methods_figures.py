"""The figures of the experiment `methods`."""

from __future__ import annotations

from typing import Any

import numpy as np

from mast.arrays import Array
from mast.experiments import style
from mast.experiments.cells import Done

Runs = dict[tuple[str, str], list[Done]]

COLOURS = {
    "GD": style.BLACK,
    "DSGD": style.BLUE,
    "L-SVRDSG": style.GREEN,
    "L-SVRDSG, 10 γ": style.GREEN,
    "S-PAGE": style.ORANGE,
    "distributed, independent": style.PINK,
    "distributed, disjoint": style.VERMILION,
    "DSGD, one partition": style.BLUE,
    "DCGD": style.ORANGE,
    "GDCI": style.GREEN,
    "naive IST": style.VERMILION,
    "naive IST, γ/4": style.BLACK,
}
LINES = {"L-SVRDSG, 10 γ": "-.", "naive IST, γ/4": "--"}
LOWEST = 1e-16


def running_mean(d: Done) -> Array:
    """The mean of |grad f_D|² over all steps so far, from the measured ones (trapezes); at 0, the first."""
    step, values = d["step"].astype(float), d["gradient_sq"]
    area = np.concatenate([[0.0], np.cumsum(np.diff(step) * (values[1:] + values[:-1]) / 2)])
    mean: Array = np.where(step > 0, area / np.maximum(step, 1.0), values[0])
    return mean


def methods(runs: Runs, name: str) -> Any:
    """Losses; distances with bounds; S-PAGE's gradients with their bound."""
    with style.look():
        figure, axes = style.frames(1, 3, width=4.6, height=4.0)
        left, middle, right = axes[0]
        for run in ("GD", "DSGD", "L-SVRDSG", "L-SVRDSG, 10 γ", "S-PAGE"):
            _curve(left, runs[name, run], run, [d["gap"] / d["gap"][0] for d in runs[name, run]])
        left.set_title(f"{name}: loss")
        left.set_ylabel(r"$(f_D(x) - f_D^{\inf})\,/\,(f_D(x^0) - f_D^{\inf})$")
        for run in ("DSGD", "L-SVRDSG", "distributed, independent", "distributed, disjoint"):
            curve = runs[name, run]
            _curve(middle, curve, run, [d["distance_sq"] / d["distance_sq"][0] for d in curve])
            bound = np.mean([d["bound"] / d["distance_sq"][0] for d in curve], axis=0)
            middle.plot(curve[0]["step"], bound, "--", color=COLOURS[run], linewidth=0.9)
        middle.set_title("distance, and bounds")
        middle.set_ylabel(r"$|x - x_D^\star|^2\,/\,|x^0 - x_D^\star|^2$")
        page = runs[name, "S-PAGE"]
        _curve(right, page, "S-PAGE", [running_mean(d) for d in page])
        bound = np.mean([d["bound"] for d in page], axis=0)
        right.plot(
            page[0]["step"][1:], bound[1:], "--", color=COLOURS["S-PAGE"], linewidth=0.9, label="bound"
        )
        right.set_title("S-PAGE: mean squared gradient")
        right.set_ylabel(r"mean over the run of $|\nabla f_D(x)|^2$")
        middle.set_ylim(bottom=1e-6)  # room for the legend
        for ax, place in ((left, "lower right"), (middle, "lower right"), (right, "upper right")):
            ax.set_xlabel("Steps")
            ax.legend(loc=place)
        return figure


def baselines(runs: Runs, name: str) -> Any:
    """DSGD beside the baselines: what each does to f and to f_D."""
    with style.look():
        figure, axes = style.frames(1, 2, width=5.2, height=3.9)
        for ax, what, title in (
            (axes[0][0], "excess", "plain loss f"),
            (axes[0][1], "gap", r"MAST loss $f_D$"),
        ):
            for run in ("DSGD, one partition", "DCGD", "GDCI", "naive IST", "naive IST, γ/4"):
                label = "DSGD" if run.startswith("DSGD") else run
                _curve(ax, runs[name, run], run, [d[what] / d[what][0] for d in runs[name, run]], label)
            ax.set_title(f"{name}: {title}")
            ax.set_xlabel("Steps")
        axes[0][0].set_ylabel(r"$(f(x) - f^\star)\,/\,(f(x^0) - f^\star)$")
        axes[0][1].set_ylabel(r"$(f_D(x) - f_D^{\inf})\,/\,(f_D(x^0) - f_D^{\inf})$")
        style.legend_below(figure, axes[0][0], 5)
        return figure


def _curve(ax: Any, curve: list[Done], run: str, values: list[Array], label: str | None = None) -> None:
    rows = np.maximum(np.array(values), LOWEST)
    style.band(ax, curve[0]["step"], rows, COLOURS[run], label or run, LINES.get(run, "-"))
    ax.set_yscale("log")
