"""MAST's messages and vectors as records of Flower's: how they are packed, sent, and what they weigh.

A message is one array of bytes, header and values, in an `ArrayRecord`: nothing else travels with it
but the few words that a strategy's user adds. The point x is a record of named arrays.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from mast.distributed import Capacity, Message, Server, Worker
from mast.distributed.messages import Values
from mast.errors import ArgumentError, DataError
from mast.support.checks import refuse_nonfinite

NAME = "mast"  #: of the record, and of the array in it
CONFIG = "config"  #: of the record with the user's words
METRICS = "metrics"  #: of the record with the client's numbers
HELLO = "query.mast"  #: the kind of message that asks a client for its partition
IDENTITY = "identity"  #: of the record with digests of what a client is, and of the question for them
PARTITION = "partition-id"
REFUSED = "means another model, sketch or run"  # what a client says that has another capacity
# what a client may tell by name: logs and traces have to stay readable
MOST_METRICS, LONGEST_NAME, LARGEST_METRIC = 32, 64, 1e300
FIRST_LOOK, LAST_LOOK = 0.02, 0.5  # seconds between two looks for replies, less and less often
Shapes = Mapping[str, tuple[int, ...]]  #: of the pieces of x, in their order


def pack_messages(*messages: Message, **others: ConfigRecord | MetricRecord) -> RecordDict:
    """The records that carry messages.

    >>> from mast.distributed import Header, MessageKind
    >>> from mast.randomness import Key
    >>> message = Message.of(Header(MessageKind.VALUES, 0, Key(seed=7), 3), [1.0, 2.0, 4.0])
    >>> records = pack_messages(message, config=ConfigRecord({"epochs": 2}))
    >>> unpack_messages(records)[0].values, sorted(records)
    (array([1., 2., 4.]), ['config', 'mast'])
    """
    arrays = {str(i): Array(message.buffer) for i, message in enumerate(messages)}
    records: dict[str, Any] = {NAME: ArrayRecord(arrays)}
    records |= {name: record for name, record in others.items() if record}
    return RecordDict(records)


def seal(message: Message, capacity: Capacity) -> Message:
    """The message, of whose run the node's capacity is a part from now on: see `open_sealed`."""
    message.update_header(run=_sealed_run(message.header.run, capacity))
    return message


def open_sealed(message: Message, worker: Worker) -> Message:
    """The message as the server made it, if that was for a worker of this capacity and run.

    A sketch or a model other than the server's may keep as many values, in other places: such a client
    would train nonsense, and nobody would notice.
    """
    capacity, header = worker.capacity, message.header
    if header.run != _sealed_run(worker.run, capacity):
        raise ArgumentError(
            f"the server {REFUSED} for client {header.node} than the client has, "
            f"which is {capacity.label}: make the capacities of both sides from the same model and words, "
            "with the same `run`"
        )
    message.header = replace(header, run=worker.run)
    return message


def refuse_mismatch(replies: Sequence[FlowerMessage]) -> None:
    """Where all clients refused what they were sent, the settings are wrong, and no round would be better."""
    reasons = [str(reply.error.reason) if reply.has_error() else "" for reply in replies]
    if reasons and all(REFUSED in reason for reason in reasons):
        raise ArgumentError(f"no client can train what the server sends; one says: {reasons[0]}")


def _sealed_run(run: int, capacity: Capacity) -> int:
    return run ^ int(capacity.fingerprint(), 16)


def unpack_messages(content: RecordDict) -> list[Message]:
    """The messages that records carry, at least one; anything else is refused."""
    record = content.get(NAME)
    if not isinstance(record, ArrayRecord) or not record:
        raise DataError(f"there is no message of MAST's, {NAME!r}, among the records {sorted(content)}")
    return [_decoded(name, array) for name, array in record.items()]


def _decoded(name: str, array: Array) -> Message:
    if array.dtype != "uint8" or len(array.shape) != 1:
        raise DataError(f"the message {name!r} is no vector of bytes: {array.dtype}, shape {array.shape}")
    try:
        raw = array.numpy()
    except Exception as error:  # NumPy's reader raises whatever the bytes make it stumble over
        raise DataError(f"the message {name!r} cannot be read: {error}") from error
    if not isinstance(raw, np.ndarray) or raw.dtype != np.uint8 or raw.ndim != 1:
        raise DataError(f"the message {name!r} says that it is a vector of bytes, and holds something else")
    return Message.decode(np.ascontiguousarray(raw))


