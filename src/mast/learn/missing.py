"""Missing cells: what a linear model answers for a row, given which of its features are there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from mast.arrays import Array, Indices, row_blocks
from mast.sketches import Sketch
from mast.sketches.conditional import Conditional
from mast.sketches.over import Over

Masks = NDArray[np.bool_]

ENTRIES = 1 << 22  #: served weights that are held at a time
FLOOR = 1e-6  #: no direction has a smaller share of the mean variance


def gaps(X: Any) -> Indices:
    """The rows that have a missing cell."""
    sparse = scipy.sparse.issparse(X)
    values = X.data if sparse else X
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()):  # cheaper than looking at each cell
            return np.zeros(0, dtype=np.int64)
    if not sparse:
        return np.flatnonzero(np.isnan(X).any(axis=1))
    return np.unique(np.searchsorted(X.indptr, np.flatnonzero(np.isnan(values)), side="right") - 1)


def cells(X: Any, rows: Indices) -> Array:
    """These rows as an array."""
    return np.asarray(X[rows].toarray() if scipy.sparse.issparse(X) else X[rows])


@dataclass(frozen=True)
class Scaling:
    """Missing features count nothing, and those that are there count more: `missing="scale"`.

    `shares` is what each feature adds to the observed share of a row: a group of features counts as one, and
    those that the sketch never drops count nothing and are not scaled. A row that misses something is
    multiplied with `factor` where that is a number, and else with (1 + noise)/(q + noise), q its observed
    share. That is the conditional mean in a model of one common factor, where `noise` is that of one
    feature over what all of them together say of the factor: 0 repeats one number d times and gives 1/q,
    infinity leaves features alone.
    """

    shares: Array
    factor: float | None
    noise: float

    @staticmethod
    def of(sketch: Sketch, d: int, rule: float | str) -> Scaling:
        """The rule for the features of a sketch; one that never drops anything does not scale either."""
        labels = units(sketch, d)
        alike = np.bincount(labels[labels >= 0])
        shares = np.where(labels >= 0, 1 / alike[labels], 0.0)
        kept = sketch.share(d) if sketch.unbiased and sketch.diagonal else 1.0
        factor = 1.0 if kept == 1 else 1 / kept if isinstance(rule, str) else None
        return Scaling(shares / shares.sum(), factor, 0.0 if isinstance(rule, str) else rule)

    def factors(self, observed: Masks) -> Array:
        """What each cell is multiplied with, (rows, features), or (rows, 1) where that is enough."""
        if self.factor is not None:
            scale = np.where(observed.all(axis=1), 1.0, self.factor)
        elif np.isinf(self.noise):
            scale = np.ones(len(observed))
        else:
            share = np.maximum(observed @ self.shares, self.shares[self.shares > 0].min())
            scale = (1 + self.noise) / (share + self.noise)
        always = self.shares == 0
        return np.where(always, 1.0, scale[:, None]) if always.any() else scale[:, None]

    def filled(self, X: Any) -> Any:
        """The rows as the model sees them: complete ones as they are, others scaled, with 0 for gaps."""
        rows = gaps(X)
        if not rows.size:
            return X
        there = cells(X, rows)
        observed = ~np.isnan(there)
        there = np.where(observed, there, 0.0) * self.factors(observed)
        if not scipy.sparse.issparse(X):
            X = X.copy()
            X[rows] = there
            return X
        whole = np.setdiff1d(np.arange(X.shape[0]), rows)
        stacked = scipy.sparse.vstack([X[whole], scipy.sparse.csr_array(there)], format="csr")
        return stacked[np.argsort(np.concatenate([whole, rows]), kind="stable")]

    def outputs(self, there: Array, coef: Array, shift: Array) -> Array:
        """a'(v + s(w - v)) over the features that are there, for rows with gaps."""
        observed = ~np.isnan(there)
        there = np.where(observed, there, 0.0)
        served: Array = (there * self.factors(observed)) @ (coef - shift).T
        return served + there @ shift.T if shift.any() else served


