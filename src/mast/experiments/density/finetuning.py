"""Sparse changes to a pretrained network: v is trained on half of the classes, then adapted to all of them.

Contenders at each density of the change (biases and norms are changed in full, by all of them):
MAST with the shift v and random draws; full fine-tuning, of which the largest changes stay (or random ones,
scaled as a sketch scales them); and a random choice of weights, made once, that alone is trained.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mast.cells import Cell
from mast.experiments.datasets import Dataset
from mast.experiments.density.curves import Tuning, design_of, draws, recipe
from mast.experiments.density.data import ClassRows, Labelled
from mast.experiments.experiment import Experiment, Request
from mast.experiments.network_data import one_thread
from mast.sketches import Bernoulli

if TYPE_CHECKING:
    from torch import nn

    from mast.experiments.density.scores import Scorer

CHANGED = (0.01, 0.05, 0.1, 0.25)
RATES = (1e-3, 3e-3, 1e-2)
PRETRAINING = 3e-3  # the learning rate of v, which all contenders share
LONG = ("images",)  # left to a full run
WAYS = ("full", "magnitude_layer", "magnitude_global", "random")


@lru_cache(maxsize=8)
def pretrained(dataset: Labelled, epochs: int, batch: int, seed: int) -> nn.Sequential:
    """v: a network that has seen the first half of the classes only."""
    from mast.experiments.density.networks import Recipe, network, train

    rows, design = dataset.parts().train, design_of(dataset)
    known = rows.y < design.classes // 2
    model = network(design, seed)
    train(model, ClassRows(rows.x[known], rows.y[known]), Recipe(epochs, batch, PRETRAINING, seed))
    return model


def adapted(
    config: Mapping[str, Any], dataset: Labelled, kind: str, density: float, seed: int, rate: float
) -> nn.Sequential:
    """v trained on for all classes: in full, with a sketch ("mast"), or a share of its weights ("chosen")."""
    from mast.experiments.density.networks import Recipe, random_masks, train
    from mast.nn import sparsify

    model = copy.deepcopy(pretrained(dataset, config["epochs"], config["batch"], seed))
    how = Recipe(config["adapting"], config["batch"], rate, seed + 1000)
    sk = sparsify(model, Bernoulli(density), shift="init", seed=seed) if kind == "mast" else None
    masks = random_masks(model, density, seed) if kind == "chosen" else None
    train(model, dataset.parts().train, how, masks)
    if sk is not None:
        sk.remove()
    return model


def change_score(
    scorer: Scorer, model: nn.Sequential, v: nn.Module, way: str, density: float, draws: int
) -> Any:
    """Accuracies when a share of the change from v is kept."""
    from mast.experiments.density.scores import keep_largest

    if way == "full":
        return [scorer.score(model)]
    if way == "random":
        shift = {name: p.detach() for name, p in v.named_parameters() if p.dim() > 1}
        return scorer.submodels(model, Bernoulli(density), draws, shift=shift)
    return [scorer.score(keep_largest(model, density, way.removeprefix("magnitude_"), base=v))]


def changes(config: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Test accuracies (seeds, draws) of one kind of fine-tuning; full fine-tuning is cut in several ways."""
    assert isinstance(dataset, Labelled)
    kind = config["kind"]
    before = partial(pretrained, dataset, config["epochs"], config["batch"])
    result: dict[str, Any] = {}
    with one_thread():
        densities = [1.0] if kind == "full" else config["changed"]
        tunings = {q: Tuning(config, dataset, partial(adapted, config, dataset, kind, q)) for q in densities}
        for way, density in _cuts(kind, config["changed"]):

            def score(scorer: Scorer, model: nn.Sequential, draws: int) -> Any:
                return change_score(scorer, model, before(scorer.seed), way, density, draws)  # noqa: B023

            tuning = tunings[1.0 if kind == "full" else density]
            result |= tuning.outcome(f"{way}_{density:g}", score)
        if kind == "full":
            scorer = tunings[1.0].scorer("test", 0)
            result["before"] = np.array([scorer.score(before(seed)) for seed in config["seeds"]])
    return result


def _cuts(kind: str, changed: Sequence[float]) -> list[tuple[str, float]]:
    """The ways and densities in which a kind of fine-tuning is scored."""
    if kind == "full":
        return [("full", 1.0), *((way, q) for way in WAYS if way != "full" for q in changed)]
    return [("random" if kind == "mast" else "full", q) for q in changed]


def cells(experiment: Experiment, request: Request) -> list[Cell]:
    """One cell for full fine-tuning and its cuts, one per density for the others."""
    cells = []
    for data in request.datasets:
        if not isinstance(data, Labelled) or (data.name in LONG and request.effort != "full"):
            continue
        common = recipe(request, data)
        common |= {"adapting": max(1, common["epochs"] // 2), "rates": list(RATES), **draws(request)}
        full = common | {"kind": "full", "changed": list(CHANGED)}
        cells.append(experiment.cell(changes, full, data, 5.0))
        varied = {"kind": ("mast", "chosen"), "changed": [[q] for q in CHANGED]}
        cells += experiment.grid(changes, data, 5.0, varied, **common)
    return cells
