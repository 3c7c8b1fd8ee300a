"""The paper's formulas as printed, for those that docs/errata.md corrects. Not for use: `mast.theory` is.

Each function says where it is printed. Statements are numbered as in `mast.theory`. Tests
compare these numbers with exact measurements and with the corrected statements.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from mast.theory import Plan, zeta
from mast.theory.dsgd_inexact import SamplingConstants
from theory.quadratic_moments import Gradients, Step, s_page_step, sketched_gradients


def distributed_nonconvex_constant(L_f: Any, L_D: Any, L_max: Any) -> float:
    """D_max = max_i L_fi² L_Di L_max_i (Theorem 5, Corollary 8)."""
    return float(np.max(np.asarray(L_f, float) ** 2 * np.asarray(L_D, float) * np.asarray(L_max, float)))


def distributed_nonconvex_bound(step_size: float, T: int, D_max: float, gap: float, delta0: float) -> float:
    """3 delta0/(g T) + g D_max gap for g <= 1/sqrt(D_max T) (Theorem 5)."""
    return 3 * delta0 / (step_size * T) + step_size * D_max * gap


def l_svrdsg_bound(
    step_size: float, T: int, *, mu: float, p: float, Psi0: float, noise: float = 0.0
) -> float:
    """(1 - rho)^T Psi0 + g² noise/rho, rho = max{g mu, p/2}, noise = 8 L_f L_max zeta gap (Theorem 17)."""
    rho = max(step_size * mu, p / 2)
    return (1 - rho) ** T * Psi0 + step_size**2 * noise / rho


def l_svrdsg_step_size(L_f: float, L_max: float) -> float:
    """1/(20 L_f L_max) for any batch, kept or not (Theorem 17)."""
    return 1 / (20 * L_f * L_max)


def l_svrdsg_convex_bound(
    step_size: float, T: int, *, L_f: float, L_max: float, N: int, b: int, gap: float, Psi0: float
) -> float:
    """Psi0/(g T) + 8 zeta g L_f L_max gap, printed as a bound on E f_D(xbar) - f(x_D*) (Theorem 19)."""
    return Psi0 / (step_size * T) + 8 * zeta(N, b) * step_size * L_f * L_max * gap


def s_page_step_size(p: float, b_small: int, L_f: float, L_D: float, L_max: float) -> float:
    """1/(sqrt((1-p)/(p b')) L_f (L_D + sqrt(L_max L_D))), infinite at p = 1 (Theorem 20)."""
    scale = math.sqrt((1 - p) / (p * b_small)) * L_f * (L_D + math.sqrt(L_max * L_D))
    return 1 / scale if scale else math.inf


def s_page_update(g: Gradients, step_size: float, p: float, b: int) -> Step:
    """Algorithm 4 with its difference of gradients taken at x^{t+1} twice, so that h does not change."""
    full = s_page_step(g, step_size, p, b, b)
    refreshes = len(full.q) // 2
    d = g.c.shape[1]
    still = np.eye(2 * d + 1)
    still[:d, d : 2 * d] = -step_size * np.eye(d)
    return Step(np.concatenate([full.maps[:refreshes], still[None]]), np.append(full.q[:refreshes], 1 - p))


def nonconvex_plan(*, L_f: float, L_D: float, L_max: float, gap: float, delta0: float, eps: float) -> Plan:
    """Corollary 1: g = min{1/sqrt(D T), eps²/(2 D gap)}, T = (12 delta0 D/eps⁴) max{3 delta0, gap}."""
    D = L_f * math.sqrt(L_D * L_max)
    T = max(1, math.ceil(12 * delta0 * D / eps**4 * max(3 * delta0, gap) * (1 - 1e-12)))
    step = min(1 / math.sqrt(D * T), eps**2 / (2 * D * gap) if gap else math.inf)
    return Plan(step_size=step, iterations=T, target=eps**2)


def sampling_constants(L_fi: Any, terms_gap: float) -> SamplingConstants:
    """A = max_i L_fi, C = 2 A (f^inf - mean f_i^inf) for one uniform f_i (after Theorem 4)."""
    A = float(np.max(L_fi))
    return SamplingConstants(A, 0.0, 2 * A * terms_gap)


def distributed_convex_bound(step_size: float, T: int, Lhat: float, r0sq: float) -> float:
    """r0sq/(g T) + 2 g Lhat (Theorem 16)."""
    return r0sq / (step_size * T) + 2 * step_size * Lhat


def convex_iterations(*, L_f: float, L_max: float, gap: float, delta: float, r0sq: float) -> int:
    """T = (2 L_f L_max/delta) max{1, gap/(delta r0sq)}: Corollary 4, repeated in Corollaries 7 and 10."""
    return math.ceil(2 * L_f * L_max / delta * max(1, gap / (delta * r0sq)))


def strongly_convex_iterations(
    *, L_f: float, L_max: float, mu: float, gap: float, delta: float, r0sq: float
) -> int:
    """T = (L_f L_max/mu) max{1, 2 gap/(mu delta r0sq)} ln(1/delta): Corollary 3, repeated in Corollary 9."""
    return math.ceil(L_f * L_max / mu * max(1, 2 * gap / (mu * delta * r0sq)) * math.log(1 / delta))


class TwoNodes(NamedTuple):
    """A distributed problem in one dimension, with its constants and a start."""

    gradients: Gradients
    L_f: list[float]
    L_D: list[float]
    L_max: list[float]
    gap: float
    delta0: float
    x0: float


def two_nodes(x0: float = 0.530188347546127) -> TwoNodes:
    """A rarely but strongly sketched node beside a steep one without sketch: a counterexample to Theorem 5.

    Node A: f = (x-1)²/2, S = 60 with probability 1/3600, else (1-1/60)/(1-1/3600). Node B: S = 1 and
    f = a (x - 1/L_DA)²/2 with a = sqrt(3600 L_DA), so that both nodes have the same L_f² L_D L_max.
    """
    rare = 1 / 3600
    S, q = np.array([60.0, (1 - 1 / 60) / (1 - rare)]), np.array([rare, 1 - rare])
    L_DA = float(q @ S**2)
    a = math.sqrt(3600 * L_DA)
    node_a = sketched_gradients([[1.0]], [1.0], [[[entry]] for entry in S], probabilities=q)
    joint = Gradients((node_a.H + a) / 2, (node_a.c + a / L_DA) / 2, q)
    # Both nodes have their f_D minimised at 1/L_DA, node B with the value 0.
    solution, curvature = 1 / L_DA, (L_DA + a) / 2
    gap = (1 - 1 / L_DA) / 4
    delta0 = curvature * (x0 - solution) ** 2 / 2
    return TwoNodes(joint, [1.0, a], [L_DA, 1.0], [3600.0, 1.0], gap, delta0, x0)


def axis_sketches(d: int) -> list[Any]:
    """Rand-1 in d dimensions, listed: d times one coordinate."""
    return [d * np.outer(axis, axis) for axis in np.eye(d)]
