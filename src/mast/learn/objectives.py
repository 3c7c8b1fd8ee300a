"""Objectives of several classes, Softmax, and of linear models with an intercept that is not penalised."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mast.objectives import LeastSquares, Logistic, Objective
from mast.objectives.design import Design
from mast.objectives.linear import RidgeModel
from mast.objectives.losses import SketchedRidge
from mast.objectives.newton import Solver, conjugate_gradients
from mast.sketches import Sketch
from mast.support.checks import Array, Indices

GRAM = 500  #: up to this size a Gram matrix has its eigenvalues computed densely


class Softmax(Objective):
    """sum_i rate_i (log sum_k exp m_ik - m_i,y_i) + penalty, with m_i = offset_i + (W - V) a_i.

    x is the matrix W, one row of weights per class, row by row. Terms are rows: f is their mean. Offsets are
    an array (classes, rows).
    """

    convex = True

    def __init__(
        self,
        A: Any,
        codes: NDArray[np.intp],
        classes: int,
        rates: Array,
        penalty: Any,
        *,
        shift: Array | None = None,
        offsets: Array | None = None,
    ) -> None:
        self.design, self.codes = Design(A, copy=False), codes
        self.classes, self.rates = classes, rates
        self.terms, self.dim = self.design.n, classes * self.design.d
        self.penalty, self.shift, self.offsets = penalty, shift, offsets

    # Logits, probabilities and slopes are arrays (classes, rows): NumPy is quicker along rows than classes.

    def _logits(self, x: Array, part: Any = slice(None)) -> Array:
        moved = x if self.shift is None else x - self.shift
        out = self._forward(moved, part)
        return out if self.offsets is None else out + self.offsets[:, part]

    def _forward(self, x: Array, part: Any = slice(None)) -> Array:
        """W A' for the matrix W that is x."""
        A, W = self.design.matrix[part], x.reshape(self.classes, -1)
        return np.asarray((A @ W.T).T if self.design.sparse else W @ A.T)

    def _probabilities(self, logits: Array) -> tuple[Array, Array]:
        """The probability of each class, and the logarithm of what they were divided by."""
        top = logits.max(axis=0)
        probabilities = np.exp(logits - top)
        total = probabilities.sum(axis=0)
        probabilities /= total
        return probabilities, np.log(total) + top

    def _back(self, slopes: Array) -> Array:
        """The slopes of all classes and rows, pulled back to the weights."""
        A = self.design
        return np.asarray((A.transposed @ slopes.T).T if A.sparse else slopes @ A.matrix).ravel()

    def value_and_gradient(self, x: ArrayLike) -> tuple[float, Array]:
        """The value and the gradient."""
        x = self._point(x)
        logits, rows = self._logits(x), np.arange(self.terms)
        own = logits[self.codes, rows]
        slopes, totals = self._probabilities(logits)
        slopes[self.codes, rows] -= 1.0
        slopes *= self.rates
        value = float(self.rates @ (totals - own)) + self.penalty.value(x)
        return value, self._back(slopes) + self.penalty.gradient(x)

    def curvature(self, x: ArrayLike) -> tuple[Callable[[Array], Array], Array]:
        """The Hessian as a product with vectors, and its diagonal."""
        x = self._point(x)
        probabilities, ridge = self._probabilities(self._logits(x))[0], self.penalty.curvature(x)
        weighted = self.rates * probabilities
        squares = self.design.matrix.power(2) if self.design.sparse else self.design.matrix**2

        def product(p: Array) -> Array:
            moved = self._forward(p)
            moved -= np.einsum("ki,ki->i", probabilities, moved)
            moved *= weighted
            return np.asarray(self._back(moved) + ridge * p)

        return product, np.asarray((weighted * (1 - probabilities)) @ squares).ravel() + ridge

    def hessian(self, x: ArrayLike) -> Array:
        """The Hessian, dense: one block for each two classes."""
        x = self._point(x)
        probabilities, d = self._probabilities(self._logits(x))[0], self.design.d
        weighted, H = self.rates * probabilities, np.empty((self.dim, self.dim))
        for k in range(self.classes):
            for m in range(k + 1):
                block = self.design.gram(weighted[k] * ((k == m) - probabilities[m]))
                H[k * d : (k + 1) * d, m * d : (m + 1) * d] = block
                H[m * d : (m + 1) * d, k * d : (k + 1) * d] = block.T
        H[np.diag_indices(self.dim)] += self.penalty.curvature(x)
        return H

    # ---- for stochastic methods --------------------------------------------------------------

    @property
    def smoothness(self) -> float:
        """L_f: the second derivative of softmax is at most 1/2."""
        return float(0.5 * self.design.largest_eigenvalue(self.rates) + self.penalty.smoothness)

    @property
    def term_smoothness(self) -> Array:
        """L_fi of each row."""
        return np.asarray(0.5 * self.terms * self.rates * self.design.row_squares + self.penalty.smoothness)

    def term_infima(self) -> Array:
        """0, a lower bound: a row alone can be fitted as closely as one likes."""
        return np.zeros(self.terms)

    def term_gradient(self, x: ArrayLike, rows: Indices) -> Array:
        """The gradient of the mean of the terms `rows`."""
        x = self._point(x)
        slopes = self._probabilities(self._logits(x, rows))[0]
        slopes[self.codes[rows], np.arange(rows.size)] -= 1.0
        slopes *= self.rates[rows] * (self.terms / rows.size)
        gradient = np.asarray(slopes @ self.design.matrix[rows]).ravel()
        return np.asarray(gradient + self.penalty.gradient(x))


