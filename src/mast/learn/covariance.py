"""The mean and a shrunk covariance of the features of training rows, which may have gaps.

Of complete rows the covariance is that of Ledoit and Wolf (2004), with weights of rows. Where rows have gaps
it is found by a few steps of the EM algorithm (Dempster, Laird and Rubin, 1977; Little and Rubin, chapter
11): rows are filled by the covariance of the step before, what that leaves open is added, and the sum is
shrunk again.
"""

from __future__ import annotations

import numpy as np

from mast.learn.rows import Masks, distinct, gaps, zeros_for_nan
from mast.sketches.conditional import Conditional
from mast.support.arrays import Array, row_blocks

FLOOR = 1e-6  #: no direction has a smaller share of the mean variance
STEPS = (3, 40)  #: of the EM algorithm, at least and at most, unless it converges
WORK = 1.5e9  #: rows with gaps times features³ times steps that are affordable
FURTHER = 1.7  #: steps are so much longer: EM moves slowly where much is missing, and converges below 2
CLOSE = 1e-3  #: a step that changes the covariance by a smaller share is the last
PATTERNS = 128  #: of gaps, whose inverses are computed in each step, at most


class Moments:
    """Sums over rows: what means and a covariance are made of.

    Columns are measured in standard deviations, so that units do not matter to the shrinkage. Where rows have
    gaps, two columns are compared in the rows that have both.
    """

    def __init__(self, X: Array, weights: Array | None) -> None:
        n, d = X.shape
        w = np.ones(n) if weights is None else weights
        blocks = [(X[part], w[part]) for part in row_blocks(n, d)]
        total = sum(w_ @ ~np.isnan(rows) for rows, w_ in blocks)
        sums = sum(w_ @ np.where(np.isnan(rows), 0.0, rows) for rows, w_ in blocks)
        self.weight, self.fourth = float(w.sum()), 0.0
        self.origin: Array = sums / np.maximum(total, 1e-300)  # near the means, so that little cancels
        self.pairs = np.zeros((d, d))  # the weight of rows that have both columns
        self.sums = np.zeros((d, d))  # of the first, over the rows that have both
        self.products = np.zeros((d, d))
        for rows, w_ in blocks:
            self._add(rows, w_)
        offset, self.spread = self._columns()
        self.mean: Array = self.origin + offset
        for rows, w_ in blocks:
            centred = np.where(np.isnan(rows), 0.0, rows - self.origin - offset)
            self.fourth += float(w_ @ ((centred / self.spread) ** 2).sum(axis=1) ** 2)

    def _add(self, X: Array, w: Array) -> None:
        observed = ~np.isnan(X)
        root = np.sqrt(w)[:, None]
        centred = zeros_for_nan(X - self.origin) * root
        if observed.all():
            self.pairs += w.sum()
            self.sums += (root[:, 0] @ centred)[:, None]
        else:
            there = observed * root
            self.pairs += there.T @ there
            self.sums += centred.T @ there
        self.products += centred.T @ centred

    def _columns(self) -> tuple[Array, Array]:
        """The mean of each column, from the origin, and its standard deviation; 1 where it is constant."""
        total = np.maximum(np.diag(self.pairs), 1e-300)
        offset = np.diag(self.sums) / total
        spread = np.sqrt(np.maximum(np.diag(self.products) / total - offset**2, 0.0))
        return offset, np.where(spread > 1e-12 * np.abs(self.origin + offset), spread, 1.0)

    def correlation(self) -> Array:
        """Of each two columns, in the rows that have both."""
        offset = self.mean - self.origin
        crossed = offset[:, None] * self.sums.T
        products = self.products - crossed - crossed.T + self.pairs * np.outer(offset, offset)
        return np.asarray(products / np.maximum(self.pairs, 1e-300) / np.outer(self.spread, self.spread))


def column_moments(X: Array, weights: Array | None) -> tuple[Array, Array]:
    """The mean and the standard deviation of each column of X, which may hold NaN.

    A column without any value has the mean 0; the deviation is 1 where there is none.
    """
    w = np.ones(len(X)) if weights is None else weights
    observed = ~np.isnan(X)
    total = np.maximum(w @ observed, 1e-300)
    mean = w @ np.where(observed, X, 0.0) / total
    spread = np.sqrt(w @ np.where(observed, X - mean, 0.0) ** 2 / total)
    return mean, np.where(spread > 1e-12 * np.abs(mean), spread, 1.0)


