"""The three forms a bound takes: a distance that contracts, an average that falls, a gradient that vanishes.

DSGD, its inexact variant and its distributed variant differ in constants and words only: each has a table of
words, one row per regime, and `descent` fills in the form of the regime.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mast.errors import ArgumentError
from mast.theory.arguments import Array, check_count, combined, consistent
from mast.theory.guarantee import Guarantee, Plan, Start, decay

FINITE = "E[S'S] is finite"
SMOOTH = "f is L_f-smooth and bounded below"


class Words(NamedTuple):
    """A row of a table of statements: where it stands, what it assumes, its step size and its bound."""

    statement: str
    assumptions: tuple[str, ...]
    limit_formula: str
    bound_formula: str

    def filled(self, algorithm: str, regime: str, constants: Mapping[str, float]) -> dict[str, Any]:
        """The fields of a guarantee that are words and numbers to show."""
        return {"algorithm": algorithm, "regime": regime, "constants": constants, **self._asdict()}


def descent(
    regime: str,
    algorithm: str,
    words: Words,
    constants: Mapping[str, float],
    *,
    steepest: float,
    steepest_words: str,
    noise: float | None,
    noise_needs: str = "gap",
    mu: float | None = None,
    smoothness: float | None = None,
    any_step: bool = False,
    cap: float = math.inf,
    first: float = 3.0,
) -> Guarantee:
    """The statement of a regime: what it says in words, and the numbers of its form.

    1/steepest is the largest step size (for non-convex f the smoothness and the length of the run come in),
    `noise` multiplies it in the last term of the bound, `mu` and `smoothness` are those of f_D. The rest is
    for `Stationarity`.
    """
    common = words.filled(algorithm, regime, constants) | {"noise_needs": noise_needs}
    if regime == "strongly_convex":
        assert mu is not None
        consistent(mu, 1 / steepest, steepest_words)
        return Contraction(**common, mu=mu, limit=1 / steepest, noise=noise)
    if regime == "convex":
        return FallingAverage(**common, limit=1 / (2 * steepest), noise=noise)
    assert smoothness is not None
    growth = combined(f"the smoothness of f_D times {steepest_words}", smoothness * steepest)
    noise = noise_of(smoothness / 2, noise)
    form = StationarityAnyStep if any_step else Stationarity
    return form(**common, growth=growth, noise=noise, cap=cap, first=first)


@dataclass(frozen=True, kw_only=True, repr=False)
class Contraction(Guarantee):
    """Strongly convex: E|x^T - x_D*|² <= (1 - g mu)^T r0sq + g noise/mu for g <= limit.

    For 2 delta r0sq: g = min{limit, mu delta r0sq/noise}, T >= (1/mu) max{1/limit, noise/(mu delta r0sq)}
    ln(1/delta).
    """

    mu: float
    quantity: str = "E|x^T - x_D*|²"

    def _value(self, step: Array, T: Array, start: Start) -> Array:
        return decay(step * self.mu, T) * start["r0sq"] + step * (self._noise / self.mu)

    def _plan(self, aim: float, start: Start) -> Plan:
        r0sq = start.positive("r0sq")
        step, longest = _balanced(self.limit, self._noise, self.mu * aim * r0sq)
        return self._settle(lambda T: step, longest / self.mu * math.log(1 / aim), 2 * aim * r0sq, start)


@dataclass(frozen=True, kw_only=True, repr=False)
class FallingAverage(Guarantee):
    """Convex: E f_D(xbar) - f_D^inf <= r0sq/(g T) + g noise for g <= limit.

    xbar is one of the T iterates, chosen uniformly.
    For 2 delta r0sq: g = min{limit, delta r0sq/noise}, T >= (1/delta) max{1/limit, noise/(delta r0sq)}.
    """

    quantity: str = "E f_D(xbar) - f_D^inf"

    def _value(self, step: Array, T: Array, start: Start) -> Array:
        return start["r0sq"] / (step * T) + step * self._noise

    def _plan(self, aim: float, start: Start) -> Plan:
        r0sq = start.positive("r0sq")
        step, longest = _balanced(self.limit, self._noise, aim * r0sq)
        return self._settle(lambda T: step, longest / aim, 2 * aim * r0sq, start)


@dataclass(frozen=True, kw_only=True, repr=False)
class Stationarity(Guarantee):
    """Non-convex: min_{t<T} E|grad f_D(x^t)|² <= first delta0/(g T) + g noise.

    The limit is g <= min{cap, 1/sqrt(growth T)}.
    For eps² (where cap is infinite and first is 3): g = min{1/sqrt(growth T), eps²/(2 noise)},
    T >= (12 delta0/eps⁴) max{3 delta0 growth, noise}. Otherwise the fewest T is searched for.
    """

    growth: float
    cap: float = math.inf
    first: float = 3.0
    quantity: str = "min_{t<T} E|grad f_D(x^t)|²"
    _limit_depends_on_T = True

    def _limit(self, T: Array | None) -> Array:
        assert T is not None
        return np.minimum(self.cap, 1 / np.sqrt(self.growth * T))

    def _value(self, step: Array, T: Array, start: Start) -> Array:
        return self.first * start["delta0"] / (step * T) + step * self._noise

    def _plan(self, aim: float, start: Start) -> Plan:
        delta0, noise, target = start.one("delta0"), self._noise, aim * aim
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
        return factor * (start["delta0"] / (step * T)) + step * self._noise


def _balanced(limit: float, noise: float, allowed: float) -> tuple[float, float]:
    """The step size at which the noise term is at most `allowed`, and what the number of steps grows with."""
    if noise == 0:
        return limit, 1 / limit
    inverse = noise / allowed if allowed > 0 else math.inf
    return min(limit, allowed / noise), max(1 / limit, inverse)


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


def zeta(N: int, b: int) -> float:
    """zeta(N, b) = (N - b)/(max(1, N - 1) b): the variance of a mean of b out of N, over that of one.

    Batches of terms and of sketches share it. 1 for a single draw, 0 for all of them.

    >>> zeta(10, 1), zeta(10, 10), zeta(1, 1), zeta(5, 2)
    (1.0, 0.0, 0.0, 0.375)
    """
    N = check_count("N", N, 1)
    b = check_count("b", b, 1, N)
    return (N - b) / (max(1, N - 1) * b)
