"""Networks as nodes of the distributed method: what each can hold, and its work. Needs torch."""

from mast.nn.nodes.capacities import (
    UnitCapacity,
    WeightCapacity,
    capacities_of,
    capacity_of,
    scale_prefixes,
    submodel_of,
)
from mast.nn.nodes.models import VectorLayout, module_identity
from mast.nn.nodes.worker import NetworkWorker, NodeRows, cross_entropy, mean_squares, torch_seeded

__all__ = [
    "NetworkWorker", "NodeRows", "UnitCapacity", "VectorLayout", "WeightCapacity", "capacities_of",
    "capacity_of", "cross_entropy", "mean_squares", "module_identity", "scale_prefixes", "submodel_of",
    "torch_seeded",
]  # fmt: skip
