"""Each printed form that docs/errata.md corrects is violated; the corrected form holds on that example."""

import math

import numpy as np
import pytest

from mast import theory
from mast.errors import NoGuaranteeError
from theory import printed as errata
from theory import quadratic_moments as exact


def gradient_squares(gradients, step_size, x0, T):
    H, c = exact.mean_gradient(gradients)
    path = exact.propagate(exact.dsgd_step(gradients, step_size), [x0, 1.0], T - 1)
    return [exact.expect_square(second, H, c) for second in path]


def test_distributed_nonconvex_constant():
    nodes, T = errata.two_nodes(), 4000
    D_max = errata.distributed_nonconvex_constant(nodes.L_f, nodes.L_D, nodes.L_max)
    assert nodes.L_f[0] ** 2 * nodes.L_D[0] * nodes.L_max[0] == pytest.approx(D_max)
    assert nodes.L_f[1] ** 2 == pytest.approx(D_max)
    step = 1 / math.sqrt(D_max * T)
    measured = min(gradient_squares(nodes.gradients, step, nodes.x0, T))
    printed = errata.distributed_nonconvex_bound(step, T, D_max, nodes.gap, nodes.delta0)
    assert measured == pytest.approx(0.8857, abs=5e-5)
    assert printed == pytest.approx(0.2046, abs=5e-5)
    g = theory.distributed("nonconvex", L_f=nodes.L_f, L_D=nodes.L_D, L_max=nodes.L_max, gap=nodes.gap)
    step = g.max_step_size(T)
    measured = min(gradient_squares(nodes.gradients, step, nodes.x0, T))
    assert measured <= g.bound(step, T, delta0=nodes.delta0)


def test_distributed_nonconvex_gap_is_that_of_the_nodes():
    """The gap that `two_nodes` states by a formula, from the definition."""
    nodes = errata.two_nodes()
    solution = float(exact.minimizer(nodes.gradients)[0])
    assert solution == pytest.approx(1 / nodes.L_D[0])
    S = np.array([60, (1 - 1 / 60) / (1 - 1 / 3600)])
    q = np.array([1 / 3600, 1 - 1 / 3600])
    assert q @ S == pytest.approx(1)
    f_D = (q @ (S * solution - 1) ** 2 / 2 + nodes.L_f[1] * (solution - 1 / nodes.L_D[0]) ** 2 / 2) / 2
    assert nodes.gap == pytest.approx(f_D)


def test_one_step_inequality_of_the_distributed_proof():
    x, g = 5.0, 0.1
    values = np.array([x**2 / 2, (x - 10) ** 2 / 2])
    gradients = np.array([x, x - 10])
    after = x - g * gradients.mean()
    left = np.mean([after**2 / 2, (after - 10) ** 2 / 2])
    assert left > values.mean() - g * np.mean(gradients**2) + g**2 * values.mean()
    assert left <= values.mean() - g * gradients.mean() ** 2 + g**2 * values.mean()


def test_l_svrdsg_rate():
    H = np.diag([0.1, 0.55, 1.0])
    gradients = exact.sketched_gradients(H, np.ones(3), errata.axis_sketches(3))
    solution, g, T = exact.minimizer(gradients), 1 / 180, 50
    start = exact.batch_start(gradients, solution + 1, b=3, copies=2)
    *_, last = exact.propagate(exact.l_svrdsg_step(gradients, g, 1.0, 3, "kept"), start, T)
    measured = exact.expect_square(last, np.eye(3), solution)
    Psi0 = 3 + 16 * g**2 / 3 * 81 * np.sum(np.diag(H) ** 2)
    assert measured == pytest.approx(1.43, abs=0.005)
    assert errata.l_svrdsg_bound(g, T, mu=0.3, p=1, Psi0=Psi0) == pytest.approx(2.7e-15, rel=0.02)
    here = theory.l_svrdsg("strongly_convex", N=3, p=1, L_f=1, mu_f=0.1, mu_D=3, L_max=9)
    assert measured <= here.bound(g, T, Psi0=Psi0)


