"""S-PAGE (Algorithm 4): a probabilistic gradient estimator over a finite support of sketches. Theorem 20."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mast import theory
from mast.methods.base import State, annotated, constants_of
from mast.methods.finite_support import FiniteSupportMethod
from mast.support.checks import Array, check_probability


@dataclass
class SPAGEState(State):
    """The point x and the running estimate h of the gradient there."""

    h: Array = None  # type: ignore[assignment]


@dataclass
class SPAGE(FiniteSupportMethod):
    """x <- x - g h; then h is a mean over b sketches with probability p, else it is updated by differences.

    The difference is grad f_S(x_new) - grad f_S(x_old), averaged over b_small sketches.

    Parameters
    ----------
    b
        The large batch; all N by default.
    b_small
        The small batch; the root of b by default.
    p
        Probability of a large batch; b_small/(b + b_small) by default.
    sigma_sq
        Bound on the variance of the sketched gradient, for the guarantee; not needed if b = N.
    """

    name: ClassVar[str] = "s_page"
    p: float = None  # type: ignore[assignment]
    b: int = None  # type: ignore[assignment]
    b_small: int = None  # type: ignore[assignment]
    sigma_sq: float | None = None

    def prepare(self) -> None:
        """Fill in the defaults."""
        super().prepare()
        self.b = self.batch_of("b", self.b)
        self.b_small = self.batch_of(
            "b_small", max(1, math.isqrt(self.b)) if self.b_small is None else self.b_small
        )
        self.p = check_probability("p", self.b_small / (self.b + self.b_small) if self.p is None else self.p)
        self.cost = self.terms if self.b == self.N else self.b * self.terms

    def start(self, x0: Array) -> SPAGEState:
        """The mean over a large batch at x0."""
        h = self.mean_gradient(x0, self.key(0, index=1), self.b)
        return SPAGEState(x0.copy(), gradients=self.cost, h=h)

    def step(self, state: SPAGEState, t: int, step_size: float) -> None:
        """One step along h, then the next h."""
        before = state.x
        state.x = before - step_size * state.h
        if self.coin(t, self.p):
            state.h = self.mean_gradient(state.x, self.key(t), self.b)
            state.gradients += self.cost
            return
        change = np.zeros(before.size)
        for i in self.members(self.key(t), self.b_small):
            change += self.difference(state.x, before, self.draws[i])
        state.h = state.h + change / self.b_small
        state.gradients += 2 * self.b_small * self.terms

    def guarantee(self, regime: str | None = None, effort: str = "exact") -> theory.Guarantee:
        """Theorem 20, which needs no convexity."""
        batches: dict[str, Any] = {"N": self.N, "b": self.b, "b_small": self.b_small, "p": self.p}
        numbers = constants_of(self.over)
        statement = theory.s_page(regime or "nonconvex", sigma_sq=self.sigma_sq, **batches, **numbers)
        return annotated(statement, self.over)
