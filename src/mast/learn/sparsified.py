"""Sparsified versions of a linear model, v + S(x - v), and their scores: by its sketch, or at a density."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import column_or_1d
from sklearn.utils.validation import check_is_fitted

from mast.arrays import Array, numbers
from mast.checks import whole
from mast.errors import ArgumentError
from mast.learn.missing import Scaling, StandIns, gaps
from mast.sketches import DiagonalDraw, RandK, Sketch

if TYPE_CHECKING:
    import matplotlib.axes

ENTRIES = 8_000_000  #: weights, or outputs, that are held at a time


def at_density(sketch: Sketch, density: Any) -> Sketch:
    """The training sketch (None), or Rand-K that keeps this share: of its groups, if it has groups.

    >>> import mast
    >>> at_density(mast.PermK(4), 0.25)
    <RandK(0.25): keeps 25 %>
    """
    if density is None:
        return sketch
    share = float(numbers("density", np.atleast_1d(density), 1)[0]) if np.ndim(density) == 0 else np.nan
    if not 0 < share <= 1:
        raise ArgumentError(f"density is the share of features that is kept, in (0, 1], got {density!r}")
    return sketch.over(RandK(share))


class Versions(NamedTuple):
    """A batch of sparsified models."""

    coef: Array  #: (models, outputs, features)
    intercept: Array  #: (models, outputs)
    kept: Any  #: (models, features), whether a feature is kept; None where S is no mask


def versions(
    coef: Array,
    intercept: Array,
    shift: Array,
    sketch: Sketch,
    seed: int,
    draws: int,
    stand_ins: StandIns | None,
) -> Iterator[Versions]:
    """Sparsified models 0, 1, ... in batches: v + S(x - v), or weights that stand-ins have moved."""
    draws = whole("draws", draws, 1)
    outputs, d = coef.shape
    moved = (coef - shift).T
    step = max(1, ENTRIES // (outputs * d))
    for begin in range(0, draws, step):
        drawn = [sketch.draw(d, seed, i) for i in range(begin, min(begin + step, draws))]
        same = np.broadcast_to(intercept, (len(drawn), outputs))
        if stand_ins is None:
            yield Versions(np.stack([shift + draw.apply(moved).T for draw in drawn]), same, None)
            continue
        kept = np.stack([draw.diagonal() != 0 for draw in drawn if isinstance(draw, DiagonalDraw)])
        weights = stand_ins.sketch.apply_masks(kept, coef)
        yield Versions(weights, same + (coef - weights) @ stand_ins.mean, kept)


def outputs(X: Any, batch: Versions) -> Iterator[Array]:
    """X w + b for a batch of models: one array (rows, outputs) per model."""
    models, count, d = batch.coef.shape
    step = max(1, ENTRIES // max(X.shape[0] * count, 1))
    for begin in range(0, models, step):
        part = batch.coef[begin : begin + step]
        product = np.asarray(X @ part.reshape(-1, d).T)
        for i in range(part.shape[0]):
            yield product[:, i * count : (i + 1) * count] + batch.intercept[begin + i]


class SparsifiedVersions(ABC):
    """What an estimator does with its sparsified versions."""

    coef_: Any
    intercept_: Any
    seed_: int
    sketch_: Sketch
    shift_: Array
    stand_ins_: StandIns | None

    @property
    @abstractmethod
    def _serving(self) -> Scaling | StandIns:
        """What answers for rows with missing cells."""

    @abstractmethod
    def _validated(self, X: Any) -> Any:
        """The rows as an array or CSR matrix, NaN where a cell is missing."""

    @abstractmethod
    def _weights(self) -> tuple[Array, Array]:
        """The weights (outputs, features) and the intercepts."""

    @abstractmethod
    def _scored(self, output: Array, y: Any, sample_weight: Array | None) -> float:
        """The score of one array (rows, outputs) of outputs."""

    @abstractmethod
    def _error(self, output: Array, y: Any) -> float:
        """What adds up over rows: those that are wrong, or squares of residuals."""

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
        X = self._validated(X)
        labels = self._targets(y, X.shape[0])
        weights = None if sample_weight is None else numbers("sample_weight", sample_weight, 1)
        sketched = self._sparsified_outputs(X, density, draws)
        return np.array([self._scored(output, labels, weights) for output in sketched])

    def _errors(self, X: Any, y: Any, density: float | None, draws: int) -> Array:
        """The errors of each draw, which can be added up over pieces of the data."""
        sketched = self._sparsified_outputs(self._validated(X), density, draws)
        return np.array([self._error(output, y) for output in sketched])

    def _sparsified_outputs(self, X: Any, density: float | None, draws: int) -> Iterator[Array]:
        """One array (rows, outputs) per sparsified model."""
        sketch = at_density(self.sketch_, density)
        for batch in self._versions(sketch, self.seed_, draws):
            yield from self._outputs(X, batch)

    def _versions(self, sketch: Sketch, seed: int, draws: int) -> Iterator[Versions]:
        """Sparsified models 0, 1, ... in batches."""
        return versions(*self._weights(), self.shift_, sketch, seed, draws, self.stand_ins_)

    def _outputs(self, X: Any, batch: Versions) -> Iterator[Array]:
        """The outputs of each model of a batch, an array (rows, outputs)."""
        rows = gaps(X)
        if not rows.size:
            yield from outputs(X, batch)
            return
        serving = self._serving
        if isinstance(serving, Scaling):  # pruned models are served as the whole one would be
            yield from outputs(serving.filled(X), batch)
            return
        coef, intercept = self._weights()
        X = X.toarray() if scipy.sparse.issparse(X) else X
        filled = X.copy()
        filled[rows] = 0.0
        for kept, whole_rows in zip(batch.kept, outputs(filled, batch), strict=True):
            there = np.where(kept, X[rows], np.nan)
            whole_rows[rows] = serving.outputs(there, coef, self.shift_) + intercept
            yield whole_rows

    def _targets(self, y: ArrayLike, n: int) -> NDArray[Any]:
        labels = np.asarray(column_or_1d(y))
        if labels.size != n:
            raise ArgumentError(f"y must have one entry for each of the {n} rows of X, got {labels.size}")
        return labels

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
        sketch = at_density(self.sketch_, density)
        (pruned,) = self._versions(sketch, whole("seed", seed or 0), 1)
        copy = deepcopy(self)
        copy.coef_ = self._shaped(pruned.coef[0])
        copy.intercept_ = pruned.intercept[0] if np.ndim(self.intercept_) else float(pruned.intercept[0, 0])
        return copy

    def densify(self) -> Self:
        """Make `coef_` an array again, after `sparsify()`."""
        check_is_fitted(self)
        self.coef_ = self._shaped(self._weights()[0])
        return self

    def _shaped(self, coef: Array) -> Array:
        """Weights (targets, features) in the shape of `coef_`."""
        return coef

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
        from mast.learn.scoring import plot_sparsified

        return plot_sparsified(self, X, y, baseline, densities, draws, ax)
