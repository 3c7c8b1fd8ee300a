"""What the estimators minimise: linear models with an intercept, and losses averaged over copies of the rows.

The last column of the features is all ones where there is an intercept: neither penalised nor sketched.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray

from mast.arrays import Array, Indices
from mast.objectives import LeastSquares, Logistic, Objective, Quadratic
from mast.objectives.design import Design
from mast.objectives.linear import LinearModel, RidgeModel
from mast.objectives.losses import Loss
from mast.objectives.penalties import Penalty, Ridge, SketchedRidge
from mast.sketches import Draw, Sketch


class FeatureRidge(Ridge):
    """l2/2 times the sum of squares of all coordinates but the last."""

    def value(self, x: Array) -> float:
        """l2/2 |w|²."""
        return super().value(x[:-1])

    def parts(self, x: Array) -> Array:
        """l2/2 x_j², and 0 for the intercept."""
        return np.append(super().parts(x[:-1]), 0.0)

    def gradient(self, x: Array) -> Array:
        """l2 w, and 0 for the intercept."""
        return np.append(super().gradient(x[:-1]), 0.0)

    def curvature(self, x: Array) -> Array:
        """l2, and 0 for the intercept."""
        return np.append(super().curvature(x[:-1]), 0.0)

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
    if scipy.sparse.issparse(X):
        ones = scipy.sparse.csr_array(np.ones((X.shape[0], 1)))
        return scipy.sparse.hstack([scipy.sparse.csr_array(X), ones], format="csr")
    return np.column_stack([X, np.ones(X.shape[0])])


# ---- averages over copies -------------------------------------------------------------------


class SampledAverage(LinearModel):
    """The mean over copies c, rows i of loss(a_i'v + z_ci'(x - v)), z_ci the copy of a_i; and a penalty."""

    convex = True
    penalty: Any

    def __init__(
        self,
        loss: Loss,
        labels: Array,
        rates: Array,
        copies: Any,
        weights: Array,
        shift: Array,
        margins: Array | None,
        penalty: Penalty,
    ) -> None:
        self.design, count = Design(copies), weights.size
        self.terms, self.dim = self.design.n, self.design.d
        self.loss, self.shift, self.penalty = loss, shift, penalty
        self.labels, self.rates = np.tile(labels, count), np.outer(weights, rates).ravel()
        self.margins_at_shift = np.zeros(1) if margins is None else np.tile(margins, count)

    def _margins(self, x: Array) -> Array:
        return self.loss.margins(self.margins_at_shift + self.design.times(x - self.shift), self.labels)

    def _backward(self, slopes: Array) -> Array:
        return self.design.transpose_times(self.rates * self.signs * slopes)

    def term_infima(self) -> Array:
        """0, a lower bound."""
        return np.zeros(self.terms)


class Softmax(Objective):
    """sum_i rate_i (log sum_k exp m_ik - m_i,y_i) + penalty, with m_i = offset_i + (W - V) a_i.

    x is the matrix W, one row of weights per class, row by row. Terms are rows: f is their mean.
    """

    convex = True

    def __init__(
        self,
        A: Any,
        codes: NDArray[np.intp],
        classes: int,
        rates: Array,
        penalty: Penalty,
        *,
        l2: float = 0.0,
        shift: Array | None = None,
        offsets: Array | None = None,
    ) -> None:
        self.design, self.codes, self.classes, self.rates = Design(A), codes, classes, rates
        self.terms, self.dim = self.design.n, classes * self.design.d
        self.penalty, self.l2, self.shift, self.offsets = penalty, l2, shift, offsets

    def _logits(self, x: Array, part: Any = slice(None)) -> Array:
        moved = x if self.shift is None else x - self.shift
        out: Array = self.design.matrix[part] @ moved.reshape(self.classes, -1).T
        return out if self.offsets is None else out + self.offsets[part]

    def _chances(self, logits: Array) -> tuple[Array, Array]:
        """The probability of each class, and the logarithm of what they were divided by."""
        top = logits.max(axis=1, keepdims=True)
        chances = np.exp(logits - top)
        total = chances.sum(axis=1, keepdims=True)
        chances /= total
        return chances, (np.log(total) + top)[:, 0]

    def _back(self, slopes: Array) -> Array:
        """The slopes of all rows and classes, pulled back to the weights."""
        A = self.design
        return np.asarray(A.transposed @ slopes if A.sparse else A.matrix.T @ slopes).T.ravel()

    def value_and_gradient(self, x: ArrayLike) -> tuple[float, Array]:
        """The value and the gradient."""
        x = self._point(x)
        logits, rows = self._logits(x), np.arange(self.terms)
        own = logits[rows, self.codes]
        slopes, totals = self._chances(logits)
        slopes[rows, self.codes] -= 1.0
        slopes *= self.rates[:, None]
        value = float(self.rates @ (totals - own)) + self.penalty.value(x)
        return value, self._back(slopes) + self.penalty.gradient(x)

    def curvature(self, x: ArrayLike) -> tuple[Callable[[Array], Array], Array]:
        """The Hessian as a product with vectors, and its diagonal."""
        x = self._point(x)
        chances, ridge = self._chances(self._logits(x))[0], self.penalty.curvature(x)
        weighted, K = self.rates[:, None] * chances, self.classes
        squares = self.design.matrix.power(2) if self.design.sparse else self.design.matrix**2

        def product(p: Array) -> Array:
            moved = np.asarray(self.design.matrix @ p.reshape(K, -1).T)
            moved -= np.einsum("ik,ik->i", chances, moved)[:, None]
            moved *= weighted
            return self._back(moved) + ridge * p

        return product, np.asarray(squares.T @ (weighted * (1 - chances))).T.ravel() + ridge

    def hessian(self, x: ArrayLike) -> Array:
        """The Hessian, dense: one block for each two classes."""
        x = self._point(x)
        chances, d = self._chances(self._logits(x))[0], self.design.d
        weighted, H = self.rates[:, None] * chances, np.empty((self.dim, self.dim))
        for k in range(self.classes):
            for m in range(k + 1):
                block = self.design.gram(weighted[:, k] * ((k == m) - chances[:, m]))
                H[k * d : (k + 1) * d, m * d : (m + 1) * d] = block
                H[m * d : (m + 1) * d, k * d : (k + 1) * d] = block.T
        H[np.diag_indices(self.dim)] += self.penalty.curvature(x)
        return H

    # ---- for stochastic methods --------------------------------------------------------------

    @property
    def smoothness(self) -> float:
        """L_f: the second derivative of softmax is at most 1/2."""
        return 0.5 * self.design.largest_eigenvalue(self.rates) + self.l2

    @property
    def term_smoothness(self) -> Array:
        """L_fi of each row."""
        return 0.5 * self.terms * self.rates * self.design.row_squares + self.l2

    def term_infima(self) -> Array:
        """0, a lower bound: a row alone can be fitted as closely as one likes."""
        return np.zeros(self.terms)

    def term_gradient(self, x: ArrayLike, rows: Indices) -> Array:
        """The gradient of the mean of the terms `rows`."""
        x = self._point(x)
        slopes = self._chances(self._logits(x, rows))[0]
        slopes[np.arange(rows.size), self.codes[rows]] -= 1.0
        slopes *= self.rates[rows, None] * (self.terms / rows.size)
        gradient = np.asarray(self.design.matrix[rows].T @ slopes).T.ravel()
        return gradient + self.penalty.gradient(x)
