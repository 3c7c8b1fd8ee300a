"""The message form and the work of server and nodes, which every engine shares.

Engines are: one process (`run_here`), torchrun (`mast.cluster`), Flower (`mast.federated`).

The method is `mast.methods.distributed`; an engine only carries messages. The model is one vector x:

1. The server makes one message for each node that takes part in the round: ``server.messages()``. It
   holds the key of the node's draw and the values of x that the draw keeps, never indices.
2. A node makes the same draw from the key, takes its local steps on f_S, and answers with the sum of its
   gradients at the kept coordinates: ``worker.answer(message)``.
3. The server adds the answers up in the order of the nodes, each with its weight: ``server.absorb(answer)``
   (or ``absorb(answer, weight)`` where an engine knows better, as when clients drop out), then takes the
   optimizer's step: ``server.close()``.

``message.buffer`` is a contiguous uint8 array with header and values: send it as it is, and
``Message.decode(what_came)`` on the other side, which refuses cut, foreign or mixed-up messages. Counts
of bytes by node are in ``server.received`` (to nodes) and ``server.sent``. ``server.save(path, extra)``
and ``server.load(path)`` are the atomic checkpoint, ``server.t`` the round that comes next.

=================================  =====================================================================
`Message`, `Header`, `Kind`        the wire format, 64 bytes and the values
`Roster`                           who takes part in a round, with which weight and which key
`Capacity`, `Part`                 what a node can hold; what one draw keeps: `gather` and `add` on x
`Worker`                           a node: `answer(message) -> message`
`Coordinates`, `ProblemWorker`     both for linear models (any `mast.Problem`)
`mast.exchange.network`            both for networks (torch): `capacity_of`, `NetworkWorker`, `Layout`, `Rows`
`Server`                           x, optimizer, weights, bytes, checkpoints
`run_here`                         the engine without a wire
`parse_capacity`                   ``bernoulli:0.9``, ``permk:4``, ``neurons:0.25``
`parse_optimizer`                  ``sgd``, ``momentum:0.9``, ``adam``
`digest_of_run`, `stride_of`       what server and nodes must share; how far apart nodes draw independently
=================================  =====================================================================
"""

from mast.exchange.here import run_here
from mast.exchange.identity import digest_of_run, fingerprints_of, stride_of
from mast.exchange.linear import ProblemWorker
from mast.exchange.messages import SIZE, VERSION, Header, Kind, Message
from mast.exchange.optimizers import SGD, Adam, Momentum, Optimizer, parse_optimizer
from mast.exchange.parts import Capacity, Coordinates, CoordinatesPart, Part, Worker
from mast.exchange.server import Server
from mast.exchange.spelling import parse_capacity, parse_sketch
from mast.methods.distributed import Roster

__all__ = [
    "SGD",
    "SIZE",
    "VERSION",
    "Adam",
    "Capacity",
    "Coordinates",
    "CoordinatesPart",
    "Header",
    "Kind",
    "Message",
    "Momentum",
    "Optimizer",
    "Part",
    "ProblemWorker",
    "Roster",
    "Server",
    "Worker",
    "digest_of_run",
    "fingerprints_of",
    "parse_capacity",
    "parse_optimizer",
    "parse_sketch",
    "run_here",
    "stride_of",
]
