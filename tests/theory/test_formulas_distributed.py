"""Distributed DSGD: step sizes, bounds and plans against the formulas typed a second time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mast import theory
from theory import formulas
from theory.formulas import count, gaps, least_one, near, size, unhurried


@pytest.mark.parametrize("nodes", ["any", "independent", "disjoint"])
@unhurried
@given(**formulas.DSGD, M=st.integers(1, 5), seed=st.integers(0, 10**6))
def test_distributed(nodes, M, seed, gap, start, delta, eps, T, cut):
    rng = np.random.default_rng(seed)
    L_f, L_D = np.exp(rng.uniform(-3, 3, M)), np.exp(rng.uniform(0, 3, M))
    L_max = L_D * M * np.exp(rng.uniform(0, 2, M))
    mu_f, mu_D = L_f * rng.uniform(0.01, 1, M), np.ones(M)
    constants = {"L_f": L_f, "L_D": L_D, "L_max": L_max, "mu_f": mu_f, "mu_D": mu_D, "gap": gap}
    Lbar, Lhat, mu = sum(L_f * L_D) / M, max(L_f * L_max), sum(mu_f * mu_D) / M
    noisy = {"any": Lhat, "independent": Lhat / M, "disjoint": Lhat / M}[nodes]
    steepest = {"any": Lhat, "independent": Lbar + Lhat / M, "disjoint": Lhat / M}[nodes]
    noise = 2 * noisy * gap
    if mu <= steepest:  # otherwise no functions have these constants
        g = theory.distributed("strongly_convex", nodes=nodes, **constants)
        formulas.check_strongly_convex(g, steepest, mu, noise, start=start, delta=delta, T=T, cut=cut)
    g = theory.distributed("convex", nodes=nodes, **constants)
    formulas.check_convex(g, steepest, noise, start=start, delta=delta, T=T, cut=cut)
    g = theory.distributed("nonconvex", nodes=nodes, **constants)
    if nodes == "independent":
        limit = min(1 / Lbar, 1 / math.sqrt(Lbar * noisy * T))
        near(g.max_step_size(T), limit)
        step = cut * limit
        near(g.bound(step, T, delta0=start), 6 * start / (step * T) + 2 * step * Lbar * noisy * gap)
    else:
        formulas.check_nonconvex(g, noisy, Lbar, noise, start=start, eps=eps, T=T, cut=cut)
    assert g.bound(1.01 * g.max_step_size(T), T, delta0=start) == math.inf


@unhurried
@given(
    q=st.lists(st.floats(0.01, 1.0), min_size=2, max_size=4), L_max=least_one, gap=gaps, m=st.integers(1, 2)
)
def test_participation(q, L_max, gap, m):
    M = len(q)
    L_f, L_D = np.arange(1.0, M + 1), np.full(M, 1.5)
    constants = {"L_f": L_f, "L_D": L_D, "L_max": L_max, "gap": gap}
    Lbar = np.mean(L_f * L_D)
    steepest = {
        "any": lambda hat, m: hat,
        "independent": lambda hat, m: Lbar + hat / m,
        "disjoint": lambda hat, m: hat / m,
    }
    for nodes, scale in steepest.items():
        g = theory.distributed("convex", nodes=nodes, participation=q, **constants)
        near(g.max_step_size(), 1 / (2 * scale(max(L_f * L_max / q), M)))
        g = theory.distributed("convex", nodes=nodes, participants=m, **constants)
        near(g.max_step_size(), 1 / (2 * scale(max(L_f * L_max), m)))
        noise = max(L_f * L_max) / (1 if nodes == "any" else m)
        step = g.max_step_size()
        near(g.bound(step, 10, r0sq=1), 1 / (10 * step) + 2 * step * noise * gap)


@unhurried
@given(L_f=size, L_D=least_one, L_max=least_one, gap=gaps, m=st.integers(1, 50), T=count)
def test_averaged_draws(L_f, L_D, L_max, gap, m, T):
    constants = {"L_f": L_f, "L_D": L_D, "L_max": L_max, "gap": gap}
    near(
        theory.averaged_draws("convex", draws=m, **constants).max_step_size(),
        1 / (2 * L_f * (L_D + L_max / m)),
    )
    g = theory.averaged_draws("nonconvex", draws=m, **constants)
    limit = min(1 / (L_f * L_D), 1 / (L_f * math.sqrt(L_D * L_max * T / m)))
    near(g.max_step_size(T), limit)
    near(g.bound(limit, T, delta0=2.0), 12 / (limit * T) + 2 * limit * L_f**2 * L_D * L_max / m * gap)
