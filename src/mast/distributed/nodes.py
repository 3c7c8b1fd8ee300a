"""The nodes: what each can hold (`Capacity`), what a draw keeps of x (`Part`), and its work (`Worker`).

The model is one vector x. A node's `Capacity` says which part of x a key keeps, and is the same on
the server and on the node; its `Worker`, on the node only, has the data.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from mast import sketches
from mast.distributed.messages import Header, Message, MessageKind, Values
from mast.distributed.schemes import largest_prefix
from mast.errors import ArgumentError
from mast.problem import Problem
from mast.randomness import Key
from mast.sketches import Sketch
from mast.sketches.draws import Draw, ModelDraw
from mast.support import files
from mast.support.checkpoint import describe

_PROBES = (Key(0), Key(1, 2, 3), Key(3, 1, 2))  # keys whose draws stand for a capacity in its digest
STRUCTURED = ("neurons", "layers")  # sketches of whole units of a network


class Part:
    """The part of x that one draw keeps: `count` values, in an order that both sides know.

    Parameters
    ----------
    kept
        What is kept of x; or of each piece of x by its name, and then `pieces` gives the pieces.
    draw
        What the node's worker needs of the draw.
    pieces
        The views of a vector that `kept` takes; the vector itself by default.
    scales
        For nodes that are sent S x and train it as it is: what S scales by, which is undone in `add`.
    """

    def __init__(
        self,
        kept: Draw | ModelDraw[Draw],
        draw: Any,
        pieces: Callable[[Values], Any] | None = None,
        scales: ModelDraw[Draw] | None = None,
    ) -> None:
        self.kept: Any = kept
        self.draw = draw
        self.count = kept.count
        self._pieces, self._scales = pieces, scales

    def _of(self, x: Values) -> Any:
        return x if self._pieces is None else self._pieces(x)

    def gather(self, x: Values, out: Values | None = None) -> Values:
        """The kept values of x, in `out` if it is given, which may have another dtype."""
        out = np.empty(self.count, dtype=x.dtype) if out is None else out
        self.kept.gather(self._of(x), out)
        if self._scales is not None:
            self._scales.scale(out)
        return out

    def add(self, x: Values, values: Values, factor: float) -> None:
        """x += factor * values, on the kept coordinates."""
        if self._pieces is not None and not values.flags.writeable:
            values = values.copy()  # pieces may be tensors, and torch takes no memory that is read-only
        if self._scales is not None:
            factors = np.ones_like(values)
            self._scales.scale(factors)
            values = values / factors
        self.kept.add(self._of(x), values, factor)

    def add_weight(self, held: Values, weight: float) -> None:
        """held += weight on the kept coordinates, whatever they are scaled by."""
        self.kept.add(self._of(held), np.ones(self.count, dtype=held.dtype), weight)


class Capacity(ABC):
    """What a node can hold: a distribution of parts. Both sides build it from the same few words.

    Attributes
    ----------
    dim : the length of x.
    stride : nodes whose key's numbers differ by a multiple of this draw independently.
    label : what the capacity is, for tables and digests.
    model : what the model is made of, for digests, where x is a network.
    """

    dim: int
    stride: int = 1
    label: str
    model: str = ""
    _fingerprint: str = ""

    @abstractmethod
    def part(self, key: Key) -> Part:
        """What the draw named by `key` keeps."""

    def largest_part(self, key: Key) -> Part:
        """What the node runs when x is trained: another draw; of prefixes of several sizes, the largest."""
        return self.part(key)

    def fingerprint(self) -> str:
        """A digest that tells this capacity from others: of what it keeps for a few keys."""
        if not self._fingerprint:
            everything = np.arange(self.dim, dtype=np.float64)
            kept = [self.part(key).gather(everything) for key in _PROBES]
            label = self.label.replace("prefixes", "fronts")  # as the first checkpoints called them
            self._fingerprint = files.digest(label, self.model, self.dim, *kept)
        return self._fingerprint


class Worker(ABC):
    """A node: from a message with values to a message with its answer.

    Subclasses have the data, and define `gradients`.
    """

    def __init__(self, capacity: Capacity, run: int = 0) -> None:
        self.capacity = capacity
        self.run = run  #: digest of what all must have in common; other runs' messages are refused

    @abstractmethod
    def gradients(self, part: Part, values: Values, header: Header) -> Values:
        """Take the header's local steps on f_S from `values`; return the sum of their gradients."""

    def identity(self) -> dict[str, str]:
        """What tells this node from others, by name: a checkpoint does not continue with another one.

        Subclasses add what they compute with: the data, the loss, the model.
        """
        return {"worker": describe(type(self)), "sketch": self.capacity.fingerprint()}

    def answer(self, message: Message, part: Part | None = None, into: Message | None = None) -> Message:
        """The answer to a message; `part` and `into` save making them, where the engine has them already."""
        begun = time.perf_counter()
        part = self.part_of(message, part)
        reply = Message(message.header.reply()) if into is None else into
        with np.errstate(over="ignore", invalid="ignore"):  # the server notices what diverges
            reply.values[...] = self.gradients(part, message.values, message.header)
        reply.update_header(seconds=time.perf_counter() - begun)
        return reply

    def submodel(self, part: Part, values: Values) -> Any:
        """The model v + S(x - v) of the kept values, for a score: a vector, or a module."""
        raise ArgumentError(f"{type(self).__name__} has no submodels that could be scored")

    def part_of(self, message: Message, part: Part | None = None) -> Part:
        """What the message's draw keeps; a message of another run or for another sketch is refused."""
        h = message.header
        message.expect(replace(h, kind=MessageKind.VALUES, run=self.run))
        part = self.capacity.part(h.key) if part is None else part
        if part.count != h.count:
            raise ArgumentError(
                f"node {h.node} got {h.count} values in round {h.round}, but its sketch "
                f"({self.capacity.label}) keeps {part.count}: server and node have different sketches"
            )
        return part


