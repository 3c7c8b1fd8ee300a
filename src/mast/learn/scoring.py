"""Scores with cells missing at random, for searches over parameters; pictures of scores beside baselines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike
from sklearn.metrics import check_scoring

from mast import randomness
from mast.errors import ArgumentError
from mast.learn.validation import as_pandas, is_frame
from mast.plots import COLOURS, new_axes
from mast.randomness import Key
from mast.support.checks import Array, check_int, check_number

if TYPE_CHECKING:
    import matplotlib.axes


def blank(X: Any, share: float, seed: int = 0, draw: int = 0) -> Any:
    """A copy of an array or data frame with this share of its cells missing, a function of seed and draw."""
    if scipy.sparse.issparse(X):
        raise ArgumentError("cells of a sparse matrix cannot be blanked: zeros are values; use an array")
    X = as_pandas(X)
    X = X if is_frame(X) else np.array(X, dtype=np.float64)
    if share == 0:
        return X
    rows, columns = X.shape
    kept = randomness.bernoulli(Key(seed, draw), randomness.threshold(1 - share), 0, rows * columns)
    gone = ~np.asarray(kept.reshape(rows, columns), dtype=bool)
    if is_frame(X):
        return X.mask(gone)
    X[gone] = np.nan
    return X


@dataclass(frozen=True)
class MissingScorer:
    """The mean score of an estimator over draws of missing cells; what `make_missing_scorer` makes."""

    share: float
    draws: int
    seed: int
    scoring: str | Callable[[Any, Any, Any], float] | None = None

    def __call__(self, estimator: Any, X: Any, y: ArrayLike) -> float:
        """The score of a fitted estimator that takes NaN."""
        return float(self.scores(estimator, X, y).mean())

    def scores(self, estimator: Any, X: Any, y: ArrayLike) -> Array:
        """One score per draw."""
        score = check_scoring(estimator, self.scoring)
        draws = self.draws if self.share else 1
        served = (blank(X, self.share, self.seed, draw) for draw in range(draws))
        return np.array([float(score(estimator, rows, y)) for rows in served])


def make_missing_scorer(
    share: float = 0.5,
    draws: int = 20,
    seed: int = 0,
    scoring: str | Callable[[Any, Any, Any], float] | None = None,
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
        A scorer of scikit-learn's or its name, such as ``"roc_auc"``; None is the estimator's own score.

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
    return MissingScorer(
        check_number("share", share, least=0, below=1), check_int("draws", draws, 1), seed, scoring
    )


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
        scoring: str | Callable[[Any, Any, Any], float] | None = None,
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
            names = [type(model).__name__ for model in estimators]
            estimators = {
                name if names.count(name) == 1 else f"{name} {number_}": model
                for number_, (name, model) in enumerate(zip(names, estimators, strict=True), start=1)
            }
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
        self.ax_, self.lines_ = draw_curves(
            ax, self.shares, self.scores, self.score_name, "cells that is missing"
        )
        self.figure_ = self.ax_.figure
        return self


def draw_curves(
    ax: matplotlib.axes.Axes | None,
    shares: Sequence[float],
    curves: Mapping[str, Collection[Array]],
    score: str,
    of: str = "features that is kept",
) -> tuple[matplotlib.axes.Axes, list[Any]]:
    """A line for the mean of the scores at each share, and a band from the worst to the best of them."""
    axes: matplotlib.axes.Axes = new_axes() if ax is None else ax
    lines = []
    for number_, (label, scores) in enumerate(curves.items()):
        colour = COLOURS[number_ % len(COLOURS)]
        lines += axes.plot(shares, [s.mean() for s in scores], color=colour, marker="o", label=label)
        low, high = [s.min() for s in scores], [s.max() for s in scores]
        axes.fill_between(shares, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel(f"Share of {of}")
    axes.set_ylabel(score)
    draws = max(s.size for s in next(iter(curves.values())))
    axes.set_title(f"Mean and range of {draws} draws")
    axes.legend()
    return axes, lines
