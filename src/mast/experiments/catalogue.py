"""All experiments of `mast reproduce`, by name. A new one is one file or folder, and one line here."""

from __future__ import annotations

from mast.errors import ArgumentError
from mast.experiments.accuracy import Accuracy
from mast.experiments.conditioning import Conditioning
from mast.experiments.density.study import Density
from mast.experiments.density.submodels import Submodels
from mast.experiments.experiment import Experiment
from mast.experiments.federated.study import FederatedSchemes
from mast.experiments.methods import Methods
from mast.experiments.neural.dropout import Dropout
from mast.experiments.neural.study import Neural
from mast.experiments.rand1 import Rand1
from mast.experiments.shift import Shift
from mast.experiments.trajectory import Trajectory

CONVEX = (Accuracy(), Trajectory(), Rand1(), Shift(), Conditioning(), Methods())
NETWORKS = (Neural(), Dropout(), Submodels(), Density(), FederatedSchemes())

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in (*CONVEX, *NETWORKS)}
GROUPS = {
    "convex": tuple(experiment.name for experiment in CONVEX),
    "demo": ("accuracy", "submodels"),
    "all": tuple(EXPERIMENTS),
}


def experiments_of(name: str) -> list[Experiment]:
    """The experiments that a name stands for.

    >>> [experiment.name for experiment in experiments_of("accuracy")]
    ['accuracy']
    """
    names = GROUPS.get(name, (name,))
    if not set(names) <= set(EXPERIMENTS):
        known = ", ".join([*EXPERIMENTS, *GROUPS])
        raise ArgumentError(f"there is no experiment {name!r}; there are: {known}")
    return [EXPERIMENTS[member] for member in names]
