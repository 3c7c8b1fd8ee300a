"""MastClassifier and MastRegressor: logistic and ridge regression whose sparsified versions work."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets

from mast.errors import ArgumentError
from mast.learn.linear import MISSING_SCALE, LinearEstimator
from mast.learn.scoring import chosen_class
from mast.learn.validation import (
    as_dense,
    row_weights,
    rows_with_nan,
    validate_table,
    with_positive_weight,
)
from mast.sketches import Identity, Sketch
from mast.support.checks import Array, check_nonnegative

#: what part of the variance of a margin makes probabilities less sure: weights that were trained for blanks
#: know some of it already; chosen by the log-loss on seven tables, see docs/studies/tables.md
PLAIN, TRAINED, SEVERAL_CLASSES = 1.0, 0.75, 0.25


class MastClassifier(ClassifierMixin, LinearEstimator):  # type: ignore[misc]
    """A linear classifier that keeps working when features are missing or weights are pruned.

    It minimises E f(v + S(x - v)), where f is the mean log-loss plus alpha/2 |w|², S the sketch and v the
    shift; of several classes, the log-loss of softmax. The intercept is neither sketched nor penalised.

    A data frame may have columns of texts, categories, booleans and dates: it goes through
    `mast.TableEncoder`, and the sketch drops the features of one column together.

    NaN is a missing value, in `fit` and afterwards. So is a column that a data frame does not have: it is
    named in a warning, and so are columns that the model does not know, which are ignored.

    Parameters
    ----------
    sketch
        Which features may be missing, or weights pruned: a sketch, or a text such as ``"bernoulli:0.7"``.
        ``"auto"`` makes one model for many shares: in a quarter of all draws everything is kept, in a
        quarter each feature with probability 3/4, and in half of them with probability 1/2. None is the
        plain model, which is trained for complete rows.
    alpha
        The penalty: LogisticRegression's C is 1/(n alpha). None is C = 1.
    kappa
        Sets alpha = L0/(kappa - 1), where L0 is the smoothness of the log-loss in the features
        (without the intercept's column): the condition number without an intercept.
    missing
        What stands for a missing feature, in training and afterwards. ``"scale"``: nothing, and what is there
        is multiplied with a number above 1; standardise the features first. ``"conditional"``: its
        regression on the features that are there, from the covariance of the training rows, and the
        model is trained for it: E f(T_M'x) with the masks M of the sketch (`mast.Conditional`), the penalty
        on w itself. ``"auto"`` is the latter for arrays and data frames, where there is no shift and the
        method is not that of a theorem; and the former else, and for sparse matrices, which
        ``"conditional"`` makes dense.
    missing_scale
        With ``missing="scale"``: a number l multiplies a row whose observed share is q with (1 + l)/(q + l),
        0 is 1/q, infinity is 1; ``"keep"`` multiplies with 1/(the share that the sketch keeps). Complete
        rows and the intercept are never multiplied. A group of `mast.Grouped` counts as one feature.
    add_indicator
        Whether missingness is informative: each column with missing cells in `fit` gets one more feature, 1
        where it is missing. The sketch does not drop those, and what it drops is not marked in them. Their
        weights are the last of `coef_`.
    shift
        v, a model to start from: weights of shape (n_features,), or (n_classes, n_features) for more
        than two classes, or a fitted linear model. None is 0. Sparsified models are v + S(x - v).
    fit_intercept
        Whether there is an intercept.
    method
        "auto" minimises f_D exactly where it has an affordable exact form, and otherwise its average over
        sampled draws, each row with draws of its own; both by Newton's method, which for more than 100,000
        rows starts from the fit to a tenth of them. "exact" and "sampled" insist on one of them. A method
        of `mast.minimize` ("gd", "agd", "dsgd", "dsgd_sampled", "l_svrdsg", "s_page") runs `max_iter`
        steps with the step size of its theorem.
    max_iter
        Newton steps, or steps of the method.
    tol
        Newton's method stops when a step's decrease is below tol² of the loss of the zero model (below
        4e-6 of it for an average over draws); other methods when the gradient of f_D is tol times that
        at v.
    class_weight
        None, "balanced", or a dict of weights, as in LogisticRegression.
    warm_start
        Start from the weights of the last fit.
    verbose
        Print a line per iteration.
    random_state
        Seeds sampled training and the draws of `score_sparsified`; None is 0, so that fits are repeatable. An
        exact fit is the same for all of them.

    Attributes
    ----------
    classes_ : the labels; with two of them, the decision function is that of the second.
    coef_, intercept_ : as in LogisticRegression.
    n_iter_ : iterations.
    guarantee_ : what theory promises of the method of a theorem; None after Newton's method, and where no
        statement applies.
    method_ : what was used: "exact", "sampled", or the method's name.
    missing_ : what was used: "conditional" or "scale".
    imputer_ : the `mast.ConditionalImputer` behind "conditional"; None else.
    indicators_ : the columns that have an indicator.
    encoder_ : the `mast.TableEncoder` of a data frame with columns that are no numbers; None else.
    groups_ : for each feature the number of the column it comes from; None where each is a column.
    alpha_, sketch_, shift_, seed_ : what the parameters became.

    Examples
    --------
    >>> import numpy as np, mast
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), mast.MastClassifier(random_state=0)).fit(X[:300], y[:300])
    >>> round(model.score(X[300:], y[300:]), 2)
    0.97
    >>> half = np.where(np.add.outer(np.arange(569), np.arange(30)) % 2, X, np.nan)
    >>> round(model.score(half[300:], y[300:]), 2)
    0.96
    """

    classes_: NDArray[Any]

    def __init__(
        self,
        sketch: Sketch | str | None = "auto",
        *,
        alpha: float | None = None,
        kappa: float | None = None,
        missing: str = "auto",
        missing_scale: float | str = MISSING_SCALE,
        add_indicator: bool = False,
        shift: Any = None,
        fit_intercept: bool = True,
        method: str = "auto",
        max_iter: int = 1000,
        tol: float = 1e-7,
        class_weight: Any = None,
        warm_start: bool = False,
        verbose: bool | int = False,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            sketch,
            alpha=alpha,
            kappa=kappa,
            missing=missing,
            missing_scale=missing_scale,
            add_indicator=add_indicator,
            shift=shift,
            fit_intercept=fit_intercept,
            method=method,
            max_iter=max_iter,
            tol=tol,
            warm_start=warm_start,
            verbose=verbose,
            random_state=random_state,
        )
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Minimise f_D.

        Parameters
        ----------
        X
            Features, one row per observation; an array, a data frame or any SciPy sparse matrix.
        y
            Labels of at least two classes.
        sample_weight
            Non-negative weights of the rows; a row of weight 0 counts as if it were not there.
        """
        X, y = validate_table(self, X, y, reset=True, accept_sparse=True, sample_weight=sample_weight)
        check_classification_targets(y)
        weights = row_weights(sample_weight, X)
        if self.class_weight is not None:
            weights = self._with_class_weights(y, weights)
        X, y, weights = with_positive_weight(X, y, weights)
        classes = np.unique(y)
        if classes.size < 2:
            only = f": only {classes.tolist()[0]!r}" if classes.size else ""
            raise ArgumentError(
                f"a classifier needs rows of at least two classes, got {classes.size} class{only}"
            )
        if classes.size == 2:
            self._fit(X, np.where(y == classes[1], 1.0, -1.0), 1, weights, "log", classes)
        else:
            codes = np.searchsorted(classes, y).astype(float)
            self._fit(X, codes, classes.size, weights, "softmax", classes)
        self.classes_ = classes
        return self

    def _with_class_weights(self, y: Any, weights: Array | None) -> Array:
        """The weights of the rows times those of their classes."""
        # rows of weight 0 do not count, unless there are no others, which is an error later
        counted = weights if weights is not None and weights.any() else None
        classes = np.unique(y)
        of_class = compute_class_weight(self.class_weight, classes=classes, y=y, sample_weight=counted)
        for weight in of_class.tolist():
            check_nonnegative("class_weight", weight)
        of_row: Array = of_class[np.searchsorted(classes, y)]
        return of_row if weights is None else weights * of_row

    def decision_function(self, X: Any) -> Array:
        """X w + b: of shape (rows,) for two classes, else (rows, classes)."""
        output = self._decision(X)
        return output[:, 0] if output.shape[1] == 1 else output

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely class; of two, the second if the decision function is above 0."""
        chosen = chosen_class(self._decision(X))
        return self.classes_[chosen]

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, less sure of itself where missing cells leave the margin open.

        With ``missing="conditional"`` the margin of a row has a variance v, given what is there, and is
        divided by sqrt(1 + c pi v / 8), an approximation of the mean probability (MacKay, 1992). For two
        classes c is 0.75, and 1 without a sketch; for more it is 0.25 and v the mean over the classes. All
        margins of a row are divided by one number, so `predict` is still the most likely class.
        """
        output = self._moderated_margins(X)
        if output.shape[1] == 1:
            p: Array = expit(output)
            return np.hstack([1 - p, p])
        return np.asarray(softmax(output, axis=1))

    def predict_log_proba(self, X: Any) -> Array:
        """The logarithm of `predict_proba`."""
        output = self._moderated_margins(X)
        if output.shape[1] == 1:
            return np.hstack([log_expit(-output), log_expit(output)])
        return np.asarray(log_softmax(output, axis=1))

    def _moderated_margins(self, X: Any) -> Array:
        """The decision function, smaller where missing cells leave it open."""
        X = self._rows(X)
        output, rows, gaussian = self._outputs(X), rows_with_nan(X), self._gaussian
        if gaussian is None or not rows.size:
            return output
        coef, _ = self._weights()
        if len(coef) > 1:  # a number that all classes share says nothing
            coef = coef - coef.mean(axis=0)
            output -= output.mean(axis=1, keepdims=True)
        open_ = gaussian.output_variances(as_dense(X[rows]), coef).mean(axis=1, keepdims=True)
        plain = isinstance(self.sketch_, Identity)
        share = SEVERAL_CLASSES if len(coef) > 1 else PLAIN if plain else TRAINED
        output[rows] /= np.sqrt(1 + share * np.pi * open_ / 8)
        return output


class MastRegressor(RegressorMixin, LinearEstimator):  # type: ignore[misc]
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
        X, y = validate_table(
            self, X, y, reset=True, accept_sparse=True, sample_weight=sample_weight, y_numeric=True
        )
        X, y, weights = with_positive_weight(X, y, row_weights(sample_weight, X))
        return self._fit(X, np.asarray(y, dtype=np.float64), 1, weights, "squares")

    def predict(self, X: Any) -> Array:
        """X w + b."""
        return self._decision(X).reshape(-1)
