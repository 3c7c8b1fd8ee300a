"""Plans without a closed form: they meet the target, and one iteration fewer would not."""

import numpy as np
import pytest

from mast import theory

LOOSE = 1 + 1e-9  # a grid of step sizes may touch the target that a finer search misses by rounding


def check(g, target, limit_of, start, **aim):
    plan = g.plan(**aim, **start)
    assert plan.target == pytest.approx(target)
    assert g.bound(plan.step_size, plan.iterations, **start) <= plan.target
    if plan.iterations > 1:
        steps = limit_of(plan.iterations - 1) * np.geomspace(1e-12, 1, 200_001)
        assert g.bound(steps, plan.iterations - 1, **start).min() * LOOSE > plan.target
    return plan


@pytest.mark.parametrize("gap", [0.0, 0.5, 100.0])
@pytest.mark.parametrize("eps", [3.0, 0.3, 0.05])
def test_independent_nonconvex_nodes(gap, eps):
    g = theory.distributed("nonconvex", nodes="independent", L_f=[1, 3], L_D=[2, 4], L_max=[4, 16], gap=gap)
    check(g, eps**2, g.max_step_size, {"delta0": 2.0}, eps=eps)


@pytest.mark.parametrize("regime", ["strongly_convex", "convex"])
@pytest.mark.parametrize("p", [1.0, 0.2, 0.001])
@pytest.mark.parametrize(("b", "gap"), [(10, None), (3, 0.0), (3, 2.0)])
@pytest.mark.parametrize("delta", [0.7, 0.1, 1e-4])
def test_l_svrdsg_fresh(regime, p, b, gap, delta):
    g = theory.l_svrdsg(regime, N=10, b=b, p=p, L_f=2, mu_f=0.1, mu_D=3, L_max=9, gap=gap)
    check(g, 2 * delta * 5, lambda T: g.max_step_size(), {"Psi0": 5.0}, delta=delta)


def test_l_svrdsg_fresh_from_r0sq_and_d0():
    g = theory.l_svrdsg("strongly_convex", N=10, b=3, p=0.2, L_f=2, mu_f=0.1, mu_D=3, L_max=9, gap=1.0)
    plan = g.plan(delta=0.1, r0sq=2.0, D0=30.0)
    largest = 2.0 + 16 * g.max_step_size() ** 2 / 0.2 * 30.0
    assert plan == g.plan(delta=0.1, Psi0=largest)
    assert g.bound(plan.step_size, plan.iterations, r0sq=2.0, D0=30.0) <= plan.target == 0.2 * largest


@pytest.mark.parametrize("regime", ["strongly_convex", "convex"])
@pytest.mark.parametrize("p", [0.5, 0.01])
@pytest.mark.parametrize("sigma_sq", [0.0, 3.0])
@pytest.mark.parametrize("delta", [0.7, 0.1, 1e-3])
def test_l_svrdsg_kept(regime, p, sigma_sq, delta):
    g = theory.l_svrdsg(regime, N=10, b=3, p=p, batch="kept", L_f=2, mu_f=0.1, L_D=3, mu_D=3, L_max=9)
    start = {"r0sq": 2.0, "D0": 30.0, "sigma_sq": sigma_sq}
    check(g, 2 * delta * 2, lambda T: g.max_step_size(), start, delta=delta)


def test_s_page_takes_the_fewest_iterations():
    g = theory.s_page(N=10, b=5, b_small=1, p=0.1, sigma_sq=0.9, L_f=2, L_D=3, L_max=9)
    check(g, 1.0, lambda T: g.max_step_size(), {"Psi0": 4.0}, eps=1.0)
    check(g, 1.0, lambda T: g.max_step_size(), {"delta0": 4.0}, eps=1.0)
