"""DSGD (Algorithm 1): one sketch per step. Each table has one row per regime, with its step size and bound.

- (I), x <- x - g grad f_S(x) with grad f_S(x) = S' grad f(v + S(x - v)), is `dsgd`: Theorems 2, 3 and 10,
  Corollaries 2, 3 and 4.
- (II), with an estimator of grad f_S in its place, is `dsgd_inexact`: Theorems 4, 12 and 13, Corollaries 5, 6
  and 7. `sampling_constants` describes the estimator that draws terms of a finite sum.
- (I) on quadratics and least squares may often take the longer step of `expected_smoothness`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mast.errors import ArgumentError
from mast.support.checks import check_choice, check_nonnegative, check_optional, check_positive
from mast.theory.arguments import (
    always_kept,
    bounded_sketch,
    check_count,
    combined,
    consistent,
    per_node,
    regime_of,
    strong_convexity,
)
from mast.theory.forms import FINITE, SMOOTH, Contraction, Words, descent, known, noise_of, zeta
from mast.theory.guarantee import Guarantee

_BOUNDED = "L_max finite"
_EXACT = {
    "strongly_convex": Words(
        "Theorem 2, Corollary 3: DSGD with exact sketched gradients, strongly convex f",
        (SMOOTH, "f is mu_f-strongly convex", FINITE, _BOUNDED),
        "g <= 1/(L_f L_max)",
        "(1 - g mu_D mu_f)^T r0sq + 2 g L_f L_max gap/(mu_D mu_f)",
    ),
    "convex": Words(
        "Theorem 10, Corollary 4: DSGD with exact sketched gradients, convex f",
        (SMOOTH, "f is convex and f_D has a minimiser", FINITE, _BOUNDED),
        "g <= 1/(2 L_f L_max)",
        "r0sq/(g T) + 2 g L_f L_max gap",
    ),
    "nonconvex": Words(
        "Theorem 3, Corollary 2: DSGD with exact sketched gradients, non-convex f",
        (SMOOTH, FINITE, _BOUNDED),
        "g <= 1/(L_f sqrt(L_D L_max T))",
        "3 delta0/(g T) + g L_f² L_D L_max gap",
    ),
}
_ESTIMATOR = "the estimator is unbiased, with E|g_S|² <= 2A (f_S - f^inf) + B |grad f_S|² + C"
_INEXACT = {
    "strongly_convex": Words(
        "Theorem 12, Corollary 6: DSGD with stochastic sketched gradients, strongly convex f",
        (SMOOTH, "f is mu_f-strongly convex", FINITE, _ESTIMATOR),
        "g <= 1/D_AB",
        "(1 - g mu_D mu_f)^T r0sq + g (2 gap D_AB + C)/(mu_D mu_f)",
    ),
    "convex": Words(
        "Theorem 13, Corollary 7, corrected: DSGD with stochastic sketched gradients, convex f",
        (SMOOTH, "f is convex and f_D has a minimiser", FINITE, _ESTIMATOR),
        "g <= 1/(2 D_AB)",
        "r0sq/(g T) + g (2 gap D_AB + C)",
    ),
    "nonconvex": Words(
        "Theorem 4, Corollary 5: DSGD with stochastic sketched gradients, non-convex f",
        (SMOOTH, FINITE, _ESTIMATOR),
        "g <= 1/sqrt(L_f L_D D_AB T)",
        "3 delta0/(g T) + g L_f L_D (2 gap D_AB + C)/2",
    ),
}
_QUADRATIC = Words(
    "Theorem 3.1 of Gower et al. 2019: DSGD on a quadratic, with expected smoothness",
    ("f is a quadratic or a least-squares loss", "H_D = E[S'HS] is positive definite"),
    "g <= 1/(2 Lambda)",
    "(1 - g mu)^T r0sq + 2 g sigma²/mu",
)


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


def dsgd_inexact(
    regime: str,
    *,
    A: float | None = None,
    B: float | None = None,
    C: float | None = None,
    L_f: float | None = None,
    mu_f: float | None = None,
    L_D: float | None = None,
    mu_D: float | None = None,
    L_max: float | None = None,
    gap: float | None = None,
) -> Guarantee:
    """The guarantee of DSGD (II): Theorem 12 (strongly convex), 13 (convex) or 4 (non-convex).

    The estimator g_S has E g_S(x) = grad f_S(x) and, with f^inf (not f_S^inf) in the first term,

        E|g_S(x)|² <= 2A (f_S(x) - f^inf) + B |grad f_S(x)|² + C.

    A = C = 0, B = 1 is DSGD (I). C and `gap` are needed for bounds and plans, not for step sizes.
    L_f and L_max are used where B > 0 (L_f also where f is not convex). `plan` is that of `dsgd` with
    D_AB = A + B L_f L_max for L_f L_max, and 2 gap D_AB + C for 2 L_f L_max gap.

    >>> g = dsgd_inexact("convex", A=10, B=.5, C=3, L_f=2, L_max=16, gap=.25)
    >>> 1 / g.max_step_size()
    52.0
    >>> g.bound(.01, 1000, r0sq=1)
    0.26
    >>> g.plan(delta=.05, r0sq=1).iterations
    6400
    """
    regime_of(regime, "DSGD (II)")
    A, B, C, gap = (
        check_nonnegative("A", A),
        check_nonnegative("B", B),
        check_optional("C", C),
        check_optional("gap", gap),
    )
    D_AB = combined(
        "A + B L_f L_max", A + (B and B * check_positive("L_f", L_f) * bounded_sketch("L_max", L_max))
    )
    mu = strong_convexity("mu_f", mu_f) * always_kept("mu_D", mu_D) if regime == "strongly_convex" else None
    smoothness = check_positive("L_f", L_f) * check_positive("L_D", L_D) if regime == "nonconvex" else None
    numbers = known(A=A, B=B, C=C, D_AB=D_AB, gap=gap, mu=mu)
    return descent(
        regime,
        "DSGD (II)",
        _INEXACT[regime],
        numbers if smoothness is None else numbers | {"L_f L_D": smoothness},
        steepest=D_AB,
        steepest_words="A + B L_f L_max",
        noise=None if gap is None or C is None else noise_of(1.0, 2 * gap * D_AB + C),
        noise_needs="gap" if gap is None else "C",
        mu=mu,
        smoothness=smoothness,
    )


class SamplingConstants(NamedTuple):
    """A, B and C of an estimator; `dsgd_inexact(regime, **constants._asdict(), ...)` takes them."""

    A: float
    B: float
    C: float | None


def sampling_constants(
    *,
    L_fi: Any,
    batch_size: int = 1,
    n: int | None = None,
    sketches: str = "one",
    L_f: float | None = None,
    L_D: float | None = None,
    L_max: float | None = None,
    terms_gap: float | None = None,
) -> SamplingConstants:
    """A, B, C for a minibatch of `batch_size` of the n terms f_i, drawn uniformly without replacement.

    `sketches="one"`, one draw of S per step, with z = zeta(n, batch_size), which is 1 for a single term:

        A = z L_max max_i L_fi,  B = 1 - z,  C = 2 A terms_gap,  terms_gap = f^inf - mean_i f_i^inf.

    `sketches="all"`, the gradient averaged over all sketches: L_D takes the place of L_max everywhere, and
    |grad f_D|² <= 2 L_f L_D (f_D - f^inf) turns the B term into part of A, so that B = 0 and
    D_AB = z L_D max_i L_fi + (1 - z) L_f L_D, with C = 2 z L_D max_i L_fi terms_gap.

    L_fi is one value per term; or, with `n`, the largest. L_f is used where sketches are averaged and
    batch_size > 1. Without `terms_gap`, C is None: enough for step sizes.

    >>> sampling_constants(L_fi=[1., 2., 6.], L_max=16, terms_gap=.5)
    SamplingConstants(A=96.0, B=0.0, C=96.0)
    >>> sampling_constants(L_fi=[1., 2., 6.], L_max=16, batch_size=2, terms_gap=.5)
    SamplingConstants(A=24.0, B=0.75, C=24.0)
    >>> sampling_constants(L_fi=[1., 2., 6.], L_D=4, L_f=3, batch_size=2, sketches="all", terms_gap=.5)
    SamplingConstants(A=15.0, B=0.0, C=6.0)
    """
    check_choice("sketches", sketches, ("one", "all"))
    count = np.size(L_fi) if n is None else check_count("n", n, 1)
    if np.size(L_fi) not in (1, count):
        raise ArgumentError(f"L_fi must have one value or n = {count}, and has {np.size(L_fi)}")
    steepest = float(per_node("L_fi", L_fi, count).max())
    z = zeta(count, batch_size)
    if sketches == "one":
        A, B, extra = z * bounded_sketch("L_max", L_max) * steepest, 1 - z, 0.0
    else:
        smoothness = check_positive("L_D", L_D)
        A, B, extra = z * smoothness * steepest, 0.0, 0.0
        if z < 1:
            extra = (1 - z) * check_positive("L_f", L_f) * smoothness
    terms_gap = check_optional("terms_gap", terms_gap)
    return SamplingConstants(A + extra, B, None if terms_gap is None else 2 * A * terms_gap)


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
        **_QUADRATIC.filled("DSGD", "strongly_convex", known(Lambda=Lambda, mu=mu, **{"sigma²": sigma_sq})),
        mu=mu,
        limit=limit,
        noise=noise_of(2.0, sigma_sq),
        noise_needs="sigma_sq",
    )
