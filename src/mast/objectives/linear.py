"""LinearModel: the mean over rows of a loss of a_i'x, plus a penalty. What all linear models share."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from operator import matmul
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mast.errors import ArgumentError, DataError
from mast.objectives.base import Objective, SketchedGradients
from mast.objectives.design import Design, csr_arrays, kernels
from mast.objectives.losses import MarginLoss, Ridge, Saturating, weighted_sum
from mast.sketches import DiagonalDraw, Draw
from mast.support.checks import (
    Array,
    Indices,
    check_number,
    check_optional,
    frozen,
    numbers,
    refuse_nonfinite,
    vector,
)
from mast.support.files import digest

if TYPE_CHECKING:
    from mast.sketches import Sketch

REMEMBERED = 2  #: submatrices are kept for draws that come back, up to this many times the data
FEW = 0.25  #: if the kept non-zeros are fewer than this share of the rows, only touched rows are visited


class LinearModel(Objective):
    """f(x) = mean_i w_i loss(a_i'x; b_i) + penalty(x), with weights w_i of mean 1.

    Subclasses set `loss` and `penalty`. The data are `design`, which has them as CSR too, and `labels`.
    """

    loss: MarginLoss
    penalty: Ridge | Saturating

    def __init__(self, A: Any, b: ArrayLike, sample_weight: ArrayLike | None = None) -> None:
        self.design = Design(A)
        self.terms, self.dim = self.design.n, self.design.d
        self.labels: Array = frozen(_labels(b, self.terms).copy())
        self.weights = _weights(sample_weight, self.terms)
        self.loss.check_labels(self.labels)
        self.rates: Array = frozen(self.weights / self.terms)  #: what each row's loss counts in f

    # ---- value and derivatives -------------------------------------------------------------

    def value(self, x: ArrayLike) -> float:
        """f(x)."""
        x = self._point(x)
        return weighted_sum(self.rates, self.loss.value(self._margins(x))) + self.penalty.value(x)

    def gradient(self, x: ArrayLike) -> Array:
        """The gradient of f at x."""
        x = self._point(x)
        return self._backward(self.loss.slope(self._margins(x))) + self.penalty.gradient(x)

    def value_and_gradient(self, x: ArrayLike) -> tuple[float, Array]:
        """The value and the gradient, with one product A x."""
        x = self._point(x)
        values, slopes = self.loss.value_and_slope(self._margins(x))
        value = weighted_sum(self.rates, values) + self.penalty.value(x)
        return value, self._backward(slopes) + self.penalty.gradient(x)

    def hessian(self, x: ArrayLike) -> Array:
        """The Hessian of f at x, dense."""
        x = self._point(x)
        H = self.design.gram(self.rates * self.loss.curvature(self._margins(x)))
        H[np.diag_indices(self.dim)] += self.penalty.curvature(x)
        return H

    def curvature(self, x: ArrayLike) -> tuple[Callable[[Array], Array], Array]:
        """The Hessian at x as a product with vectors, and its diagonal: where a matrix would be too large."""
        x = self._point(x)
        w = self.rates * self.loss.curvature(self._margins(x))
        penalty = self.penalty.curvature(x)

        def product(p: Array) -> Array:
            return self.design.transpose_times(w * (self.design.matrix @ p)) + penalty * p

        return product, self.design.column_squares(w) + penalty

    @cached_property
    def signs(self) -> Array:
        """The factor that turns each row's a'x into its margin, up to an offset."""
        return frozen(self.loss.signs(self.labels))

    @cached_property
    def signed_weights(self) -> Array:
        """What the slope of each row's loss is multiplied with on its way back: its sign times its weight."""
        return frozen(self.signs * self.weights)

    def _margins(self, x: Array) -> Array:
        return self.loss.margins(self.design.matrix @ x, self.labels)

    def _backward(self, slopes: Array) -> Array:
        """A' applied to the rows' slopes, averaged; may overwrite them."""
        slopes *= self.signed_weights
        gradient = self.design.transpose_times(slopes)
        gradient /= self.terms
        return gradient

    def term_gradient(self, x: ArrayLike, rows: Indices) -> Array:
        """The gradient of the mean of the terms `rows`."""
        x = self._point(x)
        A = self.design.matrix[rows]
        slopes = self.loss.slope(self.loss.margins(A @ x, self.labels[rows]))
        slopes = slopes * self.signs[rows] * self.rates[rows]
        gradient: Array = (A.T @ slopes) * (self.terms / rows.size)
        return gradient + self.penalty.gradient(x)

    def margins_at(self, shift: Array) -> Array:
        """The margin of each row at the shift."""
        margins = self.loss.margins(np.zeros(self.terms), self.labels)
        return margins + self.signs * (self.design.matrix @ shift) if shift.any() else margins

    def sketched_gradients(self, shift: Array) -> SketchedGradients:
        """Those that touch only the columns of the data that a draw keeps."""
        return KeptColumns(self, shift)

    def fingerprint(self) -> str:
        """A sum of the data and all settings."""
        A = self.design.csr
        return digest(
            type(self).__name__, vars(self.penalty), A.indptr, A.indices, A.data, self.labels, self.rates
        )

    # ---- constants -------------------------------------------------------------------------

    @cached_property
    def _loss_smoothness(self) -> float:
        """The smoothness of the loss part: lambda_max(A'WA) times the loss's largest curvature, over n."""
        return self.loss.curvature_bound * self.design.largest_eigenvalue(self.rates)

    @property
    def smoothness(self) -> float:
        """L_f."""
        return self._loss_smoothness + self.penalty.smoothness

    @property
    def strong_convexity(self) -> float:
        """That of the penalty, a lower bound of mu_f."""
        return self.penalty.strong_convexity

    @cached_property
    def term_smoothness(self) -> Array:
        """L_fi of each term f_i = w_i loss(a_i'x; b_i) + penalty(x); their mean is f."""
        squares = self.loss.curvature_bound * self.weights * self.design.row_squares
        return frozen(squares + self.penalty.smoothness)

    @abstractmethod
    def term_infima(self) -> Array:
        """f_i^inf of each term."""

    # ---- f_D -------------------------------------------------------------------------------

    def sketched(self, sketch: Sketch, shift: Array) -> Objective | None:
        """f_D in closed form: by blocks, or by enumerating what a sketch does to each row; else None."""
        from mast.objectives.exact import Separable
        from mast.objectives.rowwise import Rowwise

        law = sketch.law(self.dim) if sketch.diagonal else None
        penalty = None if law is None else self.penalty.sketched(sketch, shift)
        if law is None or penalty is None:
            return None
        blocks = law.separable()
        if blocks is not None:
            return Separable(self, sketch, shift, penalty, *blocks)
        if law.outcomes() is None:
            return None
        form = Rowwise(self, sketch, shift, penalty, law)
        return form if form.small_enough else None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.terms} rows, {self.dim} features>"


