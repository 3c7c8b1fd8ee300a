"""SketchedLinear: f_D of a linear model in closed form, and which form fits which sketch."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from mast.arrays import Array
from mast.errors import ArgumentError, SupportTooLargeError
from mast.objectives.base import Objective
from mast.objectives.combined import Sketched, mean
from mast.objectives.penalties import Penalty, SketchedRidge

if TYPE_CHECKING:
    from mast.objectives.linear import LinearModel
    from mast.sketches import Sketch


class SketchedLinear(Objective):
    """What the exact forms share: the model, the shift, and the penalty's own expectation."""

    def __init__(self, model: LinearModel, sketch: Sketch, shift: Array, penalty: Penalty) -> None:
        self.model = model
        self.dim = model.dim
        self.convex = model.convex
        self.infimum_exact = model.infimum_exact
        self.shift = shift
        self.penalty = penalty
        self._largest_square = float(sketch.expected_square(self.dim).max())

    @property
    def smoothness(self) -> float:
        """The largest E[c_j²] times L_f."""
        return self._largest_square * self.model.smoothness

    @property
    def strong_convexity(self) -> float:
        """The least curvature of the penalty's expectation, where that is a ridge."""
        return float(self.penalty.bend.min()) if isinstance(self.penalty, SketchedRidge) else 0.0

    def infimum(self) -> float:
        """The minimum, or the model's lower bound where that is all there is."""
        return self._minimum[1] if self.convex else self.model.infimum()

    @cached_property
    def _minimum(self) -> tuple[Array, float]:
        if not self.convex:
            raise ArgumentError(
                f"{type(self.model).__name__} is not convex, so a minimiser of f_D cannot be certified; "
                "infimum() is a lower bound"
            )
        x = self._solve()
        return x, self.value(x)

    def _solve(self) -> Array:
        from mast.objectives.newton import newton

        return newton(self, self.shift.copy())


def sketched_linear(model: LinearModel, sketch: Sketch, shift: Array) -> Objective | None:
    """f_D of a linear model for this sketch and shift; None where no exact form is known."""
    parts = sketch.components()
    if parts is not None:
        return _mixed(model, parts, shift)
    if not sketch.diagonal:
        return None
    penalty = model.penalty.sketched(sketch, shift)
    if penalty is None:
        return None
    blocks = sketch.separable(model.dim)
    if blocks is not None:
        from mast.objectives.separable import Separable

        return Separable(model, sketch, shift, penalty, *blocks)
    law = sketch.local_law(model.dim)
    if law is not None:
        from mast.objectives.rowwise import RowPairs, Rowwise

        pairs = RowPairs(model, law)
        if pairs.small_enough:
            return Rowwise(model, sketch, shift, penalty, law, pairs)
    return None


def _mixed(model: LinearModel, parts: list[tuple[float, Sketch]], shift: Array) -> Objective | None:
    """The mean of the components' f_D, each in its own form."""
    exact = [model.sketched(sketch, shift) or _listed(model, sketch, shift) for _, sketch in parts]
    known = [f for f in exact if f is not None]
    return mean(known, [weight for weight, _ in parts]) if len(known) == len(parts) else None


def _listed(model: LinearModel, sketch: Sketch, shift: Array) -> Objective | None:
    """The mean over a support that is short enough to list."""
    try:
        support = sketch.support(model.dim)
    except SupportTooLargeError:
        return None
    if support is None:
        return None
    return mean([Sketched(model, draw, shift) for _, draw in support], [p for p, _ in support])


def signed(model: LinearModel) -> Array:
    """The factor that turns each row's a'x into its margin."""
    signs = model.loss.signs(model.labels)
    return np.ones(model.terms) if signs is None else signs
