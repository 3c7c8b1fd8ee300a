"""The finite support that variance reduction works on: the sketch's own, or a sample of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mast import randomness
from mast.errors import ArgumentError
from mast.methods.base import SingleMethod, scatter
from mast.problem import Problem
from mast.randomness import Key, Purpose
from mast.sketches import Draw, Sampled
from mast.support.checks import Array, check_int


@dataclass
class FiniteSupportMethod(SingleMethod):
    """A method that averages gradients over batches of the N sketches of a uniform finite support.

    `support=None` takes the sketch's own support; a number N draws N sketches once, from the
    seed. Their mean is not quite I, and all constants are those of the sample.
    """

    support: int | None = None

    def prepare(self) -> None:
        """List the support, and check that it is uniform."""
        problem = self.problem
        if self.support is not None:
            seed = Key(self.seed).child(0, Purpose.SUPPORT).seed
            sampled = Sampled(problem.sketch, check_int("support", self.support), seed)
            problem = Problem(problem.objective, sampled, problem.shift)
        self.over = problem
        listed = problem.sketch.support(problem.dim)
        if listed is None:
            raise ArgumentError(
                f"{self.name} needs a finite support, and {problem.sketch!r} has an infinite one: "
                "pass support=N to work on N sketches sampled once"
            )
        probabilities = np.array([probability for probability, _ in listed])
        if np.ptp(probabilities) > 1e-9 * probabilities.max():
            raise ArgumentError(
                f"{self.name} needs sketches of equal probability, those of {problem.sketch!r} differ: "
                "pass support=N to work on N sketches sampled once"
            )
        self.draws: list[Draw] = [draw for _, draw in listed]

    @property
    def N(self) -> int:
        """The size of the support."""
        return len(self.draws)

    def batch_of(self, name: str, b: int | None) -> int:
        """A checked batch size; all sketches if None."""
        return self.N if b is None else check_int(name, b, 1, self.N)

    def members(self, key: Key, b: int) -> list[int]:
        """A batch of b sketches, uniformly without replacement."""
        return [int(i) for i in randomness.permutation(key, Purpose.BATCH, self.N, 0, b)]

    def one(self, key: Key) -> Draw:
        """One sketch, uniformly."""
        return self.draws[randomness.below(key, Purpose.CHOICE, self.N)]

    def coin(self, t: int, p: float) -> bool:
        """Whether step t refreshes."""
        return randomness.uniform(self.key(t), Purpose.COIN) < p

    def gradient(self, x: Array, draw: Draw) -> Array:
        """grad f_S(x), as a vector of all coordinates."""
        return scatter(x.size, draw, self.problem.sketched_gradient(x, draw))

    def difference(self, x: Array, w: Array, draw: Draw) -> Array:
        """grad f_S(x) - grad f_S(w), as a vector of all coordinates."""
        return scatter(x.size, draw, self.problem.sketched_difference(x, w, draw))

    def mean_gradient(self, x: Array, key: Key, b: int) -> Array:
        """The mean of grad f_S(x) over a batch; exactly, in one sweep where there is one, if that is all."""
        if b == self.N:
            return self.over.gradient(x)
        total = np.zeros(x.size)
        for i in self.members(key, b):
            total += self.gradient(x, self.draws[i])
        return total / b
