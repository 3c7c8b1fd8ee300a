"""MastClassifier: logistic regression whose sparsified versions work."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, validate_data

from mast.arrays import Array
from mast.errors import ArgumentError
from mast.learn.base import SparsifiedLinear
from mast.sketches import Sketch


class MastClassifier(ClassifierMixin, SparsifiedLinear):  # type: ignore[misc]
    """A linear classifier that keeps working when weights are pruned or features are missing.

    It minimises E f(v + S(x - v)), where f is the mean log-loss plus alpha/2 |w|², S the sketch and
    v the shift; several classes are handled one against the rest. The intercept is neither
    sketched nor penalised.

    Parameters
    ----------
    sketch
        What happens to the weights: a sketch, a text such as ``"bernoulli:0.7"``, or None for
        ``PermK(4)``: one of four fixed quarters of the features is kept. With fewer than four features some
        quarters are empty.
    kappa
        Sets alpha = L0/(kappa - 1), where L0 is the smoothness of the log-loss in the features
        (without the intercept's column): the condition number without an intercept.
    alpha
        The penalty itself, in place of kappa: LogisticRegression's C is 1/(n alpha).
    shift
        v, a model to start from: weights of shape (n_features,), or (n_classes, n_features) for more
        than two classes, or a fitted linear model. None is 0. Sparsified models are v + S(x - v).
    fit_intercept
        Whether there is an intercept.
    method
        "auto" minimises f_D exactly where it has an affordable exact form, and otherwise its average over
        sampled draws, each row with draws of its own; both by Newton's method. "exact" and "sampled"
        insist on one of them. A method of `mast.minimize` ("gd", "agd", "dsgd", "dsgd_sampled", "l_svrdsg",
        "s_page") runs `max_iter` steps with the step size of its theorem.
    max_iter
        Newton steps, or steps of the method.
    tol
        Newton's method stops when a step's decrease is below tol² of the loss of the zero model; other
        methods when the gradient of f_D is tol times that at v.
    class_weight
        None, "balanced", or a dict of weights, as in LogisticRegression.
    warm_start
        Start from the weights of the last fit.
    random_state
        Seeds sampled training and the draws of `score_sparsified`. The partition of PermK(4) does
        not depend on it, and an exact fit is the same for all of them.

    Attributes
    ----------
    classes_ : the labels; with two of them, the decision function is that of the second.
    coef_, intercept_ : as in LogisticRegression.
    n_iter_ : iterations for each row of `coef_`.
    guarantee_ : what theory promises of the method that was used, after Newton's method of plain DSGD on this
        problem; None where no statement applies, as for Gaussian sketches.
    method_ : what was used: "exact", "sampled", or the method's name.
    alpha_, sketch_, shift_, seed_ : what the parameters became.

    Examples
    --------
    >>> import mast
    >>> A, b = mast.data.load("a1a")
    >>> clf = mast.MastClassifier(random_state=0).fit(A[:1000], b[:1000])
    >>> scores = clf.score_sparsified(A[1000:], b[1000:])  # a quarter of the features each
    >>> round(clf.score(A[1000:], b[1000:]), 2), scores.shape
    (0.76, (100,))
    """

    classes_: NDArray[Any]

    def __init__(
        self,
        sketch: Sketch | str | None = None,
        *,
        kappa: float = 100.0,
        alpha: float | None = None,
        shift: Any = None,
        fit_intercept: bool = True,
        method: str = "auto",
        max_iter: int = 1000,
        tol: float = 1e-7,
        class_weight: Any = None,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            sketch,
            kappa=kappa,
            alpha=alpha,
            shift=shift,
            fit_intercept=fit_intercept,
            method=method,
            max_iter=max_iter,
            tol=tol,
            warm_start=warm_start,
            random_state=random_state,
        )
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Minimise f_D.

        Parameters
        ----------
        X
            Features, one row per observation; an array or any SciPy sparse matrix.
        y
            Labels of at least two classes.
        sample_weight
            Non-negative weights of the rows; a row of weight 0 counts as if it were not there.
        """
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        check_classification_targets(y)
        weights = None
        if sample_weight is not None or self.class_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            classes = np.unique(y)
            of_class = compute_class_weight(
                self.class_weight,
                classes=classes,
                y=y,
                sample_weight=weights if (weights > 0).any() else None,
            )
            weights = weights * of_class[np.searchsorted(classes, y)]
            there = weights > 0
            if not there.all():
                X, y, weights = X[there], y[there], weights[there]
        classes = np.unique(y)
        if classes.size < 2:
            only = f": only {classes[0]!r}" if classes.size else ""
            raise ArgumentError(
                f"a classifier needs rows of at least two classes, got {classes.size} class{only}"
            )
        positive = [1] if classes.size == 2 else range(classes.size)
        targets: list[Array] = [np.where(y == classes[k], 1.0, -1.0) for k in positive]
        self._classes_found = classes
        fits = self._fit_targets(X, targets, weights, squares=False)
        del self._classes_found
        self.classes_ = classes
        self.coef_ = np.stack([fit.coef for fit in fits])
        self.intercept_ = np.array([fit.intercept for fit in fits])
        self.n_iter_ = np.array([fit.iterations for fit in fits])
        return self

    def _check_shift(self, shift: Any) -> None:
        theirs = getattr(shift, "classes_", None)
        if theirs is not None and not np.array_equal(theirs, self._classes_found):
            raise ArgumentError(
                f"the shift knows the classes {list(theirs)}, here they are {list(self._classes_found)}"
            )

    def decision_function(self, X: Any) -> Array:
        """X w + b: of shape (rows,) for two classes, else (rows, classes)."""
        output = self._decision(X)
        return output[:, 0] if output.shape[1] == 1 else output

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely class; of two, the second if the decision function is above 0."""
        chosen = _chosen(self._decision(X))
        return self.classes_[chosen]

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class; of several classes, those of one against the rest, normalised."""
        p: Array = expit(self._decision(X))
        if p.shape[1] == 1:
            return np.hstack([1 - p, p])
        total = p.sum(axis=1, keepdims=True)
        return np.where(total > 0, p / np.where(total > 0, total, 1.0), 1 / p.shape[1])

    def predict_log_proba(self, X: Any) -> Array:
        """The logarithm of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def _scored(self, output: Array, y: Any, sample_weight: Array | None) -> float:
        """Accuracy."""
        return float(np.average(self.classes_[_chosen(output)] == y, weights=sample_weight))


def _chosen(output: Array) -> NDArray[np.intp]:
    """The number of the class: with one column, whether it is positive."""
    return (output[:, 0] > 0).astype(np.intp) if output.shape[1] == 1 else output.argmax(axis=1)
