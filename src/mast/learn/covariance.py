"""The mean and a shrunk covariance of the features of training rows, which may have missing cells.

Of complete rows the covariance is that of Ledoit and Wolf (2004), with weights of rows. Where cells are
missing it is found by a few steps of the EM algorithm (Dempster, Laird and Rubin, 1977; Little and Rubin,
chapter 11): rows are filled by the covariance of the step before, what that leaves open is added, and the sum
is shrunk again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mast.learn.missing import Masks, rows_with_nan, unique_masks, zeros_for_nan
from mast.sketches.conditional import Conditional
from mast.support.checks import Array, row_blocks

FLOOR = 1e-6  #: no direction has a smaller share of the mean variance
STEPS = (3, 40)  #: of the EM algorithm, at least and at most, unless it converges
WORK = 1.5e9  #: rows with missing cells times features³ times steps that are affordable
FURTHER = 1.7  #: steps are longer by this factor: EM is slow where much is missing, and converges below 2
CLOSE = 1e-3  #: a step that changes the covariance by a smaller share is the last
PATTERNS = 128  #: of missing cells, whose inverses are computed in each step, at most


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


def column_moments(X: Array, weights: Array | None) -> tuple[Array, Array]:
    """The mean and the standard deviation of each column of X, which may hold NaN.

    A column without any value has the mean 0; the deviation is 1 where there is none.
    """
    w = np.ones(len(X)) if weights is None else weights
    observed = ~np.isnan(X)
    total = np.maximum(w @ observed, 1e-300)
    mean = w @ np.where(observed, X, 0.0) / total
    deviation = np.sqrt(w @ np.where(observed, X - mean, 0.0) ** 2 / total)
    return mean, np.where(deviation > 1e-12 * np.abs(mean), deviation, 1.0)


def mean_and_covariance(X: Array, weights: Array | None) -> tuple[Array, Array]:
    """The mean and the shrunk covariance of the columns of X, which may hold NaN.

    A column without any value has the mean 0, and says nothing of the others.
    """
    moments = moments_of(X, weights)
    units = np.outer(moments.deviation, moments.deviation)
    if not rows_with_nan(X).size:
        return moments.mean, shrunk(moments.correlation, moments.fourth, moments.weight) * units
    rows = (X - moments.mean) / moments.deviation
    w = np.full(len(X), 1 / len(X)) if weights is None else weights / weights.sum()
    start = _shrunk_pairs(moments.correlation, moments.pairs)
    mean, covariance = _expected(rows, w, start, moments.weight)
    return moments.mean + mean * moments.deviation, covariance * units


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
    patterns, which = unique_masks(observed)
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
