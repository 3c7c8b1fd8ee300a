"""Networks as nodes of the distributed method: what each can hold, and its work. Needs torch."""

from mast.nn.nodes.capacities import Units, UnitsPart, Weights, WeightsPart
from mast.nn.nodes.layout import Layout
from mast.nn.nodes.worker import (
    NetworkWorker,
    Rows,
    capacity_of,
    cross_entropy,
    mean_squares,
    torch_seeded,
)

__all__ = [
    "Layout",
    "NetworkWorker",
    "Rows",
    "Units",
    "UnitsPart",
    "Weights",
    "WeightsPart",
    "capacity_of",
    "cross_entropy",
    "mean_squares",
    "torch_seeded",
]
