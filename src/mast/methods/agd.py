"""Nesterov's accelerated gradient descent on f_D, with its exact gradient."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import ClassVar

from mast.errors import BiasedSketchError
from mast.methods.base import State
from mast.methods.gd import GD
from mast.support.checks import Array


@dataclass
class AGDState(State):
    """The point, the one before it, and theta of the convex rule."""

    before: Array = None  # type: ignore[assignment]
    theta: float = 1.0


@dataclass
class AGD(GD):
    """y = x + beta (x - x_before); x <- y - g grad f_D(y).

    beta is (1 - sqrt(g mu))/(1 + sqrt(g mu)) with mu = mu_D mu_f if that is positive, else the
    sequence (theta - 1)/theta_next of the convex case.
    """

    name: ClassVar[str] = "agd"

    def prepare(self) -> None:
        """mu_D mu_f; 0 for a biased sketch, which has no mu_D."""
        self.mu = 0.0
        with contextlib.suppress(BiasedSketchError):
            self.mu = self.problem.strong_convexity

    def start(self, x0: Array) -> AGDState:
        """No momentum yet."""
        return AGDState(x0.copy(), before=x0.copy())

    def step(self, state: AGDState, t: int, step_size: float) -> None:  # type: ignore[override]
        """One exact gradient, at the extrapolated point."""
        if self.mu > 0:
            root = math.sqrt(min(step_size * self.mu, 1.0))
            beta = (1 - root) / (1 + root)
        else:
            theta = (1 + math.sqrt(1 + 4 * state.theta**2)) / 2
            beta, state.theta = (state.theta - 1) / theta, theta
        y = state.x + beta * (state.x - state.before)
        state.before = state.x
        state.x = y - step_size * self.problem.gradient(y)
        state.gradients += self.terms
