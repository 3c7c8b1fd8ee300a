"""The client's side: a ClientApp that answers messages with a worker of `mast.distributed`.

The user says how the worker of a partition is made; the app makes it once for each run and process,
checks what comes, lets it train, and sends values back. `LocalGrid` has all clients in one process.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from mast.distributed import Part, Worker
from mast.distributed.messages import Values
from mast.engines.flower.records import (
    CONFIG,
    IDENTITY,
    METRICS,
    PARTITION,
    metric_record,
    open_sealed,
    pack_messages,
    unpack_messages,
)
from mast.errors import ArgumentError
from mast.randomness import Key, Purpose, uniform
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
    [asked] = unpack_messages(message.content)
    _check_node(asked.header.node, context)
    asked = open_sealed(asked, worker)
    config = message.content.get(CONFIG)
    if hasattr(worker, "config"):
        worker.config = dict(config) if isinstance(config, ConfigRecord) else {}
    answer = worker.answer(asked)
    keep_statistics(worker, context)
    metrics: Mapping[str, float] = getattr(worker, "metrics", {})
    return Message(pack_messages(answer, metrics=metric_record(metrics)), reply_to=message)


def answer_evaluate(make: Make, message: Message, context: Context) -> Message:
    """The scores of the submodels that a message holds."""
    client = client_of(make, context)
    records: dict[str, Any] = {}
    for i, asked in enumerate(unpack_messages(message.content)):
        _check_node(asked.header.node, context)
        part = client.worker.capacity.largest_part(asked.header.key)
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


# ---- a federation in one process ---------------------------------------------------------------------

RUN = 1  # the number of the only run
_FAILED = 0  # code of an error without a name


class LocalGrid(Grid):
    """A grid of `nodes` clients of one app, with the real strategy, but without Ray and without a wire.

    Where the app raises, an error comes back at once, as from Flower.

    >>> from flwr.app import ConfigRecord
    >>> app = ClientApp()
    >>> @app.query()
    ... def number(message, context):
    ...     said = ConfigRecord({"mine": context.node_config["partition-id"]})
    ...     return Message(RecordDict({"config": said}), reply_to=message)
    >>> grid = LocalGrid(app, 3)
    >>> questions = [Message(RecordDict(), node_id, "query") for node_id in grid.get_node_ids()]
    >>> sorted(reply.content["config"]["mine"] for reply in grid.send_and_receive(questions))
    [0, 1, 2]
    """

    def __init__(self, app: ClientApp, nodes: int) -> None:
        self.app = app
        # As Flower's, the ids are large numbers without order.
        by_id = {1 + int(uniform(Key(RUN, 0, i), Purpose.CHOICE) * 2**62): i for i in range(nodes)}
        self.contexts = {
            node_id: Context(
                run_id=RUN,
                node_id=node_id,
                node_config={PARTITION: i, "num-partitions": nodes},
                state=RecordDict(),
                run_config={},
            )
            for node_id, i in by_id.items()
        }
        ensure_task_identity()
        self._replies: dict[str, Message] = {}
        self._count = 0

    def set_run(self, run: Any) -> None:
        """There is one run only."""

    @property
    def run(self) -> Any:
        """There is one run only."""
        return None

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message, as Flower's older programs make them."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """All clients, in no order."""
        return sorted(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Bring messages to their clients, which answer at once."""
        ids = []
        for message in messages:
            self._count += 1
            name = str(self._count)
            message.metadata.__dict__["_message_id"] = name  # as Flower's grids do
            self._replies[name] = self._answer(message)
            ids.append(name)
        return ids

    def _answer(self, message: Message) -> Message:
        context = self.contexts[message.metadata.dst_node_id]
        try:
            return self.app(message, context)
        except Exception as error:  # as Flower's engines do
            return Message(Error(code=_FAILED, reason=f"{type(error).__name__}: {error}"), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to messages, each once, in no order."""
        found = [self._replies.pop(name) for name in message_ids if name in self._replies]
        return sorted(found, key=lambda reply: reply.metadata.src_node_id)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Both."""
        return self.pull_messages(self.push_messages(messages))


def ensure_task_identity() -> None:
    """Flower's messages name the process that makes them; one that no engine started has no name yet."""
    for name, value in (("run_id", RUN), ("task_id", RUN), ("node_id", 1)):
        try:
            getattr(TaskIdentity, name)
        except RuntimeError:
            setattr(TaskIdentity, name, value)
