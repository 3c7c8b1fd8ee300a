"""All experiments of `mast reproduce`, by name. A new one is one file and one line here."""

from __future__ import annotations

from mast.errors import ArgumentError
from mast.experiments import (
    accuracy,
    conditioning,
    density,
    dropout,
    methods_compared,
    neural,
    rand1,
    shift,
    trajectory,
)
from mast.experiments.findings import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        accuracy,
        trajectory,
        rand1,
        shift,
        conditioning,
        methods_compared,
        neural,
        dropout,
        density,
    )
}

GROUPS: dict[str, tuple[str, ...]] = {
    "convex": ("accuracy", "trajectory", "rand1", "shift", "conditioning", "methods"),
    "all": tuple(EXPERIMENTS),
}


def chosen(name: str) -> list[Experiment]:
    """The experiments that a name stands for.

    >>> [experiment.name for experiment in chosen("accuracy")]
    ['accuracy']
    """
    if name in GROUPS:
        return [EXPERIMENTS[member] for member in GROUPS[name]]
    if name in EXPERIMENTS:
        return [EXPERIMENTS[name]]
    known = ", ".join([*EXPERIMENTS, *GROUPS])
    raise ArgumentError(f"there is no experiment {name!r}; there are: {known}")
