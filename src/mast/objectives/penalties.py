"""Penalties: sums of one function per coordinate, and what a sketch makes of them.

The expectation of a penalty at v + S(x - v) needs the law of each single entry of S's
diagonal only, so it is exact for every diagonal sketch that can state that law.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from mast.arrays import Array

if TYPE_CHECKING:
    from mast.sketches import Sketch


class Penalty(Protocol):
    """A sum over coordinates of a function of that coordinate."""

    def value(self, x: Array) -> float:
        """Its value."""

    def gradient(self, x: Array) -> Array:
        """Its gradient."""

    def curvature(self, x: Array) -> Array:
        """The diagonal of its Hessian."""

    def parts(self, x: Array) -> Array:
        """The value of each coordinate's function; their sum and `constant` are the value."""


class Ridge:
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

    def sketched(self, sketch: Sketch, shift: Array) -> SketchedRidge:
        """Its expectation under a diagonal sketch: two moments of each entry are enough."""
        d = shift.size
        return SketchedRidge(self.l2, sketch.mean(d), sketch.expected_square(d), shift)


class SketchedRidge:
    """l2/2 (|v|² + 2 v'E[S]u + sum_j E[c_j²] u_j²) with u = x - v."""

    def __init__(self, l2: float, mean: Array, square: Array, shift: Array) -> None:
        self.l2 = l2
        self.slope = l2 * mean * shift
        self.bend = l2 * square
        self.shift = shift

    def value(self, x: Array) -> float:
        """Its value."""
        return float(self.parts(x).sum())

    def parts(self, x: Array) -> Array:
        """One summand a coordinate."""
        u = x - self.shift
        return (0.5 * self.l2) * self.shift**2 + u * (self.slope + 0.5 * self.bend * u)

    def gradient(self, x: Array) -> Array:
        """l2 (E[c_j] v_j + E[c_j²] u_j)."""
        return self.slope + self.bend * (x - self.shift)

    def curvature(self, x: Array) -> Array:
        """l2 E[c_j²]."""
        return self.bend


class Saturating:
    """weight sum_j x_j²/(1 + x_j²): large weights cost no more than `weight` each. Not convex."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def value(self, x: Array) -> float:
        """Its value."""
        return float(self.parts(x).sum())

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

    def sketched(self, sketch: Sketch, shift: Array) -> SketchedSaturating | None:
        """Its expectation under a sketch whose entries take finitely many values."""
        atoms = sketch.marginals(shift.size)
        return None if atoms is None else SketchedSaturating(self, atoms, shift)


class SketchedSaturating:
    """The mean over the values c_j takes of the penalty at v + c u."""

    def __init__(self, penalty: Saturating, atoms: list[tuple[Array, Array]], shift: Array) -> None:
        self.penalty = penalty
        self.atoms = atoms
        self.shift = shift

    def value(self, x: Array) -> float:
        """Its value."""
        return float(self.parts(x).sum())

    def parts(self, x: Array) -> Array:
        """One summand a coordinate."""
        u = x - self.shift
        total = np.zeros(x.size)
        for p, c in self.atoms:
            total += p * self.penalty.parts(self.shift + c * u)
        return total

    def gradient(self, x: Array) -> Array:
        """The mean of c times the gradient there."""
        u = x - self.shift
        total = np.zeros(x.size)
        for p, c in self.atoms:
            total += p * c * self.penalty.gradient(self.shift + c * u)
        return total

    def curvature(self, x: Array) -> Array:
        """The mean of c² times the curvature there."""
        u = x - self.shift
        total = np.zeros(x.size)
        for p, c in self.atoms:
            total += p * c * c * self.penalty.curvature(self.shift + c * u)
        return total
