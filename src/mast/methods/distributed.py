"""Distributed DSGD (Algorithm 2): every node trains the part of the model it can hold. Theorems 5, 15 and 16.

The method is written once, as what the server and a node do with a message; here both run in
one process, and an engine that carries the messages runs the same functions:

- the server sends node i its key and the values of x that S_i keeps;
- the node answers with the values of its gradient there, summed over local steps: `local_sum`;
- the server averages, in the order of the nodes: x <- x - (g/M) sum_i weight_i answer_i.

Indices never travel: both sides make them from the key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from mast import randomness, theory
from mast.arrays import Array, vector
from mast.checks import choice, whole
from mast.errors import ArgumentError
from mast.methods.base import Method, State, descend
from mast.methods.constants import gap_of, regime_of
from mast.problem import AbstractProblem, Nodes, Problem
from mast.randomness import Key, Purpose
from mast.sketches import DiagonalDraw, Draw, Sketch, kept


@dataclass
class Rounds(State):
    """The point, and the bytes of values that each node received and sent."""

    received: Any = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    sent: Any = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(frozen=True)
class Roster:
    """Who takes part in a round, with which weight and which key: all of it a function of the seed.

    It knows nothing of the nodes' data, so that a server can have it without them.

    >>> roster = Roster(seed=0, nodes=4, participation=[1.0, 0.5, 0.5, 1.0])
    >>> roster.taking_part(0)
    [(0, 1.0), (1, 2.0), (2, 2.0), (3, 1.0)]
    >>> roster.key(5, 3)
    Key(seed=0, step=5, node=3, index=0)
    """

    seed: int
    nodes: int
    #: nodes this far apart draw independently, whatever their sketches
    stride: int = 1
    coupling: str = "independent"
    participation: Any = 1.0
    participants: int | None = None
    shares: Array = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        choice("coupling", self.coupling, ("independent", "disjoint"))
        object.__setattr__(self, "shares", self._shares())
        if self.participants is not None:
            count = whole("participants", self.participants, 1, self.nodes)
            object.__setattr__(self, "participants", count)
            if (self.shares < 1).any():
                raise ArgumentError("give participation or participants, not both")

    def _shares(self) -> Array:
        """Each node's probability of taking part."""
        q = vector("participation", np.atleast_1d(self.participation))
        if q.size not in (1, self.nodes) or not ((q > 0) & (q <= 1)).all():
            raise ArgumentError(
                f"participation is one probability in (0, 1], or one for each of the {self.nodes} nodes; "
                "for m of the nodes pass participants=m"
            )
        return np.broadcast_to(q, (self.nodes,))

    def taking_part(self, t: int) -> list[tuple[int, float]]:
        """The nodes of round t, ascending, and the weight of each one's answer."""
        if self.participants is not None:
            key = Key(self.seed, t)
            chosen = randomness.permutation(key, Purpose.PARTICIPATION, self.nodes, 0, self.participants)
            return [(int(i), self.nodes / self.participants) for i in np.sort(chosen)]
        return [
            (i, 1 / q)
            for i, q in enumerate(self.shares.tolist())
            if q == 1 or randomness.uniform(Key(self.seed, t, i), Purpose.PARTICIPATION) < q
        ]

    def key(self, t: int, i: int) -> Key:
        """The key of node i's draw in round t; all that a node needs to rebuild its sketch."""
        if self.coupling == "independent" and self.stride * self.nodes >= 1 << 32:
            return Key(self.seed, t).child(i)  # more nodes than a key can number that far apart
        return Key(self.seed, t, i if self.coupling == "disjoint" else i * self.stride)


def message_to(x: Array, draw: Draw, out: Array | None = None) -> Array:
    """What the server sends: the values that the node's sketch keeps, all of them if S is not diagonal."""
    if isinstance(draw, DiagonalDraw):
        return kept.gather(x, draw.indices, out)
    if out is None:
        return x.copy()
    out[...] = x
    return out


def node_answer(
    problem: Problem, draw: Draw, values: Array, step_size: float, local_steps: int, room: Array | None = None
) -> Array:
    """What a node does: gradient steps on f_S from the values it got; it sends their gradients' sum back.

    `room` is a copy of the shift to work in, which is left as it was: with it the cost is that of what
    the draw keeps.
    """
    x = problem.shift.copy() if room is None else room

    def gradient(held: Array, step: int) -> Array:
        _put(x, draw, held)
        return problem.objective.sketched_gradient(x, draw, problem.shift)

    total: Array = local_sum(values, gradient, step_size, local_steps)
    if room is not None and isinstance(draw, DiagonalDraw):
        kept.copy(room, draw.indices, problem.shift)
    elif room is not None:
        room[...] = problem.shift
    return total


