"""Sparsified versions of a linear model, v + S(x - v), and their scores: by its sketch, or at a density."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy, deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike
from sklearn.utils import column_or_1d
from sklearn.utils.validation import check_is_fitted

from mast.errors import ArgumentError
from mast.learn.base import LinearEstimator
from mast.learn.missing import Scaling
from mast.learn.rows import gaps
from mast.learn.scoring import draw_curves
from mast.sketches import DiagonalDraw, RandK, Sketch
from mast.sketches.over import replace_inner
from mast.support.arrays import Array, numbers
from mast.support.checks import check_int, check_number

if TYPE_CHECKING:
    import matplotlib.axes

ENTRIES = 8_000_000  #: weights, or outputs, that are held at a time


class Versions(NamedTuple):
    """A batch of sparsified models."""

    coef: Array  #: (models, outputs, features)
    intercept: Array  #: (models, outputs)
    kept: Any  #: (models, features), whether a feature is kept; None where S is no mask


class SparsifiedLinear(LinearEstimator):
    """A linear estimator and its sparsified versions."""

    @abstractmethod
    def _error(self, output: Array, y: Any, weights: Array | None = None) -> float:
        """The error of outputs (rows, outputs), which adds up over rows: the score is 1 - error/reference."""

    @abstractmethod
    def _reference(self, y: Any, weights: Array | None = None) -> float:
        """What errors are compared with."""

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
        reference = self._reference(labels, weights)
        batches = self._versions(self._at(density), self.seed_, draws)
        outputs = (output for batch in batches for output in self._outputs(X, batch))
        errors = np.array([self._error(output, labels, weights) for output in outputs])
        # R² is 1 or 0 where all numbers are the same
        return (reference - errors) / reference if reference > 0 else np.where(errors > 0, 0.0, 1.0)

    def _at(self, density: Any) -> Sketch:
        """The training sketch (None), or Rand-K that keeps this share: of its groups, if it has groups."""
        if density is None:
            return self.sketch_
        return replace_inner(self.sketch_, RandK(check_number("density", density, above=0, most=1)))

    def _versions(self, sketch: Sketch, seed: int, draws: int) -> Iterator[Versions]:
        """Sparsified models 0, 1, ... in batches: v + S(x - v), or weights that stand-ins have moved."""
        draws = check_int("draws", draws, 1)
        (coef, intercept), gaussian = self._weights(), self._gaussian
        outputs, d = coef.shape
        step, moved = max(1, ENTRIES // (outputs * d)), (coef - self.shift_).T
        for begin in range(0, draws, step):
            drawn = [sketch.draw(d, seed, i) for i in range(begin, min(begin + step, draws))]
            same = np.broadcast_to(intercept, (len(drawn), outputs))
            if gaussian is None:
                yield Versions(np.stack([self.shift_ + draw.apply(moved).T for draw in drawn]), same, None)
                continue
            kept = np.stack([draw.diagonal() != 0 for draw in drawn if isinstance(draw, DiagonalDraw)])
            weights = gaussian.model.apply_masks(kept, coef)
            yield Versions(weights, same + (coef - weights) @ gaussian.mean, kept)

    def _outputs(self, X: Any, batch: Versions) -> Iterator[Array]:
        """The outputs of each model of a batch, an array (rows, outputs)."""
        rows, serving = gaps(X), self._serving
        if not rows.size:
            yield from _products(X, batch)
        elif isinstance(serving, Scaling):  # pruned models are served as the whole one would be
            yield from _products(serving.filled(X), batch)
        else:
            coef, intercept = self._weights()
            X = X.toarray() if scipy.sparse.issparse(X) else X
            filled = X.copy()
            filled[rows] = 0.0
            for kept, output in zip(batch.kept, _products(filled, batch), strict=True):
                there = np.where(kept, X[rows], np.nan)
                output[rows] = serving.outputs(there, coef, self.shift_) + intercept
                yield output

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
        (pruned,) = self._versions(self._at(density), check_int("seed", seed or 0), 1)
        return deepcopy(self)._with(pruned.coef[0], pruned.intercept[0])

    def densify(self) -> Self:
        """Make `coef_` an array again, after `sparsify()`."""
        check_is_fitted(self)
        self.coef_ = self._shaped(self._weights()[0])
        return self

    def _with_plain(self, coef: Any, intercept: Any) -> Self:
        """A copy with the weights of a plain model and no shift, so that both are sparsified alike."""
        coef = np.atleast_2d(numbers("the baseline's weights", coef, np.ndim(coef)))
        if coef.shape != self.shift_.shape:
            raise ArgumentError(
                f"the baseline's weights have the shape {coef.shape}, the model's {self.shift_.shape}"
            )
        plain = copy(self)._with(coef, intercept)
        plain.shift_ = np.zeros_like(coef)
        return plain

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
        """Draw the score against the density, with its spread, beside that of a plain linear model.

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
        plain = self._with_plain(baseline.coef_, baseline.intercept_)
        models = {f"{type(self).__name__}, {self.sketch_.label().split(':')[0]}": self, name: plain}
        curves = {
            label: [model.score_sparsified(X, y, share, draws if share < 1 else 1) for share in shares]
            for label, model in models.items()
        }
        return draw_curves(ax, shares, curves, "accuracy" if hasattr(self, "classes_") else "R²")[0]


def _products(X: Any, batch: Versions) -> Iterator[Array]:
    """X w + b for a batch of models: one array (rows, outputs) per model."""
    models, count, d = batch.coef.shape
    step = max(1, ENTRIES // max(X.shape[0] * count, 1))
    for begin in range(0, models, step):
        part = batch.coef[begin : begin + step]
        product = np.asarray(X @ part.reshape(-1, d).T)
        for i in range(part.shape[0]):
            yield product[:, i * count : (i + 1) * count] + batch.intercept[begin + i]