def payload(content: RecordDict) -> int:
    """The bytes of the records, as Flower counts them: arrays with their headers, numbers, names.

    >>> from mast.distributed import Header, MessageKind
    >>> from mast.randomness import Key
    >>> payload(pack_messages(Message.of(Header(MessageKind.VALUES, 0, Key(seed=7), 3), [1.0, 2.0, 4.0])))
    217
    """
    return sum(record.count_bytes() for record in content.values())


def metric_record(metrics: Mapping[str, Any]) -> MetricRecord:
    """Numbers by name, as a record."""
    plain: dict[str, Any] = plain_numbers(metrics)
    return MetricRecord(plain)


def plain_numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The plain numbers of a client's metrics: the first `MOST_METRICS` with names of a sane length.

    Lists, and numbers that are too large for a float, are left out.
    """
    return {
        name: float(value)
        for name, value in itertools.islice(record.items(), MOST_METRICS)
        if isinstance(value, int | float) and not isinstance(value, bool)
        if len(name) <= LONGEST_NAME and not abs(value) > LARGEST_METRIC
    }


def means_of(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each name over the rows that have it; of the first `MOST_METRICS` names.

    >>> means_of([{"loss": 1.0, "accuracy": 0.5}, {"loss": 2.0}])
    {'loss': 1.5, 'accuracy': 0.5}
    """
    names = list(dict.fromkeys(name for row in rows for name in row))[:MOST_METRICS]
    columns = {name: [row[name] for row in rows if name in row] for name in names}
    return {name: sum(values) / len(values) for name, values in columns.items()}


def send(grid: Grid, messages: Sequence[FlowerMessage], timeout: float) -> list[FlowerMessage]:
    """Send messages and wait for the replies, at most `timeout` seconds.

    Flower's own ``grid.send_and_receive`` looks for replies every three seconds only.
    """
    waiting = {name for name in grid.push_messages(messages) if name} if messages else set()
    deadline, pause = time.monotonic() + timeout, FIRST_LOOK
    replies: list[FlowerMessage] = []
    while waiting:
        new = list(grid.pull_messages(list(waiting)))
        replies += new
        waiting -= {reply.metadata.reply_to_message_id for reply in new}
        if not waiting or time.monotonic() > deadline:
            break
        time.sleep(pause)
        pause = min(1.3 * pause, LAST_LOOK)
    return replies


# ---- vectors -------------------------------------------------------------------------------------------


def shapes_of(server: Server) -> Shapes:
    """Of the network's parameters; of a vector, one array, "x"."""
    layout = getattr(server.capacities[0], "layout", None)
    return {"x": (server.x.size,)} if layout is None else layout.shapes


def record_of(x: Values, shapes: Shapes) -> ArrayRecord:
    """The pieces of x.

    >>> record = record_of(np.arange(6.0), {"weight": (2, 2), "bias": (2,)})
    >>> record["bias"].numpy()
    array([4., 5.])
    """
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    pieces = zip(shapes.items(), np.split(x, ends[:-1]), strict=True)
    return ArrayRecord({name: Array(piece.reshape(shape)) for (name, shape), piece in pieces})


def vector_of(record: ArrayRecord, shapes: Shapes, dtype: np.dtype[np.generic]) -> Values:
    """The vector that a record holds; other names or shapes are refused."""
    if list(record) != list(shapes):
        raise ArgumentError(f"the arrays should be {list(shapes)}, in this order; got {list(record)}")
    arrays = {name: array.numpy() for name, array in record.items()}
    for name, array in arrays.items():
        if array.shape != tuple(shapes[name]):
            raise ArgumentError(f"the array {name!r} has shape {array.shape}, expected {shapes[name]}")
        refuse_nonfinite(f"the array {name!r}", array, ArgumentError)
    return np.concatenate([array.ravel() for array in arrays.values()], dtype=dtype, casting="unsafe")
