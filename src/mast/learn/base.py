"""What the classifier and the regressor share: parameters, fitting, sparsified versions, files."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.validation import check_is_fitted, validate_data

from mast.arrays import Array, numbers
from mast.checks import number, whole
from mast.errors import ArgumentError
from mast.learn import sparsified
from mast.learn.fitting import Fit, FitPlan, fit_target
from mast.sketches import PermK, Sketch, parse
from mast.theory import Guarantee

if TYPE_CHECKING:
    import matplotlib.axes


class SparsifiedLinear(BaseEstimator):  # type: ignore[misc]
    """A linear model that minimises f_D, and its sparsified versions."""

    coef_: Any
    intercept_: Any
    n_iter_: Any
    n_features_in_: int
    alpha_: float
    method_: str
    seed_: int
    sketch_: Sketch
    shift_: Array
    guarantee_: Guarantee | None

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
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        self.sketch = sketch
        self.kappa = kappa
        self.alpha = alpha
        self.shift = shift
        self.fit_intercept = fit_intercept
        self.method = method
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # ---- fitting -----------------------------------------------------------------------

    def _fit_targets(self, X: Any, targets: list[Array], weights: Array | None, squares: bool) -> list[Fit]:
        """Fit one model per target, and set what they share."""
        d = X.shape[1]
        sketch = self._sketch()
        sketch.check(d)
        if not sketch.diagonal and d > 2000:
            raise ArgumentError(f"{sketch!r} is made of matrices, which in {d} dimensions are too large")
        seed = self._seed()
        shift, shift_intercept = self._shift(len(targets), d)
        plan = FitPlan(
            X,
            weights,
            sketch,
            squares,
            *self._strength(),
            bool(self.fit_intercept),
            str(self.method),
            whole("max_iter", self.max_iter, 1),
            number("tol", self.tol, above=0.0),
            seed,
        )
        start, start_intercept = shift, shift_intercept
        if self.warm_start and getattr(self, "coef_", None) is not None:
            before = self._weights()
            if before[0].shape == shift.shape:
                start, start_intercept = before
        fits = [
            fit_target(plan, target, shift[k], start[k], float(start_intercept[k]))
            for k, target in enumerate(targets)
        ]
        self.sketch_, self.shift_, self.seed_ = sketch, shift, seed
        self.alpha_, self.method_, self.guarantee_ = plan.l2, fits[0].method, fits[0].guarantee
        if not all(fit.converged for fit in fits):
            warnings.warn(
                f"{type(self).__name__} ({self.method_}) stopped after {max(f.iterations for f in fits)} "
                f"iterations before it reached tol={self.tol}: raise max_iter, raise tol, or scale the "
                "features",
                ConvergenceWarning,
                stacklevel=3,
            )
        return fits

    def _sketch(self) -> Sketch:
        """The sketch of the parameter, which may also be a text or None."""
        if self.sketch is None:
            return PermK(4)
        if isinstance(self.sketch, str):
            return parse(self.sketch)
        if not isinstance(self.sketch, Sketch):
            raise ArgumentError(
                f'sketch must be a sketch, a text such as "bernoulli:0.7", or None; got {self.sketch!r}'
            )
        return self.sketch

    def _seed(self) -> int:
        """The seed: an int itself; a generator, or None for NumPy's global one, gives the next."""
        generator = check_random_state(self.random_state)  # refuses what scikit-learn would
        if isinstance(self.random_state, int | np.integer) and not isinstance(self.random_state, bool):
            return int(self.random_state)
        return int(generator.randint(2**31 - 1))

    def _strength(self) -> tuple[float | None, float | None]:
        """(kappa, alpha), one of them None: alpha takes the place of kappa where it is given."""
        if self.alpha is not None:
            return None, number("alpha", self.alpha, least=0.0)
        return number("kappa", self.kappa, above=1.0), None

    def _shift(self, count: int, d: int) -> tuple[Array, Array]:
        """v as an array (targets, features), and where the intercepts start."""
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
        self._check_shift(self.shift)
        b = np.atleast_1d(np.asarray(getattr(self.shift, "intercept_", zeros), dtype=float))
        return v.copy(), b if b.shape == (count,) else zeros

    def _check_shift(self, shift: Any) -> None:
        """What a kind of model asks of the one it starts from."""

    # ---- use ---------------------------------------------------------------------------

    def _validated(self, X: Any) -> Any:
        check_is_fitted(self)
        return validate_data(self, X, accept_sparse="csr", reset=False, dtype=np.float64)

    def _weights(self) -> tuple[Array, Array]:
        dense = self.coef_.toarray() if scipy.sparse.issparse(self.coef_) else self.coef_
        return np.atleast_2d(dense), np.atleast_1d(np.asarray(self.intercept_, dtype=float))

    def _decision(self, X: Any) -> Array:
        """X w + b, an array (rows, targets)."""
        X = self._validated(X)
        coef, intercept = self._weights()
        return np.asarray(X @ coef.T) + intercept

    def _scored(self, output: Array, y: Any, sample_weight: Array | None) -> float:
        """The score of one array (rows, targets) of outputs."""
        raise NotImplementedError

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

        The features that are kept are served times the sketch's scale; the intercept is not scaled.

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
        coef, intercept = self._weights()
        sketch = sparsified.at_density(self.sketch_, density)
        scores = [
            self._scored(output, labels, weights)
            for batch in sparsified.versions(coef, self.shift_, sketch, self.seed_, draws)
            for output in sparsified.outputs(X, batch, intercept)
        ]
        return np.array(scores)

    def _targets(self, y: ArrayLike, n: int) -> NDArray[Any]:
        labels = np.asarray(column_or_1d(y))
        if labels.size != n:
            raise ArgumentError(f"y must have one entry for each of the {n} rows of X, got {labels.size}")
        return labels

    def sparsify(self, density: float | None = None, seed: int | None = None) -> Self:
        """A pruned copy: this model with one draw of the sketch applied, v + S(x - v).

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
        coef, _ = self._weights()
        sketch = sparsified.at_density(self.sketch_, density)
        (pruned,) = sparsified.versions(coef, self.shift_, sketch, whole("seed", seed or 0), 1)
        copy = deepcopy(self)
        copy.coef_ = self._shaped(pruned[0])
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
            A fitted linear model (with `coef_` and `intercept_`) to compare with. None fits scikit-learn's
            LogisticRegression (Ridge for a regressor) with the same penalty to X, y: that favours it.
        densities
            The shares of features that are kept.
        draws
            How many sparsified models per density.
        ax
            Where to draw; a new figure if None.
        """
        from mast.learn.pictures import plot_sparsified

        return plot_sparsified(self, X, y, baseline, densities, draws, ax)

    # ---- files -------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one checksummed file: JSON and arrays, no pickle."""
        from mast.learn.storage import KIND, pack, write

        check_is_fitted(self)
        write(Path(path), KIND, *pack(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote: the same predictions, bit for bit. Damaged or foreign files are refused."""
        from mast.learn.storage import KIND, read, unpack

        return unpack(*read(Path(path), KIND), Path(path), cls)
