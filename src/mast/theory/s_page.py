"""S-PAGE (Algorithm 4), variance reduction for non-convex f over a finite support: Theorem 20, corrected.

x <- x - g h; then, with probability p, h becomes the mean of grad f_Si(x) over b of the N sketches, else
h <- h + the mean over b' sketches of grad f_Si(x) - grad f_Si(x of before the step). In the statement
Psi0 = delta0 + (g/(2p)) |h0 - grad f_D(x0)|², and sigma_D² bounds E|grad f_S(x) - grad f_D(x)|² at every x.
For a quadratic or an l2 term no such number exists (unless all f_S have the same curvature): use b = N there,
which needs none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mast.errors import ArgumentError, NoGuaranteeError
from mast.support.checks import check_optional, check_positive, check_probability
from mast.theory.dsgd import known, noise_of
from mast.theory.dsgd_inexact import zeta
from mast.theory.guarantee import (
    Guarantee,
    Plan,
    Start,
    bounded_sketch,
    check_count,
    combined,
    regime_of,
)
from mast.theory.plans import Array

_ONLY = "its one theorem is for 'nonconvex', and holds for convex f too. l_svrdsg has convex statements."
_WORDS: dict[str, Any] = {
    "statement": "Theorem 20, corrected: S-PAGE, non-convex f",
    "assumptions": (
        "the gradient of f is L_f-Lipschitz, and f is bounded below",
        "S is uniform on a finite support of N sketches",
        "E|grad f_S(x) - grad f_D(x)|² <= sigma_D² at every x, unless b = N",
    ),
    "limit_formula": "g <= 1/(L_f (L_D + sqrt((1-p)/p zeta(N, b') L_max L_D)))",
    "bound_formula": "2 Psi0/(g T) + zeta(N, b) sigma_D²",
}


def s_page(
    regime: str = "nonconvex",
    *,
    N: int | None = None,
    b: int | None = None,
    b_small: int = 1,
    p: float | None = None,
    sigma_sq: float | None = None,
    L_f: float | None = None,
    mu_f: float | None = None,
    L_D: float | None = None,
    mu_D: float | None = None,
    L_max: float | None = None,
    gap: float | None = None,
) -> Guarantee:
    """The guarantee of S-PAGE: Theorem 20. `b` is N by default, `b_small` is b'.

    `sigma_sq` (sigma_D²) is needed for bounds and plans where b < N. `bound` and `plan` take Psi0; or
    delta0, where h0 is the mean over a batch of size b drawn like the others, so that E Psi0 <= delta0 +
    (g/(2p)) zeta(N, b) sigma_D².

    `plan` takes the largest step size, at which the bound is smallest, and the fewest T that brings it to
    eps². Below zeta(N, b) sigma_D² there is no plan: raise b.

    >>> g = s_page(N=10, b=10, b_small=2, p=.2, L_f=1, L_D=4, L_max=16)
    >>> round(1 / g.max_step_size(), 3)
    14.667
    >>> round(g.bound(g.max_step_size(), 1000, Psi0=3.), 4)
    0.088
    >>> g.plan(eps=.1, Psi0=3.).iterations
    8800
    """
    regime_of(regime, "S-PAGE", {"strongly_convex": _ONLY, "convex": _ONLY})
    N = check_count("N", N, 1)
    b = N if b is None else check_count("b", b, 1, N)
    p, sigma_sq = check_probability("p", p), check_optional("sigma_sq", sigma_sq)
    L_f, L_D, L_max = check_positive("L_f", L_f), check_positive("L_D", L_D), bounded_sketch("L_max", L_max)
    large, small = zeta(N, b), zeta(N, check_count("b_small", b_small, 1, N))
    scale = L_f * (L_D + math.sqrt((1 - p) / p * small * L_D) * math.sqrt(L_max))
    return SPage(
        **_WORDS,
        algorithm="S-PAGE",
        regime="nonconvex",
        constants=known(N=N, b=b, b_small=b_small, p=p, L_f=L_f, L_D=L_D, L_max=L_max, sigma_sq=sigma_sq),
        quantity="mean_{t<T} E|grad f_D(x^t)|²",
        limit=1 / combined("L_f (L_D + sqrt((1-p)/p zeta L_max L_D))", scale),
        p=p,
        noise=0.0 if large == 0 else noise_of(large, sigma_sq),
        noise_needs="sigma_sq",
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class SPage(Guarantee):
    """A first term that falls like 1/T, above a floor that only a larger batch lowers."""

    p: float
    _noise_hint = ", or use b = N, which needs none"

    def _start(self, step: Array, start: Start) -> Array:
        if "Psi0" in start or "delta0" not in start:
            return start["Psi0"]
        return start["delta0"] + step * (self._noise / (2 * self.p))

    def _value(self, step: Array, T: Array, start: Start) -> Array:
        value: Array = 2 * self._start(step, start) / (step * T) + self._noise
        return value

    def _plan(self, aim: float, start: Start) -> Plan:
        Psi0 = self._start(np.asarray(self.limit), start)
        if Psi0.size != 1 or not np.isfinite(Psi0).all():
            raise ArgumentError("a plan needs one finite Psi0 or delta0")
        room = aim * aim - self._noise
        if room <= 0:
            raise NoGuaranteeError(
                f"eps² = {aim * aim:g} is not above zeta(N, b) sigma_D² = {self._noise:g}, "
                "which more iterations do not lower: raise b (at b = N the term is 0) or eps"
            )
        return self._settle(
            lambda T: self.limit, 2 * float(Psi0.reshape(())) / self.limit / room, aim * aim, start
        )