class RidgeModel(LinearModel):
    """A linear model with the penalty l2/2 |x|², where l2 may come from the condition number kappa to reach.

    That is l2 = L0/(kappa - 1), L0 the smoothness without l2.
    """

    convex = True
    penalty: Ridge

    def __init__(
        self,
        A: Any,
        b: ArrayLike,
        l2: float | None = None,
        kappa: float | None = None,
        *,
        sample_weight: ArrayLike | None = None,
    ) -> None:
        super().__init__(A, b, sample_weight)
        if l2 is not None and kappa is not None:
            raise ArgumentError("give l2 or the condition number kappa, not both")
        self.l2 = check_optional("l2", l2) or 0.0
        if kappa is not None:
            kappa = check_number("the condition number kappa", kappa, above=1)
            if self._loss_smoothness == 0.0:
                raise ArgumentError(
                    "all rows of A are zero, so no l2 gives the condition number kappa: give l2 itself"
                )
            self.l2 = self._loss_smoothness / (kappa - 1)
        self.penalty = Ridge(self.l2)


def _labels(b: ArrayLike, n: int) -> Array:
    labels = numbers("b", b, 1, finite=False)
    if labels.size != n:
        raise ArgumentError(f"b must have one label for each of the {n} rows of A, got {labels.size}")
    refuse_nonfinite("b", labels, DataError)
    return labels


def _weights(sample_weight: ArrayLike | None, n: int) -> Array:
    if sample_weight is None:
        return frozen(np.ones(n))
    w = vector("sample_weight", sample_weight, n)
    if (w < 0).any():
        raise ArgumentError(f"sample_weight must not be negative, got {w.min()}")
    if not 0 < w.sum() < math.inf:
        raise ArgumentError("sample_weight must have a positive, finite sum")
    return frozen(w / w.mean())


# ---- one draw: only the kept columns of the data, or some rows of them, are touched ------------------------


class Products(NamedTuple):
    """Products with the kept columns of the data, for the rows that matter."""

    rows: Any  #: which rows, as an index
    forward: Callable[[Array], Array]  #: the kept columns of those rows times a vector
    backward: Callable[[Array], Array]  #: the transpose of that times a vector
    entries: int = 0  #: how many numbers are held


