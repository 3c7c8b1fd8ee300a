"""Logistic: the mean log-loss of a linear classifier with labels -1 and +1, plus l2/2 |x|²."""

from __future__ import annotations

import numpy as np

from mast.errors import ConvergenceError, UnboundedError
from mast.objectives.design import Design
from mast.objectives.linear import RidgeModel
from mast.objectives.losses import LogLoss
from mast.objectives.newton import LARGEST_DIMENSION
from mast.support.checks import Array

SATURATED = 20.0  #: a margin above which a row hardly pulls any more
SEPARABLE = (
    "there is no minimiser without l2: the data are separable, at least in some direction, and the "
    "infimum is approached only at infinity; give l2 > 0 or kappa"
)


class Logistic(RidgeModel):
    """mean_i w_i log(1 + exp(-b_i a_i'x)) + l2/2 |x|².

    Parameters
    ----------
    A
        The data, one observation per row: an array or any SciPy sparse matrix.
    b
        Labels, -1 or +1.
    l2
        The strength of the l2 term; 0 if neither it nor `kappa` is given.
    kappa
        The condition number to reach instead: l2 = L0/(kappa - 1), L0 the smoothness without l2.
    sample_weight
        Non-negative weights of the rows; only their proportions matter (they are scaled to mean 1).

    >>> import mast
    >>> f = mast.Logistic([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], [1, -1, -1], l2=0.1)
    >>> x = f.minimizer()
    >>> x.round(6), round(f.infimum(), 6)
    (array([ 0.403469, -1.350719]), 0.400795)
    >>> A, b = mast.data.load("a1a")
    >>> f = mast.Logistic(A, b, kappa=100)
    >>> round(f.smoothness / f.strong_convexity, 9)
    100.0
    """

    loss: LogLoss = LogLoss()

    def _solve(self) -> Array:
        try:
            x = super()._solve()
        except (UnboundedError, ConvergenceError):
            if self.l2 > 0:
                raise
            raise UnboundedError(SEPARABLE) from None
        if self.l2 == 0.0 and self.dim <= LARGEST_DIMENSION:
            refuse_separable(self.design, self._margins(x))
        return x

    def term_infima(self) -> Array:
        """f_i^inf: along a_i the term is w log(1 + exp(-m)) + l2 m²/(2|a_i|²) in the margin m alone."""
        squares = self.design.row_squares
        w = self.weights
        bend = np.divide(self.l2, squares, out=np.full(self.terms, np.inf), where=squares > 0)
        m = np.zeros(self.terms)
        if self.l2 == 0.0:
            return np.where(squares > 0, 0.0, w * np.log(2.0))
        moving = np.isfinite(bend) & (w > 0)
        # the derivative is concave and increasing for m >= 0: Newton climbs from 0 and never passes the root
        for _ in range(200):
            slope, curvature = self.loss.slope(m[moving]), self.loss.curvature(m[moving])
            step = -(w[moving] * slope + bend[moving] * m[moving]) / (w[moving] * curvature + bend[moving])
            m[moving] += step
            if np.all(step <= 1e-15 * m[moving]):
                break
        with np.errstate(invalid="ignore"):
            return w * self.loss.value(m) + np.where(m > 0, 0.5 * bend * m * m, 0.0)


def refuse_separable(design: Design, margins: Array) -> None:
    """Refuse a point that only looks stationary because some direction is held by saturated rows alone.

    Where a hyperplane separates some rows and leaves the others undecided, Newton's method walks
    along it for ever while the gradient fades. So the rows that are not saturated must span
    all that the rows span.
    """
    saturated = margins > SATURATED
    if saturated.any() and rank(design.gram((~saturated).astype(float))) < rank(
        design.gram(np.ones(design.n))
    ):
        raise UnboundedError(SEPARABLE)


def rank(gram: Array) -> int:
    """The rank of a Gram matrix, whatever the scales of its columns."""
    scale = np.sqrt(np.maximum(np.diag(gram), 1e-300))
    return int(np.linalg.matrix_rank(gram / np.outer(scale, scale), tol=1e-9, hermitian=True))
