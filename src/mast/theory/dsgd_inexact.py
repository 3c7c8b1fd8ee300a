"""DSGD (Algorithm 1, II): an estimator stands for grad f_S. Theorems 4, 12 and 13, Corollaries 5, 6 and 7.

`sampling_constants` describes the estimator that draws terms of a finite sum.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mast.errors import ArgumentError
from mast.support.checks import check_choice, check_nonnegative, check_optional, check_positive
from mast.theory.dsgd import FINITE, SMOOTH, descent, known, noise_of
from mast.theory.guarantee import (
    Guarantee,
    always_kept,
    bounded_sketch,
    check_count,
    combined,
    per_node,
    regime_of,
    strong_convexity,
)

_ESTIMATOR = "the estimator is unbiased, with E|g_S|² <= 2A (f_S - f^inf) + B |grad f_S|² + C"
_INEXACT: dict[str, dict[str, Any]] = {
    "strongly_convex": {
        "statement": "Theorem 12, Corollary 6: DSGD with stochastic sketched gradients, strongly convex f",
        "assumptions": (SMOOTH, "f is mu_f-strongly convex", FINITE, _ESTIMATOR),
        "limit_formula": "g <= 1/D_AB",
        "bound_formula": "(1 - g mu_D mu_f)^T r0sq + g (2 gap D_AB + C)/(mu_D mu_f)",
    },
    "convex": {
        "statement": "Theorem 13, Corollary 7, corrected: DSGD with stochastic sketched gradients, convex f",
        "assumptions": (SMOOTH, "f is convex and f_D has a minimiser", FINITE, _ESTIMATOR),
        "limit_formula": "g <= 1/(2 D_AB)",
        "bound_formula": "r0sq/(g T) + g (2 gap D_AB + C)",
    },
    "nonconvex": {
        "statement": "Theorem 4, Corollary 5: DSGD with stochastic sketched gradients, non-convex f",
        "assumptions": (SMOOTH, FINITE, _ESTIMATOR),
        "limit_formula": "g <= 1/sqrt(L_f L_D D_AB T)",
        "bound_formula": "3 delta0/(g T) + g L_f L_D (2 gap D_AB + C)/2",
    },
}


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


def zeta(N: int, b: int) -> float:
    """zeta(N, b) = (N - b)/(max(1, N - 1) b): the variance of a mean of b out of N, over that of one.

    Batches of terms and of sketches share it. 1 for a single draw, 0 for all of them.

    >>> zeta(10, 1), zeta(10, 10), zeta(1, 1), zeta(5, 2)
    (1.0, 0.0, 0.0, 0.375)
    """
    N = check_count("N", N, 1)
    b = check_count("b", b, 1, N)
    return (N - b) / (max(1, N - 1) * b)