def test_l_svrdsg_kept_batch_runs_away():
    gradients = exact.sketched_gradients(np.eye(4), np.ones(4), errata.axis_sketches(4))
    solution, p = exact.minimizer(gradients), 1.25e-3
    start = exact.batch_start(gradients, solution + 1, b=1, copies=2)

    def distances(step_size, T):
        path = exact.propagate(exact.l_svrdsg_step(gradients, step_size, p, 1, "kept"), start, T)
        return np.array([exact.expect_square(second, np.eye(4), solution) for second in path])

    printed = distances(errata.l_svrdsg_step_size(1, 16), 5000)
    assert printed[0] == pytest.approx(4)
    assert printed[1000] == pytest.approx(39.8, abs=0.05)
    assert printed[5000] == pytest.approx(3.1e4, rel=0.02)
    constants = {"N": 4, "b": 1, "p": p, "L_f": 1, "mu_f": 1, "L_D": 4, "mu_D": 4, "L_max": 16}
    g = theory.l_svrdsg("strongly_convex", batch="kept", **constants)
    assert g.max_step_size() < 1 / 320
    step, counts = g.max_step_size(), np.arange(2001)
    D0 = np.mean([np.sum((H @ np.ones(4)) ** 2) for H in gradients.H])
    sigma_sq = np.mean(np.sum((gradients.H @ solution - gradients.c) ** 2, axis=1))
    assert (distances(step, 2000) <= g.bound(step, counts, r0sq=4, D0=D0, sigma_sq=sigma_sq)).all()


def test_l_svrdsg_convex_minimum():
    """f = x²/2 - x, S = 0 or 2: f_D = x² - x."""
    left = (0.5**2 - 0.5) - (0.5**2 / 2 - 0.5)
    right = errata.l_svrdsg_convex_bound(1 / 160, 10**6, L_f=1, L_max=4, N=2, b=2, gap=0.25, Psi0=1.0)
    assert left == 0.125 > right


PLAIN = exact.sketched_gradients([[1.0]], [0.0], [[[1.0]]])


def mean_square(step, T):
    return np.mean([second[0, 0] for second in exact.propagate(step, [1.0, 1.0, 1.0], T - 1)])


def test_s_page_estimator():
    g = theory.s_page(N=1, p=0.01, L_f=1, L_D=1, L_max=1)
    for step in (1.0, 0.5):
        assert mean_square(errata.s_page_update(PLAIN, step, 0.01, 1), 200) > 1e3 * g.bound(
            step, 200, Psi0=0.5
        )
        corrected = mean_square(exact.s_page_step(PLAIN, step, 0.01, 1, 1), 200)
        assert corrected <= g.bound(step, 200, Psi0=0.5) * (1 + 1e-12)


def test_s_page_step_size():
    assert errata.s_page_step_size(1.0, 1, 1, 1, 1) == math.inf
    assert (
        mean_square(exact.s_page_step(PLAIN, errata.s_page_step_size(0.99, 1, 1, 1, 1), 0.99, 1, 1), 50)
        > 1e20
    )
    for p in (0.99, 1.0):
        g = theory.s_page(N=1, p=p, L_f=1, L_D=1, L_max=1)
        measured = mean_square(exact.s_page_step(PLAIN, g.max_step_size(), p, 1, 1), 50)
        assert measured <= g.bound(g.max_step_size(), 50, Psi0=0.5) * (1 + 1e-12)


def test_corollary_of_the_main_text():
    constants = {"L_f": 100, "L_D": 1, "L_max": 1, "gap": 0}
    eps = math.sqrt(3000)
    printed = errata.nonconvex_plan(**constants, delta0=50, eps=eps)
    here = theory.dsgd("nonconvex", **constants).plan(delta0=50, eps=eps)

    def smallest(plan):
        return min((100 * (1 - 100 * plan.step_size) ** t) ** 2 for t in range(plan.iterations))

    assert printed.iterations == 1
    assert smallest(printed) == 10_000 > 3000
    assert here.iterations in (100, 101)
    assert smallest(here) <= 3000


def test_sampling_constants():
    S, x = 2.0, 1.0
    left, f_S = (S * S * x) ** 2, (S * x) ** 2 / 2
    printed = errata.sampling_constants([1.0, 1.0], 0.0)
    here = theory.sampling_constants(L_fi=[1.0, 1.0], L_max=S**2, terms_gap=0.0)
    assert left == 16 > 2 * printed.A * f_S == 4
    assert left <= 2 * here.A * f_S + here.C


