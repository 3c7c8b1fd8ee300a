"""A Gaussian of the features: their mean and covariance, and what the cells of a row say of those it misses.

Features less their mean have the covariance C. A mask keeps the set o of them and drops m. What is dropped
becomes its regression on what is kept, C_mo C_oo^-1 a_o, its conditional mean.

Of complete rows the covariance is that of Ledoit and Wolf (2004), with weights of rows. Where cells are
missing it is found by a few steps of the EM algorithm (Dempster, Laird and Rubin, 1977; Little and Rubin,
chapter 11): rows are filled by the covariance of the step before, what that leaves open is added, and the sum
is shrunk again.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mast.errors import ArgumentError
from mast.learn.validation import rows_with_nan
from mast.support.checks import Array, Indices, row_blocks

Masks = NDArray[np.bool_]

WIDEST = 200  #: features that have a covariance of all pairs by default; more have factors
ENTRIES = 1 << 22  #: served weights that are held at a time
FLOOR = 1e-6  #: no direction has a smaller share of the mean variance
STEPS = (3, 40)  #: of the EM algorithm, at least and at most, unless it converges
WORK = 1.5e9  #: rows with missing cells times features³ times steps that are affordable
FURTHER = 1.7  #: steps are longer by this factor: EM is slow where much is missing, and converges below 2
CLOSE = 1e-3  #: a step that changes the covariance by a smaller share is the last
PATTERNS = 128  #: of missing cells, whose inverses are computed in each step, at most


class FeatureGaussian:
    """The mean of the features and their covariance, which is positive definite."""

    rank: int | None = None  #: how many factors there are, where they make the covariance

    def __init__(self, mean: Array, covariance: Array) -> None:
        self.mean, self._covariance = mean, (covariance + covariance.T) / 2
        try:
            np.linalg.cholesky(self._covariance)
        except np.linalg.LinAlgError:
            raise ArgumentError("the covariance of the features is not positive definite") from None

    @property
    def covariance(self) -> Array:
        """The covariance of the features."""
        return self._covariance

    @cached_property
    def precision(self) -> Array:
        """The inverse of the covariance."""
        return np.asarray(np.linalg.inv(self.covariance), dtype=np.float64)

    def padded(self, count: int) -> FeatureGaussian:
        """The same with `count` features more, which say nothing of the others and have the mean 0."""
        if not count:
            return self
        d = self.mean.size
        covariance = np.eye(d + count)
        covariance[:d, :d] = self.covariance
        return FeatureGaussian(np.append(self.mean, np.zeros(count)), covariance)

    # ---- rows with NaN -------------------------------------------------------------------------------

    def fill(self, rows: Array, kept: Masks | None = None) -> Array:
        """Rows with missing cells filled; `kept` may drop more of what is there, which is replaced too."""
        out = rows.copy()
        for part in row_blocks(*rows.shape):
            masks = ~np.isnan(rows[part])
            if kept is not None:
                masks &= kept[part]
            centred = zeros_for_nan(rows[part] - self.mean) * masks
            np.copyto(out[part], self.regress(masks, centred) + self.mean, where=~masks)
        return out

    def outputs(self, there: Array, coef: Array, _shift: Array | None = None) -> Array:
        """The answers of linear models to rows with missing cells as if these were filled: (rows, models).

        Where patterns repeat, each has weights of its own; else each row has its own system of equations.
        """
        observed = ~np.isnan(there)
        centred = zeros_for_nan(there - self.mean)
        patterns, which = unique_masks(observed)
        if len(patterns) * len(coef) > len(there):
            return self.answers(observed, centred, coef) + coef @ self.mean
        served = self.served_weights(patterns, coef)
        out = np.empty((len(there), len(coef)))
        step = max(1, ENTRIES // coef.size)
        for start in range(0, len(there), step):
            part = slice(start, start + step)
            out[part] = np.einsum("rkd,rd->rk", served[which[part]], centred[part])
        return out + coef @ self.mean

    def contributions(self, there: Array, coef: Array, _shift: Array | None = None) -> Array:
        """What each feature, or its stand-in, adds to each answer: (rows, models, features)."""
        return np.asarray(self.fill(there)[:, None, :] * coef)

    def output_variances(self, there: Array, coef: Array) -> Array:
        """The variances of the answers given what is there: (rows, models)."""
        patterns, which = unique_masks(~np.isnan(there))
        out = np.empty((len(patterns), len(coef)))
        step = max(1, ENTRIES // coef.size)
        for start in range(0, len(patterns), step):
            part = slice(start, start + step)
            out[part] = self.variances(patterns[part], coef)
        return out[which]

    # ---- masks: systems of equations in the kept features, or with Q = C^-1 in the dropped ones ---------

    def regress(self, masks: Masks, rows: Array) -> Array:
        """Centred rows, each with its mask: what it drops is replaced by its regression on the rest."""
        there = rows * masks  # a choice between two numbers would take longer
        out, (few, many) = np.empty_like(there), _split_by_size(masks)
        solved = _solve(self.covariance, masks[few], there[few, :, None])
        out[few] = there[few] + (solved[:, :, 0] @ self.covariance) * ~masks[few]  # C_mo C_oo^-1 a_o
        known = there[many]
        solved = _solve(self.precision, ~masks[many], (known @ self.precision)[:, :, None])
        out[many] = known - solved[:, :, 0]  # -Q_mm^-1 (Q a)_m
        return out

    def answers(self, masks: Masks, rows: Array, weights: Array) -> Array:
        """w'a for each centred row a that `regress` fills, and each row w of `weights`: (rows, weights).

        That is a_o'C_oo^-1 (C w)_o, or a_o'w_o - (Q a)_m'Q_mm^-1 w_m: one system with one right-hand side.
        """
        there, out = rows * masks, np.empty((len(rows), len(weights)))
        few, many = _split_by_size(masks)
        solved = _solve(self.covariance, masks[few], there[few, :, None])
        out[few] = solved[:, :, 0] @ (self.covariance @ weights.T)
        known = there[many]
        solved = _solve(self.precision, ~masks[many], (known @ self.precision)[:, :, None])
        out[many] = (known - solved[:, :, 0]) @ weights.T
        return out

    def served_weights(self, masks: Masks, weights: Array) -> Array:
        """The weights that serve what each mask keeps, for each row of `weights`: (masks, weights, features).

        On the kept o this is C_oo^-1 (C w)_o, which also is w_o - Q_om Q_mm^-1 w_m.
        """
        w, Cw = np.ascontiguousarray(weights.T), self.covariance @ weights.T
        out = np.empty((*masks.shape, len(weights)))
        few, many = _split_by_size(masks)
        out[few] = _solve(self.covariance, masks[few], Cw[None])
        solved = _solve(self.precision, ~masks[many], w[None])
        moved = np.swapaxes(np.swapaxes(solved, 1, 2) @ self.precision, 1, 2)
        out[many] = np.where(masks[many, :, None], w - moved, 0.0)
        return out.transpose(0, 2, 1)

    def variances(self, masks: Masks, weights: Array) -> Array:
        """The variance of w'a given what each mask keeps of a, for each row w of `weights`: (masks, weights).

        That is w_m'Q_mm^-1 w_m, or what C_oo^-1 leaves of w'C w.
        """
        w, Cw = np.ascontiguousarray(weights.T), self.covariance @ weights.T
        out = np.empty((len(masks), len(weights)))
        few, many = _split_by_size(masks)
        explained = np.einsum("pdw,dw->pw", _solve(self.covariance, masks[few], Cw[None]), Cw)
        out[few] = np.maximum(np.einsum("dw,dw->w", w, Cw) - explained, 0.0)
        out[many] = np.einsum("pdw,dw->pw", _solve(self.precision, ~masks[many], w[None]), w)
        return out

    def unexplained(self, masks: Masks, weights: Array) -> Array:
        """The sum of the covariances that are left given what each mask keeps, times `weights`."""
        from mast.learn.kernels import inverse_sum

        few, many = _split_by_size(masks)
        left = np.zeros_like(self.covariance)
        if few.size:
            C = self.covariance
            left += weights[few].sum() * C - C @ inverse_sum(C, masks[few], weights[few]) @ C
        if many.size:
            left += inverse_sum(self.precision, ~masks[many], weights[many])
        return left


def _split_by_size(masks: Masks) -> tuple[Indices, Indices]:
    """The masks that keep less than half of all features, and the others; by the size of their system."""
    kept, d = masks.sum(axis=1), masks.shape[1]
    order = np.argsort(kept, kind="stable")
    few = 2 * kept[order] < d
    return order[few], order[~few]


def _solve(G: Array, chosen: Masks, right: Array) -> Array:
    """For each mask c the y with G_cc y_c = right_c, and 0 elsewhere: (masks, features, columns).

    `right` is one matrix for each mask, or a single one for all of them, of shape (1, features, columns).
    """
    from mast.learn.kernels import solve_within  # Numba takes a while to load

    out = np.zeros((*chosen.shape, right.shape[2]))
    if len(chosen):
        solve_within(G, chosen, np.ascontiguousarray(right), out)
    return out


def unique_masks(masks: Masks) -> tuple[Masks, Indices]:
    """The different rows of a matrix of masks, and which of them each row is."""
    packed = np.ascontiguousarray(np.packbits(masks, axis=1))
    _, first, which = np.unique(
        packed.view(f"V{packed.shape[1]}").ravel(), return_index=True, return_inverse=True
    )
    return masks[first], which.reshape(-1)


def zeros_for_nan(values: Array) -> Array:
    """A copy with 0 for NaN; six times as fast as `np.where` where NaN is scattered about."""
    return np.asarray(np.fmax(values, 0.0) + np.fmin(values, 0.0))


# ---- from training rows ------------------------------------------------------------------------------


def fit_gaussian(X: Array, weights: Array | None, rank: int | str | None = "auto") -> FeatureGaussian:
    """From rows that may hold NaN: with `rank` factors, or None for a covariance of all pairs."""
    if rank is None or (rank == "auto" and X.shape[1] <= WIDEST):
        return FeatureGaussian(*mean_and_covariance(X, weights))
    from mast.learn.factors import fit_factors

    return fit_factors(X, weights, None if isinstance(rank, str) else rank)


class Moments(NamedTuple):
    """Of columns that are measured in standard deviations, so that units do not matter to the shrinkage."""

    mean: Array
    deviation: Array  #: the standard deviation of each column; 1 where it is constant
    correlation: Array  #: of each two columns, in the rows that have both
    pairs: Array  #: the weight of the rows that have both
    fourth: float  #: the mean of |a|⁴ over all rows a
    weight: float  #: of all rows


def moments_of(X: Array, weights: Array | None) -> Moments:
    """The moments of columns that may hold NaN."""
    n, d = X.shape
    w = np.ones(n) if weights is None else weights
    blocks = [(X[part], w[part]) for part in row_blocks(n, d)]
    total = sum(w_ @ ~np.isnan(rows) for rows, w_ in blocks)
    totals = sum(w_ @ np.where(np.isnan(rows), 0.0, rows) for rows, w_ in blocks)
    origin: Array = totals / np.maximum(total, 1e-300)  # near the means, so that little cancels
    # the weight of rows that have both columns; sums of the first, and products, over these rows
    pairs, sums, products = np.zeros((d, d)), np.zeros((d, d)), np.zeros((d, d))
    for rows, w_ in blocks:
        observed = ~np.isnan(rows)
        root = np.sqrt(w_)[:, None]
        centred = zeros_for_nan(rows - origin) * root
        if observed.all():
            pairs += w_.sum()
            sums += (root[:, 0] @ centred)[:, None]
        else:
            there = observed * root
            pairs += there.T @ there
            sums += centred.T @ there
        products += centred.T @ centred
    count = np.maximum(np.diag(pairs), 1e-300)
    offset = np.diag(sums) / count
    mean: Array = origin + offset
    deviation = np.sqrt(np.maximum(np.diag(products) / count - offset**2, 0.0))
    deviation = np.where(deviation > 1e-12 * np.abs(mean), deviation, 1.0)
    fourth, weight = 0.0, float(w.sum())
    for rows, w_ in blocks:
        centred = np.where(np.isnan(rows), 0.0, rows - origin - offset)
        fourth += float(w_ @ ((centred / deviation) ** 2).sum(axis=1) ** 2)
    offset = mean - origin
    crossed = offset[:, None] * sums.T
    products = products - crossed - crossed.T + pairs * np.outer(offset, offset)
    correlation = products / np.maximum(pairs, 1e-300) / np.outer(deviation, deviation)
    return Moments(mean, deviation, correlation, pairs, fourth / weight, weight)


def mean_and_covariance(X: Array, weights: Array | None) -> tuple[Array, Array]:
    """The mean and the shrunk covariance of the columns of X, which may hold NaN.

    A column without any value has the mean 0, and says nothing of the others.
    """
    moments = moments_of(X, weights)
    units = np.outer(moments.deviation, moments.deviation)
    if not rows_with_nan(X).size:
        return moments.mean, shrink(moments.correlation, moments.fourth, moments.weight) * units
    rows = (X - moments.mean) / moments.deviation
    w = np.full(len(X), 1 / len(X)) if weights is None else weights / weights.sum()
    start = _shrink_pairs(moments.correlation, moments.pairs)
    mean, covariance = _em_covariance(rows, w, start, moments.weight)
    return moments.mean + mean * moments.deviation, covariance * units


def shrink(correlation: Array, fourth: float, n: float) -> Array:
    """Ledoit and Wolf's: towards a multiple of I; directions without variance get a little.

    `fourth` is the mean of |a|⁴ over n rows a. This is scikit-learn's LedoitWolf.
    """
    d = len(correlation)
    squares = float(np.sum(correlation**2))
    return _shrink_towards_identity(
        correlation, (fourth - squares) / n, squares, float(np.trace(correlation)) / d
    )


def _shrink_pairs(correlation: Array, pairs: Array) -> Array:
    """The same where each entry comes from rows of its own: its variance is that of a Gaussian's."""
    squares = correlation**2
    noise = float(((1 + squares) / np.maximum(pairs, 1.0)).sum())
    values, vectors = np.linalg.eigh(correlation)  # columns may contradict each other
    possible = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return _shrink_towards_identity(
        possible, noise, float(squares.sum()), float(np.trace(correlation)) / len(pairs)
    )


