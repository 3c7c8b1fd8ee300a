"""What the estimators minimise: the mean loss of a linear model plus a penalty, and its expectation f_D.

The last column of the features is all ones where there is an intercept: neither penalised nor sketched.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mast.learn.copies import Copies, with_ones
from mast.learn.imputer import FeatureGaussian
from mast.learn.softmax import Softmax
from mast.objectives import LeastSquares, Logistic, Objective
from mast.objectives.design import Design
from mast.objectives.linear import LinearModel, RidgeModel
from mast.objectives.losses import MarginLoss, SketchedRidge
from mast.problem import Problem
from mast.sketches import Except, Grouped, Sketch
from mast.support.checks import Array, Indices

CURVATURE = {"log": 0.25, "softmax": 0.5, "squares": 1.0}  #: the largest second derivative of each loss
GRAM = 500  #: up to this size a Gram matrix has its eigenvalues computed densely


@dataclass(frozen=True)
class Risk:
    """The regularised empirical risk: rows, targets, the loss, the sketch and the penalty."""

    X: Any  # complete, unless a Gaussian of the features fills it
    target: Array  # -1 and +1, numbers, or the numbers of the classes
    outputs: int  # 1, or one for each of several classes
    loss: str  # "log", "softmax" or "squares"
    weights: Array | None
    shift: Array  # (outputs, features)
    sketch: Sketch
    gaussian: FeatureGaussian | None  # of what stands in for missing and dropped features
    kappa: float | None
    alpha: float | None
    fit_intercept: bool

    def flatten(self, coef: Array, intercept: Array) -> Array:
        """All weights as one vector: those of each output, and its intercept if there is one."""
        return (np.column_stack([coef, intercept]) if self.fit_intercept else coef).ravel()

    def unflatten(self, x: Array) -> tuple[Array, Array]:
        """The weights, one row per output, and the intercepts."""
        W, K = x.reshape(self.outputs, -1), self.outputs
        coef, b = (W[:, :-1].copy(), W[:, -1].copy()) if self.fit_intercept else (W.copy(), np.zeros(K))
        return coef, b - b.mean() if K > 1 else b  # a number that all classes share changes nothing

    def subset(self, rows: Indices) -> Risk:
        """The same for some of the rows, with the same penalty."""
        weights = None if self.weights is None else self.weights[rows]
        return replace(
            self, X=self.X[rows], target=self.target[rows], weights=weights, kappa=None, alpha=self.l2
        )

    @cached_property
    def v(self) -> Array:
        """The shift of all weights."""
        return self.flatten(self.shift, np.zeros(self.outputs))

    @cached_property
    def scale(self) -> float:
        """The loss of the model that is 0: what errors are compared with."""
        if self.loss == "squares":
            return float(self.rates @ self.target**2) / 2
        return math.log(max(self.outputs, 2))

    @cached_property
    def rates(self) -> Array:
        """What each row counts."""
        n = self.X.shape[0]
        return np.full(n, 1 / n) if self.weights is None else self.weights / self.weights.sum()

    @cached_property
    def L0(self) -> float:
        """The smoothness of the loss in the features, without a penalty."""
        X = self.X if self.gaussian is None else np.where(np.isnan(self.X), self.gaussian.mean, self.X)
        return CURVATURE[self.loss] * largest_eigenvalue(X, self.rates)

    @cached_property
    def l2(self) -> float:
        """alpha; or L0/(kappa - 1); or that of LogisticRegression's C = 1 and Ridge's alpha = 1: 1/n."""
        if self.alpha is not None:
            return self.alpha
        if self.kappa is None:
            return 1 / (self.X.shape[0] if self.weights is None else float(self.weights.sum()))
        return self.L0 / (self.kappa - 1) if self.L0 > 0 else 1.0  # without features all give the same model

    @cached_property
    def data(self) -> Any:
        """The features, with ones if there is an intercept."""
        return with_ones(self.X) if self.fit_intercept else self.X

    @cached_property
    def sketch_of_all(self) -> Sketch:
        """The sketch of all weights: one draw for all outputs, which leaves intercepts alone."""
        sketch: Sketch = Except(self.sketch, [-1]) if self.fit_intercept else self.sketch
        if self.outputs == 1:
            return sketch
        return Grouped(sketch, np.tile(np.arange(self.v.size // self.outputs), self.outputs))

    @cached_property
    def ridge(self) -> FeatureRidge:
        """The penalty of all outputs."""
        l2 = np.full(self.v.size // self.outputs, self.l2)
        if self.fit_intercept:
            l2[-1] = 0.0
        return FeatureRidge(np.tile(l2, self.outputs))

    @cached_property
    def expected_penalty(self) -> SketchedRidge:
        """The expectation of the penalty; that of w itself where there are stand-ins."""
        if self.gaussian is None:
            return self.ridge.sketched(self.sketch_of_all, self.v)
        return SketchedRidge(self.ridge.l2, np.ones(self.v.size), np.ones(self.v.size), self.v)

    def problem(self) -> Problem:
        """f_D by the sketch itself: exact where it can be, and for the methods of a theorem."""
        f: Objective
        squares = self.loss == "squares"
        if self.outputs > 1:
            f = Softmax(self.data, self.target.astype(np.intp), self.outputs, self.rates, self.ridge)
        elif self.fit_intercept:
            variant = InterceptLeastSquares if squares else InterceptLogistic
            f = variant(self.data, self.target, self.ridge, self.weights, lambda: self.L0)
        else:
            kind = LeastSquares if squares else Logistic
            f = kind(self.data, self.target, l2=self.l2, sample_weight=self.weights)
        return Problem(f, self.sketch_of_all, self.v)

    def average(self, copies: Copies) -> Objective:
        """The average of the loss over copies of the rows, and the penalty's expectation."""
        v, count, penalty = self.v, copies.weights.size, self.expected_penalty
        rates = np.outer(copies.weights, self.rates).ravel()
        if self.outputs == 1:
            loss = LeastSquares.loss if self.loss == "squares" else Logistic.loss
            offsets = np.tile(np.asarray(self.data @ v), count) if v.any() else np.zeros(1)
            return SampledAverage(loss, np.tile(self.target, count), rates, copies.rows, v, offsets, penalty)
        codes = np.tile(self.target.astype(np.intp), count)
        if not v.any():
            return Softmax(copies.rows, codes, self.outputs, rates, penalty)
        offsets = np.tile(np.asarray(self.data @ v.reshape(self.outputs, -1).T).T, count)
        return Softmax(copies.rows, codes, self.outputs, rates, penalty, shift=v, offsets=offsets)


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
        self, A: Any, b: ArrayLike, penalty: FeatureRidge, weights: Array | None, L0: Callable[[], float]
    ) -> None:
        super().__init__(A, b, penalty.smoothness, sample_weight=weights)
        self._feature_smoothness = L0
        self.penalty = penalty

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


class SampledAverage(LinearModel):
    """The mean over copies z_i of rows a_i of loss(a_i'v + z_i'(x - v)), and a penalty."""

    convex = True
    penalty: Any

    def __init__(
        self,
        loss: MarginLoss,
        labels: Array,
        rates: Array,
        copies: Any,
        shift: Array,
        margins_at_shift: Array,
        penalty: SketchedRidge,
    ) -> None:
        self.design = Design(copies, copy=False)
        self.terms, self.dim = self.design.n, self.design.d
        self.loss, self.labels, self.rates = loss, labels, rates
        self.shift, self.margins_at_shift, self.penalty = shift, margins_at_shift, penalty

    def _margins(self, x: Array) -> Array:
        return self.loss.margins(self.margins_at_shift + self.design.matrix @ (x - self.shift), self.labels)

    def _backward(self, slopes: Array) -> Array:
        return self.design.transpose_times(self.rates * self.signs * slopes)

    def term_infima(self) -> Array:
        """0, a lower bound."""
        return np.zeros(self.terms)


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