def local_sum(values: Any, gradient: Callable[[Any, int], Any], step_size: float, steps: int) -> Any:
    """The sum of the gradients along so many gradient steps from these values, which stay as they are.

    `gradient(values, step)` may use its memory again at the next call.

    >>> local_sum(np.array([8.0]), lambda x, step: x, step_size=0.5, steps=3)  # of 8, 4 and 2
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


def _put(x: Array, draw: Draw, values: Array) -> None:
    """The values that the node got, where they belong."""
    if isinstance(draw, DiagonalDraw):
        kept.place(x, draw.indices, values)
    else:
        x[...] = values


@dataclass
class Distributed(Method):
    """x <- x - (g/M) sum_i S_i' grad f_i(v + S_i(x - v)), each node with its own f_i and sketch.

    Parameters
    ----------
    coupling
        "independent": the nodes' sketches are independent, whatever they are. "disjoint": node i
        gets the draw with node=i, so that Perm-K nodes of one group train disjoint parts.
    participation
        The probability that a node takes part in a round (its answer then weighs 1/probability),
        one for all or one per node.
    participants
        Instead of that: how many of the nodes take part, chosen uniformly.
    local_steps
        Gradient steps a node takes in a round. Above 1 there is no statement.
    """

    name: ClassVar[str] = "distributed"
    coupling: str = "independent"
    participation: Any = 1.0
    participants: int | None = None
    local_steps: int = 1

    def bind(self, problem: AbstractProblem, seed: int) -> Self:
        """A single problem counts as one node."""
        return super().bind(Nodes([problem]) if isinstance(problem, Problem) else problem, seed)

    def prepare(self) -> None:
        """Check the options."""
        problems = self.problem.problems
        self.M = len(problems)
        self.local_steps = whole("local_steps", self.local_steps, 1)
        self.stride = math.lcm(*(p.sketch.stride for p in problems))
        self._roster = self._made_roster()

    @property
    def roster(self) -> Roster:
        """Who takes part when, for the seed that the method has now."""
        if self._roster.seed != self.seed:
            self._roster = self._made_roster()
        return self._roster

    def _made_roster(self) -> Roster:
        return Roster(self.seed, self.M, self.stride, self.coupling, self.participation, self.participants)

    def start(self, x0: Array) -> Rounds:
        """Nothing sent yet."""
        return Rounds(
            x0.copy(), received=np.zeros(self.M, dtype=np.int64), sent=np.zeros(self.M, dtype=np.int64)
        )

    def taking_part(self, t: int) -> list[tuple[int, float]]:
        """The nodes of round t, ascending, and the weight of each one's answer."""
        return self.roster.taking_part(t)

    def node_key(self, t: int, i: int) -> Key:
        """The key of node i's draw in round t."""
        return self.roster.key(t, i)

    def node_draw(self, t: int, i: int) -> Draw:
        """The sketch of node i in round t."""
        problem = self.problem.problems[i]
        return problem.sketch.sample(problem.dim, self.node_key(t, i))

    def step(self, state: Rounds, t: int, step_size: float) -> None:
        """One round."""
        x = state.x.copy()  # the model of this round; answers are applied to state.x, in the order of nodes
        for i, weight in self.taking_part(t):
            problem, draw = self.problem.problems[i], self.node_draw(t, i)
            values = message_to(x, draw)
            answer = node_answer(problem, draw, values, step_size, self.local_steps)
            descend(state.x, draw, answer, step_size * weight / self.M)
            state.received[i] += values.nbytes
            state.sent[i] += answer.nbytes
            state.bytes += values.nbytes + answer.nbytes
            state.gradients += problem.objective.terms * self.local_steps

    def guarantee(self, regime: str | None = None, effort: str = "exact") -> theory.Guarantee:
        """Theorem 15, 16 or 5, as sharp as the coupling allows."""
        problems, gap = self.problem.problems, gap_of(self.problem, effort)
        facts = [
            Facts(p.objective.smoothness, p.objective.strong_convexity, bool(p.objective.convex))
            for p in problems
        ]
        sketches = [p.sketch for p in problems]
        regime = regime_of(self.problem, regime)
        return gap.mark(
            guarantee_of(sketches, self.problem.dim, facts, self.roster, self.local_steps, regime, gap.value)
        )


@dataclass(frozen=True)
class Facts:
    """What theory needs to know of a node's objective: the node can say it without showing its data."""

    L_f: float
    mu_f: float
    convex: bool


def guarantee_of(
    sketches: Sequence[Sketch],
    dim: int,
    facts: Sequence[Facts],
    roster: Roster,
    local_steps: int = 1,
    regime: str | None = None,
    gap: float | None = None,
) -> theory.Guarantee:
    """The statement about nodes with these sketches and facts; the strongest regime that holds if None."""
    constants = [sketch.constants(dim) for sketch in sketches]
    if regime is None:
        mu = sum(f.mu_f * c.mu_D for f, c in zip(facts, constants, strict=True))
        convex = all(f.convex for f in facts)
        regime = "strongly_convex" if mu > 0 else "convex" if convex else "nonconvex"
    return theory.distributed(
        regime,
        nodes=_independence(sketches, roster.coupling),
        L_f=[f.L_f for f in facts],
        mu_f=[f.mu_f for f in facts],
        L_D=[c.L_D for c in constants],
        mu_D=[c.mu_D for c in constants],
        L_max=[c.L_max for c in constants],
        gap=gap,
        participation=roster.shares,
        participants=roster.participants,
        local_steps=local_steps,
    )


def _independence(sketches: Sequence[Sketch], coupling: str) -> str:
    """How the nodes' sketches depend on each other, as the statements say it."""
    if len(sketches) == 1:
        return "any"
    if coupling == "independent":
        return "independent"
    first = sketches[0]
    if len(sketches) <= first.stride and all(sketch.same_partition(first) for sketch in sketches):
        return "disjoint"
    return "independent" if all(sketch.stride == 1 for sketch in sketches) else "any"
