"""What a reader of the accuracy-density report has to know: how contenders were trained, tuned and cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mast.experiments import density_finetuning, density_linear
from mast.experiments.density_cells import CALIBRATED, KEEP, MIXED, RATES, SPARSER
from mast.experiments.density_data import FILES, Labelled
from mast.experiments.findings import Plan


def choices(plan: Plan, networks: Sequence[Labelled], curves: Any) -> list[str]:
    """One sentence or two each."""
    absent = [name for name in FILES if name not in {d.name for d in networks}]
    said = []
    if absent:
        said.append(
            f"Left out in this run: CIFAR-10 {' and '.join(absent)}. Give the folder that holds cifar10/ "
            "by --data-dir."
        )
    if networks:
        said += [
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
            "submodel a density, and "
            "between those densities it was never trained.",
            "Magnitude pruning of weights is within each layer or over all of them, whichever is better on "
            "validation rows; units are ranked by the product of the norms of their incoming and outgoing "
            "weights. Nothing is rescaled.",
            f"BatchNorm statistics are taken anew from {CALIBRATED} training rows for every network that is "
            "scored.",
            _unscaled(curves),
        ]
        if plan.effort != "full" and any(d.name in density_finetuning.LONG for d in networks):
            said.append("Fine-tuning on images is part of a full run only.")
    if len(plan.datasets) > len(networks):
        said.append(
            "Linear: condition number 100, one split, v = 0. MAST with a fixed partition trains each block "
            "by itself, so “MAST at each density” and “trained at each density” are the same models; the "
            f"other MAST line is one model, trained for {density_linear.ONE} blocks, cut at all densities."
        )
    return said


def _tuning(networks: Sequence[Labelled]) -> str:
    grids = [f"{d.name} {', '.join(f'{rate:g}' for rate in RATES[d.name])}" for d in networks]
    grids.append(f"fine-tuning {', '.join(f'{rate:g}' for rate in density_finetuning.RATES)}")
    return (
        f"Learning rates: every contender tries the same grid ({'; '.join(grids)}) with the first seed and "
        "keeps the one with the best validation score in the way it is used (the area under its curve; "
        "accuracy for the ceiling). Test rows are not looked at. All scores are in density_rates.csv."
    )


def _unscaled(curves: Any) -> str:
    means = curves.groupby(["dataset", "structure", "contender", "density"])["mean"].mean()
    parts = []
    for dataset, structure in dict.fromkeys(zip(curves["dataset"], curves["structure"], strict=True)):
        if structure != "linear":
            scaled, bare = (means[dataset, structure, f"plain_{way}", 0.5] for way in ("random", "unscaled"))
            parts.append(f"{dataset}, {structure} {bare:.3f} ({scaled:.3f} with)")
    return "A plain network cut at random to 50 % without the scale 1/keep: " + "; ".join(parts) + "."
