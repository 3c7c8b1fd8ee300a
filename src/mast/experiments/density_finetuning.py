"""Sparse changes to a pretrained network: v is trained on half of the classes, then adapted to all of them.

Contenders at each density of the change (biases and norms are changed in full, by all of them):
MAST with the shift v and random draws; full fine-tuning, of which the largest changes stay (or random ones,
scaled as a sketch scales them); and a random choice of weights, made once, that alone is trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mast.experiments.cells import Cell
from mast.experiments.datasets import Dataset
from mast.experiments.density_cells import (
    CALIBRATED,
    NAME,
    VALIDATION_DRAWS,
    VERSION,
    choose,
    design_of,
    recipe,
)
from mast.experiments.density_data import Labelled, Rows
from mast.experiments.findings import Plan
from mast.experiments.neural_data import one_thread
from mast.sketches import Bernoulli

if TYPE_CHECKING:
    from torch import nn

    from mast.experiments.density_scores import Scorer

CHANGED = (0.01, 0.05, 0.1, 0.25)
RATES = (1e-3, 3e-3, 1e-2)
PRETRAINING = 3e-3  # the learning rate of v, which all contenders share
LONG = ("images",)  # left to a full run
WAYS = ("full", "magnitude_layer", "magnitude_global", "random")


@lru_cache(maxsize=8)
def pretrained(dataset: Labelled, epochs: int, batch: int, seed: int) -> nn.Sequential:
    """v: a network that has seen the first half of the classes only."""
    from mast.experiments.density_networks import network
    from mast.experiments.density_training import Recipe, train

    rows, design = dataset.parts().train, design_of(dataset)
    known = rows.y < design.classes // 2
    model = network(design, seed)
    train(model, Rows(rows.x[known], rows.y[known]), Recipe(epochs, batch, PRETRAINING, seed))
    return model


def adapted(
    config: Mapping[str, Any], dataset: Labelled, kind: str, density: float, seed: int, rate: float
) -> nn.Sequential:
    """v trained on for all classes: in full, with a sketch ("mast"), or a share of its weights ("chosen")."""
    import copy

    from mast.experiments.density_training import Recipe, random_masks, train
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
    from mast.experiments.density_pruning import keep_largest

    if way == "full":
        return [scorer.score(model)]
    if way == "random":
        shift = {name: p.detach() for name, p in v.named_parameters() if p.dim() > 1}
        return scorer.submodels(model, Bernoulli(density), draws, shift=shift)
    return [scorer.score(keep_largest(model, density, way.removeprefix("magnitude_"), base=v))]


def changes(config: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Test accuracies (seeds, draws) of one kind of fine-tuning; full fine-tuning is cut in several ways."""
    from mast.experiments.density_scores import Scorer

    assert isinstance(dataset, Labelled)
    kind = config["kind"]
    result: dict[str, Any] = {}
    with one_thread():
        parts, design = dataset.parts(), design_of(dataset)
        calibrate = parts.train.x[:CALIBRATED]
        networks: dict[tuple[int, float, float], nn.Sequential] = {}

        def trained(seed: int, rate: float, density: float) -> nn.Sequential:
            place = (seed, rate, density if kind != "full" else 1.0)
            if place not in networks:
                networks[place] = adapted(config, dataset, kind, density, seed, rate)
            return networks[place]

        def scores(rows: Rows, seed: int, rate: float, way: str, density: float, draws: int) -> Any:
            v = pretrained(dataset, config["epochs"], config["batch"], seed)
            scorer = Scorer(rows, calibrate, design, seed)
            return change_score(scorer, trained(seed, rate, density), v, way, density, draws)

        def judged(way: str, density: float, rate: float) -> float:
            draws = config["validation_draws"]
            return float(np.mean(scores(parts.validation, config["seeds"][0], rate, way, density, draws)))

        for way, density in _cuts(kind, config["changed"]):
            name = f"{way}_{density:g}"
            rate, tried = choose(config["rates"], partial(judged, way, density))
            result[f"rate_{name}"], result[f"validation_{name}"] = rate, tried
            result[name] = np.array(
                [scores(parts.test, s, rate, way, density, config["draws"]) for s in config["seeds"]]
            )
        if kind == "full":
            bases = [pretrained(dataset, config["epochs"], config["batch"], s) for s in config["seeds"]]
            result["before"] = np.array([Scorer(parts.test, calibrate, design, 0).score(v) for v in bases])
    return result


def _cuts(kind: str, changed: Sequence[float]) -> list[tuple[str, float]]:
    """The ways and densities in which a kind of fine-tuning is scored."""
    if kind == "full":
        return [("full", 1.0), *((way, q) for way in WAYS if way != "full" for q in changed)]
    return [("random" if kind == "mast" else "full", q) for q in changed]


def cells(plan: Plan) -> list[Cell]:
    """One cell for full fine-tuning and its cuts, one a density for the others."""
    found = []
    for dataset in plan.datasets:
        if not isinstance(dataset, Labelled) or (dataset.name in LONG and plan.effort != "full"):
            continue
        common = recipe(plan, dataset)
        common |= {
            "adapting": max(1, common["epochs"] // 2),
            "rates": list(RATES),
            "draws": plan.pick(fast=5, normal=10, full=30),
            "validation_draws": VALIDATION_DRAWS,
        }
        for kind, share in [("full", None), *((k, q) for k in ("mast", "chosen") for q in CHANGED)]:
            changed = list(CHANGED) if share is None else [share]
            found.append(
                Cell(NAME, VERSION, changes, common | {"kind": kind, "changed": changed}, dataset, 5.0)
            )
    return found
