"""DSGD with the exact sketched gradient (Algorithm 1, I): Theorems 2, 3 and 10, Corollaries 2, 3 and 4.

One step is x <- x - g grad f_S(x) with a fresh draw of S, where grad f_S(x) = S' grad f(v + S(x - v)).

==================  =======================  ===============================================================
regime              step size                bound
==================  =======================  ===============================================================
strongly_convex     g <= 1/(L_f L_max)       E|x^T - x_D*|² <= (1 - g mu)^T r0sq + 2 g L_f L_max gap/mu
convex              g <= 1/(2 L_f L_max)     E f_D(xbar) - f_D^inf <= r0sq/(g T) + 2 g L_f L_max gap
nonconvex           g <= 1/(D sqrt T)        min_t E|grad f_D|² <= 3 delta0/(g T) + g D² gap
==================  =======================  ===============================================================

with mu = mu_D mu_f and D = L_f sqrt(L_D L_max). For any g the last bound holds with (1 + g² D²)^T for 3.
"""

from __future__ import annotations

from mast.checks import optional, positive
from mast.theory.arguments import combined, regime_of, strong_convexity, unbiased
from mast.theory.forms import SMOOTH, UNBIASED, Words, descent, known, noise_of
from mast.theory.guarantee import Guarantee

_BOUNDED = "L_max finite"
_WORDS = {
    "strongly_convex": Words(
        "Theorem 2, Corollary 3: DSGD with exact sketched gradients, strongly convex f",
        (SMOOTH, "f is mu_f-strongly convex", UNBIASED, _BOUNDED),
        "g <= 1/(L_f L_max)",
        "(1 - g mu_D mu_f)^T r0sq + 2 g L_f L_max gap/(mu_D mu_f)",
    ),
    "convex": Words(
        "Theorem 10, Corollary 4: DSGD with exact sketched gradients, convex f",
        (SMOOTH, "f is convex and f_D has a minimiser", UNBIASED, _BOUNDED),
        "g <= 1/(2 L_f L_max)",
        "r0sq/(g T) + 2 g L_f L_max gap",
    ),
    "nonconvex": Words(
        "Theorem 3, Corollary 2: DSGD with exact sketched gradients, non-convex f",
        (SMOOTH, UNBIASED, _BOUNDED),
        "g <= 1/(L_f sqrt(L_D L_max T))",
        "3 delta0/(g T) + g L_f² L_D L_max gap",
    ),
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

    For a target of 2 delta r0sq (eps² if non-convex), `plan` follows the corollaries:

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
    L_f, L_max, gap = positive("L_f", L_f), unbiased("L_max", L_max), optional("gap", gap)
    steepest = combined("L_f L_max", L_f * L_max)
    mu = strong_convexity("mu_f", mu_f) * unbiased("mu_D", mu_D) if regime == "strongly_convex" else None
    L_D = unbiased("L_D", L_D) if regime == "nonconvex" else None
    return descent(
        regime,
        "DSGD",
        _WORDS[regime],
        known(L_f=L_f, L_D=L_D, L_max=L_max, mu=mu, gap=gap),
        steepest=steepest,
        steepest_words="L_f L_max",
        noise=noise_of(2 * steepest, gap),
        mu=mu,
        smoothness=None if L_D is None else L_f * L_D,
        any_step=True,
    )
