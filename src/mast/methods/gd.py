"""Gradient descent on f_D with its exact gradient: DSGD with the gradient averaged over all sketches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mast.errors import NoGuaranteeError
from mast.methods.base import Method, State
from mast.theory import Guarantee


@dataclass
class GD(Method):
    """x <- x - g grad f_D(x); the step size is 1/(L_f L_D) by default."""

    name: ClassVar[str] = "gd"

    def step(self, state: State, t: int, step_size: float) -> None:
        """One exact gradient."""
        state.x -= step_size * self.problem.gradient(state.x)
        state.gradients += self.terms

    def guarantee(self, regime: str | None = None, effort: str = "exact") -> Guarantee:
        """There is no theorem of the paper about it, and none is needed."""
        raise NoGuaranteeError(
            "gradient descent on f_D has no statement of its own; f_D is L_D L_f smooth, so steps up to "
            "1/(L_f L_D) decrease it"
        )

    def default_step_size(self, steps: int, regime: str | None = None) -> float:
        """1/(L_f L_D), the inverse of f_D's smoothness; over nodes, of the mean of L_fi L_Di."""
        return 1 / self.problem.smoothness