def _shrink_towards_identity(correlation: Array, noise: float, squares: float, typical: float) -> Array:
    d = len(correlation)
    if typical <= 0:
        return np.eye(d)
    distance = squares - d * typical**2
    shrinkage = min(max(noise, 0.0), distance) / distance if distance > 0 else 0.0
    return np.asarray((1 - shrinkage) * correlation + max(shrinkage, FLOOR) * typical * np.eye(d))


def _em_covariance(rows: Array, w: Array, start: Array, n: float) -> tuple[Array, Array]:
    """EM from a start: the mean and the covariance of rows that have the mean 0 and the variance 1 if whole.

    `w` is what each row counts, 1 in all; n is how many rows there are.
    """
    observed = ~np.isnan(rows)
    known = zeros_for_nan(rows)
    patterns, which = unique_masks(observed)
    shares = np.bincount(which, weights=w)
    some = np.arange(len(patterns))[~patterns.all(axis=1)]
    some = some[:: -(-some.size // PATTERNS)]
    scale = (1 - shares[patterns.all(axis=1)].sum()) / shares[some].sum()
    mean, covariance = np.zeros(rows.shape[1]), start
    least, most = STEPS
    affordable = int(WORK / (len(rows) * float(rows.shape[1]) ** 3))
    for _ in range(min(max(affordable, least), most)):
        model, before = FeatureGaussian(mean, covariance), covariance
        mean, second, fourth = _filled_moments(model, known, observed, w)
        second += model.unexplained(patterns[some], scale * shares[some])
        covariance = shrink(second, fourth, n)
        if float(np.linalg.norm(covariance - before)) < CLOSE * float(np.linalg.norm(before)):
            break
        further = before + FURTHER * (covariance - before)
        try:
            np.linalg.cholesky(further - FLOOR * np.eye(len(further)))
        except np.linalg.LinAlgError:
            continue
        covariance = further
    return mean, covariance


def _filled_moments(
    model: FeatureGaussian, known: Array, observed: Masks, w: Array
) -> tuple[Array, Array, float]:
    """The mean and the covariance of rows that a model fills, and the mean of the fourth power of lengths."""
    mean, fourth = model.mean, 0.0
    filled_mean, second = np.zeros_like(mean), np.zeros((mean.size, mean.size))
    for part in row_blocks(*known.shape):
        filled = mean + model.regress(observed[part], known[part] - mean)
        filled_mean += w[part] @ filled
        weighted = np.sqrt(w[part, None]) * filled
        second += weighted.T @ weighted  # half the work of a product of two matrices
        fourth += float(w[part] @ np.einsum("ij,ij->i", filled, filled) ** 2)
    return filled_mean, second - np.outer(filled_mean, filled_mean), fourth
