"""The cells of the accuracy-density curves: one contender on one data set, tuned, with all seeds.

Every learning rate of the grid is tried with the first seed and scored on the validation rows in the way
in which the network is going to be used (the area under its curve). The best is used for all seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mast.arrays import Array
from mast.cells import Cell
from mast.experiments.datasets import Dataset
from mast.experiments.density.data import Labelled
from mast.experiments.experiment import Experiment, Request
from mast.experiments.network_data import one_thread

if TYPE_CHECKING:
    from torch import nn

    from mast.experiments.density.networks import Chain
    from mast.experiments.density.scores import Scorer

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
CONTENDERS: dict[str, dict[str, Any]] = {  # with what only some of them have
    "plain": {},
    "dropout": {"keep": KEEP},
    "fixed": {"keep": KEEP},
    "sparser": {"keep": SPARSER},
    "mixture": {"mixed": list(MIXED)},
    "nested": {"mixed": list(MIXED)},
}
SECONDS = {"digits": 0.03, "features": 0.3, "images": 1.1}  # about, per epoch


def ways(contender: str, structure: str) -> tuple[str, ...]:
    """The ways in which a trained network is made sparse."""
    if contender == "nested":
        return ("nested",)
    unscaled = ("unscaled",) if contender == "plain" else ()
    return ("random", *MAGNITUDES[structure], *unscaled)


def area(densities: Sequence[float], accuracies: Any) -> Any:
    """The area under a curve: its mean height over the logarithm of the density, by trapezoids.

    >>> round(float(area([1.0, 0.5, 0.25], np.array([0.9, 0.8, 0.5]))), 9)
    0.75
    """
    x = np.log(np.asarray(densities, dtype=float))
    y = np.asarray(accuracies, dtype=float)
    heights = 0.5 * (y[..., 1:] + y[..., :-1]) * np.diff(x)
    return heights.sum(axis=-1) / (x[-1] - x[0])


class Tuning:
    """The networks of a cell, each trained once, and their scores at the learning rate that is best."""

    def __init__(
        self, config: Mapping[str, Any], dataset: Labelled, train: Callable[[int, float], nn.Sequential]
    ) -> None:
        self.config, self.dataset, self.train = config, dataset, lru_cache(maxsize=None)(train)

    def scorer(self, part: str, seed: int) -> Scorer:
        """Scores submodels on one part of the rows, with the draws of a seed."""
        from mast.experiments.density.scores import Scorer

        parts = self.dataset.parts()
        return Scorer(getattr(parts, part), parts.train.x[:CALIBRATED], design_of(self.dataset), seed)

    def outcome(
        self,
        name: str,
        score: Callable[[Scorer, nn.Sequential, int], Any],
        value: Callable[[Any], Any] = np.mean,
    ) -> dict[str, Any]:
        """Scores of the test rows, one entry per seed, with the best learning rate and all that were tried.

        `score` is given a scorer, a network and the number of draws; `value` is what a score is judged by.
        """
        seeds, rates = self.config["seeds"], self.config["rates"]
        judge, draws = self.scorer("validation", seeds[0]), self.config.get("validation_draws", 1)
        tried = [float(value(score(judge, self.train(seeds[0], rate), draws))) for rate in rates]
        rate = float(rates[int(np.argmax(tried))])  # of equal ones the smaller
        tested = [
            score(self.scorer("test", seed), self.train(seed, rate), self.config.get("draws", 1))
            for seed in seeds
        ]
        return {f"rate_{name}": rate, f"validation_{name}": np.array(tried), name: np.array(tested)}


def curves(config: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Test accuracies (seeds, densities, draws) of one contender, for each way to make it sparse."""
    assert isinstance(dataset, Labelled)
    densities = config["densities"]

    def value(scores: Array) -> Any:
        return area(densities, scores.mean(axis=1))

    result: dict[str, Any] = {}
    with one_thread():
        tuning = Tuning(config, dataset, partial(trained_network, config, dataset))
        for structure in config["structures"]:
            for way in ways(config["contender"], structure):

                def score(scorer: Scorer, model: nn.Sequential, draws: int) -> Array:
                    return scorer.curve(model, structure, way, densities, draws)  # noqa: B023

                result |= tuning.outcome(f"{structure}_{way}", score, value)
    return result


