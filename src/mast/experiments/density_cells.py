"""The cells of the accuracy-density curves: one contender on one data set, tuned, with all seeds.

Every learning rate of the grid is tried with the first seed and scored on the validation rows in the way
in which the network is going to be used (the area under its curve). The best is used for all seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mast.arrays import Array
from mast.experiments.cells import Cell
from mast.experiments.datasets import Dataset
from mast.experiments.density_area import area
from mast.experiments.density_data import Labelled, Rows
from mast.experiments.findings import Plan
from mast.experiments.neural_data import one_thread

if TYPE_CHECKING:
    from torch import nn

NAME, VERSION = "density", 2
DENSITIES = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05)
MIXED = (1.0, 0.5, 0.2, 0.1, 0.05)  # densities of the mixture and of the nested subsets, equally often
KEEP = 0.5  # of MAST with one fixed keep, and of dropout
SPARSER = 0.2  # of MAST trained for a lower density
TRAINED = (1.0, 0.5, 0.2, 0.1, 0.05)  # densities at which networks are trained from scratch
RATES = {"digits": (3e-3, 1e-2, 3e-2), "features": (1e-3, 3e-3, 1e-2), "images": (3e-3, 1e-2, 3e-2)}
STRUCTURES = ("weights", "neurons")
CALIBRATED = 512  # training rows that BatchNorm statistics are taken from
VALIDATION_DRAWS = 2

MAGNITUDES = {"weights": ("magnitude_layer", "magnitude_global"), "neurons": ("magnitude",)}
CONTENDERS = ("plain", "dropout", "fixed", "sparser", "mixture", "nested")
SECONDS = {"digits": 0.03, "features": 0.3, "images": 1.1}  # about, an epoch


def ways(contender: str, structure: str) -> tuple[str, ...]:
    """The ways in which a trained network is made sparse."""
    if contender == "nested":
        return ("nested",)
    unscaled = ("unscaled",) if contender == "plain" else ()
    return ("random", *MAGNITUDES[structure], *unscaled)


def curves(config: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Test accuracies (seeds, densities, draws) of one contender, for each way to make it sparse."""
    from mast.experiments.density_scores import Scorer

    assert isinstance(dataset, Labelled)
    with one_thread():
        parts, design = dataset.parts(), design_of(dataset)
        networks: dict[tuple[int, float], nn.Sequential] = {}

        def trained(seed: int, rate: float) -> nn.Sequential:
            if (seed, rate) not in networks:
                networks[seed, rate] = trained_network(config, dataset, seed, rate)
            return networks[seed, rate]

        densities, seeds = config["densities"], config["seeds"]

        def scored(rows: Rows, seed: int, rate: float, structure: str, way: str, draws: int) -> Array:
            scorer = Scorer(rows, parts.train.x[:CALIBRATED], design, seed)
            return scorer.curve(trained(seed, rate), structure, way, densities, draws)

        def judged(structure: str, way: str, rate: float) -> float:
            scores = scored(parts.validation, seeds[0], rate, structure, way, config["validation_draws"])
            return float(area(densities, scores.mean(axis=1)))

        result: dict[str, Any] = {}
        for structure in config["structures"]:
            for way in ways(config["contender"], structure):
                name = f"{structure}_{way}"
                rate, tried = choose(config["rates"], partial(judged, structure, way))
                result[f"rate_{name}"], result[f"validation_{name}"] = rate, tried
                result[name] = np.array(
                    [scored(parts.test, seed, rate, structure, way, config["draws"]) for seed in seeds]
                )
    return result


def choose(rates: Sequence[float], score: Callable[[float], float]) -> tuple[float, Any]:
    """The learning rate with the best score, and all scores; of equal ones the smaller rate.

    >>> choose([0.1, 0.2, 0.3], lambda rate: -abs(rate - 0.2))[0]
    0.2
    """
    scores = np.array([float(score(rate)) for rate in rates])
    return float(rates[int(scores.argmax())]), scores


