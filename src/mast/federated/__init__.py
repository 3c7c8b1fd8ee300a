"""Federated training on Flower: every client trains the submodel that it can hold.

The method is `mast.methods.distributed`, the messages and the work of server and clients are those of
`mast.exchange`; Flower carries them, in simulation (``flwr run``) and between machines (SuperLink and
SuperNodes) alike. A client is known by its ``partition-id``, because Flower's node ids are random.

=============================  =============================================================================
`MastStrategy`                 a strategy of `flwr.serverapp`: another submodel for each client, sums by
                               coordinate with unbiased weights, atomic checkpoints, finite timeouts
`client`                       the ClientApp around a worker: a linear `mast.Problem`, a network with a loss,
                               or any function that trains a small `nn.Module` (`mast.federated.training`)
`Dropouts`                     the weights of answers when clients drop out
`LocalGrid`                    a federation in one process, for tests and for a first try
`Report`                       who got how many bytes, and the score of each client's submodel; a plot
=============================  =============================================================================
"""

from __future__ import annotations

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise ImportError('mast.federated needs Flower: pip install "mast-train[federated]"') from error

from mast.federated.clients import Client, client
from mast.federated.dropouts import Dropouts
from mast.federated.here import LocalGrid
from mast.federated.report import Report
from mast.federated.strategy import MastStrategy

__all__ = ["Client", "Dropouts", "LocalGrid", "MastStrategy", "Report", "client"]
