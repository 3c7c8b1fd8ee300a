"""DSGD (Algorithm 1, I): one sketch per step, the gradient of f_S exact. Theorems 2, 3 and 10."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mast import theory
from mast.methods.base import (
    SingleMethod,
    State,
    annotated,
    constants_of,
    gap_of,
    refuse_dependent,
    regime_of,
)
from mast.methods.quadratics import by_expected_smoothness
from mast.objectives import LeastSquares, Quadratic


@dataclass
class DSGD(SingleMethod):
    """x <- x - g S' grad f(v + S(x - v)) with a new S at each step."""

    name: ClassVar[str] = "dsgd"

    def step(self, state: State, t: int, step_size: float) -> None:
        """One sketch, and the gradient of f_S."""
        S = self.draw(t)
        S.add(state.x, self.problem.sketched_gradient(state.x, S), -step_size)
        state.gradients += self.terms

    def guarantee(self, regime: str | None = None, effort: str = "exact") -> theory.Guarantee:
        """Theorem 2, 10 or 3, with the sharper gap where it is known; on quadratics the longer step."""
        refuse_dependent([self.problem.sketch])
        gap, source = gap_of(self.problem, effort, sharp=True)
        regime = regime_of(self.problem, regime)
        statement = theory.dsgd(regime, gap=gap, **constants_of(self.problem))
        if regime == "strongly_convex" and isinstance(self.problem.objective, Quadratic | LeastSquares):
            other = by_expected_smoothness(self.problem, noise=effort != "none")
            if other is not None and other.max_step_size() > statement.max_step_size():
                return annotated(other, self.problem)
        return annotated(statement, self.problem, source)
