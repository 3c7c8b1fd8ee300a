"""What a draw keeps of a model, as both sides of the wire see it: `Part`, `Capacity`, `Worker`.

The model is one vector x. A node's `Capacity` says which part of x a key keeps, and is the same on
the server and on the node; its `Worker`, on the node only, has the data.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from mast import files
from mast.errors import ArgumentError
from mast.exchange.messages import Header, Kind, Message, Values, code_of
from mast.methods.base import descend
from mast.methods.distributed import message_to
from mast.randomness import Key
from mast.sketches import DiagonalDraw, Draw, Sketch

_PROBES = (Key(0), Key(1, 2, 3), Key(3, 1, 2))  # keys whose draws stand for a capacity in its digest


class Part(ABC):
    """The part of x that one draw keeps: `count` values, in an order that both sides know."""

    count: int

    @abstractmethod
    def gather(self, x: Values, out: Values) -> None:
        """Copy the kept values of x to `out`, which has `count` entries and may have another dtype."""

    @abstractmethod
    def add(self, x: Values, values: Values, factor: float) -> None:
        """x += factor * values, on the kept coordinates."""

    def release(self) -> None:  # noqa: B027
        """The part is not needed any more: its memory may be used for another one."""


class Capacity(ABC):
    """What a node can hold: a distribution of parts. Both sides build it from the same few words.

    Attributes
    ----------
    dim : the length of x.
    stride : nodes whose key's numbers differ by a multiple of this draw independently.
    label : what the capacity is, for tables and digests.
    """

    dim: int
    stride: int = 1
    label: str

    @abstractmethod
    def part(self, key: Key) -> Part:
        """What the draw named by `key` keeps."""

    def fingerprint(self) -> str:
        """A digest that tells this capacity from others: of what it keeps for a few keys."""
        everything = np.arange(self.dim, dtype=np.float64)
        kept = []
        for key in _PROBES:
            part = self.part(key)
            kept.append(np.empty(part.count))
            part.gather(everything, kept[-1])
        return files.digest(self.label, self.dim, *kept)


class Worker(ABC):
    """A node: from a message with values to a message with its answer.

    Subclasses have the data, and define `gradients`.
    """

    def __init__(self, capacity: Capacity, run: int = 0) -> None:
        self.capacity = capacity
        self.run = run  #: digest of what all must have in common; other runs' messages are refused

    @abstractmethod
    def gradients(self, part: Part, values: Values, header: Header, out: Values) -> None:
        """Take the header's local steps on f_S from `values`; write the sum of their gradients to `out`."""

    def answer(self, message: Message, part: Part | None = None, into: Message | None = None) -> Message:
        """The answer to a message; `part` and `into` save making them, where the engine has them already."""
        begun = time.perf_counter()
        header = message.header
        message.expect(_expected(header, self.run))
        if part is None:
            part = self.capacity.part(header.key)
        if part.count != header.count:
            raise ArgumentError(
                f"node {header.node} got {header.count} values in round {header.round}, but its sketch "
                f"({self.capacity.label}) keeps {part.count}: server and node have different sketches"
            )
        reply = Message(header.answered()) if into is None else into
        with np.errstate(over="ignore", invalid="ignore"):  # the server notices what diverges
            self.gradients(part, message.values, header, reply.values)
        reply.worked(time.perf_counter() - begun)
        return reply


def _expected(header: Header, run: int) -> Header:
    """The header, as it should be."""
    h = header
    return Header(Kind.VALUES, h.node, h.key, h.count, h.dtype, run, h.local_steps, h.step_size)


# ---- vectors: linear models, and everything else whose sketch acts on single coordinates ---------------


class Coordinates(Capacity):
    """A sketch of a vector: the capacity of a linear model's node.

    >>> import mast
    >>> capacity = Coordinates(mast.RandK(2), 6)
    >>> part = capacity.part(Key(seed=1))
    >>> part.draw.indices, part.count
    (array([0, 3]), 2)
    """

    def __init__(self, sketch: Sketch, dim: int) -> None:
        self.sketch = sketch
        self.dim = sketch._check(dim)
        self.stride = sketch.stride
        self.label = repr(sketch).strip("<>")

    def part(self, key: Key) -> CoordinatesPart:
        """The coordinates of the draw."""
        return CoordinatesPart(self.sketch.sample(self.dim, key))


class CoordinatesPart(Part):
    """The coordinates that a draw keeps, ascending; all of them if S is a general matrix."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.count = draw.indices.size if isinstance(draw, DiagonalDraw) else draw.dim

    def gather(self, x: Values, out: Values) -> None:
        """What `mast.methods.distributed` sends."""
        message_to(x, self.draw, out)

    def add(self, x: Values, values: Values, factor: float) -> None:
        """What it subtracts, in the precision of x."""
        descend(x, self.draw, values.astype(x.dtype, copy=False), -factor)


def checked_dtype(dtype: Any) -> np.dtype[Any]:
    """A dtype that can travel."""
    code_of(dtype)
    checked: np.dtype[Any] = np.dtype(dtype)
    return checked
