"""Objectives made of objectives: f seen through one draw, and weighted means."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from mast.objectives.base import Objective
from mast.objectives.quadratic import Quadratic
from mast.sketches import DiagonalDraw, Draw
from mast.support.checks import Array


class Sketched(Objective):
    """f_S(x) = f(v + S(x - v)) for one draw S and the shift v."""

    def __init__(self, objective: Objective, draw: Draw, shift: Array) -> None:
        self.objective = objective
        self.draw = draw
        self.shift = shift
        self.dim = objective.dim
        self.convex = True if objective.convex else None

    def sparsified(self, x: ArrayLike) -> Array:
        """The sparsified model v + S(x - v)."""
        return self.shift + self.draw.apply(self._point(x) - self.shift)

    @property
    def smoothness(self) -> float:
        """The largest eigenvalue of S'S times L_f."""
        draw = self.draw
        if isinstance(draw, DiagonalDraw):
            return float(np.max(draw.scales**2, initial=0.0)) * self.objective.smoothness
        return float(np.linalg.norm(draw.matrix(), 2)) ** 2 * self.objective.smoothness

    def infimum(self) -> float:
        """The minimum; where f is not convex, a lower bound: that of f."""
        return super().infimum() if self.convex else self.objective.infimum()

    @property
    def infimum_exact(self) -> bool:  # type: ignore[override]
        """Whether it is the minimum."""
        return self.convex is True

    def value(self, x: ArrayLike) -> float:
        """f(v + S(x - v))."""
        return self.objective.value(self.sparsified(x))

    def value_and_gradient(self, x: ArrayLike) -> tuple[float, Array]:
        """The value, and S' times the gradient of f there."""
        value, gradient = self.objective.value_and_gradient(self.sparsified(x))
        return value, self.draw.adjoint(gradient)

    def hessian(self, x: ArrayLike) -> Array:
        """S' times the Hessian of f there, times S."""
        H = self.objective.hessian(self.sparsified(x))
        return self.draw.adjoint(self.draw.adjoint(H).T)


class Mean(Objective):
    """The weighted mean of objectives: f_D over a finite support, or over nodes."""

    def __init__(self, objectives: Sequence[Objective], weights: Sequence[float] | Array) -> None:
        self.objectives = list(objectives)
        self.weights = [float(w) for w in weights]
        self.dim = self.objectives[0].dim
        self.convex = True if all(f.convex for f in self.objectives) else None
        self._weighted = list(zip(self.weights, self.objectives, strict=True))

    @property
    def smoothness(self) -> float:
        """The mean of the smoothness constants."""
        return sum(w * f.smoothness for w, f in self._weighted)

    @property
    def strong_convexity(self) -> float:
        """The mean of the constants, if all are convex; else 0."""
        if not self.convex:
            return 0.0
        return sum(w * f.strong_convexity for w, f in self._weighted)

    def infimum(self) -> float:
        """The minimum; where the mean is not convex, a lower bound: the mean of the infima."""
        if self.convex:
            return super().infimum()
        return sum(w * f.infimum() for w, f in self._weighted)

    @property
    def infimum_exact(self) -> bool:  # type: ignore[override]
        """Whether it is the minimum."""
        return self.convex is True

    def value(self, x: ArrayLike) -> float:
        """The mean of the values."""
        x = self._point(x)
        return sum(w * f.value(x) for w, f in self._weighted)

    def value_and_gradient(self, x: ArrayLike) -> tuple[float, Array]:
        """The means of values and gradients."""
        x = self._point(x)
        value, gradient = 0.0, np.zeros(self.dim)
        for w, f in self._weighted:
            term, slope = f.value_and_gradient(x)
            value += w * term
            gradient += w * slope
        return value, gradient

    def curvature(self, x: ArrayLike) -> tuple[Callable[[Array], Array], Array]:
        """The mean of the Hessians as a product with vectors, and its diagonal."""
        parts = [(w, *f.curvature(x)) for w, f in self._weighted]

        def product(p: Array) -> Array:
            out = np.zeros(self.dim)
            for w, apply, _ in parts:
                out += w * apply(p)
            return out

        return product, np.asarray(sum(w * diagonal for w, _, diagonal in parts))

    @property
    def work(self) -> int:
        """The work of all objectives."""
        return sum(f.work for f in self.objectives)

    def hessian(self, x: ArrayLike) -> Array:
        """The mean of the Hessians."""
        x = self._point(x)
        H = np.zeros((self.dim, self.dim))
        for w, f in self._weighted:
            H += w * f.hessian(x)
        return H


def mean(objectives: Sequence[Objective], weights: Sequence[float] | Array) -> Objective:
    """The weighted mean; of quadratics it is a quadratic."""
    quadratics = [f for f in objectives if isinstance(f, Quadratic)]
    if len(quadratics) < len(objectives):
        return Mean(objectives, weights)
    weighted = list(zip(weights, quadratics, strict=True))
    H, b = sum(w * f.H for w, f in weighted), sum(w * f.b for w, f in weighted)
    return Quadratic(H, b, float(sum(w * f.c for w, f in weighted)))
