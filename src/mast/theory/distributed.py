"""Distributed DSGD (Algorithm 2): Theorems 5, 15 and 16, Corollaries 8, 9 and 10, corrected and sharpened.

Node i of M holds f_i and its own sketch; one step is x <- x - (g/M) sum_i S_i' grad f_i(v + S_i(x - v)).
`_ROWS` has its step size and its bound for each regime, with Lbar = mean_i(L_fi L_Di), D' = Lbar Lhat,
Lhat = max_i(L_fi L_max_i), mu = mean_i(mu_fi mu_Di) and gap = f_D^inf - mean_i f_i^inf.

"any" needs nothing of how the nodes' sketches depend on each other. "independent": they are independent.
"disjoint": no coordinate is kept by two nodes (Perm-K over M <= K nodes, independent subnetwork training),
so the nodes' gradients are orthogonal.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mast.errors import ArgumentError, NoGuaranteeError
from mast.support.checks import check_choice, check_nonnegative, check_optional, check_probability
from mast.theory.dsgd import FINITE, descent, known, noise_of
from mast.theory.guarantee import (
    NO_STATEMENT,
    Guarantee,
    bounded_sketch,
    check_count,
    combined,
    per_node,
    regime_of,
    strong_convexity,
)

_SMOOTH = "each f_i is L_fi-smooth and bounded below"
_COUPLING = {
    "any": "the nodes' sketches may depend on each other in any way",
    "independent": "the nodes' sketches are independent",
    "disjoint": "no coordinate is kept by two nodes at one step",
}
# what stands for Lhat in the step size, for Lhat in the noise, and for D'
_PLACES = {
    "any": ("Lhat", "Lhat", "D'"),
    "independent": ("(Lbar + Lhat/M)", "(Lhat/M)", "(D'/M)"),
    "disjoint": ("(Lhat/M)", "(Lhat/M)", "(D'/M)"),
}
_ROWS = {
    "strongly_convex": (
        "Theorem 15, Corollary 9, corrected: distributed, strongly convex",
        (_SMOOTH, "each f_i is mu_fi-convex, the mean of mu_fi mu_Di positive"),
        "g <= 1/{scale}",
        "(1 - g mu)^T r0sq + 2 g {noisy} gap/mu",
    ),
    "convex": (
        "Theorem 16, Corollary 10, corrected: distributed, convex",
        (_SMOOTH, "each f_i is convex and f_D has a minimiser"),
        "g <= 1/(2 {scale})",
        "r0sq/(g T) + 2 g {noisy} gap",
    ),
    "nonconvex": (
        "Theorem 5, Corollary 8, corrected: distributed, non-convex",
        (_SMOOTH,),
        "g <= 1/sqrt({product} T)",
        "3 delta0/(g T) + g {product} gap",
    ),
}


def distributed(
    regime: str,
    *,
    nodes: str = "any",
    L_f: Any = None,
    mu_f: Any = None,
    L_D: Any = None,
    mu_D: Any = None,
    L_max: Any = None,
    gap: float | None = None,
    M: int | None = None,
    participation: Any = 1.0,
    participants: int | None = None,
    local_steps: int = 1,
) -> Guarantee:
    """The guarantee of distributed DSGD: Theorem 15 (strongly convex), 16 (convex) or 5 (non-convex).

    L_f, mu_f, L_D, mu_D, L_max have one value per node, or one for all; `M` is read from their length, or
    given. `gap` is f_D^inf - mean_i f_i^inf. Independent and disjoint nodes get the sharper statements.
    With one node, "any" is the sharpest.

    `participation`: node i takes part with probability q_i and its gradient is weighted by 1/q_i; L_max_i/q_i
    takes the place of L_max_i. `participants=m`: m of the M nodes, uniformly, averaged over m; Lhat stays,
    and where the table has Lhat/M, m takes the place of M. `local_steps` above 1 has no statement.

    `plan` uses the corollaries' closed forms (those of `dsgd` with Lhat for L_f L_max and D' for D²); for
    independent nodes and non-convex f, the fewest T is found numerically with the step size that serves it
    best.

    >>> g = distributed("convex", nodes="independent", L_f=[1, 2], L_D=[2, 4], L_max=[4, 16], gap=.5)
    >>> 1 / g.max_step_size()
    42.0
    >>> g.bound(.02, 1000, r0sq=1.)
    0.37
    >>> distributed("convex", L_f=[1, 2], L_max=[4, 16], participation=[1., .5]).max_step_size() * 2 * 64
    1.0
    """
    regime_of(regime, "distributed DSGD")
    check_choice("nodes", nodes, ("any", "independent", "disjoint"))
    if check_count("local_steps", local_steps, 1) > 1:
        raise NoGuaranteeError(NO_STATEMENT["local_steps"])
    M = _count(M, L_f=L_f, mu_f=mu_f, L_D=L_D, mu_D=mu_D, L_max=L_max, participation=participation)
    smooth, share = per_node("L_f", L_f, M), per_node("participation", participation, M, check_probability)
    averaged = M if participants is None else check_count("participants", participants, 1, M)
    if averaged < M and (share < 1).any():
        raise ArgumentError("give participation (a probability per node) or participants (m of M), not both")
    with np.errstate(over="ignore"):
        Lhat = combined(
            "max_i L_fi L_max_i",
            float((smooth * (per_node("L_max", L_max, M, bounded_sketch) / share)).max()),
        )
    noisy = Lhat if nodes == "any" else Lhat / averaged
    Lbar = None
    if nodes == "independent" or regime == "nonconvex":
        with np.errstate(over="ignore"):
            Lbar = combined("mean_i L_fi L_Di", float((smooth * per_node("L_D", L_D, M)).mean()))
    mu = _mean_mu(mu_f, mu_D, M) if regime == "strongly_convex" else None
    gap = check_optional("gap", gap)
    steepest, noise, cap, first = noisy, noise_of(2 * noisy, gap), math.inf, 3.0
    if nodes == "independent" and Lbar is not None:
        if regime == "nonconvex":
            noise, cap, first = noise and 2 * noise, 1 / Lbar, 6.0
        else:
            steepest = noisy + Lbar
    return descent(
        regime,
        "distributed DSGD",
        _words(regime, nodes),
        known(M=M, participants=participants, Lhat=Lhat, Lbar=Lbar, gap=gap, mu=mu),
        steepest=steepest,
        steepest_words=_PLACES[nodes][0],
        noise=noise,
        mu=mu,
        smoothness=Lbar,
        cap=cap,
        first=first,
    )


def averaged_draws(regime: str, *, draws: int, **constants: Any) -> Guarantee:
    """The guarantee of DSGD with the gradients of `draws` independent draws averaged at each step.

    The statement for independent nodes with M = draws and one f, whose constants are those of `dsgd`. The
    noise falls with the number of draws, and the limit tends to that of gradient descent on f_D,
    1/(L_f L_D) (half of it for convex f). For one draw, `dsgd` is sharper.

    >>> [round(averaged_draws("convex", draws=m, L_f=1, L_D=4, L_max=16).max_step_size(), 4) for m in (4, 64)]
    [0.0625, 0.1176]
    """
    return distributed(regime, nodes="independent", M=check_count("draws", draws, 1), **constants)


def _count(M: int | None, **arrays: Any) -> int:
    """The number of nodes: given, or the one length that the arrays have."""
    sizes = {name: np.size(value) for name, value in arrays.items() if value is not None}
    longest = max(sizes.values())
    count = longest if M is None else check_count("M", M, 1)
    if any(size not in (1, count) for size in sizes.values()):
        lengths = ", ".join(f"{name} has {size}" for name, size in sizes.items())
        raise ArgumentError(
            f"per-node arguments must have one value or one per node ({count} nodes): {lengths}"
        )
    return count


def _mean_mu(mu_f: Any, mu_D: Any, M: int) -> float:
    """The mean of mu_fi mu_Di; a node may have mu_fi = 0, not all of them."""
    mu = float(
        (per_node("mu_f", mu_f, M, check_nonnegative) * per_node("mu_D", mu_D, M, check_nonnegative)).mean()
    )
    return strong_convexity("mean_i mu_fi mu_Di", mu)


def _words(regime: str, nodes: str) -> dict[str, Any]:
    """The row of a regime, with what stands for Lhat and D'."""
    statement, assumptions, limit, bound = _ROWS[regime]
    if (regime, nodes) == ("nonconvex", "independent"):
        limit, bound = "g <= min{{1/Lbar, 1/sqrt({product} T)}}", "6 delta0/(g T) + 2 g {product} gap"
    scale, noisy, product = _PLACES[nodes]
    return {
        "statement": statement if nodes == "any" else f"{statement}, {nodes} nodes",
        "assumptions": (*assumptions, FINITE, _COUPLING[nodes]),
        "limit_formula": limit.format(scale=scale, product=product),
        "bound_formula": bound.format(noisy=noisy, product=product),
    }
