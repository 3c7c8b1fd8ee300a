"""The client's side: a ClientApp that answers messages with a worker of `mast.distributed`.

The user says how the worker of a partition is made; the app makes it once for each run and process,
checks what comes, lets it train, and sends values back.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from mast.distributed import Part, Worker
from mast.distributed.messages import Values
from mast.engines.flower.records import (
    CONFIG,
    IDENTITY,
    METRICS,
    PARTITION,
    metric_record,
    open_sealed,
    pack,
    unpack,
)
from mast.errors import ArgumentError
from mast.support import files

Evaluate = Callable[[Any], Mapping[str, float]]  #: of a submodel: a vector, or a module
Make = Callable[[Context], "Worker | Client"]  #: how the client of a context is made
MOST = 64  # clients that a process remembers
DIGITS = 8  # of a digest: enough to notice what was changed by mistake
STATISTICS = "mast-statistics"  # the record of Flower's state that a client's local BatchNorm is kept in


@dataclass
class Client:
    """A worker, and how to score a submodel on the client's own data.

    `evaluate` gets the vector v + S(x - v) of a linear model, or the `nn.Module` in evaluation mode, and
    returns numbers by name; the strategy shows their means by capacity. `calibrate` has batches from which
    BatchNorm layers take their statistics anew, for each submodel (`mast.nn.recalibrate`).
    """

    worker: Worker
    evaluate: Evaluate | None = None
    calibrate: Sequence[Any] | None = None


def client(make: Make) -> ClientApp:
    """A ClientApp whose clients are made by ``make(context)``, once for each run and partition.

    A process remembers the last 64: with more of them, those that were not asked for long are made again.

    >>> import mast, numpy as np
    >>> from mast.distributed import VectorCapacity, ProblemWorker, Participation, Server
    >>> from mast.federated import LocalGrid, MastStrategy
    >>> f = mast.Quadratic([[2.0, 0.0], [0.0, 4.0]], [1.0, 1.0])
    >>> app = client(lambda context: ProblemWorker(mast.Problem(f, mast.RandK(1))))
    >>> capacities = [VectorCapacity(mast.RandK(1), 2)] * 3
    >>> server = Server(np.zeros(2), capacities, Participation(0, nodes=3), step_size=0.1)
    >>> result = MastStrategy(server).start(LocalGrid(app, 3), num_rounds=2)
    >>> result.arrays["x"].numpy().round(4)
    array([0.1156, 0.1244])
    """
    app = ClientApp()
    app.query("mast")(partial(answer_query, make))
    app.train()(partial(answer_train, make))
    app.evaluate()(partial(answer_evaluate, make))
    return app


# Functions of the module, not of the app: an app that is sent to another process finds this process' clients.
_clients: OrderedDict[tuple[int, int], tuple[Any, Client]] = OrderedDict()


def answer_query(make: Make, message: Message, context: Context) -> Message:
    """Which partition the client has; of how many, if it was told; what it is, if the server asks."""
    config = {PARTITION: partition_of(context)}
    if "num-partitions" in context.node_config:
        config["num-partitions"] = int(context.node_config["num-partitions"])
    records: dict[str, Any] = {CONFIG: ConfigRecord(dict(config))}
    if IDENTITY in message.content:
        with contextlib.suppress(Exception):  # who cannot be made says so when it is asked to train
            identity = client_of(make, context).worker.identity()
            digests = {name: files.digest(text)[:DIGITS] for name, text in identity.items()}
            records[IDENTITY] = ConfigRecord(dict(digests))
    return Message(RecordDict(records), reply_to=message)


def answer_train(make: Make, message: Message, context: Context) -> Message:
    """The answer to a message with values."""
    worker = client_of(make, context).worker
    [asked] = unpack(message.content)
    _check_node(asked.header.node, context)
    asked = open_sealed(asked, worker)
    config = message.content.get(CONFIG)
    if hasattr(worker, "config"):
        worker.config = dict(config) if isinstance(config, ConfigRecord) else {}
    answer = worker.answer(asked)
    keep_statistics(worker, context)
    metrics: Mapping[str, float] = getattr(worker, "metrics", {})
    return Message(pack(answer, metrics=metric_record(metrics)), reply_to=message)


def answer_evaluate(make: Make, message: Message, context: Context) -> Message:
    """The scores of the submodels that a message holds."""
    client = client_of(make, context)
    records: dict[str, Any] = {}
    for i, asked in enumerate(unpack(message.content)):
        _check_node(asked.header.node, context)
        part = client.worker.capacity.largest(asked.header.key)
        client.worker.part_of(open_sealed(asked, client.worker), part)
        records[f"{METRICS}-{i}"] = metric_record(score(client, part, asked.values))
    return Message(RecordDict(records), reply_to=message)


def score(client: Client, part: Part, values: Values) -> Mapping[str, float]:
    """The client's score of a submodel."""
    if client.evaluate is None:
        return {}
    submodel = client.worker.submodel(part, values)
    if isinstance(submodel, np.ndarray):
        return client.evaluate(submodel)
    from mast.engines.flower.training import evaluate_network

    kind = getattr(client.worker, "batch_norm", "static")
    return evaluate_network(submodel, client.evaluate, client.calibrate, kind)


def client_of(make: Make, context: Context) -> Client:
    """The client of the context's run and partition, made if this process does not have it yet."""
    place = (context.run_id, partition_of(context))
    known = _clients.get(place)
    if known is not None and known[0] is make:
        _clients.move_to_end(place)
        return known[1]
    made = make(context)
    if isinstance(made, Worker):
        made = Client(made)
    if not isinstance(made, Client):
        raise ArgumentError(f"make(context) must return a Worker or a Client, got {type(made).__name__}")
    recall_statistics(made.worker, context)
    _clients[place] = (make, made)
    while len(_clients) > MOST:
        _clients.popitem(last=False)
    return made


def keep_statistics(worker: Worker, context: Context) -> None:
    """Give Flower what a worker remembers (local BatchNorm): the next message may find another process."""
    own = getattr(worker, "statistics", {})
    if own:
        context.state[STATISTICS] = ArrayRecord({name: Array(b.cpu().numpy()) for name, b in own.items()})


def recall_statistics(worker: Worker, context: Context) -> None:
    """The other way, for a worker that was made anew."""
    stored = context.state.get(STATISTICS)
    if isinstance(stored, ArrayRecord):
        for name, b in getattr(worker, "statistics", {}).items():
            if name in stored and tuple(stored[name].shape) == tuple(b.shape):
                b.copy_(b.new_tensor(stored[name].numpy()))


def partition_of(context: Context) -> int:
    """The client's number, which names its data and its sketch."""
    try:
        return int(context.node_config[PARTITION])
    except (KeyError, TypeError, ValueError):
        raise ArgumentError(
            f"a client is known by its {PARTITION}, and this one has none: start the SuperNode with "
            f"--node-config '{PARTITION}=0 num-partitions=4', each with another number"
        ) from None


def _check_node(node: int, context: Context) -> None:
    if node != (own := partition_of(context)):
        raise ArgumentError(f"the message is for partition {node}, but this client has partition {own}")
