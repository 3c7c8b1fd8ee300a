"""Sparsified versions of a linear model, v + S(x - v), and their scores: by its sketch, or at a density."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy, deepcopy
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray
from sklearn.base import is_classifier
from sklearn.utils import column_or_1d
from sklearn.utils.validation import check_is_fitted

from mast.errors import ArgumentError
from mast.learn.linear import LinearEstimator
from mast.learn.missing import Scaling, rows_with_nan
from mast.learn.scoring import draw_curves
from mast.sketches import DiagonalDraw, RandK, Sketch
from mast.sketches.over import replace_inner
from mast.support.checks import Array, check_int, check_number, numbers

if TYPE_CHECKING:
    import matplotlib.axes

ENTRIES = 8_000_000  #: weights, or outputs, that are held at a time


class SparsifiedLinear(LinearEstimator):
    """A linear estimator and its sparsified versions."""

    def score_sparsified(
        self,
        X: Any,
        y: ArrayLike,
        density: float | None = None,
        draws: int = 100,
        sample_weight: ArrayLike | None = None,
    ) -> Array:
        """The scores of sparsified models, or what is the same, with features missing at serving time.

        The features that are kept are served times the sketch's scale, or with ``missing="conditional"``
        together with stand-ins for the others; the intercept is not scaled.

        Parameters
        ----------
        X, y
            Data to score on.
        density
            The share of features that is kept, uniformly at random. None draws from the sketch
            that the model was trained with.
        draws
            How many sparsified models.
        sample_weight
            Weights of the rows.

        Returns
        -------
        array of shape (draws,)
            A score for each draw. The draws are functions of `seed_`: the same at each call.
        """
        X, labels = self._rows(X), np.asarray(column_or_1d(y))
        if labels.size != X.shape[0]:
            raise ArgumentError(
                f"y must have one entry for each of the {X.shape[0]} rows of X, got {labels.size}"
            )
        weights = None if sample_weight is None else numbers("sample_weight", sample_weight, 1)
        reference = largest_error(self, labels, weights)
        sketch = sketch_at(self.sketch_, density)
        errors = np.array(
            [total_error(self, output, labels, weights) for output in self._versions(X, sketch, draws)]
        )
        # R² is 1 or 0 where all numbers are the same
        return (reference - errors) / reference if reference > 0 else np.where(errors > 0, 0.0, 1.0)

    def _versions(self, X: Any, sketch: Sketch, draws: int) -> Iterator[Array]:
        """The outputs of sparsified models 0, 1, ... for rows, arrays (rows, outputs)."""
        check_int("draws", draws, 1)
        coef, intercept = self._weights()
        rows, serving, step = rows_with_nan(X), self._serving, max(1, ENTRIES // coef.size)
        if rows.size and isinstance(serving, Scaling):  # pruned models are served as the whole one would be
            X, rows = serving.filled(X), rows[:0]
        complete = X
        if rows.size:
            X = X.toarray() if scipy.sparse.issparse(X) else X
            complete = X.copy()
            complete[rows] = 0.0
        for begin in range(0, draws, step):
            weights, biases, kept = self._pruned(sketch, self.seed_, range(begin, min(begin + step, draws)))
            for number, output in enumerate(_products(complete, weights, biases)):
                if rows.size:
                    there = np.where(kept[number], X[rows], np.nan)
                    output[rows] = serving.outputs(there, coef, self.shift_) + intercept
                yield output

    def _pruned(self, sketch: Sketch, seed: int, draws: range) -> tuple[Array, Array, Any]:
        """Weights (draws, outputs, features) and intercepts of some sparsified models, and what they keep.

        The weights are v + S(x - v), or those that stand-ins have moved; only the latter need what is kept.
        """
        (coef, intercept), gaussian = self._weights(), self._gaussian
        drawn = [sketch.draw(coef.shape[1], seed, i) for i in draws]
        same = np.broadcast_to(intercept, (len(drawn), len(coef)))
        if gaussian is None:
            moved = (coef - self.shift_).T
            return np.stack([self.shift_ + draw.apply(moved).T for draw in drawn]), same, None
        kept = np.stack([draw.diagonal() != 0 for draw in drawn if isinstance(draw, DiagonalDraw)])
        weights = gaussian.model.apply_masks(kept, coef)
        return weights, same + (coef - weights) @ gaussian.mean, kept

    def sparsify(self, density: float | None = None, seed: int | None = None) -> Self:
        """A pruned copy: this model with one draw of the sketch applied, v + S(x - v).

        With ``missing="conditional"`` the weights of dropped features move to those that predict them.

        Without arguments this is scikit-learn's own `sparsify`: it makes `coef_` a SciPy sparse matrix, in
        place, and prunes nothing.

        Parameters
        ----------
        density
            The share of features that is kept; None, with a seed, draws from the training sketch.
        seed
            Which draw; 0 if None.
        """
        check_is_fitted(self)
        if density is None and seed is None:
            self.coef_ = scipy.sparse.csr_matrix(self.coef_)
            return self
        sketch = sketch_at(self.sketch_, density)
        weights, intercepts, _ = self._pruned(sketch, check_int("seed", seed or 0), range(1))
        return deepcopy(self)._with_weights(weights[0], intercepts[0])

    def densify(self) -> Self:
        """Make `coef_` an array again, after `sparsify()`."""
        check_is_fitted(self)
        return self._with_weights(self._weights()[0], self.intercept_)

    def plot_sparsified(
        self,
        X: Any,
        y: ArrayLike,
        *,
        baseline: Any = None,
        densities: Sequence[float] = (0.1, 0.25, 0.5, 0.75, 1.0),
        draws: int = 100,
        ax: matplotlib.axes.Axes | None = None,
    ) -> matplotlib.axes.Axes:
        """Draw the score against the density, with its range over draws, beside that of a plain linear model.

        Parameters
        ----------
        X, y
            Data to score on.
        baseline
            A fitted linear model (with `coef_` and `intercept_`) to compare with. None fits the same without
            a sketch, with the same penalty, to X, y: that favours it.
        densities
            The shares of features that are kept.
        draws
            How many sparsified models per density.
        ax
            Where to draw; a new figure if None.
        """
        shares = sorted(float(density) for density in densities)
        if not shares:
            raise ArgumentError("there are no densities to draw")
        name = type(baseline).__name__
        if baseline is None:
            kind: Any = type(self)
            baseline = kind(
                None,
                alpha=self.alpha_,
                missing=self.missing_,
                add_indicator=self.add_indicator,
                fit_intercept=self.fit_intercept,
            ).fit(X, y)
            name = "the same without a sketch, fitted to these data"
        elif not (hasattr(baseline, "coef_") and hasattr(baseline, "intercept_")):
            raise ArgumentError(f"the baseline must be a fitted linear model, with weights: got {baseline!r}")
        coef = np.atleast_2d(numbers("the baseline's weights", baseline.coef_, np.ndim(baseline.coef_)))
        if coef.shape != self.shift_.shape:
            raise ArgumentError(
                f"the baseline's weights have the shape {coef.shape}, the model's {self.shift_.shape}"
            )
        plain = copy(self)._with_weights(coef, baseline.intercept_)  # so that both are sparsified by one rule
        plain.shift_ = np.zeros_like(coef)
        models = {f"{type(self).__name__}, {self.sketch_.label().split(':')[0]}": self, name: plain}
        curves = {
            label: [model.score_sparsified(X, y, share, draws if share < 1 else 1) for share in shares]
            for label, model in models.items()
        }
        return draw_curves(ax, shares, curves, "accuracy" if hasattr(self, "classes_") else "R²")[0]


def sketch_at(sketch: Sketch, density: Any) -> Sketch:
    """The sketch itself (None), or Rand-K that keeps this share: of its groups, if it has groups."""
    if density is None:
        return sketch
    return replace_inner(sketch, RandK(check_number("density", density, above=0, most=1)))


def total_error(model: Any, output: Array, y: Any, weights: Array | None = None) -> float:
    """The error of outputs (rows, outputs): of a classifier the wrong rows, else the squared residuals."""
    if is_classifier(model):
        wrong = model.classes_[chosen_class(output)] != y
        return float(wrong.sum() if weights is None else weights @ wrong)
    return float(np.sum((output[:, 0] - y) ** 2 * (1.0 if weights is None else weights)))


def largest_error(model: Any, y: Any, weights: Array | None = None) -> float:
    """What errors are compared with, 1 - error/this is the score: all rows, or squares around the mean."""
    if is_classifier(model):
        if isinstance(y[0], str) != isinstance(model.classes_[0], str):  # nothing would ever be right
            known, there = model.classes_[:1].tolist()[0], y[:1].tolist()[0]
            raise ArgumentError(f"the model knows labels such as {known!r}, and y has {there!r}")
        return float(len(y) if weights is None else weights.sum())
    return float(np.sum((y - np.average(y, weights=weights)) ** 2 * (1.0 if weights is None else weights)))


def chosen_class(output: Array) -> NDArray[np.intp]:
    """The number of the class: with one column, whether it is positive."""
    return (output[:, 0] > 0).astype(np.intp) if output.shape[1] == 1 else output.argmax(axis=1)


def _products(X: Any, coef: Array, intercept: Array) -> Iterator[Array]:
    """X w + b for each of some models: arrays (rows, outputs)."""
    models, count, d = coef.shape
    step = max(1, ENTRIES // max(X.shape[0] * count, 1))
    for begin in range(0, models, step):
        part = coef[begin : begin + step]
        product = np.asarray(X @ part.reshape(-1, d).T)
        for i in range(part.shape[0]):
            yield product[:, i * count : (i + 1) * count] + intercept[begin + i]