def trained_network(config: Mapping[str, Any], dataset: Labelled, seed: int, rate: float) -> nn.Sequential:
    """The contender's network, as a plain one: without dropout layers and without sketch."""
    from mast.experiments.density_networks import network
    from mast.experiments.density_sketches import training_sketch
    from mast.experiments.density_training import Recipe, train
    from mast.nn import sparsify

    contender, design = config["contender"], design_of(dataset)
    model = network(design, seed, dropout=1 - config["keep"] if contender == "dropout" else None)
    recipe = Recipe(config["epochs"], config["batch"], rate, seed)
    sk = None
    if contender in ("fixed", "sparser", "mixture", "nested"):
        (structure,) = config["structures"]
        densities = config["mixed"] if "mixed" in config else [config["keep"]]
        sketch = training_sketch(contender, structure, densities, seed)
        sk = sparsify(model, sketch, seed=seed)
    train(model, dataset.parts().train, recipe)
    if sk is not None:
        sk.remove()
    bare = network(design, seed)
    bare.load_state_dict(model.state_dict())
    return bare.eval()


def from_scratch(config: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Test accuracy (seeds) of networks trained at one density: a fixed random mask, or fewer units."""
    from mast.experiments.density_networks import network
    from mast.experiments.density_scores import Scorer
    from mast.experiments.density_training import Recipe, random_masks, train

    assert isinstance(dataset, Labelled)
    with one_thread():
        parts, density = dataset.parts(), config["density"]
        weights = config["structure"] == "weights"
        design = design_of(dataset) if weights else design_of(dataset).share(density)

        def trained(seed: int, rate: float) -> nn.Sequential:
            model = network(design, seed)
            masks = random_masks(model, density, seed) if weights else None
            if masks is not None:
                named = dict(model.named_parameters())
                for name, mask in masks.items():  # scaled so that each layer starts with its usual variance
                    named[name].data.mul_(mask).div_(density**0.5)
            train(model, parts.train, Recipe(config["epochs"], config["batch"], rate, seed), masks)
            return model

        first = config["seeds"][0]
        networks = {rate: trained(first, rate) for rate in config["rates"]}
        calibrate = parts.train.x[:CALIBRATED]
        judge, tester = (Scorer(r, calibrate, design, first) for r in (parts.validation, parts.test))
        rate, scores = choose(config["rates"], lambda rate: judge.score(networks[rate]))
        others = [trained(seed, rate) for seed in config["seeds"][1:]]
        accuracies = [tester.score(model) for model in (networks[rate], *others)]
    return {"accuracy": np.array(accuracies), "rate": rate, "validation": scores}


def design_of(dataset: Dataset) -> Any:
    """The network of a data set."""
    from mast.experiments.density_networks import DESIGNS

    return DESIGNS[dataset.name]


def recipe(plan: Plan, dataset: Dataset) -> dict[str, Any]:
    """What the effort allows: how long to train, on how many seeds, with how many draws."""
    epochs = {
        "digits": plan.pick(fast=15, normal=40, full=80),
        "features": plan.pick(fast=2, normal=15, full=30),
        "images": plan.pick(fast=2, normal=15, full=40),
    }[dataset.name]
    return {
        "epochs": epochs,
        "batch": 64 if dataset.name == "digits" else 128,
        "rates": list(RATES[dataset.name]),
        "seeds": list(range(plan.pick(fast=2, normal=3, full=5))),
    }


def _own(contender: str) -> dict[str, Any]:
    """What only some contenders have."""
    if contender == "plain":
        return {}
    keeps = {"dropout": KEEP, "fixed": KEEP, "sparser": SPARSER}
    return {"keep": keeps[contender]} if contender in keeps else {"mixed": list(MIXED)}


def cells(plan: Plan) -> list[Cell]:
    """A cell a contender and structure, and one a density for training from scratch."""
    found = []
    for dataset in plan.datasets:
        if not isinstance(dataset, Labelled):
            continue
        common = recipe(plan, dataset)
        long = common["epochs"] * SECONDS[dataset.name] * (len(common["rates"]) + len(common["seeds"]) - 1)
        for contender in CONTENDERS:
            shared = contender in ("plain", "dropout")
            for structures in [list(STRUCTURES)] if shared else [[s] for s in STRUCTURES]:
                config = common | {
                    "contender": contender,
                    "structures": structures,
                    "densities": list(DENSITIES),
                    "draws": plan.pick(fast=5, normal=10, full=30),
                    "validation_draws": VALIDATION_DRAWS,
                }
                found.append(Cell(NAME, VERSION, curves, config | _own(contender), dataset, 2 * long))
        found += [
            Cell(
                NAME,
                VERSION,
                from_scratch,
                common | {"structure": structure, "density": density},
                dataset,
                long * (1 if structure == "weights" else density),
            )
            for structure in STRUCTURES
            for density in plan.pick(TRAINED, TRAINED, DENSITIES)
            if density < 1 or structure == STRUCTURES[0]  # in full, both are the plain network
        ]
    return found
