"""A Gaussian of the features: what those that are there say of the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mast.learn.covariance import column_moments, mean_and_covariance
from mast.learn.factors import Factors, fit_factors
from mast.learn.rows import Masks, distinct, zeros_for_nan
from mast.sketches.conditional import Conditional
from mast.support.arrays import Array, row_blocks

WIDEST = 200  #: features that have a covariance of all pairs by default; more have factors
ENTRIES = 1 << 22  #: served weights that are held at a time


@dataclass(frozen=True)
class FeatureGaussian:
    """The mean of the features and their covariance, as a matrix or by factors."""

    mean: Array
    model: Conditional | Factors

    @property
    def rank(self) -> int | None:
        """How many factors there are; None for a matrix."""
        return self.model.loadings.shape[1] if isinstance(self.model, Factors) else None

    @staticmethod
    def fit(X: Array, weights: Array | None, rank: int | str | None = "auto") -> FeatureGaussian:
        """From rows that may hold NaN: with so many factors, or None for a covariance of all pairs."""
        if rank is None or (rank == "auto" and X.shape[1] <= WIDEST):
            mean, covariance = mean_and_covariance(X, weights)
            return FeatureGaussian(mean, Conditional(covariance, 1.0))
        mean, spread = column_moments(X, weights)
        found = fit_factors((X - mean) / spread, weights, None if isinstance(rank, str) else rank)
        return FeatureGaussian(mean, Factors(found.loadings * spread[:, None], found.noise * spread**2))

    def beside(self, count: int) -> FeatureGaussian:
        """The same with so many features more, which say nothing of the others and have the mean 0."""
        if not count:
            return self
        mean, d = np.concatenate([self.mean, np.zeros(count)]), self.mean.size
        if isinstance(self.model, Factors):
            loadings = np.vstack([self.model.loadings, np.zeros((count, self.model.loadings.shape[1]))])
            return FeatureGaussian(mean, Factors(loadings, np.append(self.model.noise, np.ones(count))))
        covariance = np.eye(d + count)
        covariance[:d, :d] = self.model.covariance
        return FeatureGaussian(mean, Conditional(covariance, 1.0))

    def fill(self, rows: Array, kept: Masks | None = None) -> Array:
        """Rows whose gaps are filled; `kept` may drop more of what is there, which is replaced too."""
        out = rows.copy()
        for part in row_blocks(*rows.shape):
            masks = ~np.isnan(rows[part])
            if kept is not None:
                masks &= kept[part]
            centred = zeros_for_nan(rows[part] - self.mean) * masks
            np.copyto(out[part], self.model.fill(masks, centred) + self.mean, where=~masks)
        return out

    def outputs(self, there: Array, coef: Array, _shift: Array | None = None) -> Array:
        """The answers of linear models to rows with gaps as if these were filled: (rows, models).

        Where patterns repeat, each has weights of its own; else each row has its own system of equations.
        """
        observed = ~np.isnan(there)
        centred = zeros_for_nan(there - self.mean)
        patterns, which = distinct(observed)
        if len(patterns) * len(coef) > len(there):
            return self.model.answers(observed, centred, coef) + coef @ self.mean
        served = self.model.apply_masks(patterns, coef)
        out = np.empty((len(there), len(coef)))
        step = max(1, ENTRIES // coef.size)
        for start in range(0, len(there), step):
            part = slice(start, start + step)
            out[part] = np.einsum("rkd,rd->rk", served[which[part]], centred[part])
        return out + coef @ self.mean

    def contributions(self, there: Array, coef: Array, _shift: Array | None = None) -> Array:
        """What each feature, or its stand-in, adds to each answer: (rows, models, features)."""
        return np.asarray(self.fill(there)[:, None, :] * coef)

    def variances(self, there: Array, coef: Array) -> Array:
        """The variances of the answers given what is there: (rows, models)."""
        patterns, which = distinct(~np.isnan(there))
        out = np.empty((len(patterns), len(coef)))
        step = max(1, ENTRIES // coef.size)
        for start in range(0, len(patterns), step):
            part = slice(start, start + step)
            out[part] = self.model.variances(patterns[part], coef)
        return out[which]
