"""LeastSquares: half the mean squared residual, plus l2/2 |x|². A quadratic: f_D is exact for any sketch."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from mast.objectives.base import Objective
from mast.objectives.design import Blocks, Pairs
from mast.objectives.exact import SketchedLinear
from mast.objectives.linear import RidgeModel
from mast.objectives.losses import HalfSquare, SketchedRidge
from mast.objectives.newton import LARGEST_DIMENSION
from mast.objectives.quadratic import Quadratic
from mast.support.checks import Array

if TYPE_CHECKING:
    from mast.sketches import Sketch
    from mast.sketches.laws import MomentForm

LARGEST_MATRIX = 2000  #: up to this dimension f_D is made a quadratic with a dense matrix
DENSE_ENTRIES = 20_000_000  #: the entries of A up to which a dense factorisation is a reasonable tool


class LeastSquares(RidgeModel):
    """|Ax - b|²/(2n) + l2/2 |x|², with weights: sum_i w_i (a_i'x - b_i)²/(2n), w_i of mean 1.

    Parameters
    ----------
    A, b
        The data, one observation per row (an array or any SciPy sparse matrix), and the targets.
    l2
        The strength of the l2 term, 0 by default; the minimiser is then the shortest one.
    kappa
        Sets l2 = L0/(kappa - 1), L0 the smoothness without l2.
    sample_weight
        Non-negative weights of the rows; only their proportions matter (they are scaled to mean 1).

    >>> import mast
    >>> f = mast.LeastSquares([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]], [1.0, 3.0, 5.0])
    >>> f.minimizer().round(12), f.term_smoothness
    (array([1., 2.]), array([1., 2., 5.]))
    """

    loss = HalfSquare()

    @cached_property
    def strong_convexity(self) -> float:
        """The smallest eigenvalue of the Hessian; in many thousand dimensions l2, a lower bound of it."""
        if self.dim > self.terms or self.dim > LARGEST_DIMENSION:
            return self.l2
        return max(self.l2, self.quadratic.strong_convexity)

    def term_infima(self) -> Array:
        """f_i^inf = w b² l2 / (2 (l2 + w |a_i|²))."""
        w = self.weights
        whole = w * self.labels**2 / 2
        bend = w * self.design.row_squares
        if self.l2 == 0.0:
            return np.where(bend > 0, 0.0, whole)
        return np.asarray(whole * (self.l2 / (self.l2 + bend)))

    @cached_property
    def quadratic(self) -> Quadratic:
        """The same function as x'Hx/2 - b'x + c; for moderate dimensions."""
        H = self.design.gram(self.rates) + np.diag(self.penalty.curvature(np.zeros(self.dim)))
        weighted = self.rates * self.labels
        result = Quadratic(H, self.design.transpose_times(weighted), 0.5 * float(weighted @ self.labels))
        result.bounded = True
        return result

    def sketched(self, sketch: Sketch, shift: Array) -> Objective | None:
        """f_D, from the sketch's second moments alone: any sketch, rows of any length."""
        if self.dim <= LARGEST_MATRIX:
            return self.quadratic.sketched(sketch, shift)
        law = sketch.law(self.dim)
        if law is not None and law.separable() is None:
            form = law.moment_form()
            if form is not None:
                return SketchedLeastSquares(self, sketch, shift, self.penalty.sketched(sketch, shift), form)
        return super().sketched(sketch, shift)

    def _solve(self) -> Array:
        if self.l2 == 0.0:
            return self._shortest()
        if self.terms <= LARGEST_DIMENSION < self.dim:
            return self._from_rows()
        return super()._solve()

    def _from_rows(self) -> Array:
        """The minimiser as a combination of the rows: a system with one unknown per row."""
        import scipy.linalg

        root = np.sqrt(self.rates)
        A = self.design.csr.multiply(root[:, None]).tocsr()
        gram = (A @ A.T).toarray() + self.l2 * np.eye(self.terms)
        factor = scipy.linalg.cho_factor(gram)
        z = np.zeros(self.terms)
        for _ in range(3):  # each time for what rounding left over
            rest = self.labels * root - (A @ (A.T @ z) + self.l2 * z)
            z += scipy.linalg.cho_solve(factor, rest)
        return np.asarray(A.T @ z)

    def _shortest(self) -> Array:
        """The minimiser of smallest norm of the unregularised problem."""
        root = np.sqrt(self.rates)
        if self.terms * self.dim <= DENSE_ENTRIES:
            import scipy.linalg

            A = self.design.matrix.toarray() if self.design.sparse else self.design.matrix
            rows = A * root[:, None]
            norms = np.linalg.norm(rows, axis=0)
            units = 1 / np.where(norms > 0, norms, 1.0)
            rounding = max(rows.shape) * np.finfo(float).eps
            if np.linalg.matrix_rank(rows * units, tol=rounding * math.sqrt(self.dim)) < self.dim:
                units = np.ones(self.dim)  # several minimisers: the shortest depends on the units
            x = np.zeros(self.dim)
            for _ in range(2):  # the second time for what rounding left over
                rest = (self.labels - self.design.matrix @ x) * root
                x += units * scipy.linalg.lstsq(rows * units, rest, cond=rounding, check_finite=False)[0]
            return x
        from scipy.sparse.linalg import LinearOperator, lsmr

        operator = LinearOperator(
            (self.terms, self.dim),
            matvec=lambda x: root * (self.design.matrix @ x),
            rmatvec=lambda r: self.design.transpose_times(root * r),
            dtype=np.float64,
        )
        x = np.zeros(self.dim)
        for _ in range(3):
            rest = (self.labels - self.design.matrix @ x) * root
            x += lsmr(operator, rest, atol=1e-15, btol=1e-15, conlim=0, maxiter=20 * self.terms)[0]
        return x