def local_gradient_sum(values: Any, gradient: Callable[[Any, int], Any], step_size: float, steps: int) -> Any:
    """The sum of the gradients along `steps` gradient steps from these values, which stay as they are.

    `gradient(values, step)` may use its memory again at the next call.

    >>> local_gradient_sum(np.array([8.0]), lambda x, step: x, step_size=0.5, steps=3)  # of 8, 4 and 2
    array([14.])
    """
    h = gradient(values, 0)
    if steps == 1:
        return h
    x, total = values.copy(), h.copy()
    for step in range(1, steps):
        x -= float(step_size) * h  # a plain number keeps the precision of x
        h = gradient(x, step)
        total += h
    return total


# ---- vectors: linear models, and everything else whose sketch acts on single coordinates ---------------


class VectorCapacity(Capacity):
    """A sketch of a vector: the capacity of a linear model's node.

    >>> import mast
    >>> capacity = VectorCapacity(mast.RandK(2), 6)
    >>> part = capacity.part(Key(seed=1))
    >>> part.draw.indices, part.count
    (array([0, 3]), 2)
    """

    def __init__(self, sketch: Sketch, dim: int) -> None:
        self.sketch = sketch
        self.dim = sketch.check(dim)
        self.stride = sketch.stride
        self.label = repr(sketch).strip("<>")

    def part(self, key: Key) -> Part:
        """The coordinates that the draw keeps, ascending; all of them if S is a general matrix."""
        draw = self.sketch.sample(self.dim, key)
        return Part(draw, draw)

    def largest_part(self, key: Key) -> Part:
        """The same; of prefixes of several sizes, the largest."""
        draw = largest_prefix(self.sketch).sample(self.dim, key)
        return Part(draw, draw)


class ProblemWorker(Worker):
    """The node of a `Problem` (a linear model, or any other objective): its data, its sketch, and the shift.

    A round costs what its draw keeps. `scratch` is a copy of the shift to work in, which is left as it was;
    workers that never work at the same time may share one.

    >>> import mast
    >>> f = mast.Quadratic([[2.0, 0.0], [0.0, 4.0]], [1.0, 1.0])
    >>> worker = ProblemWorker(mast.Problem(f, mast.Identity()))
    >>> message = Message.of(Header(MessageKind.VALUES, 0, Key(seed=0), 2), [1.0, 1.0])
    >>> worker.answer(message).values
    array([1., 3.])
    """

    def __init__(self, problem: Problem, run: int = 0, scratch: Values | None = None) -> None:
        if not isinstance(problem, Problem):
            raise ArgumentError(f"a node has one Problem, got {type(problem).__name__}")
        super().__init__(VectorCapacity(problem.sketch, problem.dim), run)
        self.problem = problem
        self.scratch = problem.shift.copy() if scratch is None else scratch

    def gradients(self, part: Part, values: Values, header: Header) -> Values:
        """Gradient steps on f_S from the values that the node got; the sum of the gradients."""
        shift, x = self.problem.shift, self.scratch

        def gradient(held: Values, step: int) -> Values:
            part.kept.place(x, held)
            return self.problem.sketched_gradient(x, part.draw)

        wide = values.astype(np.float64, copy=False)
        total: Values = local_gradient_sum(wide, gradient, header.step_size, header.local_steps)
        part.kept.copy(x, shift)
        return total

    def identity(self) -> dict[str, str]:
        """The sketch, the objective with its data, and the shift."""
        problem = self.problem
        own = {"objective and data": problem.objective.fingerprint(), "shift": files.digest(problem.shift)}
        return super().identity() | own

    def submodel(self, part: Part, values: Values) -> Values:
        """The vector v + S(x - v)."""
        x = self.problem.shift.copy()
        part.kept.place(x, values)
        return self.problem.sparsified(x, part.draw)


def parse_sketch(text: str) -> Sketch:
    """The sketch of single coordinates that a text names; one of whole units of a network is refused.

    >>> parse_sketch("bernoulli:.9")
    <Bernoulli(0.9): keeps 90 %>
    """
    if isinstance(text, str) and text.strip().lower().split(":")[0] in STRUCTURED:
        raise ArgumentError(
            f"{text!r} keeps whole units of a network; a linear model takes a sketch such as "
            "bernoulli:0.9 or permk:4"
        )
    return sketches.parse(text)
