"""ConditionalImputer: missing cells become what the others say of them, by a Gaussian of the features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from mast.errors import ArgumentError
from mast.learn.covariance import column_moments, mean_and_covariance
from mast.learn.factors import Factors, fit_factors
from mast.learn.missing import Masks, rows_with_nan, unique_masks, zeros_for_nan
from mast.learn.validation import as_dense, refuse_overflow, row_weights, validate_numbers
from mast.sketches.conditional import Conditional
from mast.support.checks import Array, check_int, numbers, row_blocks

WIDEST = 200  #: features that have a covariance of all pairs by default; more have factors
ENTRIES = 1 << 22  #: served weights that are held at a time


class ConditionalImputer(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Fills missing cells with their conditional mean given the cells of the row that are there.

    The features are taken for Gaussian, with the mean and a shrunk covariance of the training rows, which may
    have missing cells too. So a stand-in is a linear function of what is there: one system of equations
    per row, without rounds and without random numbers. Cells that are there come out as they went in.

    A column without any value in `fit` has the mean 0: it is filled with 0. A row without any value gets the
    means. NaN is a missing cell, also in a sparse matrix, whose zeros are values; infinity is refused.

    Parameters
    ----------
    rank
        None uses the covariance of all pairs of features, which Ledoit and Wolf's formula shrinks. A number
        is how many factors explain the covariance, beside noise of each feature's own: a row then costs
        d rank² operations instead of d³. ``"auto"`` is None for up to 200 features, and more have as many
        factors as predict hidden cells of some training rows best.

    Attributes
    ----------
    mean_ : the mean of each feature.
    covariance_ : the shrunk covariance.
    rank_ : how many factors there are; None for a covariance of all pairs.
    n_features_in_, feature_names_in_ : as in scikit-learn.

    Examples
    --------
    >>> import numpy as np, mast
    >>> X = np.column_stack([np.arange(50.0), 2 * np.arange(50.0) + 1])  # the second follows from the first
    >>> X[::10, 1] = np.nan
    >>> imputer = mast.ConditionalImputer().fit(X)
    >>> imputer.transform([[30.0, 77.0], [30.0, np.nan]]).round()
    array([[30., 77.],
           [30., 61.]])
    >>> imputer.margin_variance([[30.0, 77.0], [30.0, np.nan]], [1.0, 1.0]) > 0
    array([False,  True])
    """

    gaussian_: FeatureGaussian
    n_features_in_: int

    def __init__(self, *, rank: int | str | None = "auto") -> None:
        self.rank = rank

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Find the means and the covariance.

        Parameters
        ----------
        X
            Features, one row per observation; an array, a data frame or any SciPy sparse matrix.
        y
            Ignored.
        sample_weight
            Non-negative weights of the rows.
        """
        X = as_dense(validate_numbers(self, X, reset=True))
        refuse_overflow("X", X)
        weights = row_weights(sample_weight, X)
        if weights is not None:
            if not weights.any():
                raise ArgumentError("sample_weight must be positive for at least one row")
            X, weights = X[weights > 0], weights[weights > 0]
        return self.fit_checked(X, weights)

    def fit_checked(self, X: Array, weights: Array | None) -> Self:
        """Fit to an array that was checked already, NaN where cells are missing."""
        if self.rank is not None and not (isinstance(self.rank, str) and self.rank == "auto"):
            check_int("rank", self.rank, 0)
        self.gaussian_ = FeatureGaussian.fit(X, weights, self.rank)
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X: Any) -> Array:
        """A dense copy whose missing cells are filled."""
        check_is_fitted(self)
        X = as_dense(validate_numbers(self, X, reset=False))
        rows, out = rows_with_nan(X), np.array(X)
        if rows.size:
            out[rows] = self.gaussian_.fill(X[rows])
        return out

    def margin_variance(self, X: Any, coef: ArrayLike) -> Array:
        """The variance of linear margins given the cells that are there, 0 for a row without a missing cell.

        Parameters
        ----------
        X
            Rows.
        coef
            The weights w of one margin w'x, of shape (n_features,), or of several, (margins, n_features).

        Returns
        -------
        array of shape (rows,), or (rows, margins)
        """
        check_is_fitted(self)
        X = as_dense(validate_numbers(self, X, reset=False))
        weights = numbers("coef", coef, np.ndim(coef))
        if weights.ndim not in (1, 2) or weights.shape[-1] != self.n_features_in_:
            raise ArgumentError(
                f"coef must have one weight for each of the {self.n_features_in_} features, "
                f"got the shape {weights.shape}"
            )
        rows, out = rows_with_nan(X), np.zeros((len(X), len(np.atleast_2d(weights))))
        if rows.size:
            out[rows] = self.gaussian_.variances(X[rows], np.atleast_2d(weights))
        return out[:, 0] if weights.ndim == 1 else out

    @property
    def mean_(self) -> Array:
        """The mean of each feature."""
        return self.gaussian_.mean

    @property
    def covariance_(self) -> Array:
        """The shrunk covariance of the features."""
        return self.gaussian_.model.covariance

    @property
    def rank_(self) -> int | None:
        """How many factors there are."""
        return self.gaussian_.rank

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "gaussian_")


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
        """From rows that may hold NaN: with `rank` factors, or None for a covariance of all pairs."""
        if rank is None or (rank == "auto" and X.shape[1] <= WIDEST):
            mean, covariance = mean_and_covariance(X, weights)
            return FeatureGaussian(mean, Conditional(covariance, 1.0))
        mean, deviation = column_moments(X, weights)
        found = fit_factors((X - mean) / deviation, weights, None if isinstance(rank, str) else rank)
        return FeatureGaussian(mean, Factors(found.loadings * deviation[:, None], found.noise * deviation**2))

    def padded(self, count: int) -> FeatureGaussian:
        """The same with `count` features more, which say nothing of the others and have the mean 0."""
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
        """Rows with missing cells filled; `kept` may drop more of what is there, which is replaced too."""
        out = rows.copy()
        for part in row_blocks(*rows.shape):
            masks = ~np.isnan(rows[part])
            if kept is not None:
                masks &= kept[part]
            centred = zeros_for_nan(rows[part] - self.mean) * masks
            np.copyto(out[part], self.model.fill(masks, centred) + self.mean, where=~masks)
        return out

    def outputs(self, there: Array, coef: Array, _shift: Array | None = None) -> Array:
        """The answers of linear models to rows with missing cells as if these were filled: (rows, models).

        Where patterns repeat, each has weights of its own; else each row has its own system of equations.
        """
        observed = ~np.isnan(there)
        centred = zeros_for_nan(there - self.mean)
        patterns, which = unique_masks(observed)
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
        patterns, which = unique_masks(~np.isnan(there))
        out = np.empty((len(patterns), len(coef)))
        step = max(1, ENTRIES // coef.size)
        for start in range(0, len(patterns), step):
            part = slice(start, start + step)
            out[part] = self.model.variances(patterns[part], coef)
        return out[which]
