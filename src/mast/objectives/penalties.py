"""Penalties: sums of one function per coordinate, and what a sketch makes of them.

The expectation of a penalty at v + S(x - v) needs the law of each single entry of S's
diagonal only, so it is exact for every diagonal sketch that can state that law.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from mast.support.arrays import Array

if TYPE_CHECKING:
    from mast.sketches import Sketch


class Penalty(ABC):
    """A sum over coordinates of a function of that coordinate."""

    @property
    def strong_convexity(self) -> float:
        """The least second derivative of any coordinate's function; 0 if that is not convex."""
        return 0.0

    @abstractmethod
    def parts(self, x: Array) -> Array:
        """The value of each coordinate's function."""

    @abstractmethod
    def gradient(self, x: Array) -> Array:
        """Its gradient."""

    @abstractmethod
    def curvature(self, x: Array) -> Array:
        """The diagonal of its Hessian."""

    def value(self, x: Array) -> float:
        """Its value."""
        return float(self.parts(x).sum())


class Ridge(Penalty):
    """l2/2 |x|²."""

    def __init__(self, l2: float) -> None:
        self.l2 = l2

    def value(self, x: Array) -> float:
        """l2/2 |x|²."""
        return 0.5 * self.l2 * float(x @ x)

    def parts(self, x: Array) -> Array:
        """l2/2 x_j²."""
        return 0.5 * self.l2 * x * x

    def gradient(self, x: Array) -> Array:
        """l2 x."""
        return self.l2 * x

    def curvature(self, x: Array) -> Array:
        """l2."""
        return np.full(x.size, self.l2)

    @property
    def smoothness(self) -> float:
        """l2."""
        return self.l2

    @property
    def strong_convexity(self) -> float:
        """l2."""
        return self.l2

    def sketched(self, sketch: Sketch, shift: Array) -> SketchedRidge:
        """Its expectation under a diagonal sketch: two moments of each entry are enough."""
        d = shift.size
        return SketchedRidge(self.l2, sketch.mean(d), sketch.expected_square(d), shift)


class SketchedRidge(Penalty):
    """l2/2 (|v|² + 2 v'E[S]u + sum_j E[c_j²] u_j²) with u = x - v; l2 may be one number per coordinate."""

    def __init__(self, l2: float | Array, mean: Array, square: Array, shift: Array) -> None:
        self.l2 = l2
        self.slope: Array = l2 * mean * shift
        self.bend: Array = l2 * square
        self.shift = shift

    def parts(self, x: Array) -> Array:
        """One summand per coordinate."""
        u = x - self.shift
        return np.asarray((0.5 * self.l2) * self.shift**2 + u * (self.slope + 0.5 * self.bend * u))

    def gradient(self, x: Array) -> Array:
        """l2 (E[c_j] v_j + E[c_j²] u_j)."""
        return self.slope + self.bend * (x - self.shift)

    def curvature(self, x: Array) -> Array:
        """l2 E[c_j²]."""
        return self.bend

    @property
    def strong_convexity(self) -> float:
        """The least of these."""
        return float(self.bend.min())


class Saturating(Penalty):
    """weight sum_j x_j²/(1 + x_j²): large weights cost no more than `weight` each. Not convex."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def parts(self, x: Array) -> Array:
        """weight x_j²/(1 + x_j²), which tends to weight where x_j² overflows."""
        with np.errstate(over="ignore", divide="ignore"):
            return self.weight / (1.0 + 1.0 / (x * x))

    def gradient(self, x: Array) -> Array:
        """2 weight x/(1 + x²)²."""
        with np.errstate(over="ignore"):
            w = 1.0 + x * x
            return 2 * self.weight * (x / w) / w

    def curvature(self, x: Array) -> Array:
        """2 weight (1 - 3x²)/(1 + x²)³, which lies between -weight/2 and 2 weight."""
        with np.errstate(over="ignore"):
            s = 1.0 / (1.0 + x * x)  # x² = 1/s - 1, so 1 - 3x² = (4s - 3)/s
        return 2 * self.weight * s * s * (4 * s - 3)

    @property
    def smoothness(self) -> float:
        """2 weight."""
        return 2 * self.weight

    def sketched(self, sketch: Sketch, shift: Array) -> SketchedSaturating | None:
        """Its expectation under a sketch whose entries take finitely many values."""
        law = sketch.law(shift.size)
        marginals = None if law is None else law.marginals()
        return None if marginals is None else SketchedSaturating(self, marginals, shift)


class SketchedSaturating(Penalty):
    """The mean over the values c_j takes of the penalty at v + c u, u = x - v."""

    def __init__(self, penalty: Saturating, marginals: list[tuple[Array, Array]], shift: Array) -> None:
        self.penalty = penalty
        self.marginals = marginals
        self.shift = shift

    def _mean(self, x: Array, function: Callable[[Array], Array], power: int) -> Array:
        """E[c^power function(v + c u)], coordinate by coordinate."""
        u = x - self.shift
        total = np.zeros(x.size)
        for p, c in self.marginals:
            weight = p
            for _ in range(power):
                weight = weight * c
            total += weight * function(self.shift + c * u)
        return total

    def parts(self, x: Array) -> Array:
        """The mean of the values."""
        return self._mean(x, self.penalty.parts, 0)

    def gradient(self, x: Array) -> Array:
        """The mean of c times the gradient."""
        return self._mean(x, self.penalty.gradient, 1)

    def curvature(self, x: Array) -> Array:
        """The mean of c² times the curvature."""
        return self._mean(x, self.penalty.curvature, 2)
