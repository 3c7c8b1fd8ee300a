"""Function: any differentiable function, given as a callable. NumPy, or wrapped from another library."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from numpy.typing import ArrayLike

from mast.errors import ArgumentError
from mast.objectives.base import Objective
from mast.support.checks import Array, check_int, check_optional, refuse_too_large, vector
from mast.support.files import digest
from mast.support.identity import describe


class Function(Objective):
    """An objective from a callable that returns the value and the gradient at a point.

    Parameters
    ----------
    value_and_gradient
        Takes a vector of `dim` numbers, returns ``(value, gradient)``.
    dim
        The number of variables.
    smoothness, strong_convexity
        L_f and mu_f, if they are known; theory needs them.
    convex
        Whether the function is convex; taken as true if `strong_convexity` is given.
    infimum
        The greatest lower bound, if it is known.

    >>> import numpy as np, mast
    >>> f = mast.Function(lambda x: (np.cosh(x - 1).sum(), np.sinh(x - 1)), dim=2, convex=True)
    >>> f.minimizer().round(12), f.infimum()
    (array([1., 1.]), 2.0)
    """

    def __init__(
        self,
        value_and_gradient: Callable[[Array], tuple[Any, Any]],
        dim: int,
        smoothness: float | None = None,
        strong_convexity: float | None = None,
        *,
        convex: bool | None = None,
        infimum: float | None = None,
    ) -> None:
        if not callable(value_and_gradient):
            raise ArgumentError("Function needs a callable that returns (value, gradient)")
        self.dim = check_int("dim", dim, 1)
        refuse_too_large(f"a function of {self.dim:,} variables", 4.0 * self.dim)
        self._call = value_and_gradient
        self._smoothness = check_optional("smoothness", smoothness)
        self._strong_convexity = check_optional("strong_convexity", strong_convexity)
        if convex is False and self._strong_convexity:
            raise ArgumentError("a function with strong_convexity > 0 is convex, but convex=False was given")
        self.convex = True if convex is None and strong_convexity is not None else convex
        self._infimum = infimum

    def value_and_gradient(self, x: ArrayLike) -> tuple[float, Array]:
        """What the callable returns, checked."""
        returned = self._call(self._point(x).copy())
        try:
            value, gradient = returned
            value = float(value)
        except (TypeError, ValueError):
            raise ArgumentError("the callable must return (value, gradient), a number and a vector") from None
        return value, vector("the gradient that the callable returned", gradient, self.dim, finite=False)

    @property
    def work(self) -> int:
        """A call of a Python function takes about as long as a thousand losses in a kernel."""
        return 1000

    @property
    def smoothness(self) -> float:
        """The one that was given."""
        return super().smoothness if self._smoothness is None else self._smoothness

    @property
    def strong_convexity(self) -> float:
        """The one that was given, else 0."""
        return self._strong_convexity or 0.0

    def fingerprint(self) -> str:
        """Of the values at a few points, and of the source of the callable with all that it reaches."""
        return digest(describe(self._call), super().fingerprint())

    def infimum(self) -> float:
        """The one that was given, else the value at the minimiser."""
        return self._minimum[1] if self._infimum is None else float(self._infimum)

    def _solve(self) -> Array:
        x = super()._solve()
        if not math.isfinite(self.value(x)):
            raise ArgumentError("the callable returned a value that is not finite")
        return x
