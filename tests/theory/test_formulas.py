"""Every step size, bound and closed-form plan against the formula typed a second time, at any numbers."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mast import theory

size = st.floats(1e-3, 1e3)
least_one = st.floats(1.0, 1e3)
gaps = st.one_of(st.just(0.0), st.floats(1e-3, 1e2))
share = st.floats(0.01, 0.99)
count = st.integers(1, 10**6)
unhurried = settings(deadline=None)  # a slow machine is not a wrong formula
NEAR = 1e-9  # the two ways of typing a formula differ by a few roundings


def near(left, right):
    np.testing.assert_allclose(left, right, rtol=NEAR, atol=0)


def whole_near(iterations, needed):
    """The ceiling of the closed form; a formula that rounds differently may land on a neighbour."""
    assert isinstance(iterations, int)
    assert abs(iterations - max(1, needed)) <= 1 + NEAR * needed
    assert iterations >= needed * (1 - NEAR)


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


@unhurried
@given(
    N=st.integers(1, 50),
    data=st.data(),
    p=st.one_of(st.just(1.0), st.floats(1e-3, 1)),
    L_f=size,
    L_D=size,
    L_max=size,
    mu_share=share,
    gap=gaps,
    r0sq=size,
    D0=size,
    sigma_sq=gaps,
    T=count,
    cut=share,
)
def test_l_svrdsg(N, data, p, L_f, L_D, L_max, mu_share, gap, r0sq, D0, sigma_sq, T, cut):
    b = data.draw(st.integers(1, N))
    z = (N - b) / (max(1, N - 1) * b)
    mu = mu_share * L_f * min(L_max, L_D)
    constants = {
        "N": N,
        "b": b,
        "p": p,
        "L_f": L_f,
        "mu_f": mu,
        "L_D": L_D,
        "mu_D": 1,
        "L_max": L_max,
        "gap": gap,
    }
    start = {"r0sq": r0sq, "D0": D0, "sigma_sq": sigma_sq}

    g = theory.l_svrdsg("strongly_convex", **constants)
    near(g.max_step_size(), 1 / (20 * L_f * L_max))
    step = cut / (20 * L_f * L_max)
    rho, Psi0 = min(step * mu, p / 2), r0sq + 16 * step**2 / p * D0
    fresh = (1 - rho) ** T * Psi0 + 8 * step**2 * L_f * L_max * z * gap / rho
    near(g.bound(step, T, Psi0=Psi0), fresh)
    near(g.bound(step, T, **start), fresh)

    g = theory.l_svrdsg("convex", **constants)
    near(g.max_step_size(), 1 / (40 * L_f * L_max))
    step = cut / (40 * L_f * L_max)
    near(g.bound(step, T, Psi0=7.0), 7 / (step * T) + 8 * z * step * L_f * L_max * gap)

    kept = {
        regime: theory.l_svrdsg(regime, batch="kept", **constants) for regime in ("strongly_convex", "convex")
    }
    if b == N or p == 1:
        for regime, g in kept.items():
            fresh = theory.l_svrdsg(regime, **constants)
            assert g.max_step_size() == fresh.max_step_size()
            step = cut * g.max_step_size()
            assert g.bound(step, T, **start) == fresh.bound(step, T, **start)
        return
    g = kept["strongly_convex"]
    limit = 1 / (L_f * (6 * L_max + (2 * L_D + 32 * z * L_max) / p))
    near(g.max_step_size(), limit)
    step = cut * limit
    rho, c = min(step * mu, p / 2), 4 * step**2 / p * (1 + 8 * z / p)
    bound = 2 * (1 - rho) ** T * (r0sq + c * D0) + 48 * step**2 * z * sigma_sq / (p * rho)
    near(g.bound(step, T, **start), bound)
    g = kept["convex"]
    limit = 1 / (L_f * (2 * L_D / p + 8 * L_max + (12 / p + 8) * z * L_max))
    near(g.max_step_size(), limit)
    step = cut * limit
    c = step**2 / p * (6 * z / p + 2 + 4 * z)
    bound = (r0sq + c * D0) / (step * T) + 10 * step * z * sigma_sq / p + 2 * step * z * sigma_sq / (p**2 * T)
    near(g.bound(step, T, **start), bound)


@unhurried
@given(
    N=st.integers(1, 50),
    data=st.data(),
    p=st.one_of(st.just(1.0), st.floats(1e-3, 1)),
    L_f=size,
    L_D=size,
    L_max=size,
    sigma_sq=gaps,
    Psi0=size,
    T=count,
    eps=size,
)
def test_s_page(N, data, p, L_f, L_D, L_max, sigma_sq, Psi0, T, eps):
    b, b_small = data.draw(st.integers(1, N)), data.draw(st.integers(1, N))

    def zeta(b):
        return (N - b) / (max(1, N - 1) * b)

    g = theory.s_page(N=N, b=b, b_small=b_small, p=p, sigma_sq=sigma_sq, L_f=L_f, L_D=L_D, L_max=L_max)
    limit = 1 / (L_f * (L_D + math.sqrt((1 - p) / p * zeta(b_small) * L_max * L_D)))
    near(g.max_step_size(), limit)
    near(g.bound(limit, T, Psi0=Psi0), 2 * Psi0 / (limit * T) + zeta(b) * sigma_sq)
    room = eps**2 - zeta(b) * sigma_sq
    if room > 1e-6 * eps**2:
        plan = g.plan(eps=eps, Psi0=Psi0)
        needed = 2 * Psi0 / (limit * room)
        assert abs(plan.iterations - max(1, needed)) <= 1 + 1e-5 * needed  # room cancels up to six digits
        assert g.bound(plan.step_size, plan.iterations, Psi0=Psi0) <= eps**2


@unhurried
@given(N=st.integers(1, 1000), data=st.data())
def test_zeta(N, data):
    b = data.draw(st.integers(1, N))
    assert theory.zeta(N, b) == (N - b) / (max(1, N - 1) * b)


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
