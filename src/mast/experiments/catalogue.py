"""All experiments of `mast reproduce`, by name. A new one is one file or folder, and one line here.

Each is imported when it is asked for: those with networks need PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from mast.errors import ArgumentError, optional_module

if TYPE_CHECKING:
    from mast.experiments.experiment import Experiment

# name -> the class, below mast.experiments
CONVEX = {
    "accuracy": "accuracy.Accuracy",
    "trajectory": "trajectory.Trajectory",
    "rand1": "rand1.Rand1",
    "shift": "shift.Shift",
}
NETWORKS = {"neural": "neural.study.Neural", "dropout": "neural.dropout.Dropout", "sizes": "sizes.Sizes"}
EXPERIMENTS = CONVEX | NETWORKS
GROUPS = {"convex": tuple(CONVEX), "demo": ("accuracy", "sizes"), "all": tuple(EXPERIMENTS)}
# experiments of 0.2 that are studies now -> the study, in a checkout of the repository
MOVED = {name: name for name in ("conditioning", "methods", "density", "federated")} | {
    "submodels": "density"
}


def experiments_of(name: str) -> list[Experiment]:
    """The experiments that a name stands for.

    >>> [experiment.name for experiment in experiments_of("accuracy")]
    ['accuracy']
    """
    if name in MOVED:
        raise ArgumentError(
            f"{name} left the package: in a checkout of the repository, run python -m studies.{MOVED[name]}"
        )
    names = GROUPS.get(name, (name,))
    if not set(names) <= set(EXPERIMENTS):
        known = ", ".join([*EXPERIMENTS, *GROUPS])
        raise ArgumentError(f"there is no experiment {name!r}; there are: {known}")
    if not set(names) <= set(CONVEX):
        optional_module("torch", "neural experiments need PyTorch", "nn")
    places = (EXPERIMENTS[member].rpartition(".") for member in names)
    return [
        getattr(importlib.import_module(f"mast.experiments.{module}"), kind)() for module, _, kind in places
    ]
