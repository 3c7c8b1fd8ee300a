"""Quadratic: f(x) = x'Hx/2 - b'x + c. Its sketched version is again a quadratic, so everything is exact."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike

from mast.errors import ArgumentError, UnboundedError
from mast.objectives.base import Objective
from mast.objectives.newton import scaling, solve
from mast.support.checks import Array, frozen, numbers, symmetric, vector
from mast.support.files import digest

if TYPE_CHECKING:
    from mast.sketches import Sketch


class Quadratic(Objective):
    """x'Hx/2 - b'x + c with a symmetric H.

    >>> import mast
    >>> f = mast.Quadratic([[2.0, 0.0], [0.0, 1.0]], [2.0, 1.0])
    >>> f.value([0.0, 1.0]), f.gradient([0.0, 1.0]), f.minimizer(), f.infimum()
    (-0.5, array([-2.,  0.]), array([1., 1.]), -1.5)
    """

    def __init__(self, H: ArrayLike, b: ArrayLike, c: float = 0.0) -> None:
        self.H: Array = frozen(symmetric("H", H))
        self.dim = self.H.shape[0]
        if self.dim == 0:
            raise ArgumentError("H must have at least one row")
        self.b: Array = frozen(vector("b", b, self.dim).copy())
        self.c = float(numbers("c", c, 0))

    fingerprint_exact = True

    def fingerprint(self) -> str:
        """A sum of H, b and c."""
        return digest("Quadratic", self.H, self.b, self.c)

    def value(self, x: ArrayLike) -> float:
        """f(x)."""
        x = self._point(x)
        return float(x @ (0.5 * (self.H @ x) - self.b)) + self.c

    def gradient(self, x: ArrayLike) -> Array:
        """Hx - b."""
        gradient: Array = self.H @ self._point(x) - self.b
        return gradient

    def value_and_gradient(self, x: ArrayLike) -> tuple[float, Array]:
        """The value and the gradient."""
        x = self._point(x)
        Hx = self.H @ x
        return float(x @ (0.5 * Hx - self.b)) + self.c, Hx - self.b

    def hessian(self, x: ArrayLike) -> Array:
        """H, everywhere."""
        return self.H

    #: whether it is known to be bounded below, as a sum of squares is
    bounded: bool = False

    @cached_property
    def _scaled(self) -> tuple[Array, Array, Array]:
        """(scale, eigenvalues, vectors) of H brought to a unit diagonal, on which definiteness is decided."""
        scale = scaling(self.H)
        eigenvalues, Q = scipy.linalg.eigh(self.H * scale * scale[:, None])
        return scale, eigenvalues, Q

    @property
    def _rounding(self) -> float:
        """Scaled eigenvalues this small are zeros that rounding moved."""
        return float(np.abs(self._scaled[1]).max() * self.dim * 4 * np.finfo(float).eps)

    @property
    def convex(self) -> bool:  # type: ignore[override]
        """No negative eigenvalue."""
        return bool(self._scaled[1][0] >= -self._rounding)

    @cached_property
    def _eigenvalues(self) -> Array:
        return np.asarray(scipy.linalg.eigvalsh(self.H))

    @property
    def smoothness(self) -> float:
        """The largest eigenvalue, in absolute value."""
        return float(np.abs(self._eigenvalues).max())

    @cached_property
    def strong_convexity(self) -> float:
        """The smallest eigenvalue, or 0 if it is not positive."""
        scale, eigenvalues, Q = self._scaled
        if not eigenvalues[0] > self._rounding:
            return 0.0
        least = float(self._eigenvalues[0])
        if least > self.smoothness * self.dim * 1e-12:
            return least
        half = scale[:, None] * (Q / np.sqrt(eigenvalues))  # H's inverse is half half'
        return float(1 / np.linalg.norm(half, 2) ** 2)

    @cached_property
    def _minimum(self) -> tuple[Array, float]:
        scale, eigenvalues, Q = self._scaled
        if self.strong_convexity > 0:
            x = solve(self.H, self.b)
            x += solve(self.H, self.b - self.H @ x)  # one refinement
            return x, self.value(x)
        if not (self.convex or self.bounded):
            raise UnboundedError(
                f"this quadratic is unbounded below: H has the eigenvalue {self._eigenvalues[0]:.3g}"
            )
        flat = eigenvalues <= self._rounding
        right = scale * self.b
        along = Q.T @ right
        apart = np.abs(along[flat]).max(initial=0.0) > 1e-9 * max(float(np.abs(right).max()), 1e-300)
        if apart and not self.bounded:
            raise UnboundedError("this quadratic is unbounded below: b has a part where H is flat")
        x = scale * (Q @ np.where(flat, 0.0, along / np.where(flat, 1.0, eigenvalues)))
        return x, self.value(x)

    def infimum(self) -> float:
        """The minimum, or -inf."""
        try:
            return self._minimum[1]
        except UnboundedError:
            return -np.inf

    def sketched(self, sketch: Sketch, shift: Array) -> Quadratic:
        """f(v) + grad f(v)'E[S]u + u'E[S'HS]u/2 with u = x - v, written out in x."""
        H = sketch.sandwich(self.H)
        slope = sketch.mean(self.dim) * self.gradient(shift)
        constant = self.value(shift) - float(slope @ shift) + 0.5 * float(shift @ H @ shift)
        sketched = Quadratic(H, H @ shift - slope, constant)
        sketched.bounded = self.bounded
        return sketched
