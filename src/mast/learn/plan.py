"""What an estimator fits: rows, targets, the sketch and the penalty, as objectives and as a problem."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mast.arrays import Array
from mast.learn.missing import StandIns
from mast.learn.models import (
    FeatureRidge,
    InterceptLeastSquares,
    InterceptLogistic,
    Softmax,
    with_ones,
)
from mast.learn.stochastic import LOSSES
from mast.objectives import LeastSquares, Logistic, Objective
from mast.objectives.design import Design
from mast.objectives.penalties import SketchedRidge
from mast.problem import Problem
from mast.sketches import Except, Grouped, Sketch

GRAM = 500  #: up to this size a Gram matrix has its eigenvalues computed densely


@dataclass(frozen=True)
class FitPlan:
    """What is to be fitted: rows, targets, the sketch and the penalty, and how."""

    X: Any  # complete, unless there are stand-ins
    target: Array  # -1 and +1, numbers, or the numbers of the classes
    classes: int  # how many outputs: 1, or one for each of several classes
    loss: str  # "log", "softmax" or "squares"
    weights: Array | None
    shift: Array  # (outputs, features)
    sketch: Sketch
    stand_ins: StandIns | None
    kappa: float | None
    alpha: float | None
    fit_intercept: bool
    method: str
    max_iter: int
    tol: float
    seed: int
    verbose: Callable[[str], None] | None  # who is told of each iteration, if anybody

    def joined(self, coef: Array, intercept: Array) -> Array:
        """All weights as one vector: those of each output, and its intercept if there is one."""
        return (np.column_stack([coef, intercept]) if self.fit_intercept else coef).ravel()

    def parted(self, x: Array) -> tuple[Array, Array]:
        """The weights, one row per output, and the intercepts."""
        W, K = x.reshape(self.classes, -1), self.classes
        coef, b = (W[:, :-1].copy(), W[:, -1].copy()) if self.fit_intercept else (W.copy(), np.zeros(K))
        return coef, b - b.mean() if K > 1 else b  # a number that all classes share changes nothing

    @cached_property
    def v(self) -> Array:
        """The shift of all weights."""
        return self.joined(self.shift, np.zeros(self.classes))

    @cached_property
    def scale(self) -> float:
        """The loss of the model that is 0: what errors are compared with."""
        if self.loss == "squares":
            return float(self.rates @ self.target**2) / 2
        return math.log(max(self.classes, 2))

    @cached_property
    def rates(self) -> Array:
        """What each row counts."""
        n = self.X.shape[0]
        return np.full(n, 1 / n) if self.weights is None else self.weights / self.weights.sum()

    @cached_property
    def L0(self) -> float:
        """The smoothness of the loss in the features, without a penalty."""
        X = self.X if self.stand_ins is None else np.where(np.isnan(self.X), self.stand_ins.mean, self.X)
        return LOSSES[self.loss][1] * largest_eigenvalue(X, self.rates)

    @cached_property
    def l2(self) -> float:
        """alpha; or L0/(kappa - 1); or that of LogisticRegression's C = 1 and Ridge's alpha = 1: 1/n."""
        if self.alpha is not None:
            return self.alpha
        if self.kappa is None:
            return 1 / (self.X.shape[0] if self.weights is None else float(self.weights.sum()))
        return penalty_of(self.kappa, self.L0)

    @cached_property
    def data(self) -> Any:
        """The features, with ones if there is an intercept."""
        return with_ones(self.X) if self.fit_intercept else self.X

    @cached_property
    def all_outputs(self) -> Sketch:
        """The sketch of all weights: one draw for all outputs, which leaves intercepts alone."""
        sketch: Sketch = Except(self.sketch, [-1]) if self.fit_intercept else self.sketch
        if self.classes == 1:
            return sketch
        return Grouped(sketch, np.tile(np.arange(self.v.size // self.classes), self.classes))

    @cached_property
    def ridge(self) -> FeatureRidge:
        """The penalty of all outputs."""
        l2 = np.full(self.v.size // self.classes, self.l2)
        if self.fit_intercept:
            l2[-1] = 0.0
        return FeatureRidge(np.tile(l2, self.classes))

    @cached_property
    def penalty(self) -> SketchedRidge:
        """The expectation of the penalty; that of w itself where there are stand-ins."""
        if self.stand_ins is None:
            return self.ridge.sketched(self.all_outputs, self.v)
        return SketchedRidge(self.ridge.l2, np.ones(self.v.size), np.ones(self.v.size), self.v)

    def softmax(self, X: Any, weights: Array, penalty: SketchedRidge, **more: Any) -> Softmax:
        """f for several classes, on copies of the rows."""
        codes = np.tile(self.target.astype(np.intp), weights.size)
        return Softmax(X, codes, self.classes, np.outer(weights, self.rates).ravel(), penalty, **more)

    def problem(self) -> Problem:
        """f_D."""
        f: Objective
        squares = self.loss == "squares"
        if self.classes > 1:
            f = self.softmax(self.data, np.ones(1), self.ridge)
        elif self.fit_intercept:
            variant = InterceptLeastSquares if squares else InterceptLogistic
            f = variant(self.data, self.target, self.ridge, self.weights, lambda: self.L0)
        else:
            kind = LeastSquares if squares else Logistic
            f = kind(self.data, self.target, l2=self.l2, sample_weight=self.weights)
        return Problem(f, self.all_outputs, self.v)


def penalty_of(kappa: float, L0: float) -> float:
    """The penalty that makes the condition number kappa; without features all give the same model."""
    return L0 / (kappa - 1) if L0 > 0 else 1.0


def largest_eigenvalue(X: Any, rates: Array | None = None) -> float:
    """The largest eigenvalue of X'WX: from the smaller Gram matrix where that is cheap, else by Lanczos."""
    design = Design(X)
    rates = np.full(design.n, 1 / design.n) if rates is None else rates
    if design.sparse and design.n <= min(GRAM, design.d):
        scaled = design.csr.multiply(np.sqrt(rates)[:, None]).tocsr()
        return max(float(np.linalg.eigvalsh((scaled @ scaled.T).toarray())[-1]), 0.0)
    if design.sparse and design.d <= GRAM:
        lengths = np.diff(design.csr.indptr).astype(float)
        if float(lengths @ lengths) <= 40 * lengths.sum():
            return max(float(np.linalg.eigvalsh(design.gram(rates))[-1]), 0.0)
    return design.largest_eigenvalue(rates)
