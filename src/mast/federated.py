"""Federated training on Flower: every client trains the submodel that it can hold.

The method, its messages and the work of server and clients are those of `mast.distributed`; Flower
carries them, in simulation (``flwr run``) and between machines (SuperLink and SuperNodes). A client is
known by its ``partition-id``, because Flower's node ids are random.

=============================  =============================================================================
`server_for`                   where to start, and what each client can hold
`MastStrategy`                 a strategy of `flwr.serverapp`: another submodel for each client, sums by
                               coordinate with unbiased weights, atomic checkpoints, finite timeouts
`client`                       the ClientApp around a worker:
`ProblemWorker`                a linear `mast.Problem`,
`NetworkWorker`                a network with a loss,
`TrainingWorker`               or any function that trains a small `nn.Module`
`Dropouts`                     the weights of answers when clients drop out
`LocalGrid`                    a federation in one process, for tests and for a first try
=============================  =============================================================================
"""

from __future__ import annotations

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise ImportError('mast.federated needs Flower: pip install "mast-train[federated]"') from error

import importlib
from typing import TYPE_CHECKING, Any

from mast.distributed import ProblemWorker
from mast.distributed.participation import Dropouts
from mast.engines.flower.clients import Client, LocalGrid, client
from mast.engines.flower.strategy import MastStrategy
from mast.engines.servers import server_for

if TYPE_CHECKING:
    from mast.engines.flower.training import TrainingWorker
    from mast.nn.nodes import NetworkWorker

__all__ = [
    "Client",
    "Dropouts",
    "LocalGrid",
    "MastStrategy",
    "NetworkWorker",
    "ProblemWorker",
    "TrainingWorker",
    "client",
    "server_for",
]


def __getattr__(name: str) -> Any:
    """Workers of networks, imported when first used: clients of linear models do not wait for torch."""
    if name not in ("NetworkWorker", "TrainingWorker"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("mast.engines.flower.training"), name)