class SketchedLeastSquares(SketchedLinear):
    """f_D of least squares in very many dimensions: a quadratic in u = x - v, without a d x d matrix.

    Its curvature is that of the data, entry by entry times E[c c'], which is a multiple of m m' plus extra
    weight within units. So a product with it is one with the data, and one with their (row, unit) pairs.
    """

    penalty: SketchedRidge

    def __init__(
        self, model: LeastSquares, sketch: Sketch, shift: Array, penalty: SketchedRidge, form: MomentForm
    ) -> None:
        super().__init__(model, sketch, shift, penalty)
        self.share, self.m = form.share, form.m
        residuals = model.design.matrix @ shift - model.labels
        self.constant = 0.5 * float(model.rates @ residuals**2)
        pull = model.design.transpose_times(model.rates * residuals)
        self.slope: Array = sketch.mean(self.dim) * pull
        self.blocks = Blocks(form.labels)
        if self.blocks.count == self.dim:  # units of one coordinate: their part is a diagonal
            self.pairs = None
            self.diagonal: Array = form.extra[form.labels] * model.design.column_squares(model.rates)
        else:
            rows = np.arange(model.terms)
            self.pairs = Pairs(model.design.csr, np.ones(rows.size), self.blocks, rows, model.rates)
            unit = form.labels[self.blocks.order[self.blocks.start[:-1]]]
            self.pairs.weights *= np.repeat(form.extra[unit], np.diff(self.pairs.start))
            self.diagonal = np.zeros(self.dim)
            self.diagonal[self.blocks.order] = self.pairs.column_squares(self.pairs.weights)

    def _product(self, u: Array) -> Array:
        """The loss part of the Hessian times u."""
        design = self.model.design
        out = self.share * self.m * design.transpose_times(self.model.rates * (design.matrix @ (self.m * u)))
        if self.pairs is None:
            return np.asarray(out + self.diagonal * u)
        order = self.blocks.order
        out[order] += self.pairs.backward(self.pairs.weights * self.pairs.forward(u[order]))
        return np.asarray(out)

    def value_and_gradient(self, x: ArrayLike) -> tuple[float, Array]:
        """f_D(x) and its gradient."""
        x = self._point(x)
        u = x - self.shift
        Hu = self._product(u)
        value = self.constant + float(u @ (self.slope + 0.5 * Hu)) + self.penalty.value(x)
        return value, self.slope + Hu + self.penalty.gradient(x)

    def curvature(self, x: ArrayLike) -> tuple[Callable[[Array], Array], Array]:
        """The Hessian as a product with vectors, and its diagonal."""
        penalty = self.penalty.bend
        squares = self.model.design.column_squares(self.model.rates)
        diagonal = penalty + self.share * self.m**2 * squares + self.diagonal
        return lambda p: self._product(p) + penalty * p, diagonal

    def hessian(self, x: ArrayLike) -> Array:
        """The Hessian, dense: column by column."""
        product, _ = self.curvature(x)
        return np.column_stack([product(e) for e in np.eye(self.dim)])
