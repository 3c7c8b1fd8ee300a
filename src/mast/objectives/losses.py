"""Losses and penalties of linear models: functions of one number each, with two derivatives.

A loss is a function of the margin of a row, which has features a and the label b: ``b a'x`` for the log-loss,
``a'x - b`` for the squared loss. A penalty is a sum over coordinates. Its expectation at v + S(x - v) needs
the law of each single entry of S's diagonal only: it is exact for every diagonal sketch with such a law.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from mast.errors import ArgumentError
from mast.sketches import IndependentLaw
from mast.support.checks import Array

if TYPE_CHECKING:
    from mast.sketches import Sketch


class MarginLoss(ABC):
    """A convex function of the margin."""

    curvature_bound: float  #: the largest second derivative
    signed: bool  #: whether the margin is b a'x; else it is a'x - b

    def check_labels(self, labels: Array) -> None:
        """Refuse labels that the loss has no meaning for."""
        return

    def margins(self, products: Array, labels: Array) -> Array:
        """The margins of rows with these products a'x and labels."""
        return products * labels if self.signed else products - labels

    def signs(self, labels: Array) -> Array:
        """The derivative of each row's margin in its product a'x."""
        return labels if self.signed else np.ones(labels.size)

    @abstractmethod
    def value(self, m: Array) -> Array:
        """The loss."""

    @abstractmethod
    def slope(self, m: Array) -> Array:
        """Its derivative."""

    @abstractmethod
    def curvature(self, m: Array) -> Array:
        """Its second derivative."""

    def value_and_slope(self, m: Array) -> tuple[Array, Array]:
        """The loss and its derivative."""
        return self.value(m), self.slope(m)


class LogLoss(MarginLoss):
    """log(1 + exp(-m)), without overflow or loss of digits for margins of any size."""

    curvature_bound = 0.25
    signed = True

    def check_labels(self, labels: Array) -> None:
        """Refuse labels other than -1 and +1, with what to do about it."""
        if (np.abs(labels) == 1).all():
            return
        values = np.unique(labels)
        message = f"labels must be -1 or +1, got {', '.join(f'{v:g}' for v in values[:4])}"
        if values.size > 4:
            message += ", ..."
        if values.size == 2:
            low, high = values
            message += f"; two labels {low:g} and {high:g} become signs by np.where(b == {high:g}, 1, -1)"
        raise ArgumentError(message)

    def value(self, m: Array) -> Array:
        """log(1 + e) + max(-m, 0) with e = exp(-|m|)."""
        e = _decay(m)
        return _log1p(e, 1 + e) + np.maximum(-m, 0.0)

    def slope(self, m: Array) -> Array:
        """-1 / (1 + exp(m))."""
        with np.errstate(over="ignore"):
            out: Array = np.exp(m)
        out += 1.0
        np.divide(-1.0, out, out=out)
        return out

    def curvature(self, m: Array) -> Array:
        """e / (1 + e)² with e = exp(-|m|)."""
        e = _decay(m)
        return e / (1 + e) ** 2

    def value_and_slope(self, m: Array) -> tuple[Array, Array]:
        """The loss and its derivative, with one exponential."""
        e = _decay(m)
        w = 1 + e
        return _log1p(e, w) + np.maximum(-m, 0.0), np.where(m >= 0, -e, -1.0) / w


class HalfSquare(MarginLoss):
    """m²/2 of the residual m = a'x - b."""

    curvature_bound = 1.0
    signed = False

    def value(self, m: Array) -> Array:
        """m²/2."""
        return m * m / 2

    def slope(self, m: Array) -> Array:
        """m."""
        return m

    def curvature(self, m: Array) -> Array:
        """1."""
        return np.ones(m.shape)


def weighted_sum(weights: Array, values: Array) -> float:
    """The sum of weights times values, pairwise.

    For long vectors BLAS would wake its threads, which on a busy machine costs more than the sum.
    """
    return float((weights * values).sum())


def _decay(m: Array) -> Array:
    """exp(-|m|), which cannot overflow."""
    e: Array = np.abs(m)
    np.negative(e, out=e)
    return np.exp(e, out=e)


def _log1p(e: Array, w: Array) -> Array:
    """log(1 + e), given w = 1 + e rounded: NumPy's log is vectorised, its log1p is not."""
    return np.log(w) + (e - (w - 1)) / w


# ---- penalties --------------------------------------------------------------------------------------------


class Penalty(ABC):
    """A sum over coordinates of a function of that coordinate."""

    @property
    def strong_convexity(self) -> float:
        """The least second derivative of any coordinate's function; 0 if that is not convex."""
        return 0.0

    @abstractmethod
    def value(self, x: Array) -> float:
        """Its value."""

    @abstractmethod
    def gradient(self, x: Array) -> Array:
        """Its gradient."""

    @abstractmethod
    def curvature(self, x: Array) -> Array:
        """The diagonal of its Hessian."""


class Ridge(Penalty):
    """l2/2 |x|²."""

    def __init__(self, l2: float) -> None:
        self.l2 = l2

    def value(self, x: Array) -> float:
        """l2/2 |x|²."""
        return 0.5 * self.l2 * float(x @ x)

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

    def value(self, x: Array) -> float:
        """The sum over coordinates."""
        u = x - self.shift
        return float(np.sum((0.5 * self.l2) * self.shift**2 + u * (self.slope + 0.5 * self.bend * u)))

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

    def value(self, x: Array) -> float:
        """The sum over coordinates."""
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

    @property
    def smoothness(self) -> float:
        """2 weight."""
        return 2 * self.weight

    def sketched(self, sketch: Sketch, shift: Array) -> SketchedSaturating | None:
        """Its expectation under a sketch whose entries take finitely many values."""
        law = sketch.law(shift.size)
        if law is None or (isinstance(law, IndependentLaw) and law.noise):
            return None
        kept = law.per_coordinate(law.keep)
        values = [(kept, law.per_coordinate(law.scales))]
        if (kept < 1).any():
            values.append((1 - kept, np.zeros(shift.size)))
        return SketchedSaturating(self, values, shift)


class SketchedSaturating(Penalty):
    """The mean over the values c_j takes of the penalty at v + c u, u = x - v."""

    def __init__(self, penalty: Saturating, values: list[tuple[Array, Array]], shift: Array) -> None:
        self.penalty = penalty
        self.values = values  #: for each value that an entry takes, its probability and the value itself
        self.shift = shift

    def _mean(self, x: Array, function: Callable[[Array], Array], power: int) -> Array:
        """E[c^power function(v + c u)], coordinate by coordinate."""
        u = x - self.shift
        total = np.zeros(x.size)
        for p, c in self.values:
            weight = p
            for _ in range(power):
                weight = weight * c
            total += weight * function(self.shift + c * u)
        return total

    def value(self, x: Array) -> float:
        """The mean of the values."""
        return float(self._mean(x, self.penalty.parts, 0).sum())

    def gradient(self, x: Array) -> Array:
        """The mean of c times the gradient."""
        return self._mean(x, self.penalty.gradient, 1)

    def curvature(self, x: Array) -> Array:
        """The mean of c² times the curvature."""
        return self._mean(x, self.penalty.curvature, 2)
