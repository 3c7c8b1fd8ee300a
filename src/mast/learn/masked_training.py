"""MaskedTraining: any estimator of scikit-learn, trained on copies of its rows with blanks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_regressor
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from mast import randomness
from mast.errors import ArgumentError
from mast.learn.imputer import ConditionalImputer
from mast.learn.validation import row_hashes, row_weights, seed_of, validate_table, with_positive_weight
from mast.randomness import Key
from mast.support.checks import Array, check_choice, check_int, check_number

SHARES = (0.0, 0.25, 0.5, 0.75)
POOL = 4096  #: different masks per copy, at most: rows of one pattern are filled together


def _has(name: str) -> Callable[[Any], bool]:
    """Whether the estimator has this method."""
    return lambda self: hasattr(getattr(self, "estimator_", self.estimator), name)


class MaskedTraining(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Any classifier or regressor, trained on masked copies of its rows, for rows with missing values.

    The copies take the `shares` in turn: in a copy of share .5 each cell is masked with probability 1/2.
    Masked cells and missing values are filled by `ConditionalImputer`, in training and afterwards. A column
    that a data frame lacks counts as missing. A frame with text, categories, booleans or dates goes through
    `TableEncoder` first, and the features of one column are masked together.

    Parameters
    ----------
    estimator
        What is trained: trees, for example.
    shares
        The shares of the cells that are masked in the copies, each in [0, 1). ``(0,)`` is the plain
        estimator behind the imputer: one copy, in which nothing is masked. With few missing values it can
        be better; let cross-validation choose, as in the example.
    copies
        The number of copies of the rows. To the estimator they are rows: with five of them
        ``min_samples_leaf=100`` of trees, ``alpha=5`` of Ridge and ``C=1/5`` of LogisticRegression are what
        20, 1 and 1 are without. An early stop that the estimator decides on rows of its own sees copies of
        its training rows: switch it off.
    fill
        ``"conditional"``, or ``"nan"``, which leaves NaN to estimators that accept it.
    random_state
        Decides which cells are masked. None is a fixed choice: two fits give the same model. The estimator
        has a `random_state` of its own.

    Attributes
    ----------
    estimator_ : the fitted estimator.
    imputer_ : the fitted `ConditionalImputer`; None with ``fill="nan"``.
    encoder_ : the fitted `TableEncoder`; None where it was given numbers.
    classes_ : the labels, of classifiers.

    Examples
    --------
    >>> import mast
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.ensemble import HistGradientBoostingRegressor
    >>> from sklearn.model_selection import GridSearchCV
    >>> X, y = load_diabetes(return_X_y=True)
    >>> trees = HistGradientBoostingRegressor(max_iter=20, random_state=0)
    >>> model = mast.MaskedTraining(trees).fit(X[:300], y[:300])
    >>> half = mast.make_missing_scorer(share=0.5, draws=3)
    >>> bool(half(model, X[300:], y[300:]) > 0.2)
    True

    Cross-validation tells whether training for missing values helps, at the share that you expect:

    >>> grid = {"shares": [(0,), (0, 0.25, 0.5, 0.75)], "fill": ["conditional", "nan"]}
    >>> search = GridSearchCV(model, grid, cv=3, scoring=half).fit(X[:300], y[:300])
    >>> sorted(search.best_params_)
    ['fill', 'shares']
    """

    estimator_: Any
    n_features_in_: int

    def __init__(
        self,
        estimator: Any,
        shares: Sequence[float] = SHARES,
        copies: int = 5,
        *,
        fill: str = "conditional",
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.shares = shares
        self.copies = copies
        self.fill = fill
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags, theirs = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.estimator_type = theirs.estimator_type
        tags.classifier_tags, tags.regressor_tags = theirs.classifier_tags, theirs.regressor_tags
        tags.target_tags = theirs.target_tags
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train the estimator on the copies.

        Parameters
        ----------
        X
            Rows of numbers, NaN where a value is missing; or a data frame.
        y
            Labels or targets.
        sample_weight
            Non-negative weights of the rows; a row of weight 0 counts as if it were not there.
        """
        check_choice("fill", self.fill, ("conditional", "nan"))
        if sample_weight is not None and not has_fit_parameter(self.estimator, "sample_weight"):
            raise ArgumentError(f"{type(self.estimator).__name__} takes no sample_weight: leave it out")
        options = {"multi_output": True, "y_numeric": is_regressor(self)}
        X, y = validate_table(self, X, y, reset=True, sample_weight=sample_weight, **options)
        X, y, weights = with_positive_weight(X, y, row_weights(sample_weight, X))
        self.imputer_ = ConditionalImputer().fit(X, sample_weight=weights) if self.fill != "nan" else None
        copies = [self._filled(copy) for copy in self._masked(X)]
        given = {} if weights is None else {"sample_weight": np.tile(weights, len(copies))}
        rows, targets = np.concatenate(copies), np.concatenate([y] * len(copies))
        self.estimator_ = clone(self.estimator).fit(rows, targets, **given)
        if hasattr(self.estimator_, "classes_"):
            self.classes_ = self.estimator_.classes_
        return self

    def _masked(self, X: Array) -> Iterator[Array]:
        """The copies. A row's masks are functions of its content, so that rows may stand there twice."""
        shares = [check_number("shares", share, least=0, below=1) for share in np.ravel(self.shares)]
        if not shares:
            raise ArgumentError("shares must name at least one share of blank cells, such as (0, 0.5)")
        copies = check_int("copies", self.copies, 1)
        if not any(shares):
            yield X
            return
        different, place = np.unique(row_hashes(X), return_inverse=True)
        masks, key = min(different.size, POOL), Key(seed_of(self.random_state))
        column = np.arange(X.shape[1]) if self.groups_ is None else self.groups_
        for copy in range(copies):
            share = shares[copy % len(shares)]
            if not share:
                yield X
                continue
            keep = randomness.threshold(1 - share)
            kept = randomness.bernoulli(key.child(copy), keep, 0, masks * (column.max() + 1))
            yield np.where(kept.reshape(masks, -1)[place % masks][:, column], X, np.nan)

    def _filled(self, X: Array) -> Array:
        return X if self.imputer_ is None else np.asarray(self.imputer_.transform(X))

    @available_if(_has("predict"))
    def predict(self, X: Any) -> NDArray[Any]:
        """The estimator's prediction for rows with or without blanks."""
        return np.asarray(self._ask("predict", X))

    @available_if(_has("predict_proba"))
    def predict_proba(self, X: Any) -> Array:
        """The probability of each class."""
        return np.asarray(self._ask("predict_proba", X))

    @available_if(_has("predict_log_proba"))
    def predict_log_proba(self, X: Any) -> Array:
        """The logarithm of `predict_proba`."""
        return np.asarray(self._ask("predict_log_proba", X))

    @available_if(_has("decision_function"))
    def decision_function(self, X: Any) -> Array:
        """The estimator's decision function."""
        return np.asarray(self._ask("decision_function", X))

    @available_if(_has("score"))
    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """The estimator's own score: accuracy, or R²."""
        weights = {} if sample_weight is None else {"sample_weight": sample_weight}
        return float(self._ask("score", X, y, **weights))

    def _ask(self, method: str, X: Any, *args: Any, **named: Any) -> Any:
        check_is_fitted(self, "estimator_")
        rows = self._filled(validate_table(self, X, reset=False))
        return getattr(self.estimator_, method)(rows, *args, **named)
