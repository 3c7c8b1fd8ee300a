"""Whether training for submodels is worth it: every situation of a user, with MAST and its best rivals.

Every contender is the same network with the same training loop and the same number of steps; they differ in
what is random while they are trained and in how they are cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from mast.experiments import style
from mast.experiments.experiment import Experiment, Figure, Findings, Request, Results
from mast.support.cells import Cell
from studies.density import linear, situations
from studies.density.cells import density_cells, effort
from studies.density.contenders import SEEN
from studies.density.data import FILES, Labelled, find
from studies.density.situations import LABELS, SITUATIONS


class Density(Experiment):
    """Which situations MAST is worth it in."""

    name = "density"
    title = "Accuracy against density"
    version = 5  # in 4, random units had a draw for each row in one pass

    find = staticmethod(find)

    def cells(self, request: Request) -> list[Cell]:
        """Networks, and the linear case."""
        return [*density_cells(self, request), *linear.linear_cells(self, request)]

    def findings(self, request: Request, results: Results) -> Findings:
        """Figures, numbers and claims."""
        networks = [d for d in request.datasets if isinstance(d, Labelled)]
        curves = situations.curve_table(results)
        frames = {"density_curves": curves}
        decided = list(linear.linear_claims(curves))
        if networks:
            by_seed = situations.situation_table(results)
            frames["density_situations_by_seed"] = by_seed
            frames["density_situations"] = situations.situation_summary(by_seed)
            frames["density_settings"] = situations.setting_table(results)
            decided = [*situations.situation_claims(by_seed), *decided]
        return Findings(
            lead="Which submodels will run, and who chooses them? In each situation one network is trained "
            "with MAST for just that, and compared with the best that is known for it: plain training with "
            "tuned weight decay, dropout, magnitude pruning, or a network of that size trained alone.",
            figures=_figures(frames),
            tables=frames,
            claims=decided,
            choices=choices(request, networks),
        )


def _figures(frames: dict[str, Any]) -> list[Figure]:
    chosen = set(frames["density_curves"]["chosen_for"])
    shown = []
    if "density_situations" in frames:
        shown.append(
            Figure(
                "density_situations",
                "Every situation, MAST and its rivals",
                "Dots are means over seeds, lines go from the lowest to the highest seed.",
                partial(draw_situations, frames["density_situations"]),
            )
        )
    for structure, words in (("weights", "single weights"), ("units", "whole hidden units")):
        if f"{structure} 0.2" in chosen:
            shown.append(
                Figure(
                    f"density_{structure}",
                    f"Accuracy against density, {words}",
                    "Networks whose settings were chosen for 20 %, cut at random to every density. Bands are "
                    "the quartiles over submodels; the lower row is the worst submodel.",
                    partial(draw_curves, frames["density_curves"], structure),
                )
            )
    if "linear" in chosen:
        shown.append(
            Figure(
                "density_linear",
                "The linear case on the same axes",
                "Exact optima, cut to the blocks of random partitions. Bands are the quartiles over blocks.",
                partial(draw_linear, frames["density_curves"]),
            )
        )
    return shown


def choices(request: Request, networks: Sequence[Labelled]) -> list[str]:
    """What a reader has to know: how contenders were trained, tuned and cut."""
    sentences = []
    if networks:
        absent = [name for name in FILES if name not in {d.name for d in networks}]
        epochs = ", ".join(f"{effort(request, d.name)['epochs']} on {d.name}" for d in networks)
        seeds = len(effort(request, networks[0].name)["seeds"])
        sentences += [
            f"Left out in this run: CIFAR-10 {' and '.join(absent)}. Give the folder that holds cifar10/ by "
            "--data-dir; images are run by --dataset images."
            if absent
            else "",
            "One training loop for all: AdamW, gradients clipped to norm 1, a cosine schedule, He's start, "
            f"the same batches; epochs: {epochs}. MAST's fresh starts are scaled by mast.nn.scale_start.",
            "Every setting (learning rate, weight decay, keep) is searched for on a ladder that goes on as "
            "long as its last rung is the best, weight decay first from 0 to 100; with one seed that serves "
            "for nothing else (on digits five for lists, sizes, cuts and networks trained alone, whose "
            "scores are those of few submodels), on validation rows, scored as the network is used. Only the "
            "ends of a ladder that mean "
            "something stay: no decay, and to keep everything. All scores are in density_settings.csv.",
            f"The chosen setting is trained anew with {seeds} other seeds and judged on test rows. The split "
            "of the rows and the seeds are new: earlier runs, which shaped this design, had others.",
            "Random cuts of weights are Bernoulli draws; of units and packets, an exact share of each hidden "
            "layer, and a cut is a smaller dense network. A density of units is not one of weights: between "
            "two hidden layers it is squared.",
            "“Trained alone” is one fixed random mask, or one smaller network, with all the steps for "
            "itself: a list of 20 masks shares the same number of steps.",
            "Lists of weights and deltas, and what they are compared with, have four times as many steps, "
            "because members of a list share them. Where a random fifth of the weights is left, all "
            "contenders are trained so long once more.",
            "Random weights and units: how many draws a batch has (one for all rows, or one for each of 4, "
            "16 or 64 parts) is a setting of MAST and of noise, searched for like the others.",
            "TopShare chooses the largest weights again 40 times, ever fewer until three quarters of "
            "the training; magnitude pruning cuts once, in the middle. Both have the same number of steps.",
            "Random units and packets, lists of units and the start are studied on digits alone; images "
            "have no deltas. On "
            "text, a transformer of a million weights says which character follows: lists of weights, sizes "
            "and cuts on the source of Python's library (--dataset code), deltas from there to Python's "
            "manual (--dataset manual). Documents that are tested on are not trained on.",
            "Fine-tuning adapts a network that knows five classes to all ten (on text: source code to the "
            "manual); biases change freely.",
            f"BatchNorm statistics are taken anew from about {SEEN} training rows for every submodel.",
        ]
    if len(request.datasets) > len(networks):
        sentences.append(
            "Linear: condition number 100, one split, v = 0. MAST with a fixed partition trains each block "
            f"by itself; the other MAST line is one model, trained for {linear.ONE} blocks, cut at all "
            "densities."
        )
    return [sentence for sentence in sentences if sentence]


# ---- figures --------------------------------------------------------------------------------------

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
    "digit-images": "digits, CNN",
    "features": "CIFAR-10 features, MLP",
    "images": "CIFAR-10 images, CNN",
    "code": "source code, transformer",
    "manual": "from code to its manual, transformer",
}


def _datasets(table: Any) -> dict[str, Any]:
    """The rows of each data set."""
    return {name: table[table["dataset"] == name] for name in dict.fromkeys(table["dataset"])}


def draw_situations(summary: Any) -> Any:
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


def draw_curves(table: Any, structure: str) -> Any:
    """Accuracy at every density of the networks that were chosen for 20 %; below, the worst submodel."""
    parts = _datasets(table[table["chosen_for"] == f"{structure} 0.2"])
    width = 7.2 if len(parts) == 1 else 4.2  # a single frame has to be as wide as the legend
    figure, axes = style.frames(2, len(parts), width=width, height=2.9, sharex=True)
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


def draw_linear(table: Any) -> Any:
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


def _density_axis(ax: Any, ticks: Sequence[float] = TICKS) -> None:
    ax.set_xscale("log")
    ax.set_xticks(ticks, [f"{100 * p:g} %" for p in ticks])
    ax.minorticks_off()
    ax.set_xlabel("Density (share kept)")