def trained_network(config: Mapping[str, Any], dataset: Labelled, seed: int, rate: float) -> nn.Sequential:
    """The contender's network, as a plain one: without dropout layers and without sketch."""
    from mast.experiments.density.networks import Recipe, network, train
    from mast.experiments.density.sketches import training_sketch
    from mast.nn import sparsify

    contender, design = config["contender"], design_of(dataset)
    model = network(design, seed, dropout=1 - config["keep"] if contender == "dropout" else None)
    sk = None
    if contender not in ("plain", "dropout"):
        (structure,) = config["structures"]
        densities = config["mixed"] if "mixed" in config else [config["keep"]]
        sk = sparsify(model, training_sketch(contender, structure, densities, seed), seed=seed)
    train(model, dataset.parts().train, Recipe(config["epochs"], config["batch"], rate, seed))
    if sk is not None:
        sk.remove()
    bare = network(design, seed)
    bare.load_state_dict(model.state_dict())
    return bare.eval()


def from_scratch(config: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Test accuracy (seeds) of networks trained at one density: a fixed random mask, or fewer units."""
    from mast.experiments.density.networks import Recipe, network, random_masks, train

    assert isinstance(dataset, Labelled)
    density, weights = config["density"], config["structure"] == "weights"
    design = design_of(dataset) if weights else design_of(dataset).share(density)

    def trained(seed: int, rate: float) -> nn.Sequential:
        model = network(design, seed)
        masks = random_masks(model, density, seed) if weights else {}
        named = dict(model.named_parameters())
        for name, mask in masks.items():  # scaled so that each layer starts with its usual variance
            named[name].data.mul_(mask).div_(density**0.5)
        train(model, dataset.parts().train, Recipe(config["epochs"], config["batch"], rate, seed), masks)
        return model

    with one_thread():
        tuning = Tuning(config, dataset, trained)
        return tuning.outcome("accuracy", lambda scorer, model, draws: scorer.score(model))


def design_of(dataset: Dataset) -> Chain:
    """The network of a data set."""
    from mast.experiments.density.networks import DESIGNS

    return DESIGNS[dataset.name]


def recipe(request: Request, dataset: Dataset) -> dict[str, Any]:
    """What the effort allows: how long to train, on how many seeds, with how many draws."""
    epochs = {
        "digits": request.pick(fast=15, normal=40, full=80),
        "features": request.pick(fast=2, normal=15, full=30),
        "images": request.pick(fast=2, normal=15, full=40),
    }[dataset.name]
    return {
        "epochs": epochs,
        "batch": 64 if dataset.name == "digits" else 128,
        "rates": list(RATES[dataset.name]),
        "seeds": list(range(request.pick(fast=2, normal=3, full=5))),
    }


def draws(request: Request) -> dict[str, int]:
    """How many submodels are scored."""
    return {"draws": request.pick(fast=5, normal=10, full=30), "validation_draws": VALIDATION_DRAWS}


def cells(experiment: Experiment, request: Request) -> list[Cell]:
    """One cell per contender and structure, and one per density for training from scratch."""
    cells = []
    for data in request.datasets:
        if not isinstance(data, Labelled):
            continue
        common = recipe(request, data)
        long = common["epochs"] * SECONDS[data.name] * (len(common["rates"]) + len(common["seeds"]) - 1)
        for contender, settings in CONTENDERS.items():
            shared = contender in ("plain", "dropout")
            varied = {"structures": [list(STRUCTURES)] if shared else [[s] for s in STRUCTURES]}
            fixed = common | draws(request) | settings | {"contender": contender}
            fixed["densities"] = list(DENSITIES)
            cells += experiment.grid(curves, data, 2 * long, varied, **fixed)
        for structure in STRUCTURES:
            for density in request.pick(TRAINED, TRAINED, DENSITIES):
                if density < 1 or structure == STRUCTURES[0]:  # in full, both are the plain network
                    config = common | {"structure": structure, "density": density}
                    cost = long * (1 if structure == "weights" else density)
                    cells.append(experiment.cell(from_scratch, config, data, cost))
    return cells