def mean_and_covariance(X: Array, weights: Array | None) -> tuple[Array, Array]:
    """The mean and the shrunk covariance of the columns of X, which may hold NaN.

    A column without any value has the mean 0, and says nothing of the others.
    """
    moments = Moments(X, weights)
    correlation, units = moments.correlation(), np.outer(moments.spread, moments.spread)
    with_gaps = gaps(X)
    if not with_gaps.size:
        return moments.mean, shrunk(correlation, moments.fourth / moments.weight, moments.weight) * units
    rows = (X - moments.mean) / moments.spread
    w = np.full(len(X), 1 / len(X)) if weights is None else weights / weights.sum()
    mean, covariance = _expected(rows, w, _shrunk_pairs(correlation, moments.pairs), moments.weight)
    return moments.mean + mean * moments.spread, covariance * units


def shrunk(correlation: Array, fourth: float, n: float) -> Array:
    """Ledoit and Wolf's: towards a multiple of I; directions without variance get a little.

    `fourth` is the mean of |a|⁴ over n rows a. This is scikit-learn's LedoitWolf.
    """
    d = len(correlation)
    squares = float(np.sum(correlation**2))
    return _towards_identity(correlation, (fourth - squares) / n, squares, float(np.trace(correlation)) / d)


def _shrunk_pairs(correlation: Array, pairs: Array) -> Array:
    """The same where each entry comes from rows of its own: its variance is that of a Gaussian's."""
    squares = correlation**2
    noise = float(((1 + squares) / np.maximum(pairs, 1.0)).sum())
    values, vectors = np.linalg.eigh(correlation)  # columns may contradict each other
    possible = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return _towards_identity(possible, noise, float(squares.sum()), float(np.trace(correlation)) / len(pairs))


def _towards_identity(correlation: Array, noise: float, squares: float, typical: float) -> Array:
    d = len(correlation)
    if typical <= 0:
        return np.eye(d)
    distance = squares - d * typical**2
    shrinkage = min(max(noise, 0.0), distance) / distance if distance > 0 else 0.0
    return np.asarray((1 - shrinkage) * correlation + max(shrinkage, FLOOR) * typical * np.eye(d))


def _expected(rows: Array, w: Array, start: Array, n: float) -> tuple[Array, Array]:
    """EM from a start: the mean and the covariance of rows that have the mean 0 and the variance 1 if whole.

    `w` is what each row counts, 1 in all; n is how many rows there are.
    """
    observed = ~np.isnan(rows)
    known = zeros_for_nan(rows)
    patterns, which = distinct(observed)
    shares = np.bincount(which, weights=w)
    some = np.arange(len(patterns))[~patterns.all(axis=1)]
    some = some[:: -(-some.size // PATTERNS)]
    scale = (1 - shares[patterns.all(axis=1)].sum()) / shares[some].sum()
    mean, covariance = np.zeros(rows.shape[1]), start
    least, most = STEPS
    affordable = int(WORK / (len(rows) * float(rows.shape[1]) ** 3))
    for _ in range(min(max(affordable, least), most)):
        model, before = Conditional(covariance, 1.0), covariance
        mean, second, fourth = _filled_moments(model, mean, known, observed, w)
        second += model.unexplained(patterns[some], scale * shares[some])
        covariance = shrunk(second, fourth, n)
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
    model: Conditional, mean: Array, known: Array, observed: Masks, w: Array
) -> tuple[Array, Array, float]:
    """The mean and the covariance of rows that a model fills, and the mean of the fourth power of lengths."""
    filled_mean, second, fourth = np.zeros_like(mean), np.zeros((mean.size, mean.size)), 0.0
    for part in row_blocks(*known.shape):
        filled = mean + model.fill(observed[part], known[part] - mean)
        filled_mean += w[part] @ filled
        weighted = np.sqrt(w[part, None]) * filled
        second += weighted.T @ weighted  # half the work of a product of two matrices
        fourth += float(w[part] @ np.einsum("ij,ij->i", filled, filled) ** 2)
    return filled_mean, second - np.outer(filled_mean, filled_mean), fourth
