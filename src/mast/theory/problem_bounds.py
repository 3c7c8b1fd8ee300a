"""How f_D relates to f: Lemmas 1 to 4 and 12, Theorem 1, its non-convex form (Theorem 7), condition number.

Writing u = x - v, with v the shift:

- Lemma 1 (ii), Lemma 3 (ii): f_D is L_D L_f-smooth and mu_D mu_f-convex, with
  condition number at most (L_D/mu_D)(L_f/mu_f)
- Lemmas 3 (iii) and 1 (iii): f(x) + (mu_D - 1) mu_f |u|²/2 <= f_D(x) <= f(x) + (L_D - 1) L_f |u|²/2
- Theorem 1: f(x*) <= f(x_D*) <= f(x*) + (L_D - 1) L_f |x* - v|²/2 - (mu_D - 1) mu_f |x_D* - v|²/2, and
  f(x*) + (mu_D - 1) mu_f |x_D* - v|²/2 <= f_D(x_D*) <= f(x*) + (L_D - 1) L_f |x* - v|²/2
- Theorem 7, f not convex: f^inf <= f_D^inf <= f(x*) + (L_D - 1) L_f |x* - v|²/2
- Lemma 4: E|grad f_S(x)|² <= 2 L_f L_max (f_D(x) - f^inf)
- Lemma 12: if grad f is Lipschitz, so is grad f_D, with L_f E|S|² (which is no less than L_D L_f)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mast.errors import ArgumentError
from mast.support.checks import check_nonnegative, check_positive
from mast.theory.guarantee import plain, unbiased, values


class Interval(NamedTuple):
    """What a value lies between."""

    lower: Any
    upper: Any


@dataclass(frozen=True)
class ProblemBounds:
    """The constants of f_D and the bounds on its values. Make one with `problem_bounds`."""

    L_f: float
    mu_f: float
    L_D: float
    mu_D: float
    L_max: float | None

    @property
    def smoothness(self) -> float:
        """L_D L_f, at least the smoothness of f_D (Lemma 1, ii). Exact descent may step by 1 over it."""
        return self.L_D * self.L_f

    @property
    def strong_convexity(self) -> float:
        """mu_D mu_f, which the strong convexity of f_D is at least (Lemma 3, ii)."""
        return self.mu_D * self.mu_f

    @property
    def condition_number(self) -> float:
        """(L_D/mu_D)(L_f/mu_f), which bounds the condition number of f_D; infinite if mu_f is 0."""
        return self.L_D / self.mu_D * (self.L_f / self.mu_f) if self.mu_f > 0 else math.inf

    def lipschitz(self, mean_squared_norm: float) -> float:
        """L_f E|S|², a Lipschitz constant of grad f_D (Lemma 12); `smoothness` is the sharper number."""
        return check_nonnegative("mean_squared_norm", mean_squared_norm) * self.L_f

    def value(self, f: Any, distance_sq: Any) -> Interval:
        """f_D(x) from f(x) and |x - v|² (Lemmas 3, iii and 1, iii). The lower end needs convex f."""
        f, distance_sq = _finite("f", f), values("distance_sq", distance_sq)
        return Interval(f + self._low(distance_sq), f + self._high(distance_sq))

    def loss_at_solution(
        self, f_star: Any, star_distance_sq: Any, solution_distance_sq: Any = 0.0
    ) -> Interval:
        """f(x_D*), the plain loss of the sketched solution (Theorem 1), for convex f.

        `f_star` is f(x*), `star_distance_sq` is |x* - v|², `solution_distance_sq` is |x_D* - v|², or 0 if
        not known.
        """
        f_star = _finite("f_star", f_star)
        high = self._high(values("star_distance_sq", star_distance_sq))
        return Interval(
            f_star, f_star + high - self._low(values("solution_distance_sq", solution_distance_sq))
        )

    def value_at_solution(
        self, f_star: Any, star_distance_sq: Any, solution_distance_sq: Any = 0.0
    ) -> Interval:
        """f_D(x_D*), the least value of f_D (Theorem 1); with mu_f = 0, Theorem 7, for any smooth f."""
        f_star = _finite("f_star", f_star)
        low = self._low(values("solution_distance_sq", solution_distance_sq))
        return Interval(f_star + low, f_star + self._high(values("star_distance_sq", star_distance_sq)))

    def gradient_second_moment(self, excess: Any) -> Any:
        """What E|grad f_S(x)|² is at most, from the excess f_D(x) - f^inf (Lemma 4)."""
        if self.L_max is None:
            raise ArgumentError("L_max is missing: Lemma 4 uses it. Pass L_max= to problem_bounds")
        return plain(2 * self.L_f * self.L_max * values("excess", excess))

    def _low(self, distance_sq: Any) -> Any:
        return max(self.mu_D - 1, 0.0) * self.mu_f / 2 * distance_sq

    def _high(self, distance_sq: Any) -> Any:
        return max(self.L_D - 1, 0.0) * self.L_f / 2 * distance_sq


def problem_bounds(
    *,
    L_f: float | None = None,
    mu_f: float = 0.0,
    L_D: float | None = None,
    mu_D: float = 1.0,
    L_max: float | None = None,
) -> ProblemBounds:
    """The bounds of Lemmas 1 to 4 and 12 and Theorems 1 and 7 for these constants.

    mu_f = 0 (the default) is for f that is convex and no more, or not convex: lower ends that rest on
    convexity then fall back to f itself. mu_D = 1 (the default) is the least that an unbiased sketch has; a
    sketch that is not scaled is known, and refused, by its own mu_D.

    >>> bounds = problem_bounds(L_f=2., mu_f=.5, L_D=4., mu_D=2.)
    >>> bounds.smoothness, bounds.strong_convexity, bounds.condition_number
    (8.0, 1.0, 8.0)
    >>> low, high = bounds.value_at_solution(f_star=1., star_distance_sq=.1, solution_distance_sq=.04)
    >>> round(float(low), 6), round(float(high), 6)
    (1.01, 1.3)
    """
    L_max = None if L_max is None else unbiased("L_max", L_max)
    return ProblemBounds(
        check_positive("L_f", L_f),
        check_nonnegative("mu_f", mu_f),
        unbiased("L_D", L_D),
        unbiased("mu_D", mu_D),
        L_max,
    )


def _finite(name: str, value: Any) -> Any:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ArgumentError(f"{name} must be a number or an array of numbers, not {value!r}") from None
    if not np.isfinite(array).all():
        raise ArgumentError(f"{name} must be finite")
    return plain(array)
