"""What stands for missing cells: `ConditionalImputer` fills in conditional means, `Scaling` nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from mast.errors import ArgumentError
from mast.learn.gaussian import FeatureGaussian, Masks, fit_gaussian
from mast.learn.validation import (
    as_dense,
    refuse_overflow,
    row_weights,
    rows_with_nan,
    validate_numbers,
)
from mast.sketches import Mixture, Sketch
from mast.sketches.composed import Over
from mast.support.checks import Array, Indices, check_int, numbers


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
        if self.rank is not None and not (isinstance(self.rank, str) and self.rank == "auto"):
            check_int("rank", self.rank, 0)
        self.gaussian_ = fit_gaussian(X, weights, self.rank)
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
            out[rows] = self.gaussian_.output_variances(X[rows], np.atleast_2d(weights))
        return out[:, 0] if weights.ndim == 1 else out

    @property
    def mean_(self) -> Array:
        """The mean of each feature."""
        return self.gaussian_.mean

    @property
    def covariance_(self) -> Array:
        """The shrunk covariance of the features."""
        return self.gaussian_.covariance

    @property
    def rank_(self) -> int | None:
        """How many factors there are."""
        return self.gaussian_.rank

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "gaussian_")


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
        there = self._scaled(as_dense(X[rows]))[1]
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
    if isinstance(sketch, Mixture):
        found = [units(part, d) for _, part in sketch.components]
        if all(np.array_equal(found[0], other) for other in found):
            return found[0]
    return np.arange(d)
