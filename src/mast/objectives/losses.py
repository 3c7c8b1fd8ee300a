"""Losses of linear models: functions of one number, the margin of a row, with two derivatives.

A row with features a, label b enters through its margin: ``b a'x`` for the log-loss,
``a'x - b`` for the squared loss. Everything here works on whole arrays of margins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from mast.errors import ArgumentError
from mast.support.arrays import Array


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
