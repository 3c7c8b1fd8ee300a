"""What an objective is: a function f with its gradient, and the constants that theory needs."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from mast import randomness
from mast.errors import ArgumentError, ConvergenceError
from mast.objectives.newton import newton
from mast.randomness import Key
from mast.sketches import Draw, Sketch
from mast.support.checks import Array, Indices, vector
from mast.support.identity import describe


class Objective(ABC):
    """A differentiable function of `dim` real variables.

    A new objective is one file with a subclass that defines `value_and_gradient` and sets
    `dim`; the rest has defaults. `hessian` by default is made of differences of gradients.
    """

    dim: int
    #: True or False where it is known, None where it is not
    convex: bool | None = None

    @abstractmethod
    def value_and_gradient(self, x: ArrayLike) -> tuple[float, Array]:
        """f(x) and its gradient, together."""

    def value(self, x: ArrayLike) -> float:
        """f(x)."""
        return self.value_and_gradient(x)[0]

    def gradient(self, x: ArrayLike) -> Array:
        """The gradient of f at x."""
        return self.value_and_gradient(x)[1]

    def hessian(self, x: ArrayLike) -> Array:
        """The matrix of second derivatives; here by central differences of the gradient."""
        x = self._point(x)
        columns = np.empty((self.dim, self.dim))
        for j in range(self.dim):
            h = np.cbrt(np.finfo(float).eps) * max(1.0, abs(x[j]))
            ahead, behind = x.copy(), x.copy()
            ahead[j] += h
            behind[j] -= h
            columns[j] = (self.gradient(ahead) - self.gradient(behind)) / (ahead[j] - behind[j])
        return (columns + columns.T) / 2

    def curvature(self, x: ArrayLike) -> tuple[Callable[[Array], Array], Array]:
        """The Hessian at x as a product with vectors, and its diagonal: for very many variables."""
        raise ConvergenceError(
            f"in {self.dim} dimensions a Hessian is too large for a matrix, and this {type(self).__name__} "
            "has no products with it"
        )

    @property
    def smoothness(self) -> float:
        """L_f, a Lipschitz constant of the gradient."""
        raise ArgumentError(f"the smoothness of {self.title} is not known; pass smoothness=")

    @property
    def strong_convexity(self) -> float:
        """mu_f >= 0; 0 if f is merely convex, or not convex."""
        return 0.0

    def minimizer(self) -> Array:
        """A minimiser, to machine precision."""
        return self._minimum[0].copy()

    def infimum(self) -> float:
        """The greatest lower bound of f."""
        return self._minimum[1]

    @property
    def work(self) -> int:
        """Roughly how many losses a value takes, for those who would rather estimate than wait."""
        return 1

    #: whether `infimum()` is the infimum itself, or only a lower bound of it
    infimum_exact: bool = True

    @cached_property
    def _minimum(self) -> tuple[Array, float]:
        if self.convex is not True:
            unknown = "is not convex" if self.convex is False else "is not known to be convex"
            bound = "" if self.infimum_exact else "; infimum() is a lower bound"
            raise ArgumentError(f"{self.title} {unknown}, so a minimiser cannot be certified{bound}")
        x = self._solve()
        return x, self.value(x)

    def _solve(self) -> Array:
        """The minimiser, if f is convex."""
        return newton(self, np.zeros(self.dim))

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"this {type(self).__name__}"

    def fingerprint(self) -> str:
        """A short text that tells this objective from others: from its values at a few points.

        Of one of the user's own, its source and its attributes count too.
        """
        points = [np.zeros(self.dim)]
        points += [scale * randomness.normal(Key(i), 0, self.dim) for i, scale in enumerate((0.1, 1.0, 10.0))]
        own = not type(self).__module__.startswith("mast.")
        total = hashlib.sha256((describe(self) if own else type(self).__name__).encode())
        for point in points:
            with np.errstate(all="ignore"):
                value, gradient = self.value_and_gradient(point)
            total.update(np.float64(value).tobytes() + gradient.tobytes())
        return total.hexdigest()[:16]

    #: whether two objectives with one fingerprint are surely the same function
    fingerprint_exact: bool = False

    def sketched(self, sketch: Sketch, shift: Array) -> Objective | None:
        """f_D in closed form for this sketch and shift, as an objective of its own; None if there is none.

        `Problem` asks here first, and else enumerates the sketch's support.
        """
        return None

    # ---- one draw: what stochastic methods ask for -------------------------------------------

    #: the number of terms f_i whose mean f is; 1 if f is not a finite sum
    terms: int = 1

    def sketched_gradient(self, x: Array, draw: Draw, shift: Array, rows: Indices | None = None) -> Array:
        """The gradient of f_S(x) = f(v + S(x - v)) for one draw.

        For a diagonal draw these are its values on ``draw.indices``, all others being 0; for a
        general matrix the whole vector. With `rows`, f is the mean of those terms.
        """
        y = draw.sparsified(x, shift)
        return draw.gather_scaled(self.gradient(y) if rows is None else self.term_gradient(y, rows))

    def sketched_gradients(self, shift: Array) -> SketchedGradients:
        """The gradients of f_S for many draws around one shift, which `Problem` keeps."""
        return SketchedGradients(self, shift)

    @property
    def term_smoothness(self) -> Array:
        """L_fi of each term."""
        if self.terms > 1:
            raise ArgumentError(f"the smoothness of the terms of {self.title} is not known")
        return np.array([self.smoothness])

    def term_infima(self) -> Array:
        """f_i^inf of each term."""
        if self.terms > 1:
            raise ArgumentError(f"the infima of the terms of {self.title} are not known")
        return np.array([self.infimum()])

    def term_gradient(self, x: ArrayLike, rows: Indices) -> Array:
        """The gradient of the mean of the terms `rows`."""
        raise ArgumentError(f"{self.title} is not a sum of terms, so it has no rows to sample")

    def _point(self, x: ArrayLike) -> Array:
        return vector("x", x, self.dim, finite=False)


class SketchedGradients:
    """Gradients of f_S(x) = f(v + S(x - v)), draw after draw; an objective may have a quicker way."""

    def __init__(self, objective: Objective, shift: Array) -> None:
        self.objective, self.shift = objective, shift

    def gradient(self, x: Array, draw: Draw, rows: Indices | None = None) -> Array:
        """That at x, as `Objective.sketched_gradient` has it."""
        return self.objective.sketched_gradient(x, draw, self.shift, rows)

    def difference(self, x: Array, w: Array, draw: Draw) -> Array:
        """That at x less that at w."""
        return self.gradient(x, draw) - self.gradient(w, draw)
