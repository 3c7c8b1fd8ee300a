"""The linear case on the same axes: exact optima of logistic regression, cut to random blocks of weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mast.experiments.accuracy import KAPPA, SPLIT_SEED, TEST_SHARE, accuracy
from mast.experiments.datasets import Dataset, halves, logistic
from mast.experiments.experiment import Claim, Experiment, Request
from mast.problem import Problem
from mast.sketches import PermK
from mast.support.cells import Cell
from studies.density.data import Labelled

BLOCKS = (1, 2, 4, 5, 10, 20)  # 1/K of the weights is kept
ONE = 4  # blocks of the MAST model that serves all densities


def blocks(config: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Test accuracies of all K pieces of each model, for one partition and K."""
    K, partition = config["K"], PermK(config["K"], seed=config["permutation"])
    f = logistic(dataset, config["kappa"], config["split_seed"], config["test_share"])
    _, (A, b) = halves(dataset, config["split_seed"], config["test_share"])
    erm = f.minimizer()
    models = {
        "plain": erm,
        "matched": Problem(f, partition).minimizer(),
        "one_model": Problem(f, PermK(config["one"], seed=config["permutation"])).minimizer(),
    }
    kept = [draw.indices for _, draw in partition.support(f.dim) or []]
    result: dict[str, Any] = {
        name: np.array([accuracy(A[:, block], b, K * x[block]) for block in kept])
        for name, x in models.items()
    }
    largest = np.argsort(-np.abs(erm), kind="stable")[: max(1, round(f.dim / K))]
    result["magnitude"] = np.array([accuracy(A[:, largest], b, erm[largest])])
    return result


def linear_cells(experiment: Experiment, request: Request) -> list[Cell]:
    """One cell per K and partition; partitions play the part of seeds."""
    fixed = {"kappa": KAPPA, "test_share": TEST_SHARE, "split_seed": SPLIT_SEED, "one": ONE}
    varied = {"permutation": range(request.pick(fast=3, normal=10, full=50)), "K": BLOCKS}
    return [
        cell
        for data in request.datasets
        if not isinstance(data, Labelled)
        for cell in experiment.grid(blocks, data, 0.1, varied, **fixed)
    ]


def linear_claims(curves: Any) -> Iterator[Claim]:
    """Whether training for a density pays at that density."""
    rows = curves[curves["chosen_for"] == "linear"]
    for dataset, part in rows[rows["density"] < 1].groupby("dataset", sort=False):
        by_seed = part.groupby(["seed", "contender"])["mean"].mean().unstack()
        ahead = by_seed["matched"] - by_seed["plain"]
        yield Claim(
            "Linear models: cut at random, MAST at each density is better than the plain model",
            "mean over densities and partitions of the difference of accuracies > 0",
            f"{by_seed['matched'].mean():.3f} against {by_seed['plain'].mean():.3f}, by magnitude "
            f"{by_seed['magnitude'].mean():.3f}; by partition {ahead.min():+.3f} to {ahead.max():+.3f}",
            bool(ahead.mean() > 0),
            source="beyond",
            dataset=f"{dataset}, linear",
        )
