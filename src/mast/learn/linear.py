"""What the classifier and the regressor share: parameters, answers, and sparsified versions.

A sparsified version is v + S(x - v), with S drawn by the sketch, or at a density.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from copy import copy, deepcopy
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import column_or_1d
from sklearn.utils.validation import check_is_fitted

from mast.errors import ArgumentError
from mast.learn.fitting import LinearSolver, resolve_missing, resolve_shift, resolve_sketch
from mast.learn.gaussian import FeatureGaussian, fit_gaussian
from mast.learn.imputer import ConditionalImputer, Scaling
from mast.learn.risk import Risk
from mast.learn.scoring import draw_curves, largest_error, sketch_at, total_error
from mast.learn.validation import (
    as_dense,
    columns_with_nan,
    refuse_overflow,
    rows_with_nan,
    seed_of,
    validate_table,
    with_indicators,
)
from mast.sketches import DiagonalDraw, Except, Identity, Sketch
from mast.support.checks import Array, Indices, check_int, check_number, check_optional, numbers
from mast.support.files import as_path

if TYPE_CHECKING:
    import matplotlib.axes

MISSING_SCALE = 0.2  #: the noise of the default scale: see docs/studies/tables.md
FILE_KIND = "linear model"
ENTRIES = 8_000_000  #: weights, or outputs, that are held at a time


class LinearEstimator(BaseEstimator):  # type: ignore[misc]
    """A linear model that minimises f_D."""

    coef_: Any
    intercept_: Any
    n_iter_: Any
    gaussian_: FeatureGaussian | None
    indicators_: Indices
    n_features_in_: int
    encoder_: Any
    groups_: Indices | None

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
        warm_start: bool = False,
        verbose: bool | int = False,
        random_state: Any = None,
    ) -> None:
        self.sketch = sketch
        self.alpha = alpha
        self.kappa = kappa
        self.missing = missing
        self.missing_scale = missing_scale
        self.add_indicator = add_indicator
        self.shift = shift
        self.fit_intercept = fit_intercept
        self.method = method
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags

    # ---- fitting -----------------------------------------------------------------------

    def _fit(
        self, X: Any, target: Array, outputs: int, weights: Array | None, loss: str, classes: Any = None
    ) -> Self:
        """Fit the weights of all outputs."""
        refuse_overflow("X", X)
        refuse_overflow("y", target)
        d, scale = X.shape[1], self._missing_scale()
        sketch, seed = resolve_sketch(self.sketch, d, outputs, self.groups_), seed_of(self.random_state)
        shift, shift_intercept = resolve_shift(self.shift, outputs, d, classes)
        missing, of_features = resolve_missing(self.missing, X, sketch, self.shift, self.method), None
        if missing == "conditional":
            X = as_dense(X)
            of_features = fit_gaussian(X, weights)
        indicators = columns_with_nan(X) if self.add_indicator else np.zeros(0, dtype=np.int64)
        if indicators.size:
            X, shift = with_indicators(X, indicators), np.pad(shift, ((0, 0), (0, indicators.size)))
            if not isinstance(sketch, Identity):  # which leaves indicators alone
                sketch = Except(sketch, np.arange(d, X.shape[1]))
        gaussian = None
        if of_features is None:
            X = Scaling.of(sketch, X.shape[1], scale).filled(X)
        elif not isinstance(sketch, Identity) or rows_with_nan(X).size:  # else nothing is missing in training
            gaussian = of_features.padded(indicators.size)
        centre = np.zeros(X.shape[1])
        if of_features is not None and self.fit_intercept:
            centre[:d] = of_features.mean
        alpha = check_optional("alpha", self.alpha)
        by_kappa = alpha is None and self.kappa is not None
        risk = Risk(
            X=X,
            target=target,
            outputs=outputs,
            loss=loss,
            weights=weights,
            shift=shift,
            sketch=sketch,
            gaussian=gaussian,
            kappa=check_number("kappa", self.kappa, above=1.0) if by_kappa else None,
            alpha=alpha,
            fit_intercept=bool(self.fit_intercept),
            centre=centre,
        )
        solver = LinearSolver(
            method=str(self.method),
            max_iter=check_int("max_iter", self.max_iter, 1),
            tol=check_number("tol", self.tol, above=0.0),
            seed=seed,
            report=self._report if self.verbose else None,
        )
        start, warm = (shift, shift_intercept), False
        if self.warm_start and self.__sklearn_is_fitted__() and self._weights()[0].shape == shift.shape:
            start, warm = self._weights(), True
        result = solver.solve(risk, risk.flatten(*start), warm)
        self.sketch_, self.shift_, self.seed_, self.missing_ = sketch, shift, seed, missing
        self.gaussian_, self.indicators_, self.alpha_ = of_features, indicators, risk.l2
        self.method_, self.guarantee_ = result.method, result.guarantee
        self.n_iter_ = result.iterations if is_regressor(self) else np.array([result.iterations])
        if not result.converged:
            warnings.warn(
                f"{type(self).__name__} ({self.method_}) stopped after {result.iterations} iterations before "
                f"it reached tol={self.tol}: raise max_iter, raise tol, or scale the features",
                ConvergenceWarning,
                stacklevel=3,
            )
        return self._set_weights(*risk.unflatten(result.x))

    def __sklearn_is_fitted__(self) -> bool:
        return getattr(self, "coef_", None) is not None

    def _report(self, line: str) -> None:
        print(f"{type(self).__name__}, {line}")

    def _missing_scale(self) -> Any:
        """`missing_scale`, checked."""
        rule = self.missing_scale
        return rule if rule in ("keep", math.inf) else check_number("missing_scale", rule, least=0.0)

    # ---- use ---------------------------------------------------------------------------

    def _weights(self) -> tuple[Array, Array]:
        dense = self.coef_.toarray() if scipy.sparse.issparse(self.coef_) else self.coef_
        return np.atleast_2d(dense), np.atleast_1d(np.asarray(self.intercept_, dtype=float))

    def _set_weights(self, coef: Array, intercept: Any) -> Self:
        """This model, which gets these weights (outputs, features) and intercepts."""
        flat = is_regressor(self)
        self.coef_ = coef.reshape(-1) if flat else coef
        self.intercept_ = float(np.ravel(intercept)[0]) if flat else intercept
        return self

    @property
    def imputer_(self) -> ConditionalImputer | None:
        """The `mast.ConditionalImputer` behind ``missing="conditional"``."""
        if self.gaussian_ is None:
            return None
        imputer = ConditionalImputer()
        imputer.gaussian_, imputer.n_features_in_ = self.gaussian_, self.gaussian_.mean.size
        return imputer

    @property
    def _gaussian(self) -> FeatureGaussian | None:
        """Where stand-ins come from, if there are any; indicators say nothing of features."""
        return None if self.gaussian_ is None else self.gaussian_.padded(self.indicators_.size)

    @property
    def _missing_rule(self) -> Scaling | FeatureGaussian:
        """What answers for rows with missing cells."""
        return self._gaussian or Scaling.of(self.sketch_, self.shift_.shape[1], self._missing_scale())

    def _rows(self, X: Any) -> Any:
        """Rows to serve, as the model was trained for them: checked, and with indicators."""
        check_is_fitted(self)
        X = validate_table(self, X, reset=False, accept_sparse=True)
        return with_indicators(X, self.indicators_)

    def explain(self, X: Any) -> Array:
        """What each feature adds to the answer for each row: with the intercept they add up to it.

        A feature that is there adds its weight times its value, and one that is missing its weight times its
        stand-in (nothing with ``missing="scale"``, where those that are there add more). An indicator's
        weight counts to its feature.

        Returns
        -------
        array of shape (rows, features), or (rows, classes, features) for more than two classes
        """
        X = self._rows(X)
        coef, _ = self._weights()
        d, dense = coef.shape[1] - self.indicators_.size, as_dense(X)
        added = dense[:, None, :] * coef
        rows = rows_with_nan(X)
        if rows.size:
            added[rows] = self._missing_rule.contributions(dense[rows], coef, self.shift_)
        out: Array = added[:, :, :d].copy()
        for place, column in enumerate(self.indicators_):
            out[:, :, column] += added[:, :, d + place]
        return out[:, 0] if len(coef) == 1 else out

    def _decision(self, X: Any) -> Array:
        """X w + b, an array (rows, outputs); rows with missing cells as the model was trained for them."""
        return self._outputs(self._rows(X))

    def _outputs(self, X: Any) -> Array:
        coef, intercept = self._weights()
        rows = rows_with_nan(X)
        if rows.size == X.shape[0]:
            return self._missing_rule.outputs(as_dense(X[rows]), coef, self.shift_) + intercept
        out = np.asarray(X @ coef.T)
        if rows.size:
            out[rows] = self._missing_rule.outputs(as_dense(X[rows]), coef, self.shift_)
        out += intercept
        return out

    # ---- sparsified versions -----------------------------------------------------------

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
        outputs = self._sparsified_outputs(X, sketch, draws)
        errors = np.array([total_error(self, output, labels, weights) for output in outputs])
        # R² is 1 or 0 where all numbers are the same
        return (reference - errors) / reference if reference > 0 else np.where(errors > 0, 0.0, 1.0)

    def _sparsified_outputs(self, X: Any, sketch: Sketch, draws: int) -> Iterator[Array]:
        """The outputs of sparsified models 0, 1, ... for rows, arrays (rows, outputs)."""
        check_int("draws", draws, 1)
        coef, intercept = self._weights()
        rows, serving, step = rows_with_nan(X), self._missing_rule, max(1, ENTRIES // coef.size)
        if rows.size and isinstance(serving, Scaling):  # pruned models are served as the whole one would be
            X, rows = serving.filled(X), rows[:0]
        complete = X
        if rows.size:
            X = X.toarray() if scipy.sparse.issparse(X) else X
            complete = X.copy()
            complete[rows] = 0.0
        for begin in range(0, draws, step):
            part = range(begin, min(begin + step, draws))
            weights, biases, kept = self._sparsified_weights(sketch, self.seed_, part)
            for number, output in enumerate(_outputs_of_models(complete, weights, biases)):
                if rows.size:
                    there = np.where(kept[number], X[rows], np.nan)
                    output[rows] = serving.outputs(there, coef, self.shift_) + intercept
                yield output

    def _sparsified_weights(self, sketch: Sketch, seed: int, draws: range) -> tuple[Array, Array, Any]:
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
        weights = gaussian.served_weights(kept, coef)
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
        weights, intercepts, _ = self._sparsified_weights(sketch, check_int("seed", seed or 0), range(1))
        return deepcopy(self)._set_weights(weights[0], intercepts[0])

    def densify(self) -> Self:
        """Make `coef_` an array again, after `sparsify()`."""
        check_is_fitted(self)
        return self._set_weights(self._weights()[0], self.intercept_)

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
        plain = copy(self)._set_weights(coef, baseline.intercept_)  # so that both are sparsified by one rule
        plain.shift_ = np.zeros_like(coef)
        models = {f"{type(self).__name__}, {self.sketch_.label().split(':')[0]}": self, name: plain}
        curves = {
            label: [model.score_sparsified(X, y, share, draws if share < 1 else 1) for share in shares]
            for label, model in models.items()
        }
        return draw_curves(ax, shares, curves, "accuracy" if hasattr(self, "classes_") else "R²")[0]

    # ---- files -------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one checksummed file: JSON and arrays, no pickle."""
        from mast.learn.storage import pack_model, write_kind

        check_is_fitted(self)
        write_kind(as_path("path", path), FILE_KIND, *pack_model(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote: the same predictions, bit for bit. Damaged or foreign files are refused."""
        from mast.learn.storage import read_kind, unpack_model

        path = as_path("path", path)
        return unpack_model(*read_kind(path, FILE_KIND), path, cls)


def _outputs_of_models(X: Any, coef: Array, intercept: Array) -> Iterator[Array]:
    """X w + b for each of some models: arrays (rows, outputs)."""
    models, count, d = coef.shape
    step = max(1, ENTRIES // max(X.shape[0] * count, 1))
    for begin in range(0, models, step):
        part = coef[begin : begin + step]
        product = np.asarray(X @ part.reshape(-1, d).T)
        for i in range(part.shape[0]):
            yield product[:, i * count : (i + 1) * count] + intercept[begin + i]
