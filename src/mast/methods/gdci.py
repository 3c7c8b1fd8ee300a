"""GDCI, a baseline: gradient descent with compressed iterates. The iterate is sketched after each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mast.methods.base import SingleMethod, State


@dataclass
class GDCI(SingleMethod):
    """x <- v + S(x - g grad f(x) - v)."""

    name: ClassVar[str] = "gdci"

    def step(self, state: State, t: int, step_size: float) -> None:
        """A plain gradient step, then a sketch of the result."""
        v = self.problem.shift
        moved = state.x - step_size * self.problem.objective.gradient(state.x)
        state.x = v + self.draw(t).apply(moved - v)
        state.gradients += self.terms
