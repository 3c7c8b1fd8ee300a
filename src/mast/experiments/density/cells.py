"""The cells of the study: one contender on one data set, tuned for each of its uses, judged on other seeds.

A setting is searched for with seeds that serve for nothing else, and scored on the validation rows in the
way in which the network is going to be used. The chosen one is trained anew with every judged seed, and
scored on the test rows.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mast.arrays import Array
from mast.cells import Cell
from mast.experiments.datasets import Dataset
from mast.experiments.density.contenders import (
    PACKET,
    SEEN,
    chances,
    contenders,
    random_cut,
    sketch_of,
    trained,
)
from mast.experiments.density.data import Labelled
from mast.experiments.density.search import Setting, climb
from mast.experiments.experiment import Experiment, Request
from mast.experiments.network_data import one_thread
from mast.randomness import Key, Purpose
from mast.sketches import Bernoulli

if TYPE_CHECKING:
    from torch import nn

CHOOSING = (100,)  # seeds that settings are chosen with, and nothing else
DENSITIES = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1)  # of the curves
SECONDS = {"digits": 0.03, "features": 0.4, "images": 1.5, "code": 60, "manual": 60}  # about, per epoch


def tuned(config: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """For each use of a contender: the setting, all that were tried, and test accuracies (seeds, draws)."""
    assert isinstance(dataset, Labelled)
    networks: dict[str, nn.Sequential] = {}
    settings: dict[str, Setting] = {}  # that were tried for any use

    def network(seed: int, setting: Setting) -> nn.Sequential:
        name = f"{seed} {sorted(setting.items())}"
        if name not in networks:
            networks[name] = trained(config, dataset, seed, setting)
            settings[str(sorted(setting.items()))] = setting
        return networks[name]

    result: dict[str, Any] = {}
    with one_thread():
        for use in config["uses"]:

            def validated(setting: Setting) -> float:
                scores = [
                    scores_of(config, dataset, "validation", use, seed, setting, network(seed, setting))  # noqa: B023
                    for seed in config["choosing"]
                ]
                return float(np.mean(scores))

            best, tried = climb(validated, config["axes"], list(settings.values()), config.get("scanned", ()))
            result |= {f"{use}: {axis}": value for axis, value in best.items()}
            result[f"{use}: tried"] = np.array([[*setting.values(), score] for setting, score in tried])
            judged = [
                scores_of(config, dataset, "test", use, seed, best, network(seed, best))
                for seed in config["seeds"]
            ]
            result[f"{use}: scores"] = np.array(judged)
            structure = use.partition(" ")[0]
            if structure in ("weights", "units"):
                curves = [
                    [
                        scores_of(
                            config, dataset, "test", f"{structure} {p}", seed, best, network(seed, best)
                        )
                        for p in DENSITIES
                    ]
                    for seed in config["seeds"]
                ]
                result[f"{use}: curves"] = np.array(curves)
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
    from mast.experiments.density.networks import DESIGNS, accuracy
    from mast.nn import recalibrate, sparsify

    parts, design = dataset.parts(), DESIGNS[dataset.name]
    rows = getattr(parts, part)

    def score(small: nn.Module) -> float:
        return accuracy(recalibrate(small, [parts.train.x[:SEEN]]), rows)

    if use == "whole":
        return np.array([score(copy.deepcopy(model))])
    structure, _, share = use.partition(" ")
    shift = keep = None
    if structure == "members":
        sketch = sketch_of(config, setting, seed, design)
        assert sketch is not None
        if config["kind"] in ("deltas", "one delta"):
            from mast.experiments.density.contenders import pretrained

            v = pretrained(dataset, config["epochs"], config["batch"], seed)
            shift = {name: p.detach() for name, p in v.named_parameters() if p.dim() > 1}
    elif structure == "chances":
        sketch, keep = Bernoulli(float(share)), chances(model, dataset, float(share))
    else:
        sketch = random_cut(structure, float(share), design, config.get("packet", PACKET))
    sk = sparsify(copy.deepcopy(model), sketch, shift=shift, keep=keep, example=parts.train.x[:2])
    if structure == "members":
        found = [score(sk.submodel(member=i, calibrate=False)) for i in range(sk.members or 0)]
    else:
        keys = [Key(seed).child(i, Purpose.ESTIMATE).seed for i in range(config["draws"])]
        found = [score(sk.submodel(key, calibrate=False)) for key in keys]
    sk.remove()
    return np.array(found)


def cells(experiment: Experiment, request: Request) -> list[Cell]:
    """One cell per contender."""
    cells = []
    for data in request.datasets:
        if not isinstance(data, Labelled):
            continue
        for contender in contenders(data.name):
            longer, split = contender.get("longer", 1), contender.get("split", 0)
            common, rows = effort(request, data.name, split), replace(data, split=split)
            trainings = 5 * len(contender["axes"]) * len(contender["uses"]) ** 0.5 + len(common["seeds"])
            seconds = common["epochs"] * longer * SECONDS[data.name] * trainings
            cells.append(experiment.cell(tuned, common | contender, rows, seconds))
    return cells


def effort(request: Request, name: str, split: int = 0) -> dict[str, Any]:
    """How long to train, with which seeds, and how many submodels are scored.

    Who trains longer, or with more draws, does so because of what the first seeds have shown, and is judged
    by others.
    """
    epochs = {
        "digits": request.pick(fast=2, normal=120, full=640),
        "features": request.pick(fast=1, normal=10, full=60),
        "images": request.pick(fast=1, normal=12, full=60),
        "code": request.pick(fast=1, normal=4, full=20),
        "manual": request.pick(fast=1, normal=4, full=20),
    }[name]
    return {
        "epochs": epochs,
        "adapting": 2 * epochs,  # twenty deltas share them
        "batch": {"digits": 64, "code": 16, "manual": 16}.get(name, 128),
        "choosing": list(CHOOSING),
        "seeds": [10 * split + seed for seed in range(request.pick(fast=2, normal=3, full=5))],
        "draws": request.pick(fast=3, normal=10, full=30),
    }
