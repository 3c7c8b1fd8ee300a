"""Figures of the study."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

from mast.experiments import style
from mast.experiments.density.situations import LABELS, SITUATIONS

TICKS = (0.1, 0.2, 0.3, 0.5, 1.0)
LOOKS = {  # colour, marker
    "plain": (style.ERM, "o"),
    "dropout": (style.ORANGE, "o"),
    "noise": (style.ORANGE, "^"),
    "rolling": (style.PINK, "D"),
    "usual start": (style.SKY, "v"),
    "alone": (style.BLACK, "s"),
    "pruned once": (style.GREEN, "^"),
    "full": (style.BLACK, "s"),
    "one delta": (style.GREEN, "s"),
}
OURS = (style.MAST, "D")
LINEAR = {
    "magnitude": ("plain, by magnitude", style.GREEN),
    "matched": ("MAST at each density", style.MAST),
    "one_model": ("MAST for 25 %", style.SKY),
    "plain": ("plain", style.ERM),
}
NAMES = {
    "digits": "digits, MLP",
    "features": "CIFAR-10 features, MLP",
    "images": "CIFAR-10 images, CNN",
    "code": "source code, transformer",
    "manual": "from code to its manual, transformer",
}


def _datasets(table: Any) -> dict[str, Any]:
    """The rows of each data set."""
    return {name: table[table["dataset"] == name] for name in dict.fromkeys(table["dataset"])}


def situations(summary: Any) -> Any:
    """A line per situation: a dot for each contender, from the lowest to the highest seed."""
    parts = _datasets(summary)
    shown = [s for s in SITUATIONS if s in set(summary["situation"])]
    width, height = 3.4 + 4.6 / len(parts), 0.36 * len(shown) + 1.4  # names of situations, and a legend
    figure, axes = style.frames(1, len(parts), width=width, height=height, sharey=True)
    for ax, (name, part) in zip(axes[0], parts.items(), strict=True):
        for _, row in part.iterrows():
            place = shown.index(row["situation"])
            colour, marker = LOOKS.get(row["contender"], OURS)
            ax.plot([row["lowest_seed"], row["highest_seed"]], [place, place], color=colour, linewidth=1)
            ax.plot(row["accuracy"], place, marker, color=colour, markersize=5)
        ax.set_yticks(range(len(shown)), [SITUATIONS[s] for s in shown])
        ax.set_ylim(len(shown) - 0.5, -0.5)
        ax.set(title=NAMES.get(name, name), xlabel="Test accuracy")
    for contender, (colour, marker) in LOOKS.items():
        axes[0][0].plot([], [], marker, color=colour, label=LABELS[contender])
    axes[0][0].plot([], [], OURS[1], color=OURS[0], label="MAST, for this situation")
    style.legend_below(figure, axes[0][0], columns=2)
    return figure


def curves(table: Any, structure: str) -> Any:
    """Accuracy at every density of the networks that were chosen for 20 %; below, the worst submodel."""
    parts = _datasets(table[table["chosen_for"] == f"{structure} 0.2"])
    figure, axes = style.frames(2, len(parts), width=_width(parts, 4.2), height=2.9, sharex=True)
    for column, (name, part) in zip(axes.T, parts.items(), strict=True):
        for contender in ("mast", "dropout", "plain"):
            colour, marker = LOOKS.get(contender, OURS)
            rows = part[part["contender"] == contender]
            _line(column[0], rows, "mean", LABELS[contender], colour, marker)
            _line(column[1], rows, "worst", LABELS[contender], colour, marker)
        column[0].set_title(NAMES.get(name, name))
        _density_axis(column[1])
    axes[0][0].set_ylabel("Test accuracy, mean")
    axes[1][0].set_ylabel("Test accuracy, worst")
    style.legend_below(figure, axes[0][0], columns=3)
    return figure


def linear(table: Any) -> Any:
    """The linear case."""
    parts = _datasets(table[table["chosen_for"] == "linear"])
    figure, axes = style.frames(1, len(parts), width=5.2, height=3.6)
    for ax, (name, part) in zip(axes[0], parts.items(), strict=True):
        for contender, (label, colour) in LINEAR.items():
            _line(ax, part[part["contender"] == contender], "mean", label, colour, "o")
        ax.set_title(f"{name}, logistic regression")
        _density_axis(ax, (0.05, *TICKS))
    axes[0][0].set_ylabel("Test accuracy, mean of blocks")
    style.legend_below(figure, axes[0][0], columns=2)
    return figure


def _line(ax: Any, rows: Any, statistic: str, label: str, colour: str, marker: str) -> None:
    """The mean over seeds; with the mean, a band of the quartiles over submodels, averaged over seeds."""
    grouped = rows.groupby("density")
    mean = grouped[statistic].mean()
    ax.plot(mean.index, mean, "-", marker=marker, color=colour, label=label, markersize=3.5)
    if statistic == "mean":
        low, high = grouped["lower_quartile"].mean(), grouped["upper_quartile"].mean()
        ax.fill_between(mean.index, low, high, color=colour, alpha=0.18, linewidth=0)


def _width(names: Sized, usual: float) -> float:
    """Of a frame: a single one has to be as wide as the legend."""
    return 7.2 if len(names) == 1 else usual


def _density_axis(ax: Any, ticks: Sequence[float] = TICKS) -> None:
    ax.set_xscale("log")
    ax.set_xticks(ticks, [f"{100 * p:g} %" for p in ticks])
    ax.minorticks_off()
    ax.set_xlabel("Density (share kept)")
