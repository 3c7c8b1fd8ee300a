"""MAST's messages as records of Flower's, and what they weigh.

A message is one array of bytes, header and values, in an `ArrayRecord`: nothing else travels with it
but the few words that a strategy's user adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from mast.errors import DataError
from mast.exchange import Message

NAME = "mast"  #: of the record, and of the array in it
CONFIG = "config"  #: of the record with the user's words
METRICS = "metrics"  #: of the record with the client's numbers
HELLO = "query.mast"  #: the kind of message that asks a client for its partition
FACTS = "query.facts"  #: the kind that asks for what theory needs to know
PARTITION = "partition-id"


def pack(message: Message, **others: ConfigRecord | MetricRecord) -> RecordDict:
    """The records that carry a message.

    >>> from mast.exchange import Header, Kind
    >>> from mast.randomness import Key
    >>> message = Message.of(Header(Kind.VALUES, 0, Key(seed=7), 3), [1.0, 2.0, 4.0])
    >>> records = pack(message, config=ConfigRecord({"epochs": 2}))
    >>> unpack(records).values, sorted(records)
    (array([1., 2., 4.]), ['config', 'mast'])
    """
    records: dict[str, Any] = {NAME: ArrayRecord({NAME: Array(message.buffer)})}
    records |= {name: record for name, record in others.items() if record}
    return RecordDict(records)


def unpack(content: RecordDict) -> Message:
    """The message that records carry; anything else is refused."""
    record = content.get(NAME)
    array = record.get(NAME) if isinstance(record, ArrayRecord) else None
    if array is None or array.dtype != "uint8" or len(array.shape) != 1:
        raise DataError(
            f"the records hold no message of MAST's: they are {sorted(content)}, and {NAME!r} should be an "
            "array of bytes"
        )
    try:
        raw = array.numpy()
    except (ValueError, OSError, EOFError, TypeError) as error:
        raise DataError(f"the array {NAME!r} cannot be read: {error}") from error
    return Message.decode(np.ascontiguousarray(raw))


def payload(content: RecordDict) -> int:
    """The bytes of the records, as Flower counts them: arrays with their headers, numbers, names.

    >>> from mast.exchange import Header, Kind
    >>> from mast.randomness import Key
    >>> payload(pack(Message.of(Header(Kind.VALUES, 0, Key(seed=7), 3), [1.0, 2.0, 4.0])))
    220
    """
    return sum(record.count_bytes() for record in content.values())


def metric_record(metrics: Mapping[str, Any]) -> MetricRecord:
    """Numbers by name, as a record."""
    plain: dict[str, Any] = numbers(metrics)
    return MetricRecord(plain)


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The plain numbers of a client's metrics; lists are left out."""
    return {
        name: float(value)
        for name, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
