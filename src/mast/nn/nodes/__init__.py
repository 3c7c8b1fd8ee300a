"""Networks as nodes of the distributed method: what each can hold, and its work. Needs torch."""

from mast.nn.nodes.capacities import Units, Weights, capacity_of
from mast.nn.nodes.layout import Layout
from mast.nn.nodes.worker import (
    NetworkWorker,
    Rows,
    cross_entropy,
    mean_squares,
    torch_seeded,
)

__all__ = [
    "Layout",
    "NetworkWorker",
    "Rows",
    "Units",
    "Weights",
    "capacity_of",
    "cross_entropy",
    "mean_squares",
    "torch_seeded",
]
