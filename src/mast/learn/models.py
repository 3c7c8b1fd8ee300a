"""Linear models with an intercept: the last column is all ones, and neither penalised nor sketched."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mast.arrays import Array, Indices
from mast.objectives import LeastSquares, Logistic, Objective, Quadratic
from mast.objectives.linear import RidgeModel
from mast.objectives.penalties import Ridge, SketchedRidge
from mast.sketches import Draw, Sketch


class FeatureRidge(Ridge):
    """l2/2 times the sum of squares of all coordinates but the last."""

    def value(self, x: Array) -> float:
        """l2/2 |w|²."""
        return super().value(x[:-1])

    def parts(self, x: Array) -> Array:
        """l2/2 x_j², and 0 for the intercept."""
        return 0.5 * self.curvature(x) * x * x

    def gradient(self, x: Array) -> Array:
        """l2 w, and 0 for the intercept."""
        return self.curvature(x) * x

    def curvature(self, x: Array) -> Array:
        """l2, and 0 for the intercept."""
        bend = np.full(x.size, self.l2)
        bend[-1] = 0.0
        return bend

    def sketched(self, sketch: Sketch, shift: Array) -> SketchedRidge:
        """Its expectation under a diagonal sketch."""
        d = shift.size
        return SketchedRidge(self.curvature(shift), sketch.mean(d), sketch.expected_square(d), shift)


class _WithIntercept(RidgeModel):
    """What follows from an intercept without a penalty."""

    def __init__(
        self, A: Any, b: ArrayLike, l2: float, weights: Array | None, L0: Callable[[], float]
    ) -> None:
        super().__init__(A, b, l2, sample_weight=weights)
        self._feature_smoothness = L0
        self.penalty = FeatureRidge(l2)

    @cached_property
    def _loss_smoothness(self) -> float:
        """That of the features and that of the ones: an upper bound of both together, at most twice it."""
        return self._feature_smoothness() + self.loss.curvature_bound

    @property
    def strong_convexity(self) -> float:
        """0: far out the loss is flat in the intercept."""
        return 0.0

    def term_infima(self) -> Array:
        """0: the intercept alone fits any one row."""
        return np.zeros(self.terms)

    # The penalty needs to know which coordinate it looks at, so draws are applied to the whole point.

    def sketched_gradient(self, x: Array, draw: Draw, shift: Array, rows: Indices | None = None) -> Array:
        """The gradient of f_S."""
        return Objective.sketched_gradient(self, x, draw, shift, rows)

    def sketched_difference(
        self, x: Array, w: Array, draw: Draw, shift: Array, rows: Indices | None = None
    ) -> Array:
        """The gradient of f_S at x minus that at w."""
        return Objective.sketched_difference(self, x, w, draw, shift, rows)

    def _solve(self) -> Array:
        return Objective._solve(self)


class InterceptLogistic(_WithIntercept, Logistic):
    """The mean log-loss plus l2/2 |w|², where x = (w, intercept)."""


class InterceptLeastSquares(_WithIntercept, LeastSquares):
    """Half the mean squared residual plus l2/2 |w|², where x = (w, intercept)."""

    @cached_property
    def quadratic(self) -> Quadratic:
        """The same function as x'Hx/2 - b'x + c; for moderate dimensions."""
        H = self.design.gram(self.rates)
        H[np.diag_indices(self.dim)] += self.penalty.curvature(np.zeros(self.dim))
        weighted = self.rates * self.labels
        return Quadratic(H, self.design.transpose_times(weighted), 0.5 * float(weighted @ self.labels))


def with_ones(X: Any) -> Any:
    """The features and a last column of ones."""
    if hasattr(X, "tocsr"):
        import scipy.sparse

        ones = scipy.sparse.csr_array(np.ones((X.shape[0], 1)))
        return scipy.sparse.hstack([scipy.sparse.csr_array(X), ones], format="csr")
    return np.column_stack([X, np.ones(X.shape[0])])
