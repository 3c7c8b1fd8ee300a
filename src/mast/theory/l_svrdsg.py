"""L-SVRDSG (Algorithm 3), variance reduction over a finite uniform support: Theorems 17 and 19, corrected.

h = grad f_S(x) - grad f_S(w) + hhat, x <- x - g h; with probability p the reference point w becomes the x
of before the step. hhat is the mean of grad f_Si(w) over a batch of b of the N sketches, drawn without
replacement. `_FRESH` has the statements for b = N, p = 1, or a fresh batch at every step, `_KEPT` those
for a batch that is kept until the next refresh. There

- rho = min{g mu_D mu_f, p/2}, zeta = zeta(N, b),
- Psi = |x - x_D*|² + (16 g²/(p N)) sum_i |grad f_Si(w) - grad f_Si(x_D*)|²,
- D0 = mean_i |grad f_Si(x0) - grad f_Si(x_D*)|² and sigma² = mean_i |grad f_Si(x_D*)|².

The support may be a sample of a sketch: the constants are then those of the sample, whose mean S is not
quite I, so L_D and mu_D may be below 1 here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mast.support.checks import check_choice, check_optional, check_positive, check_probability
from mast.theory.dsgd import SMOOTH, known
from mast.theory.dsgd_inexact import zeta
from mast.theory.guarantee import (
    Guarantee,
    Plan,
    Start,
    always_kept,
    bounded_sketch,
    check_count,
    combined,
    consistent,
    decay,
    regime_of,
    strong_convexity,
)
from mast.theory.plans import Array

_STRONG = (SMOOTH, "f is mu_f-strongly convex", "S is uniform on a finite support of N sketches")
_CONVEX = (SMOOTH, "f is convex", "S is uniform on a finite support of N sketches")
_WITHOUT = {
    "nonconvex": "its theorems need convexity. s_page is the variance-reduced method for non-convex f."
}
_OR = "a fresh batch at every step (or b = N, or p = 1)"
_FRESH: dict[str, dict[str, Any]] = {
    "strongly_convex": {
        "statement": f"Theorem 17, corrected: L-SVRDSG, strongly convex f, {_OR}",
        "assumptions": _STRONG,
        "limit_formula": "g <= 1/(20 L_f L_max)",
        "bound_formula": "(1 - rho)^T Psi0 + 8 g² L_f L_max zeta gap/rho",
    },
    "convex": {
        "statement": f"Theorem 19, corrected: L-SVRDSG, convex f, {_OR}",
        "assumptions": _CONVEX,
        "limit_formula": "g <= 1/(40 L_f L_max)",
        "bound_formula": "Psi0/(g T) + 8 g L_f L_max zeta gap",
    },
}
_KEPT: dict[str, dict[str, Any]] = {
    "strongly_convex": {
        "statement": "Theorem 17 in the form that holds when the batch is kept: L-SVRDSG, strongly convex f",
        "assumptions": _STRONG,
        "limit_formula": "g <= 1/(L_f [6 L_max + (2 L_D + 32 zeta L_max)/p])",
        "bound_formula": "2 (1 - rho)^T (r0sq + (4 g²/p)(1 + 8 zeta/p) D0) + 48 g² zeta sigma²/(p rho)",
    },
    "convex": {
        "statement": "Theorem 19 in the form that holds when the batch is kept: L-SVRDSG, convex f",
        "assumptions": _CONVEX,
        "limit_formula": "g <= 1/(L_f [2 L_D/p + 8 L_max + (12/p + 8) zeta L_max])",
        "bound_formula": "(r0sq + (g²/p)(6 zeta/p + 2 + 4 zeta) D0)/(g T) + (10/p + 2/(p² T)) g zeta sigma²",
    },
}


def l_svrdsg(
    regime: str,
    *,
    N: int | None = None,
    b: int | None = None,
    p: float | None = None,
    batch: str = "fresh",
    L_f: float | None = None,
    mu_f: float | None = None,
    L_D: float | None = None,
    mu_D: float | None = None,
    L_max: float | None = None,
    gap: float | None = None,
) -> Guarantee:
    """The guarantee of L-SVRDSG: Theorem 17 (strongly convex) or 19 (convex), for a fresh or a kept batch.

    `b` is N by default, and then needs no gap. `batch="kept"` with b = N or p = 1 is the fresh statement.

    Fresh: `bound` and `plan` take Psi0, or r0sq and D0 from which Psi0 = r0sq + (16 g²/p) D0 follows (w0 =
    x0); `plan` then uses the Psi0 of the largest step size. The target is 2 delta Psi0. Kept: they take
    r0sq, D0 and sigma_sq; the target is 2 delta r0sq. `plan` finds the fewest iterations numerically, with
    the step size that minimises the bound there.

    >>> g = l_svrdsg("strongly_convex", N=10, p=.1, L_f=1, mu_f=.1, mu_D=4, L_max=16)
    >>> 1 / g.max_step_size()
    320.0
    >>> round(g.bound(1 / 320, 2000, Psi0=5.), 4)
    0.4098
    >>> g.plan(delta=.01, Psi0=5.)
    Plan(step_size=0.003125, iterations=3128, target=0.1)
    >>> kept = l_svrdsg("convex", N=10, b=5, p=.1, batch="kept", L_f=1, L_D=4, L_max=16)
    >>> round(1 / kept.max_step_size(), 1)
    435.6
    """
    regime_of(regime, "L-SVRDSG", _WITHOUT)
    check_choice("batch", batch, ("fresh", "kept"))
    N = check_count("N", N, 1)
    b = N if b is None else check_count("b", b, 1, N)
    p, L_f, L_max = check_probability("p", p), check_positive("L_f", L_f), bounded_sketch("L_max", L_max)
    z, mu, gap = zeta(N, b), None, check_optional("gap", gap)
    if regime == "strongly_convex":
        mu = combined("mu_D mu_f", strong_convexity("mu_f", mu_f) * always_kept("mu_D", mu_D))
    numbers = known(N=N, b=b, p=p, zeta=z, L_f=L_f, L_max=L_max, mu=mu, gap=gap)
    if batch == "fresh" or z == 0 or p == 1:
        steepest = combined("L_f L_max", L_f * L_max)
        consistent(mu or 0.0, 1 / steepest, "L_f L_max")
        return FreshBatch(
            **_FRESH[regime],
            algorithm="L-SVRDSG",
            regime=regime,
            constants=numbers,
            quantity="E f_D(xbar) - f_D^inf" if mu is None else "E Psi^T",
            mu=mu,
            p=p,
            limit=1 / ((40 if mu is None else 20) * steepest),
            noise=0.0 if z == 0 else None if gap is None else 8 * steepest * z * gap,
        )
    L_D, words = check_positive("L_D", L_D), _KEPT[regime]
    if mu is None:
        scale = L_f * (2 * L_D / p + 8 * L_max + (12 / p + 8) * z * L_max)
    else:
        scale = L_f * (6 * L_max + (2 * L_D + 32 * z * L_max) / p)
    formula = words["limit_formula"].removeprefix("g <= 1/(").removesuffix(")")
    limit = 1 / combined(formula, scale)
    consistent(mu or 0.0, limit, formula)
    return KeptBatch(
        **words,
        algorithm="L-SVRDSG",
        regime=regime,
        constants={**numbers, "L_D": L_D},
        quantity="mean_{t<T} E f_D(x^t) - f_D^inf" if mu is None else "E|x^T - x_D*|²",
        mu=mu,
        p=p,
        z=z,
        limit=limit,
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class FreshBatch(Guarantee):
    """Both regimes with a fresh batch; mu is None where f is convex and no more."""

    mu: float | None
    p: float
    _noise_hint = ", or use b = N, which needs none"

    def _value(self, step: Array, T: Array, start: Start) -> Array:
        Psi0 = self._start(step, start)
        if self.mu is None:
            return Psi0 / (step * T) + step * self._noise
        rho = np.minimum(step * self.mu, self.p / 2)
        noise = np.where(step > 0, step * (self._noise * step / rho), 0.0)
        return decay(rho, T) * Psi0 + noise

    def _start(self, step: Array, start: Start) -> Array:
        if "Psi0" in start or "r0sq" not in start or "D0" not in start:
            return start["Psi0"]
        return start["r0sq"] + step * (16 * step / self.p) * start["D0"]

    def _plan(self, aim: float, start: Start) -> Plan:
        known_start = Start(Psi0=self._start(np.asarray(self.limit), start))
        return self._search(2 * aim * known_start.positive("Psi0"), known_start)


@dataclass(frozen=True, kw_only=True, repr=False)
class KeptBatch(Guarantee):
    """Both regimes with the batch kept until the next refresh; mu is None where f is convex and no more."""

    mu: float | None
    p: float
    z: float

    def _value(self, step: Array, T: Array, start: Start) -> Array:
        r0sq, D0, sigma_sq = start["r0sq"], start["D0"], start["sigma_sq"]
        p, z = self.p, self.z
        if self.mu is None:
            weight = step * (step / p * (6 * z / p + 2 + 4 * z))
            return (
                (r0sq + weight * D0) / (step * T)
                + 10 * step * z * sigma_sq / p
                + 2 * step * z * sigma_sq / (p * p * T)
            )
        rho = np.minimum(step * self.mu, p / 2)
        weight = step * (4 * step / p * (1 + 8 * z / p))
        noise = np.where(step > 0, 48 * step * (step / rho) * z * sigma_sq / p, 0.0)
        return 2 * decay(rho, T) * (r0sq + weight * D0) + noise

    def _plan(self, aim: float, start: Start) -> Plan:
        for name in ("D0", "sigma_sq"):
            start.one(name)
        return self._search(2 * aim * start.positive("r0sq"), start)
