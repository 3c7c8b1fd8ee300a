"""The three forms a bound takes: a distance that contracts, an average that falls, a gradient that vanishes.

DSGD, its inexact variant and its distributed variant differ in constants only; each fills in one of these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mast.errors import ArgumentError
from mast.theory.arguments import Array
from mast.theory.guarantee import Guarantee, Plan, Start, decay

UNBIASED = "E[S] = I, E[S'S] finite"
SMOOTH = "f is L_f-smooth and bounded below"


@dataclass(frozen=True, kw_only=True, repr=False)
class _Noisy(Guarantee):
    """A bound with a term that grows with the step size and vanishes with the gap."""

    noise: float | None
    """What multiplies the step size in the last term; None while the gap is not known."""
    noise_needs: str = "gap"

    @property
    def _noise(self) -> float:
        if self.noise is None:
            raise ArgumentError(
                f"{self.noise_needs} is missing: the step size does not need it, the bound and the plan do. "
                f"Pass {self.noise_needs}= when making the guarantee"
            )
        return self.noise


@dataclass(frozen=True, kw_only=True, repr=False)
class Contraction(_Noisy):
    """Strongly convex: E|x^T - x_D*|² <= (1 - g mu)^T r0sq + g noise/mu for g <= limit.

    For 2 delta r0sq: g = min{limit, mu delta r0sq/noise}, T >= (1/mu) max{1/limit, noise/(mu delta r0sq)}
    ln(1/delta).
    """

    mu: float
    limit: float
    quantity: str = "E|x^T - x_D*|²"

    def _limit(self, T: Array | None) -> Array:
        return np.asarray(self.limit)

    def _value(self, step: Array, T: Array, start: Start) -> Array:
        return decay(step * self.mu, T) * start.need("r0sq") + step * (self._noise / self.mu)

    def _plan(self, aim: float, start: Start) -> Plan:
        r0sq, noise = _positive_start("r0sq", start), self._noise
        step, longest = self.limit, 1 / self.limit
        if noise > 0:
            step = min(step, self.mu * aim * r0sq / noise)
            longest = max(longest, _divide(noise, self.mu * aim * r0sq))
        return self._settle(lambda T: step, longest / self.mu * math.log(1 / aim), 2 * aim * r0sq, start)


@dataclass(frozen=True, kw_only=True, repr=False)
class Average(_Noisy):
    """Convex: E f_D(xbar) - f_D^inf <= r0sq/(g T) + g noise for g <= limit.

    xbar is one of the T iterates, chosen uniformly.
    For 2 delta r0sq: g = min{limit, delta r0sq/noise}, T >= (1/delta) max{1/limit, noise/(delta r0sq)}.
    """

    limit: float
    quantity: str = "E f_D(xbar) - f_D^inf"

    def _limit(self, T: Array | None) -> Array:
        return np.asarray(self.limit)

    def _value(self, step: Array, T: Array, start: Start) -> Array:
        return start.need("r0sq") / (step * T) + step * self._noise

    def _plan(self, aim: float, start: Start) -> Plan:
        r0sq, noise = _positive_start("r0sq", start), self._noise
        step, longest = self.limit, 1 / self.limit
        if noise > 0:
            step = min(step, aim * r0sq / noise)
            longest = max(longest, _divide(noise, aim * r0sq))
        return self._settle(lambda T: step, longest / aim, 2 * aim * r0sq, start)


@dataclass(frozen=True, kw_only=True, repr=False)
class Stationarity(_Noisy):
    """Non-convex: min_{t<T} E|grad f_D(x^t)|² <= first delta0/(g T) + g noise.

    The limit is g <= min{cap, 1/sqrt(growth T)}.
    For eps² (where cap is infinite and first is 3): g = min{1/sqrt(growth T), eps²/(2 noise)},
    T >= (12 delta0/eps⁴) max{3 delta0 growth, noise}. Otherwise the fewest T is searched for.
    """

    growth: float
    cap: float = math.inf
    first: float = 3.0
    quantity: str = "min_{t<T} E|grad f_D(x^t)|²"

    @property
    def _limit_depends_on_T(self) -> bool:
        return True

    def _limit(self, T: Array | None) -> Array:
        assert T is not None
        return np.minimum(self.cap, 1 / np.sqrt(self.growth * T))

    def _value(self, step: Array, T: Array, start: Start) -> Array:
        return self.first * start.need("delta0") / (step * T) + step * self._noise

    def _plan(self, aim: float, start: Start) -> Plan:
        delta0, noise, target = start.need_one("delta0"), self._noise, aim * aim
        if target == 0:
            raise ArgumentError(f"eps = {aim:g} is too small: its square is 0 in floating point")
        if self.first != 3.0 or self.cap < math.inf:
            return self._search(target, start)

        def step(T: int) -> float:
            steepest = 1 / math.sqrt(self.growth * T)
            return min(steepest, target / 2 / noise) if noise > 0 else steepest

        needed = 12 * delta0 / target * max(3 * delta0 * self.growth / target, noise / target)
        return self._settle(step, needed, target, start)


@dataclass(frozen=True, kw_only=True, repr=False)
class StationarityAnyStep(Stationarity):
    """The same, where the statement also covers larger steps: (1 + g² growth)^T takes the place of 3."""

    _beyond_words = "above it the bound uses the general factor (1 + g² D²)^T in place of 3"

    def _beyond(self, step: Array, T: Array, start: Start) -> Array:
        factor = np.exp(T * np.log1p(step * self.growth * step))
        return factor * (start.need("delta0") / (step * T)) + step * self._noise


def _positive_start(name: str, start: Start) -> float:
    value = start.need_one(name)
    if value <= 0:
        raise ArgumentError(
            f"{name} must be positive to plan for a share of it: at {name} = 0 the run has arrived"
        )
    return value


def _divide(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else math.inf


def noise_of(constant: float, gap: float | None) -> float | None:
    """What multiplies the step size in a bound: unknown while the gap is, 0 where the gap is."""
    if gap is None:
        return None
    if constant * gap > 1e300:
        raise ArgumentError(f"the noise term {constant:g} times {gap:g} overflows: measure f in other units")
    return constant * gap


def known(**numbers: float | None) -> dict[str, float]:
    """The constants that were given, for a guarantee to show."""
    return {name: value for name, value in numbers.items() if value is not None}
