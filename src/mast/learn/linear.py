"""What the classifier and the regressor share: their parameters, how they are fitted, and their answers."""

from __future__ import annotations

import math
import os
import warnings
from copy import deepcopy
from typing import Any, Self

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator, is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from mast.errors import ArgumentError
from mast.learn.fitting import NEWTON, LinearSolver
from mast.learn.imputer import ConditionalImputer, FeatureGaussian
from mast.learn.missing import Scaling, columns_with_nan, dense_rows, rows_with_nan, with_indicators
from mast.learn.objectives import Risk
from mast.learn.validation import as_dense, refuse_overflow, seed_of, validate_table
from mast.sketches import Bernoulli, Except, Grouped, Identity, Mixture, Sketch, parse
from mast.support.checks import (
    Array,
    Indices,
    check_choice,
    check_int,
    check_number,
    numbers,
    refuse_too_wide,
)
from mast.support.files import as_path

#: one model for shares from nothing to three quarters: see docs/studies/tables.md
AUTO: Sketch = Mixture([Identity(), Bernoulli(0.75), Bernoulli(0.5)], [0.25, 0.25, 0.5])
MISSING_SCALE = 0.2  #: the noise of the default scale: see docs/studies/tables.md


class LinearEstimator(BaseEstimator):  # type: ignore[misc]
    """A linear model that minimises f_D."""

    coef_: Any
    intercept_: Any
    n_iter_: Any
    imputer_: ConditionalImputer | None
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
        sketch, seed = self._sketch(d, outputs), seed_of(self.random_state)
        shift, shift_intercept = self._shift(outputs, d, classes)
        missing, gaussian, imputer = self._missing(X, sketch), None, None
        if missing == "conditional":
            X = as_dense(X)
            imputer = ConditionalImputer().fit_checked(X, weights)
            gaussian = imputer.gaussian_
        indicators = columns_with_nan(X) if self.add_indicator else np.zeros(0, dtype=np.int64)
        if indicators.size:
            X, shift = with_indicators(X, indicators), np.pad(shift, ((0, 0), (0, indicators.size)))
            if not isinstance(sketch, Identity):  # which leaves indicators alone
                sketch = Except(sketch, np.arange(d, X.shape[1]))
        if gaussian is None:
            X = Scaling.of(sketch, X.shape[1], scale).filled(X)
        elif isinstance(sketch, Identity) and not rows_with_nan(X).size:
            gaussian = None  # nothing is missing in training
        else:
            gaussian = gaussian.padded(indicators.size)
        kappa, alpha = self._strength()
        risk = Risk(
            X=X,
            target=target,
            outputs=outputs,
            loss=loss,
            weights=weights,
            shift=shift,
            sketch=sketch,
            gaussian=gaussian,
            kappa=kappa,
            alpha=alpha,
            fit_intercept=bool(self.fit_intercept),
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
        self.imputer_, self.indicators_, self.alpha_ = imputer, indicators, risk.l2
        self.method_, self.guarantee_ = result.method, result.guarantee
        self.n_iter_ = result.iterations if is_regressor(self) else np.array([result.iterations])
        if not result.converged:
            warnings.warn(
                f"{type(self).__name__} ({self.method_}) stopped after {result.iterations} iterations before "
                f"it reached tol={self.tol}: raise max_iter, raise tol, or scale the features",
                ConvergenceWarning,
                stacklevel=3,
            )
        return self._with_weights(*risk.unflatten(result.x))

    def __sklearn_is_fitted__(self) -> bool:
        return getattr(self, "coef_", None) is not None

    def _report(self, line: str) -> None:
        print(f"{type(self).__name__}, {line}")

    def _sketch(self, d: int, outputs: int) -> Sketch:
        """The sketch of d features: the parameter may also be a text."""
        refuse_too_wide(d, outputs=outputs)
        if self.sketch is None:
            return Identity()
        if isinstance(self.sketch, str) and self.sketch == "auto":
            return self._grouped(deepcopy(AUTO))
        sketch = parse(self.sketch) if isinstance(self.sketch, str) else self.sketch
        if not isinstance(sketch, Sketch):
            raise ArgumentError(
                'sketch must be "auto", None, a sketch, or a text such as "bernoulli:0.7"; '
                f"got {self.sketch!r}"
            )
        sketch = self._grouped(deepcopy(sketch))  # sketches remember things: the parameter must not change
        sketch.check(d)
        if not sketch.diagonal and d > 2000:
            raise ArgumentError(f"{sketch!r} is made of matrices, which in {d} dimensions are too large")
        return sketch

    def _grouped(self, sketch: Sketch) -> Sketch:
        """The sketch of the features, where that of the parameter draws columns of a table."""
        if self.groups_ is None or isinstance(sketch, Identity):
            return sketch
        of_features = isinstance(sketch, Grouped) and sketch.labels.size == self.groups_.size
        alone = self.groups_.max() + 1 == self.groups_.size  # each column has one feature
        return sketch if of_features or alone else Grouped(sketch, self.groups_)

    def _missing_scale(self) -> Any:
        """`missing_scale`, checked."""
        rule = self.missing_scale
        return rule if rule in ("keep", math.inf) else check_number("missing_scale", rule, least=0.0)

    def _missing(self, X: Any, sketch: Sketch) -> str:
        """What becomes of missing cells: "conditional" or "scale"."""
        check_choice("missing", self.missing, ("auto", "conditional", "scale"))
        against = None
        if self.shift is not None:
            against = "there is a shift"
        elif self.method not in NEWTON:
            against = f"method is {self.method!r}"
        elif not sketch.diagonal or (not isinstance(sketch, Identity) and sketch.share(X.shape[1]) == 1):
            against = f"{sketch!r} drops no features"
        if self.missing == "conditional" and against:
            raise ArgumentError(f"missing='conditional' is impossible where {against}: use 'scale'")
        if self.missing == "auto":
            return "scale" if against or scipy.sparse.issparse(X) else "conditional"
        return self.missing

    def _strength(self) -> tuple[float | None, float | None]:
        """(kappa, alpha), at most one of them: alpha takes the place of kappa where it is given."""
        if self.alpha is not None:
            return None, check_number("alpha", self.alpha, least=0.0)
        return None if self.kappa is None else check_number("kappa", self.kappa, above=1.0), None

    def _shift(self, count: int, d: int, classes: Any) -> tuple[Array, Array]:
        """v as an array (outputs, features), and where the intercepts start."""
        zeros = np.zeros(count)
        if self.shift is None:
            return np.zeros((count, d)), zeros
        given = getattr(self.shift, "coef_", self.shift)
        if isinstance(given, str) or (given is self.shift and hasattr(self.shift, "fit")):
            raise ArgumentError(f"shift must be an array or a fitted linear model, got {self.shift!r}")
        v = np.atleast_2d(numbers("shift", given, np.ndim(given)))
        if v.shape != (count, d):
            wanted = f"({d},)" if count == 1 else f"({count}, {d})"
            raise ArgumentError(f"shift must have the shape {wanted}, one weight per feature; got {v.shape}")
        theirs = getattr(self.shift, "classes_", None)
        if theirs is not None and classes is not None and not np.array_equal(theirs, classes):
            raise ArgumentError(f"the shift knows the classes {list(theirs)}, here they are {list(classes)}")
        b = np.atleast_1d(np.asarray(getattr(self.shift, "intercept_", zeros), dtype=float))
        return v.copy(), b if self.fit_intercept and b.shape == (count,) else zeros

    # ---- use ---------------------------------------------------------------------------

    def _weights(self) -> tuple[Array, Array]:
        dense = self.coef_.toarray() if scipy.sparse.issparse(self.coef_) else self.coef_
        return np.atleast_2d(dense), np.atleast_1d(np.asarray(self.intercept_, dtype=float))

    def _with_weights(self, coef: Array, intercept: Any) -> Self:
        """This model, which gets these weights (outputs, features) and intercepts."""
        flat = is_regressor(self)
        self.coef_ = coef.reshape(-1) if flat else coef
        self.intercept_ = float(np.ravel(intercept)[0]) if flat else intercept
        return self

    @property
    def _gaussian(self) -> FeatureGaussian | None:
        """Where stand-ins come from, if there are any; indicators say nothing of features."""
        return None if self.imputer_ is None else self.imputer_.gaussian_.padded(self.indicators_.size)

    @property
    def _serving(self) -> Scaling | FeatureGaussian:
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
            added[rows] = self._serving.contributions(dense[rows], coef, self.shift_)
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
            return self._serving.outputs(dense_rows(X, rows), coef, self.shift_) + intercept
        out = np.asarray(X @ coef.T)
        if rows.size:
            out[rows] = self._serving.outputs(dense_rows(X, rows), coef, self.shift_)
        out += intercept
        return out

    # ---- files -------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one checksummed file: JSON and arrays, no pickle."""
        from mast.learn.storage import save_model

        check_is_fitted(self)
        save_model(self, as_path("path", path))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote: the same predictions, bit for bit. Damaged or foreign files are refused."""
        from mast.learn.storage import load_model

        return load_model(as_path("path", path), cls)
