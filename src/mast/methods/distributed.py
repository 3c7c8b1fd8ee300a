"""Distributed DSGD (Algorithm 2): every node trains the part of the model it can hold. Theorems 5, 15 and 16.

Here the server and the nodes work in one process, with nothing between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from mast import theory
from mast.distributed import Participation, ProblemWorker, Server, stride_of
from mast.errors import NoGuaranteeError
from mast.methods.base import Method, State, annotated, gap_of, refuse_dependent, regime_of
from mast.objectives import Objective
from mast.problem import AbstractProblem, Nodes, Problem
from mast.sketches import Sketch
from mast.sketches.composed import same_partition
from mast.support.checks import Array


@dataclass
class Rounds(State):
    """The point, and the bytes of values that each node received and sent."""

    received: Any = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    sent: Any = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass
class Distributed(Method):
    """x <- x - (g/M) sum_i S_i' grad f_i(v + S_i(x - v)), each node with its own f_i and sketch.

    Parameters
    ----------
    coupling
        "independent": the nodes' sketches are independent, whatever they are. "disjoint": node i
        gets the draw with node=i, so that Perm-K nodes of one group train disjoint parts. "common": all
        nodes get the draw with node=0.
    participation
        The probability that a node takes part in a round (its answer then weighs 1/probability),
        one for all or one per node.
    participants
        Instead of that: how many of the nodes take part, chosen uniformly.
    local_steps
        Gradient steps a node takes in a round. Above 1 there is no statement.
    aggregation
        "unbiased", or "mean" over the nodes that held a coordinate, of which there is no statement.
    """

    name: ClassVar[str] = "distributed"
    coupling: str = "independent"
    participation: Any = 1.0
    participants: int | None = None
    local_steps: int = 1
    aggregation: str = "unbiased"

    def bind(self, problem: AbstractProblem, seed: int) -> Self:
        """A single problem counts as one node."""
        return super().bind(Nodes([problem]) if isinstance(problem, Problem) else problem, seed)

    def prepare(self) -> None:
        """Check the options; the nodes share their memory, because they work one after the other."""
        scratch = self.problem.shift.copy()
        self.workers = [ProblemWorker(p, scratch=scratch) for p in self.problem.problems]
        capacities = [worker.capacity for worker in self.workers]
        nodes, stride = len(capacities), stride_of(capacities)
        participation = Participation(
            self.seed, nodes, stride, self.coupling, self.participation, self.participants
        )
        options: dict[str, Any] = {"local_steps": self.local_steps, "aggregation": self.aggregation}
        self.server = Server(np.zeros(self.problem.dim), capacities, participation, step_size=1.0, **options)

    def start(self, x0: Array) -> Rounds:
        """Nothing is sent yet."""
        nodes = len(self.workers)
        return Rounds(x0.copy(), received=np.zeros(nodes, np.int64), sent=np.zeros(nodes, np.int64))

    def step(self, state: Rounds, t: int, step_size: float) -> None:
        """One round."""
        server = self.server
        server.state.t, server.state.x = t, state.x
        server.step_size = server.local_step_size = step_size
        x = state.x.copy()  # the model of this round; answers are applied to state.x, in the order of nodes
        for i, weight in server.weights().items():
            worker, key = self.workers[i], server.participation.key(t, i)
            part = worker.capacity.part(key)
            values = part.gather(x)
            answer = worker.gradients(part, values, server.header(i, part, key))
            server.answers.add(state.x, part, answer, weight, step_size)
            state.received[i] += values.nbytes
            state.sent[i] += answer.nbytes
            state.bytes += values.nbytes + answer.nbytes
            state.gradients += worker.problem.objective.terms * server.local_steps
        server.finish_round()

    def guarantee(self, regime: str | None = None, effort: str = "exact") -> theory.Guarantee:
        """Theorem 15, 16 or 5, as sharp as the coupling allows."""
        if self.aggregation != "unbiased":
            raise NoGuaranteeError(f'no statement covers aggregation="{self.aggregation}": it is biased')
        problems, (gap, source) = self.problem.problems, gap_of(self.problem, effort)
        facts, sketches = [Facts.of(p.objective) for p in problems], [p.sketch for p in problems]
        participation, regime = self.server.participation, regime_of(self.problem, regime)
        statement = guarantee_of(
            sketches, self.problem.dim, facts, participation, self.local_steps, regime, gap
        )
        return annotated(statement, self.problem, source)


# ---- theory ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Facts:
    """What theory needs to know of a node's objective: the node can say it without showing its data."""

    L_f: float
    mu_f: float
    convex: bool

    @classmethod
    def of(cls, objective: Objective) -> Facts:
        """What an objective knows of itself."""
        return cls(objective.smoothness, objective.strong_convexity, bool(objective.convex))


def guarantee_of(
    sketches: Sequence[Sketch],
    dim: int,
    facts: Sequence[Facts],
    participation: Participation,
    local_steps: int = 1,
    regime: str | None = None,
    gap: float | None = None,
) -> theory.Guarantee:
    """The statement about nodes with these sketches and facts; the strongest regime that holds if None."""
    refuse_dependent(sketches)
    constants = [sketch.constants(dim) for sketch in sketches]
    if regime is None:
        mu = sum(f.mu_f * c.mu_D for f, c in zip(facts, constants, strict=True))
        convex = all(f.convex for f in facts)
        regime = "strongly_convex" if mu > 0 else "convex" if convex else "nonconvex"
    return theory.distributed(
        regime,
        nodes=_independence(sketches, participation.coupling),
        L_f=[f.L_f for f in facts],
        mu_f=[f.mu_f for f in facts],
        L_D=[c.L_D for c in constants],
        mu_D=[c.mu_D for c in constants],
        L_max=[c.L_max for c in constants],
        gap=gap,
        participation=participation.probabilities,
        participants=participation.participants,
        local_steps=local_steps,
    )


def _independence(sketches: Sequence[Sketch], coupling: str) -> str:
    """How the nodes' sketches depend on each other, as the statements say it."""
    if len(sketches) == 1 or coupling == "common":
        return "any"
    if coupling == "independent":
        return "independent"
    first = sketches[0]
    if len(sketches) <= first.stride and all(same_partition(sketch, first) for sketch in sketches):
        return "disjoint"
    return "independent" if all(sketch.stride == 1 for sketch in sketches) else "any"
