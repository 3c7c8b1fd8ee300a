"""Distributed DSGD (Algorithm 2), written once for all engines: every node trains the part that it can hold.

Engines are: one process (``mast.minimize(nodes, "distributed")``), torchrun (`mast.cluster`) and Flower
(`mast.federated`). All of them drive one `Server` and carry its messages. The model is one vector x:

1. The server makes one message for each node that takes part in the round: ``server.messages()``. It
   holds the key of the node's draw and the values of x that the draw keeps, never indices.
2. A node makes the same draw from the key, takes its local steps on f_S, and answers with the sum of its
   gradients at the kept coordinates: ``worker.answer(message)``.
3. The server adds the answers up in the order of the nodes, each with its weight:
   ``server.aggregate(answer)`` (or ``aggregate(answer, weight)`` where an engine knows better, as when
   clients drop out), then takes the optimizer's step: ``server.finish_round()``.

`run_in_process` is these three lines in a loop.

``message.buffer`` is a contiguous uint8 array with header and values: send it as it is, and
``Message.decode(what_came)`` on the other side, which refuses cut, foreign or mixed-up messages.
``server.save(path, extra)`` and ``server.load(path)`` are the atomic checkpoint of ``server.state``, which
also counts bytes by node: ``received`` (to nodes) and ``sent``. ``server.t`` is the round that comes next.
"""

from mast.distributed.messages import SIZE, VERSION, Header, Message, MessageKind, digest_of_run
from mast.distributed.nodes import (
    Capacity,
    Part,
    ProblemWorker,
    VectorCapacity,
    Worker,
    parse_sketch,
)
from mast.distributed.optimizers import Optimizer, adam, momentum, parse_optimizer, sgd
from mast.distributed.participation import Participation, stride_of
from mast.distributed.schemes import Scheme, scheme_of
from mast.distributed.server import Server, ServerState, run_in_process

__all__ = [
    "SIZE",
    "VERSION",
    "Capacity",
    "Header",
    "Message",
    "MessageKind",
    "Optimizer",
    "Part",
    "Participation",
    "ProblemWorker",
    "Scheme",
    "Server",
    "ServerState",
    "VectorCapacity",
    "Worker",
    "adam",
    "digest_of_run",
    "momentum",
    "parse_optimizer",
    "parse_sketch",
    "run_in_process",
    "scheme_of",
    "sgd",
    "stride_of",
]  # fmt: skip
