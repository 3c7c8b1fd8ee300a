"""What the classifier and the regressor share: parameters, fitting, serving, files."""

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
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, check_X_y, validate_data

from mast.errors import ArgumentError
from mast.learn.encoder import TableEncoder, encoder_for
from mast.learn.fitting import OURS, FitPlan, fit
from mast.learn.frames import aligned, as_pandas, explain_refusal, groups_of, refuse_repeated
from mast.learn.gaussian import FeatureGaussian
from mast.learn.imputer import ConditionalImputer
from mast.learn.missing import Scaling
from mast.learn.rows import (
    as_dense,
    cells,
    columns_with_gaps,
    gaps,
    refuse_overflow,
    with_indicators,
)
from mast.sketches import Bernoulli, Except, Grouped, Identity, Mixture, Sketch, parse
from mast.support.arrays import Array, Indices, checked_sparse, numbers, refuse_too_wide
from mast.support.checks import check_choice, check_int, check_number
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
    encoder_: TableEncoder | None
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
        d = X.shape[1]
        sketch, seed = self._sketch(d, outputs), self._seed()
        shift, shift_intercept = self._shift(outputs, d, classes)
        missing, stand_ins, imputer = self._missing(X, sketch), None, None
        if missing == "conditional":
            X = as_dense(X)
            imputer = ConditionalImputer().learn(X, weights)
            stand_ins = imputer.gaussian_
        indicators = columns_with_gaps(X) if self.add_indicator else np.zeros(0, dtype=np.int64)
        if indicators.size:
            X, sketch = with_indicators(X, indicators), _beside(sketch, d, indicators.size)
            shift = np.pad(shift, ((0, 0), (0, indicators.size)))
            stand_ins = None if stand_ins is None else stand_ins.beside(indicators.size)
        scaling = self._scaling(sketch, X.shape[1])
        if stand_ins is None:
            X = scaling.filled(X)
        plain = isinstance(sketch, Identity) and not gaps(X).size
        plan = FitPlan(
            X,
            target,
            outputs,
            loss,
            weights,
            shift,
            sketch,
            # without a sketch and without gaps stand-ins are for later
            None if plain else stand_ins,
            *self._strength(),
            bool(self.fit_intercept),
            str(self.method),
            check_int("max_iter", self.max_iter, 1),
            check_number("tol", self.tol, above=0.0),
            seed,
            self._watch if self.verbose else None,
        )
        start, warm = (shift, shift_intercept), False
        if self.warm_start and self.__sklearn_is_fitted__() and self._weights()[0].shape == shift.shape:
            start, warm = self._weights(), True
        result = fit(plan, *start, warm)
        self.sketch_, self.shift_, self.seed_, self.missing_ = sketch, shift, seed, missing
        self.imputer_, self.indicators_, self.alpha_ = imputer, indicators, plan.l2
        self.method_, self.guarantee_ = result.method, result.guarantee
        if not result.converged:
            warnings.warn(
                f"{type(self).__name__} ({self.method_}) stopped after {result.iterations} iterations before "
                f"it reached tol={self.tol}: raise max_iter, raise tol, or scale the features",
                ConvergenceWarning,
                stacklevel=3,
            )
        return self._with(*plan.parted(result.x), result.iterations)

    def _validated(self, X: Any, y: Any = "no_validation", first: bool = False) -> Any:
        """The rows, NaN where a cell is missing, and the labels; later than `first`, with its columns."""
        if hasattr(X, "columns"):
            refuse_repeated(list(X.columns))  # older versions of scikit-learn do not
        if first:
            self.encoder_, self.groups_ = encoder_for(X), groups_of(X)
        accepted = {"accept_sparse": "csr", "dtype": np.float64, "ensure_all_finite": "allow-nan"}
        if is_regressor(self) and not isinstance(y, str):
            accepted["y_numeric"] = True
        if self.encoder_ is not None:
            X = self._encoded(X, first)
            return X if isinstance(y, str) else check_X_y(X, y, **accepted)
        if scipy.sparse.issparse(X):
            X = checked_sparse("X", X)  # before scikit-learn converts it
        if not first:
            X = aligned(X, getattr(self, "feature_names_in_", None))
        try:
            return validate_data(self, X, y, reset=first, **accepted)
        except (TypeError, ValueError):
            explain_refusal(X)
            raise

    def _encoded(self, X: Any, first: bool) -> Any:
        """The features of a frame with columns that hold no numbers."""
        assert self.encoder_ is not None
        if first:
            X = as_pandas(X)
            validate_data(self, X, skip_check_array=True)  # takes down the names of the columns
            self.groups_ = self.encoder_.fit(X).groups_
        return self.encoder_.transform(X)

    def __sklearn_is_fitted__(self) -> bool:
        return getattr(self, "coef_", None) is not None

    def _watch(self, line: str) -> None:
        print(f"{type(self).__name__}, {line}")

    def _sketch(self, d: int, outputs: int) -> Sketch:
        """The sketch of the parameter, which may also be a text, for so many features."""
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

    def _scaling(self, sketch: Sketch, d: int) -> Scaling:
        """The rule of `missing_scale`."""
        rule = self.missing_scale
        if rule not in ("keep", math.inf):
            rule = check_number("missing_scale", rule, least=0.0)
        return Scaling.of(sketch, d, rule)

    def _missing(self, X: Any, sketch: Sketch) -> str:
        """What becomes of missing cells: "conditional" or "scale"."""
        check_choice("missing", self.missing, ("auto", "conditional", "scale"))
        d = X.shape[1]
        drops = sketch.diagonal and (isinstance(sketch, Identity) or sketch.share(d) < 1)
        reasons = {
            "there is a shift": self.shift is not None,
            f"method is {self.method!r}": self.method not in OURS,
            f"{sketch!r} drops no features": not drops,
        }
        against = [reason for reason, holds in reasons.items() if holds]
        if self.missing == "conditional" and against:
            raise ArgumentError(f"missing='conditional' is impossible where {against[0]}: use 'scale'")
        if self.missing == "auto":
            return "scale" if against or scipy.sparse.issparse(X) else "conditional"
        return self.missing

    def _seed(self) -> int:
        """The seed: an int itself, 0 for None; a generator gives the next."""
        if self.random_state is None:
            return 0
        if isinstance(self.random_state, int | np.integer) and not isinstance(self.random_state, bool):
            return check_int("random_state", self.random_state, 0, 2**32 - 1)
        generator = check_random_state(self.random_state)  # refuses what scikit-learn would
        return int(generator.randint(2**31 - 1))

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

    def _with(self, coef: Array, intercept: Array, iterations: int | None = None) -> Self:
        """This model, which gets these weights (outputs, features) and intercepts."""
        flat = is_regressor(self)
        self.coef_ = self._shaped(coef)
        self.intercept_ = float(np.ravel(intercept)[0]) if flat else intercept
        if iterations is not None:
            self.n_iter_ = iterations if flat else np.array([iterations])
        return self

    def _shaped(self, coef: Array) -> Array:
        """Weights (outputs, features) in the shape of `coef_`."""
        return coef.reshape(-1) if is_regressor(self) else coef

    @property
    def _gaussian(self) -> FeatureGaussian | None:
        """Where stand-ins come from, if there are any; indicators say nothing of features."""
        return None if self.imputer_ is None else self.imputer_.gaussian_.beside(self.indicators_.size)

    @property
    def _serving(self) -> Scaling | FeatureGaussian:
        """What answers for rows with missing cells."""
        return self._gaussian or self._scaling(self.sketch_, self.shift_.shape[1])

    def _rows(self, X: Any) -> Any:
        """Rows to serve, as the model was trained for them: checked, and with indicators of gaps."""
        check_is_fitted(self)
        return with_indicators(self._validated(X), self.indicators_)

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
        rows = gaps(X)
        if rows.size:
            added[rows] = self._serving.contributions(dense[rows], coef, self.shift_)
        out: Array = added[:, :, :d].copy()
        for place, column in enumerate(self.indicators_):
            out[:, :, column] += added[:, :, d + place]
        return out[:, 0] if len(coef) == 1 else out

    def _decision(self, X: Any) -> Array:
        """X w + b, an array (rows, outputs); rows with missing cells as the model was trained for them."""
        return self._answers(self._rows(X))

    def _answers(self, X: Any) -> Array:
        coef, intercept = self._weights()
        rows = gaps(X)
        if rows.size == X.shape[0]:
            return self._serving.outputs(cells(X, rows), coef, self.shift_) + intercept
        out = np.asarray(X @ coef.T)
        if rows.size:
            out[rows] = self._serving.outputs(cells(X, rows), coef, self.shift_)
        out += intercept
        return out

    # ---- files -------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one checksummed file: JSON and arrays, no pickle."""
        from mast.learn.storage import KIND, pack, write

        check_is_fitted(self)
        write(as_path("path", path), KIND, *pack(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote: the same predictions, bit for bit. Damaged or foreign files are refused."""
        from mast.learn.storage import KIND, read, unpack

        path = as_path("path", path)
        return unpack(*read(path, KIND), path, cls)


def _beside(sketch: Sketch, d: int, count: int) -> Sketch:
    """The sketch of d features that leaves so many more alone."""
    return sketch if isinstance(sketch, Identity) else Except(sketch, np.arange(d, d + count))
