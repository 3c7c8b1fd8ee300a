"""Accuracy against density: one network cut to 100 % ... 5 %, trained with MAST and in other ways.

Every contender is the same network with the same training loop; they differ in what is random while they
are trained and in how they are cut. The ceiling is a network trained at each density by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mast.cells import Cell
from mast.experiments.datasets import Dataset
from mast.experiments.density import curves, figures, finetuning, linear, tables
from mast.experiments.density.claims import claims
from mast.experiments.density.curves import CALIBRATED, KEEP, MIXED, RATES, SPARSER
from mast.experiments.density.data import FILES, Labelled, find
from mast.experiments.experiment import Experiment, Figure, Findings, Request, Results


class Density(Experiment):
    """Whether one network that is trained once and run sparse is worth it."""

    name = "density"
    title = "Accuracy against density"
    version = 2

    def find(self, effort: str, dataset: str | None, data_dir: Path | None) -> tuple[Dataset, ...]:
        """Digits, CIFAR-10 where it is there, and a linear problem."""
        return find(effort, dataset, data_dir)

    def cells(self, request: Request) -> list[Cell]:
        """Curves of networks, fine-tuning, and the linear case."""
        return [cell for part in (curves, finetuning, linear) for cell in part.cells(self, request)]

    def findings(self, request: Request, results: Results) -> Findings:
        """Figures, numbers and claims."""
        by_density = tables.curve_table(results)
        areas = tables.area_table(by_density)
        changed = tables.change_table(results)
        summary = tables.summary(areas)
        frames = {
            "density_curves": by_density,
            "density_areas": summary,
            "density_areas_by_seed": areas,
            "density_rates": tables.rate_table(results),
            "density_finetuning": changed,
        }
        networks = [d for d in request.datasets if isinstance(d, Labelled)]
        return Findings(
            lead="Train once, run sparse: is it worth it? One network is trained and then cut to a share of "
            "its weights, or of the units of each hidden layer. Plain training, dropout and MAST are "
            "compared on one axis with magnitude pruning and with networks that were trained at each "
            "density, which is the ceiling.",
            figures=_figures(by_density, summary, changed),
            tables={name: frame for name, frame in frames.items() if len(frame)},
            claims=list(claims(by_density, areas, changed)),
            choices=choices(request, networks, by_density),
        )


def _figures(by_density: Any, summary: Any, changed: Any) -> list[Figure]:
    structures = set(by_density["structure"])
    shown = [
        Figure(
            f"density_{structure}",
            f"Accuracy against density, {words}",
            "Mean over seeds. Bands are the quartiles over random draws; the lower row is the worst "
            "draw. Squares are networks trained at that density alone.",
            partial(figures.curves, by_density, structure),
        )
        for structure, words in (("weights", "single weights"), ("neurons", "whole hidden units"))
        if structure in structures
    ]
    if shown:
        shown += [
            Figure(
                "density_areas",
                "Area under each curve",
                "The mean accuracy over the logarithm of the density, from 5 % to 100 %. Dots are means over "
                "seeds, lines go from the lowest to the highest seed.",
                partial(figures.areas, summary),
            ),
            Figure(
                "density_pruning",
                "Magnitude pruning of differently trained networks",
                "Above single weights, below whole units. Mean over seeds.",
                partial(figures.pruned, by_density),
            ),
        ]
    if len(changed):
        shown.append(
            Figure(
                "density_finetuning",
                "Sparse changes to a pretrained network",
                "A network that knows half of the classes is adapted to all of them, by changing a share of "
                "its weights. Bands are the range over seeds.",
                partial(figures.changes, changed),
            )
        )
    if "linear" in structures:
        shown.append(
            Figure(
                "density_linear",
                "The linear case on the same axes",
                "Exact optima, cut to the blocks of random partitions. Bands are the quartiles over blocks.",
                partial(figures.linear, by_density),
            )
        )
    return shown


def choices(request: Request, networks: Sequence[Labelled], by_density: Any) -> list[str]:
    """What a reader has to know: how contenders were trained, tuned and cut."""
    absent = [name for name in FILES if name not in {d.name for d in networks}]
    sentences = []
    if absent:
        sentences.append(
            f"Left out in this run: CIFAR-10 {' and '.join(absent)}. Give the folder that holds cifar10/ "
            "by --data-dir."
        )
    if networks:
        sentences += [
            "One training loop for all: Adam, gradients clipped to norm 1, a cosine schedule; the same "
            "number of epochs, the same batches and the same starts.",
            _tuning(networks),
            "Random cuts of weights are Bernoulli draws; of units, an exact share of each hidden layer "
            "(Rand-K), and a cut is a smaller dense network. A density of units is not one of weights: "
            "between two hidden layers it is squared.",
            f"MAST with one keep is trained at {100 * KEEP:g} % and, as a network of its own, at "
            f"{100 * SPARSER:g} %. The mixture trains at {', '.join(f'{100 * p:g} %' for p in MIXED)}, "
            f"equally often, and dropout drops {100 * (1 - KEEP):g} % of hidden activations. Nested subsets "
            "use the densities of the mixture in one fixed order of weights or units, so there is one "
            "submodel per density, and "
            "between those densities it was never trained.",
            "Magnitude pruning of weights is within each layer or over all of them, whichever is better on "
            "validation rows; units are ranked by the product of the norms of their incoming and outgoing "
            "weights. Nothing is rescaled.",
            f"BatchNorm statistics are taken anew from {CALIBRATED} training rows for every network that is "
            "scored.",
            _unscaled(by_density),
        ]
        if request.effort != "full" and any(d.name in finetuning.LONG for d in networks):
            sentences.append("Fine-tuning on images is part of a full run only.")
    if len(request.datasets) > len(networks):
        sentences.append(
            "Linear: condition number 100, one split, v = 0. MAST with a fixed partition trains each block "
            "by itself, so “MAST at each density” and “trained at each density” are the same models; the "
            f"other MAST line is one model, trained for {linear.ONE} blocks, cut at all densities."
        )
    return sentences


def _tuning(networks: Sequence[Labelled]) -> str:
    grids = [f"{d.name} {', '.join(f'{rate:g}' for rate in RATES[d.name])}" for d in networks]
    grids.append(f"fine-tuning {', '.join(f'{rate:g}' for rate in finetuning.RATES)}")
    return (
        f"Learning rates: every contender tries the same grid ({'; '.join(grids)}) with the first seed and "
        "keeps the one with the best validation score in the way it is used (the area under its curve; "
        "accuracy for the ceiling). Test rows are not looked at. All scores are in density_rates.csv."
    )


def _unscaled(by_density: Any) -> str:
    means = by_density.groupby(["dataset", "structure", "contender", "density"])["mean"].mean()
    parts = []
    for dataset, structure in dict.fromkeys(zip(by_density["dataset"], by_density["structure"], strict=True)):
        if structure != "linear":
            scaled, bare = (means[dataset, structure, f"plain_{way}", 0.5] for way in ("random", "unscaled"))
            parts.append(f"{dataset}, {structure} {bare:.3f} ({scaled:.3f} with)")
    return "A plain network cut at random to 50 % without the scale 1/keep: " + "; ".join(parts) + "."
