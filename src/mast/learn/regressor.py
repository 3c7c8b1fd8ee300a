"""MastRegressor: ridge regression whose sparsified versions work."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin

from mast.learn.rows import counting, row_weights
from mast.learn.sparsified import SparsifiedLinear
from mast.support.arrays import Array


class MastRegressor(RegressorMixin, SparsifiedLinear):  # type: ignore[misc]
    """A linear regressor that keeps working when features are missing or weights are pruned.

    It minimises E f(v + S(x - v)), where f is half the mean squared residual plus alpha/2 |w|², S the
    sketch and v the shift. The intercept is neither sketched nor penalised. With ``missing="scale"`` f_D is
    exact for every sketch.

    A sketch that keeps few features makes weights small with ``missing="scale"``, because a kept weight is
    served times 1/density: a model that was trained for a quarter of the features underestimates where it
    gets all of them. Train for the density that will be served.

    A data frame may have columns of texts, categories, booleans and dates, as for `MastClassifier`.

    Parameters
    ----------
    sketch, missing, missing_scale, add_indicator, shift, fit_intercept, method, max_iter, tol, warm_start, \
verbose, random_state
        As for `MastClassifier`.
    alpha
        The penalty: scikit-learn's Ridge has n alpha for it. None is Ridge's 1.
    kappa
        Sets alpha = L0/(kappa - 1), where L0 is the largest eigenvalue of X'X/n.

    Attributes
    ----------
    coef_, intercept_ : as in Ridge.
    n_iter_, guarantee_, method_, missing_, imputer_, indicators_, encoder_, groups_, alpha_, sketch_, \
shift_, seed_ : as for the classifier.

    Examples
    --------
    >>> import numpy as np, mast
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 1.0], [3.0, 3.0]])
    >>> y = X @ [1.0, 2.0] + 3.0
    >>> mast.MastRegressor(mast.Identity(), alpha=0.0).fit(X, y).coef_.round(9)
    array([1., 2.])
    >>> mast.MastRegressor(mast.Bernoulli(0.5), alpha=0.0, missing="scale").fit(X, y).coef_.round(3)
    array([0.5  , 0.714])
    """

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Minimise f_D.

        Parameters
        ----------
        X
            Features, one row per observation; an array, a data frame or any SciPy sparse matrix.
        y
            Numbers.
        sample_weight
            Non-negative weights of the rows.
        """
        X, y = self._validated(X, y, first=True)
        X, y, weights = counting(X, y, row_weights(sample_weight, X))
        return self._fit(X, np.asarray(y, dtype=np.float64), 1, weights, "squares")

    def predict(self, X: Any) -> Array:
        """X w + b."""
        return self._decision(X).reshape(-1)

    def _error(self, output: Array, y: Any, weights: Array | None = None) -> float:
        """The sum of squared residuals."""
        return float(np.sum((output[:, 0] - y) ** 2 * (1.0 if weights is None else weights)))

    def _reference(self, y: Any, weights: Array | None = None) -> float:
        """The sum of squares around the mean."""
        return float(
            np.sum((y - np.average(y, weights=weights)) ** 2 * (1.0 if weights is None else weights))
        )
