"""DCGD, a baseline: compressed gradient descent. Only the gradient is sketched, the model is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mast.methods.base import SingleMethod, State


@dataclass
class DCGD(SingleMethod):
    """x <- x - g S grad f(x)."""

    name: ClassVar[str] = "dcgd"

    def step(self, state: State, t: int, step_size: float) -> None:
        """A sketched plain gradient."""
        state.x -= step_size * self.draw(t).apply(self.problem.objective.gradient(state.x))
        state.gradients += self.terms
