"""The cells of the study: one contender on one data set, tuned for each of its uses, judged on other seeds.

A setting is searched for with seeds that serve for nothing else, and scored on the validation rows in the
way in which the network is going to be used. The chosen one is trained anew with every judged seed, and
scored on the test rows.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from mast.experiments.datasets import one_thread
from mast.experiments.experiment import Experiment, Request
from mast.nn import recalibrate, sparsify
from mast.randomness import Key, Purpose
from mast.sketches import Bernoulli
from mast.support.cells import Cell
from mast.support.checks import Array
from studies.density.contenders import (
    SEEN,
    chances,
    contenders,
    pretrained,
    random_cut,
    sketch_of,
    trained,
)
from studies.density.data import Labelled
from studies.density.networks import DESIGNS, accuracy
from studies.density.search import Setting, climb

SPLIT = 20261201  # of the rows: no earlier run has seen it
CHOOSING = (100,)  # seeds that settings are chosen with, and nothing else
DENSITIES = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1)  # of the curves
EPOCHS = {  # of a fast, a normal and a full run
    "digits": (2, 120, 640),
    "digit-images": (1, 20, 60),
    "features": (1, 10, 60),
    "images": (1, 4, 60),
    "code": (1, 1, 20),
    "manual": (1, 4, 20),
}
SECONDS = {  # about, per epoch
    "digits": 0.03,
    "digit-images": 0.3,
    "features": 0.4,
    "images": 1.5,
    "code": 40,
    "manual": 60,
}


@one_thread()
def tuned(config: Mapping[str, Any], dataset: Labelled) -> dict[str, Any]:
    """For each use of a contender: the setting, all that were tried, and test accuracies (seeds, draws)."""
    networks: dict[tuple[Any, ...], nn.Sequential] = {}  # by seed and setting, for all uses

    def network(seed: int, setting: Setting) -> nn.Sequential:
        name = (seed, *setting.items())
        if name not in networks:
            networks[name] = trained(config, dataset, seed, setting)
        return networks[name]

    def validated(use: str, setting: Setting) -> float:
        models = {seed: network(seed, setting) for seed in config["choosing"]}
        scores = [scores_of(config, dataset, "validation", use, s, setting, m) for s, m in models.items()]
        return float(np.mean(scores))

    def judged(use: str, seed: int) -> Array:
        return scores_of(config, dataset, "test", use, seed, best, network(seed, best))

    result: dict[str, Any] = {}
    seeds, scanned = config["seeds"], config.get("scanned", ())
    for use in config["uses"]:
        known = [dict(setting) for _, *setting in networks]
        best, tried = climb(partial(validated, use), config["axes"], known, scanned)
        result |= {f"{use}: {axis}": value for axis, value in best.items()}
        result[f"{use}: tried"] = np.array([[*setting.values(), score] for setting, score in tried])
        result[f"{use}: scores"] = np.array([judged(use, seed) for seed in seeds])
        structure = use.partition(" ")[0]
        if structure in ("weights", "units"):
            cuts = [f"{structure} {density}" for density in DENSITIES]
            result[f"{use}: curves"] = np.array([[judged(cut, seed) for cut in cuts] for seed in seeds])
    return result


def scores_of(
    config: Mapping[str, Any],
    dataset: Labelled,
    part: str,
    use: str,
    seed: int,
    setting: Setting,
    model: nn.Sequential,
) -> Array:
    """Accuracies in one use: of the whole network, of the members of its list, or of random submodels."""
    parts, design = dataset.parts(), DESIGNS[dataset.name]
    rows = getattr(parts, part)

    def score(small: nn.Module) -> float:
        return accuracy(recalibrate(small, [parts.some(SEEN)]), rows)

    if use == "whole":
        return np.array([score(copy.deepcopy(model))])
    structure, _, share = use.partition(" ")
    shift = keep = None
    if structure == "members":
        sketch = sketch_of(config, setting, seed, design)
        assert sketch is not None
        if config["kind"] in ("deltas", "one delta"):
            v = pretrained(dataset, config["epochs"], config["batch"], seed)
            shift = {name: p.detach() for name, p in v.named_parameters() if p.dim() > 1}
    elif structure == "chances":
        sketch, keep = Bernoulli(float(share)), chances(model, dataset, float(share))
    else:
        sketch = random_cut(structure, float(share), design)
    sk = sparsify(copy.deepcopy(model), sketch, shift=shift, keep=keep, example=parts.train.x[:2])
    if structure == "members":
        found = [score(sk.submodel(member=i, calibrate=False)) for i in range(sk.members or 0)]
    else:
        keys = [Key(seed).child(i, Purpose.ESTIMATE).seed for i in range(config["draws"])]
        found = [score(sk.submodel(key, calibrate=False)) for key in keys]
    sk.remove()
    return np.array(found)


def density_cells(experiment: Experiment, request: Request) -> list[Cell]:
    """One cell per contender."""
    cells = []
    for data in request.datasets:
        if not isinstance(data, Labelled):
            continue
        for contender in contenders(data.name):
            common, rows = effort(request, data.name), replace(data, split=SPLIT)
            config = common | contender
            if request.effort == "fast":
                config["choosing"] = common["choosing"]
            tries = 5 * len(config["axes"]) * len(config["uses"]) ** 0.5
            trainings = tries * len(config["choosing"]) + len(config["seeds"])
            seconds = config["epochs"] * config.get("longer", 1) * SECONDS[data.name] * trainings
            cells.append(experiment.cell(tuned, config, rows, seconds))
    return cells


def effort(request: Request, name: str) -> dict[str, Any]:
    """How long to train, with which rows and seeds, and how many submodels are scored."""
    epochs = request.pick(*EPOCHS[name])
    return {
        "epochs": epochs,
        "adapting": 2 * epochs,  # twenty deltas share them
        "batch": {"features": 128, "images": 128, "code": 8, "manual": 16}.get(name, 64),
        "choosing": list(CHOOSING),
        "split": SPLIT,
        "seeds": [40 + seed for seed in range(request.pick(fast=2, normal=5, full=5))],
        "draws": request.pick(fast=3, normal=10, full=30),
    }
