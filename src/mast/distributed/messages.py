"""What travels between the server and a node: a header of 64 bytes, and values. Never indices.

The header names the draw by its key, so both sides make the indices themselves. It is a wire format,
version `VERSION`, little endian:

======  ======  ================================================================================
offset  type    field
======  ======  ================================================================================
0       4s      ``MAST``
4       uint16  version of this layout
6       uint8   kind: 1 values of x, from the server; 2 answer, from a node
7       uint8   dtype of the values: 1 float32, 2 float64
8       uint64  run: a digest of what server and nodes must have in common (the shift, the sketches, ...)
16      uint64  key: seed
24      uint64  key: step, which is the round
32      uint32  key: node
36      uint32  key: index
40      uint32  number of the node, 0 .. M-1
44      uint32  local steps that the node takes
48      float64 to a node: step size of these local steps; in an answer: seconds that the node worked
56      uint64  how many values follow
======  ======  ================================================================================

The version of the keys' own layout (`mast.randomness.LAYOUT`) is part of `run`.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mast.errors import ArgumentError, DataError
from mast.randomness import LAYOUT, Key
from mast.support import files

VERSION = 1
HEADER = struct.Struct("<4sHBBQQQIIIIdQ")
SIZE = HEADER.size  #: bytes of a header
_MAGIC = b"MAST"
_DTYPES: dict[int, np.dtype[Any]] = {1: np.dtype("<f4"), 2: np.dtype("<f8")}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}

Values = NDArray[Any]  #: a vector of float32 or float64
TOO_LARGE = 1e100  # a value beyond this is a divergence, as in `mast.minimize`
assert SIZE == 64


class MessageKind(IntEnum):
    """Which way a message goes."""

    VALUES = 1  # the server's x, where the node's sketch keeps it
    ANSWER = 2  # the node's (summed) gradient there


@dataclass(frozen=True)
class Header:
    """All of a message but its values.

    >>> header = Header(MessageKind.VALUES, node=2, key=Key(seed=7, step=3, node=2), count=5)
    >>> Header.decode(header.encode()) == header, len(header.encode())
    (True, 64)
    """

    kind: MessageKind
    node: int
    key: Key
    count: int
    dtype: np.dtype[Any] = _DTYPES[2]
    run: int = 0
    local_steps: int = 1
    step_size: float = 0.0  # of the server's message
    seconds: float = field(default=0.0, compare=False)  # of the answer

    @property
    def round(self) -> int:
        """The round, which is the step of the key."""
        return self.key.step

    @property
    def size(self) -> int:
        """The size of the whole message."""
        return SIZE + self.count * self.dtype.itemsize

    def reply(self) -> Header:
        """The header of the answer to this message."""
        return replace(self, kind=MessageKind.ANSWER, step_size=0.0)

    def encode(self) -> bytes:
        """The 64 bytes."""
        key, number = self.key, self.step_size if self.kind is MessageKind.VALUES else self.seconds
        return HEADER.pack(
            _MAGIC, VERSION, self.kind, _CODES[checked_dtype(self.dtype)], self.run, key.seed, key.step,
            key.node, key.index, self.node, self.local_steps, number, self.count,
        )  # fmt: skip

    @classmethod
    def decode(cls, raw: Any) -> Header:
        """A header from the first 64 bytes of `raw`; anything else is refused."""
        raw = bytes(memoryview(raw)[:SIZE])
        if len(raw) < SIZE:
            raise DataError(f"a message begins with a header of {SIZE} bytes, got {len(raw)} bytes in all")
        magic, version, kind, code, run, *key, number, local, pace, count = HEADER.unpack(raw)
        if magic != _MAGIC:
            raise DataError(f"this is not a message of MAST's: it begins with {magic!r}")
        if version != VERSION:
            raise DataError(f"the message has version {version} of the layout, this is version {VERSION}")
        if kind not in (1, 2) or code not in _DTYPES or key[1] >> 48:
            raise DataError(f"the message is damaged: kind {kind}, dtype code {code}, round {key[1]}")
        pace, seconds = (pace, 0.0) if kind == MessageKind.VALUES else (0.0, pace)
        return cls(MessageKind(kind), number, Key(*key), count, _DTYPES[code], run, local, pace, seconds)


class Message:
    """A header and its values in one contiguous buffer, which is what travels: nothing is copied.

    >>> message = Message.of(Header(MessageKind.VALUES, 0, Key(seed=7), 3), [1.0, 2.0, 4.0])
    >>> raw = message.buffer.tobytes()
    >>> len(raw), Message.decode(raw).values
    (88, array([1., 2., 4.]))
    """

    __slots__ = ("buffer", "header", "values")

    def __init__(self, header: Header, buffer: NDArray[np.uint8] | None = None) -> None:
        """An empty message to fill `values` of; `buffer`, if given, is used and must have the right size."""
        if buffer is None:
            buffer = np.empty(header.size, dtype=np.uint8)
        elif buffer.size != header.size or not buffer.flags.c_contiguous or not buffer.flags.writeable:
            raise ArgumentError(f"the message takes a contiguous buffer of {header.size} bytes")
        self.header = header
        self.buffer = buffer
        self.values: Values = buffer[SIZE:].view(header.dtype)
        buffer[:SIZE] = np.frombuffer(header.encode(), dtype=np.uint8)

    @classmethod
    def of(cls, header: Header, values: Any) -> Message:
        """A message with these values."""
        message = cls(header)
        values = np.asarray(values)
        if values.shape != (header.count,):
            raise ArgumentError(
                f"the message holds {header.count} values, got an array of shape {values.shape}"
            )
        message.values[...] = values
        return message

    @classmethod
    def decode(cls, raw: Any) -> Message:
        """A message from what arrived (bytes, a uint8 array, a memoryview); a cut or foreign one is refused.

        The values are a view of `raw`, read-only if `raw` is.
        """
        header = Header.decode(raw)
        buffer = np.frombuffer(raw, dtype=np.uint8)
        if buffer.size != header.size:
            raise DataError(
                f"the message is cut: its header says {header.count} values, {header.size} bytes in all, "
                f"but {buffer.size} bytes came"
            )
        message = cls.__new__(cls)
        message.header, message.buffer = header, buffer
        message.values = buffer[SIZE:].view(header.dtype)
        return message

    @property
    def size(self) -> int:
        """The size of what travels."""
        return int(self.buffer.size)

    def update_header(self, **changes: Any) -> None:
        """Change fields of the header."""
        self.header = replace(self.header, **changes)
        self.buffer[:SIZE] = np.frombuffer(self.header.encode(), dtype=np.uint8)

    def expect(self, header: Header) -> Message:
        """Itself, if its header is the expected one; else an error that names the first difference."""
        if self.header == header:
            return self
        where = f"the message of node {header.node} in round {header.round}"
        if self.header.kind is header.kind and self.header.run != header.run:
            raise DataError(
                f"{where} belongs to another run ({self.header.run:016x}, not {header.run:016x}): server and "
                "nodes must have the same shift, sketches, seed and layout of keys"
            )
        names = ("kind", "node", "key", "dtype", "count", "local_steps", "step_size")
        here, there = ({name: getattr(h, name) for name in names} for h in (self.header, header))
        first = next(name for name in names if here[name] != there[name])
        raise DataError(f"{where} has {first} {here[first]}, expected {there[first]}")

    def __repr__(self) -> str:
        h = self.header
        return f"<message: {h.kind.name.lower()} of node {h.node}, round {h.round}, {h.count} x {h.dtype}>"


def checked_dtype(dtype: Any) -> np.dtype[Any]:
    """A dtype that can travel."""
    try:
        return _DTYPES[_CODES[np.dtype(dtype)]]
    except (KeyError, TypeError):
        raise ArgumentError(f"values travel as float32 or float64, not as {dtype}") from None


def digest_of_run(*parts: Any) -> int:
    """64 bits that stand for what server and nodes must share, and for the layout of keys.

    >>> digest_of_run("permk:4", [0.0, 1.0]) == digest_of_run("permk:4", [0.0, 2.0])
    False
    """
    return int(files.digest("exchange", VERSION, LAYOUT, *parts), 16)


def finite(values: Values) -> bool:
    """Whether no value is NaN, infinite or beyond all measure; an inner product sees it at once.

    In single precision, what cannot be squared is beyond all measure: losses are infinite there.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if math.isfinite(float(values @ values)):
            return True
        most = min(TOO_LARGE, math.sqrt(np.finfo(values.dtype).max))
        return bool(np.abs(values).max(initial=0.0) < most)
