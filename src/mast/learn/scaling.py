"""The rule `missing="scale"`: missing features count nothing, and those that are there count more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from mast.learn.gaussian import Masks
from mast.learn.validation import dense_rows, rows_with_nan
from mast.sketches import Sketch
from mast.sketches.over import Over
from mast.support.arrays import Array, Indices


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
        sizes = np.bincount(labels[labels >= 0])
        shares = np.where(labels >= 0, 1 / sizes[labels], 0.0)
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
        """The rows as the model sees them: complete ones as they are, others scaled, 0 for missing cells."""
        rows = rows_with_nan(X)
        if not rows.size:
            return X
        there = self._scaled(dense_rows(X, rows))[1]
        if not scipy.sparse.issparse(X):
            X = X.copy()
            X[rows] = there
            return X
        whole = np.setdiff1d(np.arange(X.shape[0]), rows)
        stacked = scipy.sparse.vstack([X[whole], scipy.sparse.csr_array(there)], format="csr")
        return stacked[np.argsort(np.concatenate([whole, rows]), kind="stable")]

    def contributions(self, rows: Array, coef: Array, shift: Array) -> Array:
        """What each feature adds to each output, (rows, outputs, features), for rows with missing cells."""
        values, scaled = self._scaled(rows)
        return np.asarray(scaled[:, None, :] * (coef - shift) + values[:, None, :] * shift)

    def outputs(self, rows: Array, coef: Array, shift: Array) -> Array:
        """a'(v + s(w - v)) over the features that are there, for rows with missing cells."""
        values, scaled = self._scaled(rows)
        served: Array = scaled @ (coef - shift).T
        return served + values @ shift.T if shift.any() else served

    def _scaled(self, rows: Array) -> tuple[Array, Array]:
        """Rows with 0 for missing cells: as they are, and scaled."""
        observed = ~np.isnan(rows)
        values = np.where(observed, rows, 0.0)
        return values, values * self.factors(observed)


def units(sketch: Sketch, d: int) -> Indices:
    """The number of the unit that each feature is dropped with; -1 for those that are never dropped."""
    if isinstance(sketch, Over):
        inner, labels = units(sketch.sketch, sketch.size(d)), sketch.labels_in(d)
        return inner if labels is None else np.where(labels >= 0, inner[labels], -1)
    parts = sketch.components()
    if parts is not None:
        found = [units(part, d) for _, part in parts]
        if all(np.array_equal(found[0], other) for other in found):
            return found[0]
    return np.arange(d)
