"""DSGD (Algorithm 1, I): x <- x - g grad f_S(x) with grad f_S(x) = S' grad f(v + S(x - v)).

Theorems 2, 3 and 10 with Corollaries 2, 3 and 4 are `dsgd`; on quadratics and least squares the longer step
of `expected_smoothness` is often allowed.

A bound takes one of three forms: a distance that contracts, an average that falls, a gradient that vanishes.
The inexact and the distributed variant differ in constants and words only: each has a table of words, one row
per regime, and `descent` fills in the form of the regime.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mast.errors import ArgumentError
from mast.support.checks import check_optional, check_positive
from mast.theory.guarantee import (
    Guarantee,
    Plan,
    Start,
    always_kept,
    bounded_sketch,
    combined,
    consistent,
    decay,
    regime_of,
    strong_convexity,
)
from mast.theory.plans import Array

FINITE = "E[S'S] is finite"
SMOOTH = "f is L_f-smooth and bounded below"


def descent(
    regime: str,
    algorithm: str,
    words: Mapping[str, Any],
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
    common: dict[str, Any] = {"algorithm": algorithm, "regime": regime, "constants": constants, **words}
    common["noise_needs"] = noise_needs
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


# ---- the statements --------------------------------------------------------------------------------------

_BOUNDED = "L_max finite"
_EXACT: dict[str, dict[str, Any]] = {
    "strongly_convex": {
        "statement": "Theorem 2, Corollary 3: DSGD with exact sketched gradients, strongly convex f",
        "assumptions": (SMOOTH, "f is mu_f-strongly convex", FINITE, _BOUNDED),
        "limit_formula": "g <= 1/(L_f L_max)",
        "bound_formula": "(1 - g mu_D mu_f)^T r0sq + 2 g L_f L_max gap/(mu_D mu_f)",
    },
    "convex": {
        "statement": "Theorem 10, Corollary 4: DSGD with exact sketched gradients, convex f",
        "assumptions": (SMOOTH, "f is convex and f_D has a minimiser", FINITE, _BOUNDED),
        "limit_formula": "g <= 1/(2 L_f L_max)",
        "bound_formula": "r0sq/(g T) + 2 g L_f L_max gap",
    },
    "nonconvex": {
        "statement": "Theorem 3, Corollary 2: DSGD with exact sketched gradients, non-convex f",
        "assumptions": (SMOOTH, FINITE, _BOUNDED),
        "limit_formula": "g <= 1/(L_f sqrt(L_D L_max T))",
        "bound_formula": "3 delta0/(g T) + g L_f² L_D L_max gap",
    },
}
_QUADRATIC: dict[str, Any] = {
    "statement": "Theorem 3.1 of Gower et al. 2019: DSGD on a quadratic, with expected smoothness",
    "assumptions": ("f is a quadratic or a least-squares loss", "H_D = E[S'HS] is positive definite"),
    "limit_formula": "g <= 1/(2 Lambda)",
    "bound_formula": "(1 - g mu)^T r0sq + 2 g sigma²/mu",
}


def dsgd(
    regime: str,
    *,
    L_f: float | None = None,
    mu_f: float | None = None,
    L_D: float | None = None,
    mu_D: float | None = None,
    L_max: float | None = None,
    gap: float | None = None,
) -> Guarantee:
    """The guarantee of DSGD (I): Theorem 2 (strongly convex), 10 (convex) or 3 (non-convex).

    `gap` is f_D^inf - f^inf; the smaller f_D^inf - E f_S^inf may be passed in its place, and is 0 where every
    f_S is minimised at x_D* (Rand-1, a fixed partition). The step size alone does not need it.

    For a target of 2 delta r0sq (eps² if non-convex), `plan` follows the corollaries, with mu = mu_D mu_f and
    D = L_f sqrt(L_D L_max). A larger g has (1 + g² D²)^T in place of 3 in the non-convex bound.

    - strongly convex: g = min{1/(L_f L_max), mu delta r0sq/(2 L_f L_max gap)},
      T >= (L_f L_max/mu) max{1, 2 gap/(mu delta r0sq)} ln(1/delta)
    - convex: g = min{1/(2 L_f L_max), delta r0sq/(2 L_f L_max gap)},
      T >= (2 L_f L_max/delta) max{1, gap/(delta r0sq)}
    - non-convex: g = min{1/(D sqrt T), eps²/(2 D² gap)}, T >= (12 delta0 D²/eps⁴) max{3 delta0, gap}

    >>> g = dsgd("strongly_convex", L_f=3, mu_f=.2, L_D=4, mu_D=2.5, L_max=16, gap=.5)
    >>> g.max_step_size()
    0.0208...
    >>> g.bound(step_size=.02, T=[0, 100, 1000], r0sq=2.0)
    array([3.92      , 2.652..., 1.920...])
    >>> plan = g.plan(delta=.1, r0sq=2.0)
    >>> plan.iterations, round(plan.step_size, 6)
    (2211, 0.002083)
    >>> g.bound(.03, 100, r0sq=2.0)
    inf
    >>> print(g.why(.03))
    step size 0.03 is 1.44 times the limit g <= 1/(L_f L_max) = 0.02083; above it the statement promises
    nothing, and the bound is infinite
    """
    regime_of(regime, "DSGD")
    L_f, L_max, gap = check_positive("L_f", L_f), bounded_sketch("L_max", L_max), check_optional("gap", gap)
    steepest = combined("L_f L_max", L_f * L_max)
    mu = strong_convexity("mu_f", mu_f) * always_kept("mu_D", mu_D) if regime == "strongly_convex" else None
    L_D = check_positive("L_D", L_D) if regime == "nonconvex" else None
    return descent(
        regime,
        "DSGD",
        _EXACT[regime],
        known(L_f=L_f, L_D=L_D, L_max=L_max, mu=mu, gap=gap),
        steepest=steepest,
        steepest_words="L_f L_max",
        noise=noise_of(2 * steepest, gap),
        mu=mu,
        smoothness=None if L_D is None else L_f * L_D,
        any_step=True,
    )


def expected_smoothness(
    *, Lambda: float | None = None, mu: float | None = None, sigma_sq: float | None = None
) -> Guarantee:
    """The guarantee of DSGD (I) on a quadratic: not in the paper.

    Sketched gradients are linear there, grad f_S(x) - grad f_S(y) = S'HS (x - y), so the constant of Gower
    et al. (SGD: General Analysis and Improved Rates, 2019) can be computed instead of bounded:
    E|grad f_S(x) - grad f_S(x_D*)|² <= 2 Lambda (f_D(x) - f_D^inf) holds with

        Lambda = lambda_max(H_D^-½ E[(S'HS)²] H_D^-½),    H_D = E[S'HS].

    `mu` is the smallest eigenvalue of H_D. `sigma_sq` is E|grad f_S(x_D*)|²; the step size alone does not
    need it. E[S] = I is not needed: f_D is the mean of f_S, whatever the mean of S. A longer step also ends
    at a higher floor: of two statements the one with the smaller bound is the better.

    >>> g = expected_smoothness(Lambda=20, mu=.5, sigma_sq=.1)
    >>> g.max_step_size(), g.bound(step_size=.025, T=[0, 1000], r0sq=2.0)
    (0.025, array([2.01     , 0.010...]))
    """
    Lambda, mu = check_positive("Lambda", Lambda), strong_convexity("mu", mu)
    sigma_sq = check_optional("sigma_sq", sigma_sq)
    limit = 1 / (2 * combined("Lambda", Lambda))
    consistent(mu, limit, "2 Lambda")
    return Contraction(
        **_QUADRATIC,
        algorithm="DSGD",
        regime="strongly_convex",
        constants=known(Lambda=Lambda, mu=mu, **{"sigma²": sigma_sq}),
        mu=mu,
        limit=limit,
        noise=noise_of(2.0, sigma_sq),
        noise_needs="sigma_sq",
    )
