"""Numbers to try a formula at, and what "equal" means for one typed twice."""

import math

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

size = st.floats(1e-3, 1e3)
least_one = st.floats(1.0, 1e3)
gaps = st.one_of(st.just(0.0), st.floats(1e-3, 1e2))
share = st.floats(0.01, 0.99)
count = st.integers(1, 10**6)
#: what all statements about DSGD are tried at
DSGD = {"gap": gaps, "start": size, "delta": share, "eps": size, "T": count, "cut": share}
unhurried = settings(deadline=None)  # a slow machine is not a wrong formula
NEAR = 1e-9  # the two ways of typing a formula differ by a few roundings


def near(left, right):
    np.testing.assert_allclose(left, right, rtol=NEAR, atol=0)


def whole_near(iterations, needed):
    """The ceiling of the closed form; a formula that rounds differently may land on a neighbour."""
    assert isinstance(iterations, int)
    assert abs(iterations - max(1, needed)) <= 1 + NEAR * needed
    assert iterations >= needed * (1 - NEAR)


def check_strongly_convex(g, L, mu, noise, *, start, delta, T, cut):
    """(1 - g mu)^T r0sq + g noise/mu for g <= 1/L, and the plan that follows."""
    near(g.max_step_size(), 1 / L)
    step = cut / L
    near(g.bound(step, T, r0sq=start), (1 - step * mu) ** T * start + step * noise / mu)
    plan = g.plan(delta=delta, r0sq=start)
    near(plan.step_size, min(1 / L, mu * delta * start / noise if noise else math.inf))
    whole_near(plan.iterations, max(L / mu, noise / (mu**2 * delta * start)) * math.log(1 / delta))
    assert g.bound(plan.step_size, plan.iterations, r0sq=start) <= plan.target == 2 * delta * start


def check_convex(g, L, noise, *, start, delta, T, cut):
    """r0sq/(g T) + g noise for g <= 1/(2 L), and the plan that follows."""
    near(g.max_step_size(), 1 / (2 * L))
    step = cut / (2 * L)
    near(g.bound(step, T, r0sq=start), start / (step * T) + step * noise)
    plan = g.plan(delta=delta, r0sq=start)
    near(plan.step_size, min(1 / (2 * L), delta * start / noise if noise else math.inf))
    whole_near(plan.iterations, max(2 * L / delta, noise / (delta**2 * start)))
    assert g.bound(plan.step_size, plan.iterations, r0sq=start) <= plan.target == 2 * delta * start


def check_nonconvex(g, L, smooth, noise, *, start, eps, T, cut):
    """3 delta0/(g T) + g smooth noise/2 for g <= 1/sqrt(smooth L T), and the plan that follows."""
    limit = 1 / math.sqrt(smooth * L * T)
    near(g.max_step_size(T), limit)
    step = cut * limit
    near(g.bound(step, T, delta0=start), 3 * start / (step * T) + step * smooth / 2 * noise)
    plan = g.plan(eps=eps, delta0=start)
    whole_near(plan.iterations, 6 * start * smooth / eps**4 * max(6 * start * L, noise))
    longest = 1 / math.sqrt(smooth * L * plan.iterations)
    near(plan.step_size, min(longest, eps**2 / (smooth * noise) if noise else math.inf))
    assert g.bound(plan.step_size, plan.iterations, delta0=start) <= plan.target == eps * eps