@dataclass(frozen=True)
class StandIns:
    """Missing features are replaced by their regression on those that are there: `missing="conditional"`."""

    mean: Array
    sketch: Conditional

    @staticmethod
    def of(X: Array, masks: Sketch, weights: Array | None) -> StandIns:
        """From training rows."""
        return Moments(X, weights).stand_ins(masks)

    def maps(self, masks: Masks) -> Array:
        """T_M of each mask: from the centred features that are there to all of them."""
        return self.sketch.apply_masks(masks, np.eye(masks.shape[1]))

    def outputs(self, there: Array, coef: Array, shift: Array) -> Array:
        """The answer to the row with its stand-ins, for rows with gaps.

        Where patterns repeat, each has weights of its own; else each row has its own system of equations.
        """
        observed = ~np.isnan(there)
        centred = np.where(observed, there - self.mean, 0.0)
        patterns, which = distinct(observed)
        if len(patterns) * len(coef) > len(there):
            return self.sketch.answers(observed, centred, coef) + coef @ self.mean
        served = self.sketch.apply_masks(patterns, coef)
        out = np.empty((len(there), len(coef)))
        step = max(1, ENTRIES // coef.size)
        for start in range(0, len(there), step):
            part = slice(start, start + step)
            out[part] = np.einsum("rkd,rd->rk", served[which[part]], centred[part])
        return out + coef @ self.mean


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
        offset, spread = self._columns()
        for rows, w_ in blocks:
            centred = np.where(np.isnan(rows), 0.0, rows - self.origin - offset)
            self.fourth += float(w_ @ ((centred / spread) ** 2).sum(axis=1) ** 2)

    def _add(self, X: Array, w: Array) -> None:
        observed = ~np.isnan(X)
        centred = np.where(observed, X - self.origin, 0.0)
        weighted = w[:, None] * centred
        whole = bool(observed.all())
        self.pairs += w.sum() if whole else (w[:, None] * observed).T @ observed
        self.sums += weighted.sum(axis=0)[:, None] if whole else weighted.T @ observed
        self.products += weighted.T @ centred

    def _columns(self) -> tuple[Array, Array]:
        """The mean of each column, from the origin, and its standard deviation; 1 where it is constant."""
        total = np.maximum(np.diag(self.pairs), 1e-300)
        offset = np.diag(self.sums) / total
        spread = np.sqrt(np.maximum(np.diag(self.products) / total - offset**2, 0.0))
        return offset, np.where(spread > 1e-12 * np.abs(self.origin + offset), spread, 1.0)

    def stand_ins(self, masks: Sketch) -> StandIns:
        """The means, and the covariance as Ledoit and Wolf (2004) shrink it, towards a multiple of I.

        This is scikit-learn's LedoitWolf, with weights of rows; directions without variance get a little.
        """
        offset, spread = self._columns()
        crossed = offset[:, None] * self.sums.T
        products = self.products - crossed - crossed.T + self.pairs * np.outer(offset, offset)
        correlation = products / np.maximum(self.pairs, 1e-300) / np.outer(spread, spread)
        shrunk = _shrunk(correlation, self.fourth / self.weight, self.weight)
        return StandIns(self.origin + offset, Conditional(shrunk * np.outer(spread, spread), masks))


def _shrunk(correlation: Array, fourth: float, n: float) -> Array:
    d = len(correlation)
    typical = float(np.trace(correlation)) / d
    if typical <= 0:
        return np.eye(d)
    squares = float(np.sum(correlation**2))
    noise = (fourth - squares) / n
    distance = squares - d * typical**2
    shrinkage = min(max(noise, 0.0), distance) / distance if distance > 0 else 0.0
    if (
        np.linalg.eigvalsh(correlation)[0] < 0
    ):  # compared in different rows, columns may contradict each other
        values, vectors = np.linalg.eigh(correlation)
        correlation = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return (1 - shrinkage) * correlation + max(shrinkage, FLOOR) * typical * np.eye(d)


def distinct(masks: Masks) -> tuple[Masks, Indices]:
    """The different rows of a matrix of masks, and which of them each row is."""
    packed = np.ascontiguousarray(np.packbits(masks, axis=1))
    _, first, which = np.unique(
        packed.view(f"V{packed.shape[1]}").ravel(), return_index=True, return_inverse=True
    )
    return masks[first], which.reshape(-1)


def units(sketch: Sketch, d: int) -> Indices:
    """The number of the unit that each feature lives and dies with; -1 for those that are never dropped."""
    if isinstance(sketch, Over):
        inner, labels = units(sketch.sketch, sketch.size(d)), sketch.labels_in(d)
        return inner if labels is None else np.where(labels >= 0, inner[labels], -1)
    parts = sketch.components()
    if parts is not None:
        found = [units(part, d) for _, part in parts]
        if all(np.array_equal(found[0], other) for other in found):
            return found[0]
    return np.arange(d)
