"""Figures of accuracy against density."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

from mast.experiments import style
from mast.experiments.density.tables import LABELS, ONLY_LINEAR

TICKS = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
LOOKS = {  # colour, line, marker
    "scratch": (style.BLACK, "-", "s"),
    "plain_magnitude": (style.GREEN, "-", "^"),
    "plain_random": (style.ERM, "-", "o"),
    "dropout_random": (style.ORANGE, "-", "o"),
    "fixed_random": (style.SKY, "-", "o"),
    "sparser_random": (style.SKY, "--", "v"),
    "mixture_random": (style.MAST, "-", "o"),
    "matched": (style.MAST, "-", "o"),
    "one_model": (style.SKY, "-", "o"),
    "nested": (style.PINK, "--", "D"),
    "dropout_magnitude": (style.ORANGE, "-", "^"),
    "fixed_magnitude": (style.SKY, "-", "^"),
    "sparser_magnitude": (style.SKY, "--", "^"),
    "mixture_magnitude": (style.MAST, "-", "^"),
}
AT_RANDOM = (
    "scratch", "plain_magnitude", "nested", "mixture_random", "sparser_random", "fixed_random",
    "dropout_random", "plain_random",
)  # fmt: skip
BY_MAGNITUDE = (
    "plain_magnitude", "dropout_magnitude", "fixed_magnitude", "sparser_magnitude", "mixture_magnitude"
)  # fmt: skip
IN_LINEAR = ("plain_magnitude", "matched", "one_model", "plain_random")
NAMES = {
    "digits": "digits, MLP",
    "features": "CIFAR-10 features, MLP",
    "images": "CIFAR-10 images, CNN",
}
CHANGES = {
    "magnitude": ("largest changes of full fine-tuning", style.GREEN, "^"),
    "random": ("random changes of full fine-tuning", style.ERM, "o"),
    "chosen": ("weights chosen at random, then trained", style.BLACK, "s"),
    "mast": ("MAST, at random", style.MAST, "o"),
}


def _datasets(table: Any) -> dict[str, Any]:
    """The rows of each data set."""
    return {name: table[table["dataset"] == name] for name in dict.fromkeys(table["dataset"])}


@style.drawing
def curves(table: Any, structure: str) -> Any:
    """Above the mean with quartiles over draws, below the worst draw; one column per data set."""
    parts = _datasets(table[table["structure"] == structure])
    figure, axes = style.frames(2, len(parts), width=_width(parts, 3.9), height=2.9, sharex=True)
    for column, (name, part) in zip(axes.T, parts.items(), strict=True):
        for contender in AT_RANDOM:
            _line(column[0], part, contender, "mean", band=True)
            _line(column[1], part, contender, "worst", band=False)
        column[0].set_title(NAMES.get(name, name))
        _density_axis(column[1])
    axes[0][0].set_ylabel("Test accuracy, mean of draws")
    axes[1][0].set_ylabel("Test accuracy, worst draw")
    style.legend_below(figure, axes[0][0], columns=min(1 + len(parts), 4))
    return figure


@style.drawing
def pruned(table: Any) -> Any:
    """Magnitude pruning of differently trained networks; one row per structure."""
    table = table[table["contender"].isin(BY_MAGNITUDE) & (table["structure"] != "linear")]
    parts, structures = _datasets(table), list(dict.fromkeys(table["structure"]))
    shape = len(structures), len(parts)
    figure, axes = style.frames(*shape, width=_width(parts, 3.9), height=2.7, sharex=True)
    for column, (name, part) in zip(axes.T, parts.items(), strict=True):
        for ax, structure in zip(column, structures, strict=True):
            for contender in BY_MAGNITUDE:
                _line(ax, part[part["structure"] == structure], contender, "mean", band=False)
        column[0].set_title(NAMES.get(name, name))
        _density_axis(column[-1])
    for row, structure in zip(axes, structures, strict=True):
        row[0].set_ylabel(f"Accuracy, {structure} pruned")
    style.legend_below(figure, axes[0][0], columns=2)
    return figure


@style.drawing
def linear(table: Any) -> Any:
    """The linear case."""
    parts = _datasets(table[table["structure"] == "linear"])
    figure, axes = style.frames(1, len(parts), width=5.2, height=3.6)
    for ax, (name, part) in zip(axes[0], parts.items(), strict=True):
        for contender in IN_LINEAR:
            _line(ax, part, contender, "mean", band=True)
        ax.set_title(f"{name}, logistic regression")
        _density_axis(ax)
    axes[0][0].set_ylabel("Test accuracy, mean of draws")
    style.legend_below(figure, axes[0][0], columns=2)
    return figure


@style.drawing
def areas(summary: Any) -> Any:
    """The area under each curve: a dot for the mean over seeds, a line from the lowest to the highest."""
    summary = summary[summary["structure"] != "linear"]
    structures, names = (list(dict.fromkeys(summary[key])) for key in ("structure", "dataset"))
    shown = [c for c in LABELS if c in set(summary["contender"]) and c not in ONLY_LINEAR]
    width = 2.6 + 2.6 / len(names)
    figure, axes = style.frames(
        len(structures), len(names), width=width, height=3.0, sharey=True, sharex="col"
    )
    for (structure, name), part in summary.groupby(["structure", "dataset"]):
        ax = axes[structures.index(structure)][names.index(name)]
        for _, row in part[part["contender"].isin(shown)].iterrows():
            place = shown.index(row["contender"])
            colour, _, marker = LOOKS.get(row["contender"], (style.GREY, "-", "o"))
            ax.plot([row["lowest_seed"], row["highest_seed"]], [place, place], color=colour)
            ax.plot(row["area"], place, marker, color=colour, markersize=5)
        ax.set_yticks(range(len(shown)), [LABELS[c] for c in shown])
        ax.set_ylim(len(shown) - 0.5, -0.5)
        ax.set_title(f"{name}, {structure}")
    for ax in axes[-1]:
        ax.set_xlabel("Area under the curve")
    return figure


@style.drawing
def changes(table: Any) -> Any:
    """Fine-tuning: accuracy against the share of the change that is kept."""
    parts = _datasets(table)
    figure, axes = style.frames(1, len(parts), width=_width(parts, 4.4), height=3.4)
    for ax, (name, part) in zip(axes[0], parts.items(), strict=True):
        for contender, line in (("full", "--"), ("before", ":")):
            level = part[part["contender"] == contender]["mean"].mean()
            label = {"full": "full fine-tuning", "before": "before fine-tuning"}[contender]
            ax.axhline(level, color=style.GREY, linestyle=line, linewidth=1.1, label=label)
        for contender, (label, colour, marker) in CHANGES.items():
            seeds = part[part["contender"] == contender].groupby("density")["mean"]
            mean = seeds.mean()
            ax.plot(mean.index, mean, f"{marker}-", color=colour, label=label, markersize=4)
            ax.fill_between(mean.index, seeds.min(), seeds.max(), color=colour, alpha=0.15, linewidth=0)
        shares = sorted(part[part["contender"] == "mast"]["density"].unique())
        _density_axis(ax, shares)
        ax.set(xlabel="Share of the weights that change", title=NAMES.get(name, name))
    axes[0][0].set_ylabel("Test accuracy, all classes")
    style.legend_below(figure, axes[0][0], columns=2)
    return figure


def _line(ax: Any, part: Any, contender: str, statistic: str, band: bool) -> None:
    """The mean over seeds; the band is that of the quartiles over draws, averaged over seeds."""
    rows = part[part["contender"] == contender]
    if rows.empty:
        return
    colour, line, marker = LOOKS[contender]
    grouped = rows.groupby("density")
    mean = grouped[statistic].mean()
    ax.plot(mean.index, mean, line, marker=marker, color=colour, label=LABELS[contender], markersize=3.5)
    if band and int(rows["draws"].max()) > 1:
        low, high = grouped["lower_quartile"].mean(), grouped["upper_quartile"].mean()
        ax.fill_between(mean.index, low, high, color=colour, alpha=0.18, linewidth=0)


def _width(names: Sized, usual: float) -> float:
    """Of a frame: a single one has to be as wide as the legend."""
    return 5.6 if len(names) == 1 else usual


def _density_axis(ax: Any, ticks: Sequence[float] = TICKS) -> None:
    ax.set_xscale("log")
    ax.set_xticks(ticks, [f"{100 * p:g} %" for p in ticks])
    ax.minorticks_off()
    ax.set_xlabel("Density (share kept)")
