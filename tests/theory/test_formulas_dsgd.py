"""DSGD: step sizes, bounds and plans against the formulas typed a second time."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mast import theory
from theory.formulas import count, gaps, least_one, near, share, size, unhurried, whole_near


@unhurried
@given(
    L_f=size,
    L_max=least_one,
    mu_share=share,
    mu_D=least_one,
    gap=gaps,
    r0sq=size,
    delta=share,
    T=count,
    cut=share,
)
def test_dsgd_strongly_convex(L_f, L_max, mu_share, mu_D, gap, r0sq, delta, T, cut):
    mu_f = mu_share * L_f * L_max / mu_D
    g = theory.dsgd("strongly_convex", L_f=L_f, mu_f=mu_f, L_D=math.inf, mu_D=mu_D, L_max=L_max, gap=gap)
    mu = mu_D * mu_f
    near(g.max_step_size(), 1 / (L_f * L_max))
    step = cut / (L_f * L_max)
    near(g.bound(step, T, r0sq=r0sq), (1 - step * mu) ** T * r0sq + 2 * step * L_f * L_max * gap / mu)
    plan = g.plan(delta=delta, r0sq=r0sq)
    steps, times = [1 / (L_f * L_max)], [1.0]
    if gap > 0:
        steps.append(mu * delta * r0sq / (2 * L_f * L_max * gap))
        times.append(2 * gap / (mu * delta * r0sq))
    near(plan.step_size, min(steps))
    whole_near(plan.iterations, L_f * L_max / mu * max(times) * math.log(1 / delta))
    assert g.bound(plan.step_size, plan.iterations, r0sq=r0sq) <= plan.target == 2 * delta * r0sq


@unhurried
@given(L_f=size, L_max=least_one, gap=gaps, r0sq=size, delta=share, T=count, cut=share)
def test_dsgd_convex(L_f, L_max, gap, r0sq, delta, T, cut):
    g = theory.dsgd("convex", L_f=L_f, L_max=L_max, gap=gap)
    near(g.max_step_size(), 1 / (2 * L_f * L_max))
    step = cut / (2 * L_f * L_max)
    near(g.bound(step, T, r0sq=r0sq), r0sq / (step * T) + 2 * step * L_f * L_max * gap)
    plan = g.plan(delta=delta, r0sq=r0sq)
    steps, times = [1 / (2 * L_f * L_max)], [1.0]
    if gap > 0:
        steps.append(delta * r0sq / (2 * L_f * L_max * gap))
        times.append(gap / (delta * r0sq))
    near(plan.step_size, min(steps))
    whole_near(plan.iterations, 2 * L_f * L_max / delta * max(times))
    assert g.bound(plan.step_size, plan.iterations, r0sq=r0sq) <= plan.target


@unhurried
@given(L_f=size, L_D=least_one, L_max=least_one, gap=gaps, delta0=size, eps=size, T=count, cut=share)
def test_dsgd_nonconvex(L_f, L_D, L_max, gap, delta0, eps, T, cut):
    g = theory.dsgd("nonconvex", L_f=L_f, L_D=L_D, L_max=L_max, gap=gap)
    D = L_f * math.sqrt(L_D * L_max)
    near(g.max_step_size(T), 1 / (D * math.sqrt(T)))
    step = cut / (D * math.sqrt(T))
    near(g.bound(step, T, delta0=delta0), 3 * delta0 / (step * T) + step * D**2 * gap)
    above = 2 / (D * math.sqrt(T))
    general = (1 + above**2 * D**2) ** T / (above * T) * delta0 + above * D**2 * gap
    np.testing.assert_allclose(
        g.bound(above, T, delta0=delta0), general, rtol=1e-8
    )  # a power of 1e6 loses digits
    plan = g.plan(eps=eps, delta0=delta0)
    needed = 12 * delta0 * D**2 / eps**4 * max(3 * delta0, gap)
    whole_near(plan.iterations, needed)
    steps = [1 / (D * math.sqrt(plan.iterations))]
    if gap > 0:
        steps.append(eps**2 / (2 * D**2 * gap))
    near(plan.step_size, min(steps))
    assert g.bound(plan.step_size, plan.iterations, delta0=delta0) <= plan.target == eps * eps


@unhurried
@given(
    A=st.one_of(st.just(0.0), size),
    B=st.floats(0.1, 10),
    C=gaps,
    L_f=size,
    L_D=least_one,
    L_max=least_one,
    gap=gaps,
    start=size,
    delta=share,
    eps=size,
    T=count,
    cut=share,
    mu_share=share,
)
def test_dsgd_inexact(A, B, C, L_f, L_D, L_max, gap, start, delta, eps, T, cut, mu_share):
    D_AB = A + B * L_f * L_max
    mu = mu_share * D_AB
    constants = {
        "A": A,
        "B": B,
        "C": C,
        "L_f": L_f,
        "L_D": L_D,
        "L_max": L_max,
        "gap": gap,
        "mu_f": mu,
        "mu_D": 1,
    }
    noise = 2 * gap * D_AB + C

    g = theory.dsgd_inexact("strongly_convex", **constants)
    near(g.max_step_size(), 1 / D_AB)
    step = cut / D_AB
    near(g.bound(step, T, r0sq=start), (1 - step * mu) ** T * start + step * noise / mu)
    plan = g.plan(delta=delta, r0sq=start)
    near(plan.step_size, min(1 / D_AB, mu * delta * start / noise if noise else math.inf))
    whole_near(plan.iterations, 1 / mu * max(D_AB, noise / (mu * delta * start)) * math.log(1 / delta))
    assert g.bound(plan.step_size, plan.iterations, r0sq=start) <= 2 * delta * start

    g = theory.dsgd_inexact("convex", **constants)
    near(g.max_step_size(), 1 / (2 * D_AB))
    step = cut / (2 * D_AB)
    near(g.bound(step, T, r0sq=start), start / (step * T) + step * noise)
    plan = g.plan(delta=delta, r0sq=start)
    near(plan.step_size, min(1 / (2 * D_AB), delta * start / noise if noise else math.inf))
    whole_near(plan.iterations, 1 / delta * max(2 * D_AB, noise / (delta * start)))
    assert g.bound(plan.step_size, plan.iterations, r0sq=start) <= 2 * delta * start

    g = theory.dsgd_inexact("nonconvex", **constants)
    limit = 1 / math.sqrt(L_f * L_D * D_AB * T)
    near(g.max_step_size(T), limit)
    near(
        g.bound(cut * limit, T, delta0=start),
        3 * start / (cut * limit * T) + cut * limit * L_f * L_D / 2 * noise,
    )
    assert g.bound(1.01 * limit, T, delta0=start) == math.inf
    plan = g.plan(eps=eps, delta0=start)
    whole_near(plan.iterations, 6 * start * L_f * L_D / eps**4 * max(6 * start * D_AB, noise))
    longest = 1 / math.sqrt(L_f * L_D * D_AB * plan.iterations)
    near(plan.step_size, min(longest, eps**2 / (L_f * L_D * noise) if noise else math.inf))
    assert g.bound(plan.step_size, plan.iterations, delta0=start) <= eps * eps


@unhurried
@given(L_f=size, L_D=least_one, L_max=least_one, gap=gaps, start=size, T=count, cut=share)
def test_inexact_with_b_1_is_exact(L_f, L_D, L_max, gap, start, T, cut):
    constants = {"L_f": L_f, "mu_f": 0.3 * L_f, "L_D": L_D, "mu_D": 1, "L_max": L_max, "gap": gap}
    for regime in ("strongly_convex", "convex", "nonconvex"):
        one = theory.dsgd(regime, **constants)
        other = theory.dsgd_inexact(regime, A=0, B=1, C=0, **constants)
        near(one.max_step_size(T), other.max_step_size(T))
        step = cut * one.max_step_size(T)
        near(one.bound(step, T, r0sq=start, delta0=start), other.bound(step, T, r0sq=start, delta0=start))


@unhurried
@given(
    L=st.lists(size, min_size=2, max_size=6), L_max=least_one, L_D=least_one, terms_gap=gaps, data=st.data()
)
def test_sampling_constants(L, L_max, L_D, terms_gap, data):
    n, L_f = len(L), sum(L) / len(L)
    t = data.draw(st.integers(1, n))
    z = (n - t) / ((n - 1) * t)
    A, B, C = theory.sampling_constants(L_fi=L, batch_size=t, L_max=L_max, terms_gap=terms_gap)
    near(A, z * L_max * max(L))
    near(B, 1 - z)
    near(C, 2 * z * L_max * max(L) * terms_gap)
    A, B, C = theory.sampling_constants(
        L_fi=max(L), n=n, batch_size=t, L_D=L_D, L_f=L_f, sketches="all", terms_gap=terms_gap
    )
    near(A + B, z * L_D * max(L) + (1 - z) * L_f * L_D)
    near(C, 2 * z * L_D * max(L) * terms_gap)
