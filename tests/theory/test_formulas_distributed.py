"""Distributed DSGD: step sizes, bounds and plans against the formulas typed a second time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mast import theory
from theory.formulas import count, gaps, least_one, near, share, size, unhurried, whole_near


@pytest.mark.parametrize("nodes", ["any", "independent", "disjoint"])
@unhurried
@given(
    M=st.integers(1, 5),
    seed=st.integers(0, 10**6),
    gap=gaps,
    start=size,
    delta=share,
    eps=size,
    T=count,
    cut=share,
)
def test_distributed(nodes, M, seed, gap, start, delta, eps, T, cut):
    rng = np.random.default_rng(seed)
    L_f, L_D = np.exp(rng.uniform(-3, 3, M)), np.exp(rng.uniform(0, 3, M))
    L_max = L_D * M * np.exp(rng.uniform(0, 2, M))
    mu_f, mu_D = L_f * rng.uniform(0.01, 1, M), np.ones(M)
    constants = {
        "L_f": L_f,
        "L_D": L_D,
        "L_max": L_max,
        "mu_f": mu_f,
        "mu_D": mu_D,
        "gap": gap,
        "nodes": nodes,
    }
    Lbar, Lhat, mu = sum(L_f * L_D) / M, max(L_f * L_max), sum(mu_f * mu_D) / M
    noisy = {"any": Lhat, "independent": Lhat / M, "disjoint": Lhat / M}[nodes]
    steepest = {"any": Lhat, "independent": Lbar + Lhat / M, "disjoint": Lhat / M}[nodes]
    if mu <= steepest:  # otherwise no functions have these constants
        g = theory.distributed("strongly_convex", **constants)
        near(g.max_step_size(), 1 / steepest)
        step = cut / steepest
        near(g.bound(step, T, r0sq=start), (1 - step * mu) ** T * start + 2 * step * noisy * gap / mu)
        plan = g.plan(delta=delta, r0sq=start)
        near(plan.step_size, min(1 / steepest, mu * delta * start / (2 * noisy * gap) if gap else math.inf))
        whole_near(
            plan.iterations,
            max(steepest / mu, 2 * noisy * gap / (mu**2 * delta * start)) * math.log(1 / delta),
        )
        assert g.bound(plan.step_size, plan.iterations, r0sq=start) <= 2 * delta * start

    g = theory.distributed("convex", **constants)
    near(g.max_step_size(), 1 / (2 * steepest))
    step = cut / (2 * steepest)
    near(g.bound(step, T, r0sq=start), start / (step * T) + 2 * step * noisy * gap)
    plan = g.plan(delta=delta, r0sq=start)
    near(plan.step_size, min(1 / (2 * steepest), delta * start / (2 * noisy * gap) if gap else math.inf))
    whole_near(plan.iterations, max(2 * steepest / delta, 2 * noisy * gap / (delta**2 * start)))
    assert g.bound(plan.step_size, plan.iterations, r0sq=start) <= 2 * delta * start

    g = theory.distributed("nonconvex", **constants)
    D = Lbar * noisy
    limit = 1 / math.sqrt(D * T)
    first = last = 1
    if nodes == "independent":
        limit, first, last = min(1 / Lbar, limit), 2, 2
    near(g.max_step_size(T), limit)
    step = cut * limit
    near(g.bound(step, T, delta0=start), first * 3 * start / (step * T) + last * step * D * gap)
    assert g.bound(1.01 * limit, T, delta0=start) == math.inf
    if nodes != "independent":
        plan = g.plan(eps=eps, delta0=start)
        whole_near(plan.iterations, 12 * start * D / eps**4 * max(3 * start, gap))
        longest = 1 / math.sqrt(D * plan.iterations)
        near(plan.step_size, min(longest, eps**2 / (2 * D * gap) if gap else math.inf))
        assert g.bound(plan.step_size, plan.iterations, delta0=start) <= eps * eps


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
