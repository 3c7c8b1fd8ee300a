"""What an estimator fits: rows, targets, the sketch and the penalty, as objectives and as a problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mast.arrays import Array
from mast.learn.missing import StandIns
from mast.learn.models import InterceptLeastSquares, InterceptLogistic, Softmax, with_ones
from mast.learn.stochastic import LOSSES
from mast.objectives import LeastSquares, LinearModel, Logistic
from mast.objectives.design import Design
from mast.objectives.penalties import Penalty, SketchedRidge
from mast.problem import Problem
from mast.sketches import Except, Grouped, Sketch

GRAM = 500  #: up to this size a Gram matrix has its eigenvalues computed densely

Watch = Callable[[str], None] | None  #: who is told of each iteration, if anybody


@dataclass(frozen=True)
class FitPlan:
    """What is to be fitted: rows, targets, the sketch and the penalty, and how."""

    X: Any  # complete, unless there are stand-ins
    target: Array  # -1 and +1, numbers, or the numbers of the classes
    classes: int  # how many outputs: 1, or one for each of several classes
    loss: str  # "log", "softmax" or "squares"
    weights: Array | None
    sketch: Sketch
    stand_ins: StandIns | None
    kappa: float | None
    alpha: float | None
    fit_intercept: bool
    method: str
    max_iter: int
    tol: float
    seed: int
    verbose: Watch

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
    def full_sketch(self) -> Sketch:
        """The sketch of one output's weights: the intercept is left alone."""
        return Except(self.sketch, [-1]) if self.fit_intercept else self.sketch

    def penalty(self, shift: Array) -> SketchedRidge:
        """The expectation of the penalty of all outputs; that of w itself where there are stand-ins."""
        D, K = shift.size // self.classes, self.classes
        bend, mean, square = np.full(D, self.l2), np.ones(D), np.ones(D)
        if self.fit_intercept:
            bend[-1] = 0.0
        if self.stand_ins is None:
            mean, square = self.full_sketch.mean(D), self.full_sketch.expected_square(D)
        return SketchedRidge(np.tile(bend, K), np.tile(mean, K), np.tile(square, K), shift)

    def model(self) -> LinearModel:
        """f for one output."""
        squares = self.loss == "squares"
        if not self.fit_intercept:
            kind: type[Logistic] | type[LeastSquares] = LeastSquares if squares else Logistic
            return kind(self.data, self.target, l2=self.l2, sample_weight=self.weights)
        variant = InterceptLeastSquares if squares else InterceptLogistic
        return variant(self.data, self.target, self.l2, self.weights, lambda: self.L0)

    def softmax(self, X: Any, weights: Array, penalty: Penalty, **more: Any) -> Softmax:
        """f for several classes, on copies of the rows."""
        codes = np.tile(self.target.astype(np.intp), weights.size)
        return Softmax(X, codes, self.classes, np.outer(weights, self.rates).ravel(), penalty, **more)

    def problem(self, shift: Array) -> Problem:
        """f_D, with the shift of all weights."""
        if self.classes == 1:
            return Problem(self.model(), self.full_sketch, shift)
        D, K = shift.size // self.classes, self.classes
        plain = SketchedRidge(self.penalty(shift).l2, np.ones(D * K), np.ones(D * K), np.zeros(D * K))
        f = self.softmax(self.data, np.ones(1), plain, l2=self.l2)
        return Problem(f, Grouped(self.full_sketch, np.tile(np.arange(D), K)), shift)


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
