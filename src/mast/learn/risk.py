"""What the estimators minimise: the mean loss of a linear model plus a penalty, and its expectation f_D.

The last column of the features is all ones where there is an intercept: neither penalised nor sketched.

f_D may be an average over draws: copies of the training rows, each row with draws of its own. A sketch with
few different draws is listed, and the average is f_D itself. Else draws are taken from a pool that the seed
decides. A row's place in the pool is a function of its content, so the order of rows does not matter, and a
row that stands there twice counts as one of twice the weight. Of a mixture each row gets every component as
often as its weight says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray

from mast import randomness
from mast.errors import ArgumentError
from mast.learn.gaussian import FeatureGaussian, Masks
from mast.learn.objectives import (
    FeatureRidge,
    InterceptLeastSquares,
    InterceptLogistic,
    Softmax,
    largest_eigenvalue,
)
from mast.learn.validation import row_hashes
from mast.objectives import LeastSquares, Logistic, Objective
from mast.objectives.design import Design
from mast.objectives.losses import MarginLoss, SketchedRidge, weighted_sum
from mast.problem import Problem
from mast.randomness import Key
from mast.sketches import Bernoulli, DiagonalDraw, Except, Grouped, Identity, Sketch
from mast.sketches.composed import Over, components
from mast.support.checks import Array, Indices, row_blocks

CURVATURE = {"log": 0.25, "softmax": 0.5, "squares": 1.0}  #: the largest second derivative of each loss
ROWS = 6000  #: of all copies together, where few rows are copied
COPIES = (4, 32)  #: at least and at most, where there is room; a multiple of the first
LARGE = 20_000  #: more rows than this are copied half as often
MANY_ROWS = 100_000  #: more rows than this are copied once
LISTED = 32  #: a support with at most LISTED draws is listed
ENTRIES = 40_000_000  #: of all copies together
POOL = 2048  #: draws in the pool, at most
SCALES = 20_000_000  #: entries of the pool
SYSTEMS = 1 << 23  #: entries of a pool of stand-ins, each counted d times


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
    #: what is subtracted from features: an intercept takes it up, and means that are much larger than the
    #: deviations would leave no digits; 0 where features that are dropped count as 0
    centre: Array

    def flatten(self, coef: Array, intercept: Array) -> Array:
        """All weights as one vector: those of each output, and its intercept if there is one."""
        moved = intercept + coef @ self.centre
        return (np.column_stack([coef, moved]) if self.fit_intercept else coef).ravel()

    def unflatten(self, x: Array) -> tuple[Array, Array]:
        """The weights, one row per output, and the intercepts."""
        W, K = x.reshape(self.outputs, -1), self.outputs
        coef, b = (W[:, :-1].copy(), W[:, -1].copy()) if self.fit_intercept else (W.copy(), np.zeros(K))
        b -= coef @ self.centre
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
    def rows(self) -> Any:
        """The features; stand-ins are made of them as they are, and all are centred then."""
        return self.X if self.gaussian is not None or not self.centre.any() else self.X - self.centre

    @cached_property
    def data(self) -> Any:
        """The features, with ones if there is an intercept."""
        return with_ones(self.rows) if self.fit_intercept else self.rows

    @cached_property
    def sketch_of_all(self) -> Sketch:
        """The sketch of all weights: one draw for all outputs, which leaves intercepts alone."""
        sketch: Sketch = Except(self.sketch, [-1]) if self.fit_intercept else self.sketch
        if self.outputs == 1:
            return sketch
        return Grouped(sketch, np.tile(np.arange(self.v.size // self.outputs), self.outputs))

    @cached_property
    def penalties(self) -> Array:
        """The l2 of each weight, 0 for intercepts."""
        l2 = np.full(self.v.size // self.outputs, self.l2)
        if self.fit_intercept:
            l2[-1] = 0.0
        return np.tile(l2, self.outputs)

    @cached_property
    def expected_penalty(self) -> SketchedRidge:
        """The expectation of the penalty; that of w itself where there are stand-ins."""
        d = self.v.size
        if self.gaussian is not None:
            return SketchedRidge(self.penalties, np.ones(d), np.ones(d), self.v)
        sketch = self.sketch_of_all
        return SketchedRidge(self.penalties, sketch.mean(d), sketch.expected_square(d), self.v)

    def problem(self) -> Problem:
        """f_D by the sketch itself: exact where it can be, and for the methods of a theorem."""
        f: Objective
        squares = self.loss == "squares"
        if self.outputs > 1:
            codes, ridge = self.target.astype(np.intp), FeatureRidge(self.penalties)
            f = Softmax(self.data, codes, self.outputs, self.rates, ridge)
        elif self.fit_intercept:
            variant = InterceptLeastSquares if squares else InterceptLogistic
            f = variant(self.data, self.target, self.penalties, self.weights, lambda: self.L0)
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


class SampledAverage(Objective):
    """The mean over copies z_i of rows a_i of loss(a_i'v + z_i'(x - v)), and a penalty."""

    convex = True

    def __init__(
        self,
        loss: MarginLoss,
        labels: Array,
        rates: Array,
        copies: Any,
        shift: Array,
        offsets: Array,
        penalty: SketchedRidge,
    ) -> None:
        self.design = Design(copies, copy=False)
        self.dim = self.design.d
        self.loss, self.labels, self.rates = loss, labels, rates
        self.shift, self.offsets, self.penalty = shift, offsets, penalty
        self.pulls = rates * loss.signs(labels)  #: what the slope of each row is multiplied with

    def _margins(self, x: Array) -> Array:
        return self.loss.margins(self.offsets + self.design.matrix @ (x - self.shift), self.labels)

    def value_and_gradient(self, x: ArrayLike) -> tuple[float, Array]:
        """The value and the gradient."""
        x = np.asarray(x)
        values, slopes = self.loss.value_and_slope(self._margins(x))
        value = weighted_sum(self.rates, values) + self.penalty.value(x)
        return value, self.design.transpose_times(self.pulls * slopes) + self.penalty.gradient(x)

    def hessian(self, x: ArrayLike) -> Array:
        """The Hessian, dense."""
        x = np.asarray(x)
        H = self.design.gram(self.rates * self.loss.curvature(self._margins(x)))
        H[np.diag_indices(self.dim)] += self.penalty.curvature(x)
        return H

    def curvature(self, x: ArrayLike) -> tuple[Callable[[Array], Array], Array]:
        """The Hessian as a product with vectors, and its diagonal."""
        x = np.asarray(x)
        w, ridge = self.rates * self.loss.curvature(self._margins(x)), self.penalty.curvature(x)

        def product(p: Array) -> Array:
            return self.design.transpose_times(w * (self.design.matrix @ p)) + ridge * p

        return product, self.design.column_squares(w) + ridge


# ---- copies of the rows ------------------------------------------------------------------------------


def with_ones(X: Any) -> Any:
    """The features and a last column of ones."""
    if scipy.sparse.issparse(X):
        ones = scipy.sparse.csr_array(np.ones((X.shape[0], 1)))
        return scipy.sparse.hstack([scipy.sparse.csr_array(X), ones], format="csr")
    return np.column_stack([X, np.ones(X.shape[0])])


class Copies(NamedTuple):
    """The rows of all copies, one copy below the other, and what each copy counts."""

    rows: Any
    weights: Array
    exact: bool  #: whether they are all there are


def copies_of(
    X: Any,
    sketch: Sketch,
    seed: int,
    gaussian: FeatureGaussian | None,
    ones: bool = False,
    listing: bool = True,
) -> Copies:
    """Copies of the rows under draws of the sketch: scaled, or with stand-ins for what was dropped.

    X may have NaN where there are stand-ins. `ones` adds a last column of them. With `listing` a short
    support is listed.
    """
    if not sketch.diagonal:
        raise ArgumentError(f"{sketch!r} is not diagonal: only averages over its support are possible")
    n, d = X.shape
    if listing and _is_listed(X, sketch):
        listed = [(p, draw) for p, draw in sketch.support(d) or [] if isinstance(draw, DiagonalDraw)]
        scales = np.stack([draw.diagonal() for _, draw in listed])
        which = np.broadcast_to(np.arange(len(listed)), (n, len(listed)))
        weights = np.array([p for p, _ in listed])
        return Copies(_sketched(X, scales, which, gaussian, ones), weights / weights.sum(), True)
    least, most = COPIES
    places = row_hashes(X)
    different = np.unique(places).size  # as if no row stood there twice
    wanted = min(max(ROWS // different // least, 1) * least, most)
    if different > LARGE:
        wanted = least // 2 if different <= MANY_ROWS else 1
    count = max(1, min(wanted, ENTRIES // max(_entries(X), 1)))
    room = min(POOL, SCALES // d) if gaussian is None else min(POOL // 4, max(64, SYSTEMS // d**3))
    groups = max(1, min(room // count, different))
    scales = pool(sketch, d, groups, count, Key(seed))
    first = (places % np.uint64(groups)).astype(np.int64) * count
    which = first[:, None] + np.arange(count)
    return Copies(_sketched(X, scales, which, gaussian, ones), np.full(count, 1 / count), False)


def _is_listed(X: Any, sketch: Sketch) -> bool:
    """Whether all draws are few enough to be listed."""
    size = sketch.support_size(X.shape[1])
    return size is not None and size <= LISTED and size * _entries(X) <= ENTRIES


def _entries(X: Any) -> int:
    return int(X.nnz) if scipy.sparse.issparse(X) else X.shape[0] * X.shape[1]


def _sketched(
    X: Any, scales: Array, which: NDArray[np.int64], gaussian: FeatureGaussian | None, ones: bool
) -> Any:
    """Each row under the draws that `which` names for it, (rows, copies), one copy below the other."""
    if scipy.sparse.issparse(X):
        lengths = np.diff(X.indptr)
        parts = []
        for column in which.T:
            data = X.data * scales[np.repeat(column, lengths), X.indices]
            parts.append(scipy.sparse.csr_array((data, X.indices, X.indptr), shape=X.shape))
        stacked = scipy.sparse.vstack(parts, format="csr")
        return with_ones(stacked) if ones else stacked
    (n, d), count = X.shape, which.shape[1]
    rows = np.empty((n * count, d + ones))
    rows[:, d:] = 1.0
    if gaussian is not None:
        _impute(rows[:, :d], X, scales != 0, which, gaussian)
        if ones:
            rows[:, :d] -= gaussian.mean
        return rows
    for copy, column in enumerate(which.T):
        for part in row_blocks(n, d):
            rows[copy * n : (copy + 1) * n, :d][part] = X[part] * scales[column[part]]
    return rows


def _impute(out: Array, X: Array, masks: Masks, which: Indices, gaussian: FeatureGaussian) -> None:
    """Write rows with stand-ins for what their masks drop, and for what they miss anyway.

    `which` names masks for each row, (rows, copies); copies stand one below the other.
    """
    (n, d), mean = X.shape, gaussian.mean
    if gaussian.rank is not None or np.isnan(X).any():  # else each row has a mask of its own
        for copy, column in enumerate(which.T):
            out[copy * n : (copy + 1) * n] = gaussian.fill(X, masks[column])
        return
    order = np.argsort(which.T.ravel(), kind="stable")
    ends = np.searchsorted(which.T.ravel()[order], np.arange(len(masks) + 1))
    step = max(1, SCALES // (8 * d**2))
    for start in range(0, len(masks), step):
        for i, T in enumerate(gaussian.served_weights(masks[start : start + step], np.eye(d)), start):
            rows = order[ends[i] : ends[i + 1]]
            out[rows] = (X[rows % n] - mean) @ T.T + mean


def pool(sketch: Sketch, d: int, groups: int, count: int, key: Key) -> Array:
    """`groups` times `count` diagonals: in each group, components by their weights (systematic sampling)."""
    parts = components(sketch)
    if parts is None:
        return diagonals(sketch, d, groups * count, key)
    turn = np.modf(np.arange(1, groups + 1) * 0.6180339887498949)[0]
    position = ((np.arange(count) + turn[:, None]) / count).ravel()
    ends = np.cumsum([weight for weight, _ in parts])
    component = np.minimum(np.searchsorted(ends / ends[-1], position, side="right"), len(parts) - 1)
    out = np.empty((groups * count, d))
    for i, (_, part) in enumerate(parts):
        chosen = np.flatnonzero(component == i)
        if chosen.size:
            out[chosen] = pool(part, d, chosen.size, 1, key.child(i))
    return out


def diagonals(sketch: Sketch, d: int, count: int, key: Key) -> Array:
    """`count` draws of a sketch that is no mixture, as an array of diagonals."""
    if isinstance(sketch, Identity):
        return np.ones((count, d))
    if isinstance(sketch, Over):
        inner, labels = diagonals(sketch.sketch, sketch.size(d), count, key), sketch.labels_in(d)
        return inner if labels is None else np.column_stack([inner, np.ones(count)])[:, labels]
    if type(sketch) is Bernoulli:
        thresholds = sketch.thresholds
        if isinstance(thresholds, np.ndarray):
            thresholds = np.tile(thresholds, count)
        kept = randomness.bernoulli(key, thresholds, 0, count * d).reshape(count, d)
        return np.asarray(kept / np.asarray(sketch.keep))
    draws = (sketch.sample(d, Key(key.seed, key.step, index=i)) for i in range(count))
    return np.stack([draw.diagonal() for draw in draws if isinstance(draw, DiagonalDraw)])