def test_sampling_inequality_with_the_infimum_of_the_sketched_function():
    """Terms that agree at (1, 1) may disagree on the axis a sketch keeps, so f_S^inf cannot replace f^inf."""
    a = np.array([[1.0, -1.0], [1.0, 1.0]])
    targets = np.array([0.0, 2.0])  # f_i(y) = (a_i'y - target_i)²/2, so every infimum is 0 and C is 0
    S, x = np.diag([2.0, 0.0]), np.array([0.5, 0.0])
    residuals = a @ S @ x - targets
    gradients = residuals[:, None] * (a @ S)
    left, f_S = np.mean(np.sum(gradients**2, axis=1)), np.mean(residuals**2) / 2
    np.testing.assert_allclose(gradients.mean(axis=0), 0)  # x minimises f_S
    here = theory.sampling_constants(L_fi=[2.0, 2.0], L_max=4.0, terms_gap=0.0)
    with_f_S_inf = 2 * here.A * (f_S - f_S) + here.C
    assert left == 4 > with_f_S_inf
    assert left <= 2 * here.A * (f_S - 0) + here.C


def test_distributed_convex_factor():
    gradients = exact.sketched_gradients([[1000.0]], [1000.0], [[[0.5]], [[1.5]]])
    T, g = 1000, 1 / 4500
    path = exact.propagate(exact.dsgd_step(gradients, g), [0.8, 1.0], T - 1)
    measured = np.mean([625 * exact.expect_square(second, np.eye(1), np.array([0.8])) for second in path])
    assert measured > errata.distributed_convex_bound(g, T, Lhat=2250, r0sq=0)
    assert measured <= theory.distributed("convex", L_f=1000, L_max=2.25, gap=100).bound(g, T, r0sq=0)


def average_loss(g, T, noise):
    squares = [1.0]
    for _ in range(T - 1):
        squares.append((1 - g) ** 2 * squares[-1] + g**2 * noise)
    return np.mean(squares) / 2


def test_corollary_of_inexact_convex():
    C, delta = 1000, 0.1
    plan = theory.dsgd_inexact("convex", A=0, B=1, C=C, L_f=1, L_max=1, gap=0).plan(delta=delta, r0sq=1)
    T = errata.convex_iterations(L_f=1, L_max=1, gap=0, delta=delta, r0sq=1)
    assert average_loss(plan.step_size, T, C) > plan.target
    assert average_loss(plan.step_size, plan.iterations, C) <= plan.target


@pytest.mark.parametrize("regime", ["strongly_convex", "convex"])
def test_corollaries_of_distributed(regime):
    constants = {"L_f": [1, 1], "L_max": [1, 1], "mu_f": [1, 1], "mu_D": [1, 1], "gap": 50}
    plan = theory.distributed(regime, **constants).plan(delta=0.1, r0sq=1)
    single = {"L_f": 1, "L_max": 1, "gap": 0, "delta": 0.1, "r0sq": 1}

    def reached(T):
        if regime == "convex":
            return average_loss(plan.step_size, T, 0)
        return (1 - plan.step_size) ** (2 * T)

    T = (
        errata.convex_iterations(**single)
        if regime == "convex"
        else errata.strongly_convex_iterations(mu=1, **single)
    )
    assert reached(T) > plan.target
    assert reached(plan.iterations) <= plan.target


def test_distributed_mu_needs_each_node_convex():
    curvatures, moments = np.array([-2.0, 5.0]), np.array([10.0, 1.0])
    assert curvatures.mean() == 1.5
    assert (curvatures * moments).mean() == -7.5
    with pytest.raises(ValueError, match="mu_f must be a finite number >= 0"):
        theory.distributed("strongly_convex", L_f=[2, 5], mu_f=[-2, 5], mu_D=[10, 1], L_max=[100, 1])


def test_gaussian_sketch():
    with pytest.raises(NoGuaranteeError, match="Gaussian"):
        theory.dsgd("convex", L_f=1, L_max=math.inf)
