"""The server that all engines drive: the point x, who gets which values, and what is done with the answers.

The order of sums is fixed: answers count in the order of the nodes' numbers, so every engine gives
the same bits, and those of ``mast.minimize(..., "distributed")`` with the optimizer "sgd".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mast import __version__
from mast.distributed.messages import Header, Message, MessageKind, Values, checked_dtype, finite
from mast.distributed.nodes import Capacity, Part, Worker
from mast.distributed.optimizers import Optimizer, parse_optimizer
from mast.distributed.participation import Participation
from mast.errors import ArgumentError, CheckpointError, DataError
from mast.randomness import LAYOUT, Key
from mast.support import files
from mast.support.checkpoint import Checkpoint, check_fields, fill_arrays
from mast.support.checks import check_choice, check_int, check_positive
from mast.theory import Guarantee

LARGE = 1 << 20  # values, from which on looking at them takes a tenth of the round, ...
SELDOM = 8  # ... so it is done in one of these rounds: what is not finite does not go away
AGGREGATIONS = ("unbiased", "mean")
#: the numbers of a checkpoint, and their types
NUMBERS: dict[str, tuple[type, ...]] = {"round": (int,), "seconds": (int, float), "extra": (dict,)}
#: what is counted for each node: bytes, messages and values to it, bytes and answers from it
COUNTS = ("received", "asked", "values", "sent", "answered")


class ServerState:
    """All that the rest of a run depends on, and nothing else: what a checkpoint holds.

    Attributes
    ----------
    x : the point.
    t : rounds done.
    seconds : how long they took.
    received, asked, values : bytes, messages and values to each node.
    sent, answered : bytes and answers from each node.
    """

    def __init__(self, x0: Values, optimizer: Optimizer, nodes: int) -> None:
        self.x: Values = np.array(x0, dtype=checked_dtype(np.asarray(x0).dtype))
        if self.x.ndim != 1:
            raise ArgumentError(f"x0 must be a vector, got shape {self.x.shape}")
        self.optimizer = optimizer
        optimizer.start(self.x)
        self.t, self.seconds = 0, 0.0
        counts = np.zeros((len(COUNTS), nodes), dtype=np.int64)
        self.received, self.asked, self.values, self.sent, self.answered = counts

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays by their names in a checkpoint; the optimizer's are among them."""
        memory = {f"optimizer_{name}": array for name, array in self.optimizer.arrays.items()}
        return {"x": self.x, **{name: getattr(self, name) for name in COUNTS}} | memory


