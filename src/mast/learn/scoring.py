"""Scores with cells missing at random, for searches over parameters; pictures of scores beside baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike

from mast import randomness
from mast.arrays import Array
from mast.checks import number, whole
from mast.errors import ArgumentError
from mast.plots import COLOURS, new_axes
from mast.randomness import Key
from mast.sketches import Identity

if TYPE_CHECKING:
    import matplotlib.axes


def blank(X: Any, share: float, seed: int = 0, draw: int = 0) -> Any:
    """A copy of an array or data frame with this share of its cells missing, a function of seed and draw."""
    if scipy.sparse.issparse(X):
        raise ArgumentError("cells of a sparse matrix cannot be blanked: zeros are values; use an array")
    X = X if hasattr(X, "mask") and hasattr(X, "columns") else np.array(X, dtype=np.float64)
    if share == 0:
        return X
    rows, columns = X.shape
    kept = randomness.bernoulli(Key(seed, draw), randomness.threshold(1 - share), 0, rows * columns)
    gone = ~kept.reshape(rows, columns)
    if hasattr(X, "columns"):
        return X.mask(gone)
    X[gone] = np.nan
    return X


@dataclass(frozen=True)
class MissingScorer:
    """The mean score of an estimator over draws of missing cells; what `make_missing_scorer` makes."""

    share: float
    draws: int
    seed: int
    scoring: Callable[[Any, Any, Any], float] | None = None

    def __call__(self, estimator: Any, X: Any, y: ArrayLike) -> float:
        """The score of a fitted estimator that takes NaN."""
        return float(self.scores(estimator, X, y).mean())

    def scores(self, estimator: Any, X: Any, y: ArrayLike) -> Array:
        """One score per draw."""
        score = self.scoring or (lambda model, rows, labels: model.score(rows, labels))
        draws = self.draws if self.share else 1
        served = (blank(X, self.share, self.seed, draw) for draw in range(draws))
        return np.array([float(score(estimator, rows, y)) for rows in served])


def make_missing_scorer(
    share: float = 0.5,
    draws: int = 20,
    seed: int = 0,
    scoring: Callable[[Any, Any, Any], float] | None = None,
) -> MissingScorer:
    """A scorer for GridSearchCV and cross_val_score: cells of the validation rows are missing at random.

    Parameters
    ----------
    share
        The share of the cells that is missing, in [0, 1).
    draws
        How many draws of missing cells the score is the mean of.
    seed
        Decides the draws: all estimators miss the same cells.
    scoring
        A scorer of scikit-learn's, such as ``get_scorer("roc_auc")``; None is the estimator's own score.

    >>> from sklearn.datasets import load_wine
    >>> from sklearn.model_selection import cross_val_score
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> import mast
    >>> model = make_pipeline(StandardScaler(), mast.MastClassifier(random_state=0))
    >>> X, y = load_wine(return_X_y=True)
    >>> half = mast.make_missing_scorer(share=0.5, draws=5)
    >>> bool(cross_val_score(model, X, y, cv=3, scoring=half).mean() > 0.85)
    True
    """
    return MissingScorer(number("share", share, least=0, below=1), whole("draws", draws, 1), seed, scoring)


@dataclass
class MissingDisplay:
    """The score against the share of cells that is missing; made by `from_estimators`.

    Attributes
    ----------
    shares, scores : the shares, and for each estimator an array (shares, draws) of scores.
    ax_, figure_, lines_ : what was drawn, after `plot`.
    """

    shares: list[float]
    scores: dict[str, Array]
    score_name: str = "score"
    ax_: Any = field(default=None, repr=False)
    figure_: Any = field(default=None, repr=False)
    lines_: list[Any] = field(default_factory=list, repr=False)

    @classmethod
    def from_estimators(
        cls,
        estimators: Mapping[str, Any] | Sequence[Any],
        X: Any,
        y: ArrayLike,
        *,
        shares: Sequence[float] = (0.0, 0.25, 0.5, 0.75),
        draws: int = 20,
        seed: int = 0,
        scoring: Callable[[Any, Any, Any], float] | None = None,
        score_name: str = "score",
        ax: matplotlib.axes.Axes | None = None,
    ) -> MissingDisplay:
        """Score fitted estimators that take NaN, each on the same blank cells, and draw the curves.

        Parameters
        ----------
        estimators
            A dict of names and fitted estimators, or a list of them; a baseline that does not take NaN itself
            goes into a pipeline with an imputer.
        X, y
            Data to score on, complete or not.
        shares, draws, seed, scoring
            As for `make_missing_scorer`.
        score_name
            The label of the axis.
        ax
            Where to draw; a new figure if None.
        """
        if not isinstance(estimators, Mapping):
            estimators = {type(model).__name__: model for model in estimators}
        if not estimators or not len(shares):
            raise ArgumentError("there is nothing to draw: give estimators and shares")
        ordered = sorted(float(share) for share in shares)
        scorers = [make_missing_scorer(share, draws, seed, scoring) for share in ordered]
        scores = {
            name: np.stack([np.broadcast_to(s.scores(model, X, y), (draws,)) for s in scorers])
            for name, model in estimators.items()
        }
        return cls(ordered, scores, score_name).plot(ax)

    def plot(self, ax: matplotlib.axes.Axes | None = None) -> MissingDisplay:
        """Draw a line for the mean of each estimator, and a band from its worst to its best draw."""
        if ax is None:
            ax = new_axes()
        assert ax is not None
        self.lines_ = []
        for number_, (name, scores) in enumerate(self.scores.items()):
            colour = COLOURS[number_ % len(COLOURS)]
            self.lines_ += ax.plot(self.shares, scores.mean(axis=1), color=colour, marker="o", label=name)
            ax.fill_between(self.shares, scores.min(axis=1), scores.max(axis=1), color=colour, alpha=0.12)
        ax.set_xlabel("Share of cells that is missing")
        ax.set_ylabel(self.score_name)
        ax.legend()
        self.ax_, self.figure_ = ax, ax.figure
        return self


# ---- sparsified versions -------------------------------------------------------------------


def plot_sparsified(
    model: Any,
    X: Any,
    y: Any,
    baseline: Any,
    densities: Sequence[float],
    draws: int,
    ax: matplotlib.axes.Axes | None,
) -> matplotlib.axes.Axes:
    """Mean and range of the scores at each density, of the model and of a plain one."""
    shares = sorted(float(density) for density in densities)
    if not shares:
        raise ArgumentError("there are no densities to draw")
    plain, plain_label = _plain(model, X, y, baseline)
    curves = {
        f"{type(model).__name__}, {model.sketch_.label().split(':')[0]}": curve(model, X, y, shares, draws),
        plain_label: curve(plain, X, y, shares, draws),
    }
    if ax is None:
        ax = new_axes()
    assert ax is not None
    draw_curves(ax, shares, curves, "accuracy" if hasattr(model, "classes_") else "R²")
    return ax


def draw_curves(
    ax: matplotlib.axes.Axes, shares: Sequence[float], curves: dict[str, Array], score: str
) -> None:
    """A line for the mean of each curve, an array (shares, draws), and a band for its range."""
    for colour, (label, scores) in zip(COLOURS, curves.items(), strict=False):
        ax.plot(shares, scores.mean(axis=1), color=colour, marker="o", label=label)
        ax.fill_between(shares, scores.min(axis=1), scores.max(axis=1), color=colour, alpha=0.15, linewidth=0)
    ax.set_xlabel("Share of features that is kept")
    ax.set_ylabel(score)
    draws = next(iter(curves.values())).shape[1]
    ax.set_title(f"Mean and range of {draws} sparsified models")
    ax.legend()


def curve(model: Any, X: Any, y: Any, shares: Sequence[float], draws: int) -> Array:
    """The scores, a row for each density; with all features there is one score only, repeated."""
    rows = []
    for share in shares:
        scores = model.score_sparsified(X, y, share, draws if share < 1 else 1)
        rows.append(np.broadcast_to(scores, (draws,)) if share == 1 else scores)
    return np.stack(rows)


def _plain(model: Any, X: Any, y: Any, baseline: Any) -> tuple[Any, str]:
    """A plain model in the form of ours, so that both are sparsified alike, and what it is called."""
    if baseline is None:
        baseline, name = _fitted(model, X, y), "the same without a sketch, fitted to these data"
    else:
        name = type(baseline).__name__
    for needed in ("coef_", "intercept_"):
        if not hasattr(baseline, needed):
            raise ArgumentError(f"the baseline must be a fitted linear model: {baseline!r} has no {needed}")
    return as_ours(model, baseline.coef_, baseline.intercept_), name


def _fitted(model: Any, X: Any, y: Any) -> Any:
    options: dict[str, Any] = {
        "alpha": model.alpha_,
        "missing": model.missing_,
        "fit_intercept": model.fit_intercept,
    }
    return type(model)(Identity(), **options).fit(X, y)


def as_ours(model: Any, coef: Any, intercept: Any) -> Any:
    """A copy of the model with other weights and no shift."""
    from copy import copy

    coef = np.atleast_2d(np.asarray(coef, dtype=np.float64))
    if coef.shape != model.shift_.shape:
        raise ArgumentError(
            f"the baseline's weights have the shape {coef.shape}, the model's {model.shift_.shape}"
        )
    plain = copy(model)
    plain.shift_ = np.zeros_like(coef)
    plain.coef_ = plain._shaped(coef)
    plain.intercept_ = intercept
    return plain