def class_solver(f: Softmax) -> Solver:
    """Newton steps by conjugate gradients, preconditioned with a block for each class.

    The Hessian's block of a class is A'WA with the row weights rate p (1 - p): here with a mean of p (1 - p)
    that gives the block the right trace, so that the correlations of features are taken into account.
    """
    K, d, gram = f.classes, f.design.d, f.design.gram(f.rates)
    gram[np.diag_indices(d)] += 1e-10 * max(float(np.trace(gram)) / d, 1e-300)

    def solver(x: Array, gradient: Array, left: float) -> tuple[Array, Array]:
        product, diagonal = f.curvature(x)
        ridge = f.penalty.curvature(x).reshape(K, d)
        bends = np.maximum((diagonal.reshape(K, d) - ridge).sum(axis=1) / np.trace(gram), 1e-12)
        inverses = np.linalg.inv(bends[:, None, None] * gram + ridge[:, :, None] * np.eye(d))

        def precondition(r: Array) -> Array:
            return np.asarray((inverses @ r.reshape(K, d, 1)).reshape(-1))

        accuracy = min(0.1, max(left**0.5, 1e-4))
        step = conjugate_gradients(product, diagonal, gradient, accuracy, precondition=precondition)
        return step, diagonal

    return solver


class FeatureRidge(SketchedRidge):
    """The sum of l2_j/2 x_j², where intercepts have l2_j = 0."""

    def __init__(self, l2: Array) -> None:
        super().__init__(l2, np.ones(l2.size), np.ones(l2.size), np.zeros(l2.size))

    @property
    def smoothness(self) -> float:
        """The largest of the l2_j."""
        return float(np.max(self.l2))

    def sketched(self, sketch: Sketch, shift: Array) -> SketchedRidge:
        """Its expectation under a diagonal sketch."""
        d = shift.size
        return SketchedRidge(self.l2, sketch.mean(d), sketch.expected_square(d), shift)


class _WithIntercept(RidgeModel):
    """What follows from an intercept without a penalty."""

    penalty: Any

    def __init__(
        self, A: Any, b: ArrayLike, l2: Array, weights: Array | None, L0: Callable[[], float]
    ) -> None:
        super().__init__(A, b, float(l2.max()), sample_weight=weights)
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
    sketched_gradients = Objective.sketched_gradients
    _solve = Objective._solve


class InterceptLogistic(_WithIntercept, Logistic):
    """The mean log-loss plus l2/2 |w|², where x = (w, intercept)."""


class InterceptLeastSquares(_WithIntercept, LeastSquares):
    """Half the mean squared residual plus l2/2 |w|², where x = (w, intercept)."""


def largest_eigenvalue(X: Any, rates: Array) -> float:
    """The largest eigenvalue of X'WX: from the smaller Gram matrix where that is cheap, else by Lanczos."""
    design = Design(X)
    if design.sparse and design.n <= min(GRAM, design.d):
        scaled = design.csr.multiply(np.sqrt(rates)[:, None]).tocsr()
        return max(float(np.linalg.eigvalsh((scaled @ scaled.T).toarray())[-1]), 0.0)
    if design.sparse and design.d <= GRAM:
        lengths = np.diff(design.csr.indptr).astype(float)
        if float(lengths @ lengths) <= 40 * lengths.sum():
            return max(float(np.linalg.eigvalsh(design.gram(rates))[-1]), 0.0)
    return design.largest_eigenvalue(rates)