class Server:
    """One training run, seen from the server.

    Parameters
    ----------
    x0
        Where to start: a vector of float64 or float32, which is also the precision of all sums.
    capacities
        One per node: which part of x a key keeps.
    participation
        Who takes part when, and with which key.
    step_size
        Of the server, and of the nodes' local steps unless `local_step_size` says otherwise.
    optimizer
        "sgd" (the one that theory speaks of), "momentum:0.9" or "adam".
    local_steps
        Gradient steps a node takes in a round.
    cosine
        Rounds over which both step sizes fall to a thousandth, along half a cosine; None: they stay.
    aggregation
        "unbiased": h is the mean over all nodes, and a node that does not hold a coordinate counts with 0
        there. This is the estimate that theory speaks of. "mean": each coordinate's mean over those who held
        it, as HeteroFL and FedRolex have it; a coordinate that nobody held stays. With equal step sizes of
        nodes and server it is the mean of the nodes' weights after their local steps.
    wire
        The dtype that values travel as; x's own if None.
    run
        A digest of what the nodes must have in common with the server; see `digest_of_run`.
    about
        What else a checkpoint must agree in, such as a digest of the data: names and values.

    >>> import mast
    >>> from mast.distributed import VectorCapacity, ProblemWorker
    >>> problem = mast.Problem(mast.Quadratic([[2.0, 0.0], [0.0, 4.0]], [1.0, 1.0]), mast.RandK(1))
    >>> capacities = [VectorCapacity(problem.sketch, 2)] * 3
    >>> server = Server(np.zeros(2), capacities, Participation(0, nodes=3), step_size=0.1)
    >>> workers = [ProblemWorker(problem) for _ in range(3)]
    >>> for _ in range(2):
    ...     answers = [workers[m.header.node].answer(m) for m in server.messages()]
    ...     for answer in answers:
    ...         server.aggregate(answer)
    ...     server.finish_round()
    >>> server.t, server.x.round(4), server.state.received.tolist()
    (2, array([0.1156, 0.1244]), [144, 144, 144])
    """

    def __init__(
        self,
        x0: Values,
        capacities: Sequence[Capacity],
        participation: Participation,
        *,
        step_size: float,
        optimizer: str | Optimizer = "sgd",
        local_steps: int = 1,
        local_step_size: float | None = None,
        cosine: int | None = None,
        aggregation: str = "unbiased",
        wire: Any = None,
        run: int = 0,
        about: Mapping[str, str] | None = None,
    ) -> None:
        self.optimizer = parse_optimizer(optimizer)
        self.state = ServerState(x0, self.optimizer, participation.nodes)
        self.capacities, self.participation = list(capacities), participation
        if len(self.capacities) != participation.nodes:
            raise ArgumentError(
                f"there are {len(self.capacities)} capacities for {participation.nodes} nodes"
            )
        for i, own in enumerate(self.capacities):
            if own.dim != self.x.size:
                raise ArgumentError(f"node {i} ({own.label}) has {own.dim} coordinates, x has {self.x.size}")
        self.step_size = check_positive("step_size", step_size)
        local_step_size = step_size if local_step_size is None else local_step_size
        self.local_step_size = check_positive("local_step_size", local_step_size)
        self.local_steps = check_int("local_steps", local_steps, 1)
        self.cosine = None if cosine is None else check_int("cosine", cosine, 1)
        self.aggregation = check_choice("aggregation", aggregation, AGGREGATIONS)
        self.answers = AnswerSum(aggregation, self.optimizer, participation.nodes)
        self.wire = self.x.dtype if wire is None else checked_dtype(wire)
        self.run, self.about = run, dict(about or {})
        self.guarantee: Guarantee | None = None  #: the statement that applies, if one is known
        self.note = "no guarantee: nothing is known of the nodes' smoothness"  #: that, or why there is none
        self._parts: dict[tuple[int, int], Part] = {}  # by round and node: of this round, or the next
        self._weights: tuple[int, dict[int, float]] = (-1, {})
        self._last = -1  # the node whose answer was absorbed last in this round

    @property
    def x(self) -> Values:
        """The point."""
        return self.state.x

    @property
    def t(self) -> int:
        """The round that comes next, which is how many are done."""
        return self.state.t

    # ---- a round ---------------------------------------------------------------------------

    @property
    def diverged(self) -> bool:
        """Whether x is not finite, or beyond all measure. x alone decides it, at any time."""
        return not finite(self.x)

    def should_continue(self, rounds: int) -> bool:
        """Whether fewer than `rounds` rounds are done, and x has not diverged."""
        seldom = self.x.size >= LARGE and self.t % SELDOM != 0
        return self.t < rounds and (seldom or not self.diverged)

    @property
    def decay(self) -> float:
        """What both step sizes are multiplied by in the present round."""
        if self.cosine is None:
            return 1.0
        return max(1e-3, 0.5 * (1 + math.cos(math.pi * min(1.0, self.t / self.cosine))))

    def weights(self) -> Mapping[int, float]:
        """The nodes that take part in the present round, ascending, and the weight of each one's answer."""
        if self._weights[0] != self.t:  # made once per round: with many nodes it takes a while
            self._weights = (self.t, self.participation.sample(self.t))
        return self._weights[1]

    def part(self, node: int, t: int | None = None) -> Part:
        """What a node keeps in the present round, or in round t; made once, for message and answer.

        The parts of the next round may be made in another thread while answers are taken in, as long as
        nothing else draws.
        """
        t = self.t if t is None else t
        if not 0 <= node < len(self.capacities):
            raise DataError(f"there is no node {node}: they are 0 .. {len(self.capacities) - 1}")
        if (t, node) not in self._parts:
            self._parts[t, node] = self.capacities[node].part(self.participation.key(t, node))
        return self._parts[t, node]

    def header(self, node: int, part: Part | None = None, key: Key | None = None) -> Header:
        """The header of the message to a node in the present round: of its part, or of another draw."""
        part = self.part(node) if part is None else part
        key = self.participation.key(self.t, node) if key is None else key
        local = self.local_steps, self.local_step_size * self.decay
        return Header(MessageKind.VALUES, node, key, part.count, self.wire, self.run, *local)

    def messages(self) -> Iterator[Message]:
        """The messages of the present round, to the nodes that take part, ascending."""
        for node in self.weights():
            yield self.message(node)

    def message(self, node: int, memory: Callable[[int], NDArray[np.uint8]] | None = None) -> Message:
        """The message to one node: its key, and the values of x that its sketch keeps.

        `memory(size)` gives a buffer of that size, where an engine uses its buffers again.
        """
        if self._last >= 0:
            raise ArgumentError(f"round {self.t} is being summed up: its messages were made before")
        part = self.part(node)
        header = self.header(node, part)
        message = Message(header, None if memory is None else memory(header.size))
        part.gather(self.x, message.values)
        self.state.received[node] += message.size
        self.state.asked[node] += 1
        self.state.values[node] += part.count
        return message

    def aggregate(self, answer: Message, weight: float | None = None) -> None:
        """Take in a node's answer; answers come in the order of the nodes, and some may be missing.

        `weight` replaces that of `Participation.sample` (1/probability of taking part); the mean over all
        nodes of weight times answer is the estimate of the gradient.
        """
        node = answer.header.node
        if node <= self._last:
            raise ArgumentError(
                f"answers are summed in the order of the nodes, but node {node} came after node {self._last}"
            )
        if weight is None:
            weight = self.weights().get(node)
            if weight is None:
                raise DataError(f"node {node} answered in round {self.t}, but does not take part in it")
        answer.expect(self.header(node).reply())
        self._last = node
        self.state.sent[node] += answer.size
        self.state.answered[node] += 1
        self.answers.add(self.x, self.part(node), answer.values, weight, self.step_size * self.decay)

    def finish_round(self, *, step: bool = True) -> None:
        """End the round: the optimizer's step. A round without answers does not move x (SGD).

        With ``step=False`` no optimizer moves it: for rounds that tell nothing, not even that h = 0.
        """
        if step:
            self.answers.step(self.x, self.step_size * self.decay, self.t)
        for t, node in list(self._parts):  # a copy: another thread may be making the next round's
            if t == self.t:
                del self._parts[t, node]
        self.state.t += 1
        self._last = -1

    # ---- checkpoints -----------------------------------------------------------------------

    def save(self, path: str | Path, extra: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint: the old one stays until the new one is whole. `extra` (JSON) comes back."""
        if self._last >= 0:
            raise CheckpointError(f"round {self.t} is under way: a checkpoint is made between rounds")
        numbers = {"round": self.t, "seconds": self.state.seconds, "extra": dict(extra or {})}
        Checkpoint(path, "server", self.identity()).write(numbers, self.state.arrays())

    def load(self, path: str | Path) -> dict[str, Any] | None:
        """Continue from a file if there is one; returns its `extra`, or None."""
        there = files.as_path("checkpoint", path).exists()
        stored = Checkpoint(path, "server", self.identity()).read() if there else None
        if stored is None:
            return None
        numbers, arrays = stored
        check_fields(numbers, NUMBERS, str(path))
        fill_arrays(self.state.arrays(), arrays)
        self.state.t, self.state.seconds = numbers["round"], float(numbers["seconds"])
        self._last = -1
        self.answers.clear()
        self._parts.clear()
        return dict(numbers["extra"])

    def identity(self) -> dict[str, str]:
        """What must agree for a checkpoint to continue a run, field by field."""
        return {
            "version of MAST": __version__,
            "key layout": str(LAYOUT),
            **self.about,
            **self.participation.identity(),
            "optimizer": self.optimizer.label,
            "aggregation": self.aggregation,
            "step_size": repr(self.step_size) + (f", cosine over {self.cosine}" if self.cosine else ""),
            "local_steps": f"{self.local_steps} of {self.local_step_size!r}",
            "dtype": f"{self.x.dtype.name}, {self.wire.name} on the wire",
            "sketches": files.digest(*(own.fingerprint() for own in self.capacities)),
            "run": f"{self.run:016x}",
        }


class AnswerSum:
    """The answers of a round, weighted and summed up, and the optimizer's step with the sum.

    What cannot be added to x at once is kept in vectors as long as x, which are made when first needed.
    """

    def __init__(self, aggregation: str, optimizer: Optimizer, nodes: int) -> None:
        self.aggregation, self.optimizer, self.nodes = aggregation, optimizer, nodes
        self._vectors: dict[str, Values] = {}

    def add(self, x: Values, part: Part, values: Values, weight: float, step_size: float) -> None:
        """x <- x - (g/M) weight * values on the part, or the same into h for an optimizer."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self.aggregation == "unbiased" and self.optimizer.plain:
                part.add(x, values, -(step_size * weight / self.nodes))
                return
            part.add(self._vector("h", x), values, weight / self.nodes)
            if self.aggregation == "mean":
                part.add_weight(self._vector("held", x), weight / self.nodes)

    def step(self, x: Values, step_size: float, t: int) -> None:
        """The step on x at the end of round t."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self.aggregation == "mean":
                weights = self._vector("held", x)  # of those who held each coordinate
                held = np.flatnonzero(weights)
                h = self._vector("h", x)[held] / weights[held]
                self.optimizer.step_at(held, x, h, step_size, t)
            elif not self.optimizer.plain:
                self.optimizer.step(x, self._vector("h", x), step_size, t)
        self.clear()

    def clear(self) -> None:
        """Forget the answers."""
        for vector in self._vectors.values():
            vector.fill(0)

    def _vector(self, name: str, x: Values) -> Values:
        if name not in self._vectors:
            self._vectors[name] = np.zeros_like(x)
        return self._vectors[name]


def run_in_process(server: Server, workers: Sequence[Worker], rounds: int) -> None:
    """Rounds server.t .. rounds-1 without a wire: every message is handed over in memory.

    >>> import mast
    >>> from mast.distributed import VectorCapacity, ProblemWorker
    >>> problem = mast.Problem(mast.Quadratic([[2.0, 0.0], [0.0, 4.0]], [1.0, 1.0]), mast.RandK(1))
    >>> capacities = [VectorCapacity(problem.sketch, 2)] * 3
    >>> server = Server(np.zeros(2), capacities, Participation(7, nodes=3), step_size=0.05)
    >>> run_in_process(server, [ProblemWorker(problem) for _ in range(3)], rounds=20)
    >>> inside = mast.minimize(mast.Nodes([problem] * 3), "distributed", 20, 0.05, seed=7, trace=20)
    >>> bool((server.x == inside.x).all())
    True
    """
    if len(workers) != len(server.capacities):
        raise ArgumentError(f"there are {len(workers)} workers for {len(server.capacities)} nodes")
    while server.should_continue(rounds):
        answers = [workers[message.header.node].answer(message) for message in server.messages()]
        for answer in answers:
            server.aggregate(answer)
        server.finish_round()