class KeptColumns(SketchedGradients):
    """Gradients of f_S at the cost of the columns of the data that a draw keeps.

    There are three ways to multiply with them: a submatrix made once, for draws that come back, as the blocks
    of a fixed partition do; compiled sweeps over the kept columns; and sweeps over given rows.
    """

    objective: LinearModel

    def __init__(self, model: LinearModel, shift: Array) -> None:
        super().__init__(model, shift)
        self.design = model.design
        self.margins = model.margins_at(shift)
        self._submatrices: dict[Hashable, Products] = {}
        self._pools: dict[int, list[NDArray[np.int64]]] = {}

    def gradient(self, x: Array, draw: Draw, rows: Indices | None = None) -> Array:
        """That at x, on ``draw.indices``."""
        if not isinstance(draw, DiagonalDraw):
            return super().gradient(x, draw, rows)
        return self._gradient(draw, rows, x)

    def difference(self, x: Array, w: Array, draw: Draw) -> Array:
        """That at x less that at w, with one product backward."""
        if not isinstance(draw, DiagonalDraw):
            return super().difference(x, w, draw)
        return self._gradient(draw, None, x, w)

    def _gradient(self, draw: DiagonalDraw, rows: Indices | None, x: Array, w: Array | None = None) -> Array:
        model = self.objective
        with self._products(draw, rows) as columns:
            slopes, penalty = self._slopes(draw, columns, x)
            if w is not None:
                others, other_penalty = self._slopes(draw, columns, w)
                slopes, penalty = slopes - others, penalty - other_penalty
            slopes *= model.signed_weights[columns.rows]
            gradient = columns.backward(slopes)
        gradient /= model.terms if rows is None else max(rows.size, 1)
        gradient += penalty
        gradient *= draw.scales
        return gradient

    def _slopes(self, draw: DiagonalDraw, columns: Products, x: Array) -> tuple[Array, Array]:
        """The slopes of the losses and of the penalty at v + S(x - v)."""
        model, v = self.objective, self.shift[draw.indices]
        y = v + draw.scales * (x[draw.indices] - v)
        margins = columns.forward(y - v)
        margins *= model.signs[columns.rows]
        margins += self.margins[columns.rows]
        return model.loss.slope(margins), model.penalty.gradient(y)

    @contextmanager
    def _products(self, draw: DiagonalDraw, rows: Indices | None) -> Iterator[Products]:
        """Products with the columns that a draw keeps, of all rows or of those that are given."""
        design, kept = self.design, draw.indices
        if rows is not None:
            position = self._scratch(design.d)
            position[kept] = np.arange(kept.size)
            try:
                yield _swept(csr_arrays(design.csr), rows, position, kept.size, rows, transposed=False)
            finally:
                position[kept] = -1
                self._pools[design.d].append(position)
            return
        if draw.name is not None:
            yield self._remembered(draw.name, kept)
            return
        T, lengths = self._transposed
        entries = int(lengths[kept].sum())
        if entries >= FEW * design.n:
            yield _swept(T, kept, None, design.n, slice(None), transposed=True)
            return
        position = self._scratch(design.n)
        touched = np.empty(entries, dtype=np.int64)
        touched = touched[: kernels().touched_rows(T[0], T[1], kept, position, touched)]
        try:
            yield _swept(T, kept, position, touched.size, touched, transposed=True)
        finally:
            position[touched] = -1
            self._pools[design.n].append(position)

    @cached_property
    def _transposed(self) -> tuple[tuple[Any, Any, Any], Indices]:
        """The transposed data as kernels take them, and how many non-zeros each column has."""
        T = self.design.transposed
        return csr_arrays(T), np.diff(T.indptr)

    def _remembered(self, name: Hashable, kept: Indices) -> Products:
        """The submatrix of a draw with a name; the oldest are forgotten once they are too large together."""
        if name not in self._submatrices:
            products = submatrix(self.design, kept)
            held = sum(part.entries for part in self._submatrices.values())
            while self._submatrices and held + products.entries > REMEMBERED * max(self.design.csr.nnz, 1):
                held -= self._submatrices.pop(next(iter(self._submatrices))).entries
            self._submatrices[name] = products
        return self._submatrices[name]

    def _scratch(self, size: int) -> NDArray[np.int64]:
        """An array of -1, to be put back so: a fresh one would cost its whole length each time."""
        pool = self._pools.setdefault(size, [])
        try:
            return pool.pop()
        except IndexError:
            return np.full(size, -1, dtype=np.int64)


def submatrix(design: Design, kept: Indices) -> Products:
    """A copy of the kept columns, without rows that have nothing there; products are SciPy's or BLAS."""
    if not design.sparse:
        A = np.ascontiguousarray(design.matrix[:, kept])
        return Products(slice(None), partial(matmul, A), partial(matmul, A.T), A.size)
    T = design.transposed[kept]
    rows = np.unique(T.indices).astype(np.int64)
    place = np.zeros(design.n, dtype=T.indices.dtype)
    place[rows] = np.arange(rows.size)
    T.indices[:] = place[T.indices]
    T.resize((kept.size, rows.size))
    # its transpose goes by columns too, since the rows are short
    return Products(rows, partial(matmul, T.T), partial(matmul, T), int(T.nnz))


def _swept(
    A: tuple[Any, Any, Any],
    lines: Indices,
    position: Indices | None,
    size: int,
    rows: Any,
    *,
    transposed: bool,
) -> Products:
    """Compiled products with some rows of A; if that is the transposed data, with some of their columns.

    `position` and `size` are those of the indices within the lines that count.
    """
    inner = partial(kernels().gather_lines, *A, lines, position)
    outer = partial(kernels().scatter_lines, *A, lines, position, size)
    return Products(rows, outer, inner) if transposed else Products(rows, inner, outer)
