"""L-SVRDSG and S-PAGE: the measured error never exceeds the bound."""

import numpy as np
import pytest

from mast import theory
from theory import quadratic_moments as exact
from theory.instances import UNIFORM, below, flips, make, name, rand_k, start_of

T = 60
SMALL = [instance for instance in UNIFORM if len(instance.q) <= 4]


def batch_sizes(instance):
    N = len(instance.q)
    return sorted({1, N // 2 or 1, N})


CASES = [(instance, b) for instance in SMALL for b in batch_sizes(instance)]
IDS = [f"{instance.name}, b = {b}" for instance, b in CASES]


def start_numbers(instance):
    x0 = start_of(instance)
    H, c = instance.gradients.H, instance.gradients.c
    at_solution = H @ instance.solution - c
    D0 = np.mean(np.sum((H @ (x0 - instance.solution)) ** 2, axis=1))
    return x0, np.sum((x0 - instance.solution) ** 2), D0, np.mean(np.sum(at_solution**2, axis=1))


def memory(instance, second):
    """mean_i E|grad f_Si(w) - grad f_Si(x_D*)|²"""
    return np.mean(
        [exact.expect_square(second, H, H @ instance.solution, block=1) for H in instance.gradients.H]
    )


def path(instance, step_size, p, b, batch, x0):
    start = exact.batch_start(instance.gradients, x0, b, copies=2)
    return exact.propagate(exact.l_svrdsg_step(instance.gradients, step_size, p, b, batch), start, T)


@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("p", [1.0, 0.4, 0.02])
@pytest.mark.parametrize(("instance", "b"), CASES, ids=IDS)
def test_l_svrdsg_fresh(instance, b, p, share):
    N = len(instance.q)
    x0, r0sq, D0, _ = start_numbers(instance)
    g = theory.l_svrdsg("strongly_convex", N=N, b=b, p=p, **instance.constants)
    step = share * g.max_step_size()
    Psi = [
        instance.distance(second) + 16 * step**2 / p * memory(instance, second)
        for second in path(instance, step, p, b, "fresh", x0)
    ]
    below(Psi, g.bound(step, np.arange(T + 1), Psi0=Psi[0]))
    np.testing.assert_allclose(
        g.bound(step, T, r0sq=r0sq, D0=D0), g.bound(step, T, Psi0=Psi[0]), rtol=1e-9, atol=1e-300
    )
    g = theory.l_svrdsg("convex", N=N, b=b, p=p, **instance.constants)
    step = share * g.max_step_size()
    excess = [instance.excess(second) for second in path(instance, step, p, b, "fresh", x0)][:T]
    bound = g.bound(step, np.arange(1, T + 1), r0sq=r0sq, D0=D0)
    below(np.cumsum(excess) / np.arange(1, T + 1), bound)


@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("p", [1.0, 0.4, 0.02])
@pytest.mark.parametrize(("instance", "b"), CASES, ids=IDS)
def test_l_svrdsg_kept(instance, b, p, share):
    N = len(instance.q)
    x0, r0sq, D0, sigma_sq = start_numbers(instance)
    start = {"r0sq": r0sq, "D0": D0, "sigma_sq": sigma_sq}
    g = theory.l_svrdsg("strongly_convex", N=N, b=b, p=p, batch="kept", **instance.constants)
    step = share * g.max_step_size()
    distances = [instance.distance(second) for second in path(instance, step, p, b, "kept", x0)]
    below(distances, g.bound(step, np.arange(T + 1), **start))
    g = theory.l_svrdsg("convex", N=N, b=b, p=p, batch="kept", **instance.constants)
    step = share * g.max_step_size()
    excess = [instance.excess(second) for second in path(instance, step, p, b, "kept", x0)][:T]
    below(np.cumsum(excess) / np.arange(1, T + 1), g.bound(step, np.arange(1, T + 1), **start))


def test_l_svrdsg_kept_with_rare_refreshes():
    """Where the step size of a fresh batch would run away: one of four sketches, kept for long."""
    instance = make("rand-1", 4, rand_k(4, 1), 0, shift=False, H=np.eye(4))
    x0, r0sq, D0, sigma_sq = start_numbers(instance)
    g = theory.l_svrdsg("strongly_convex", N=4, b=1, p=1e-3, batch="kept", **instance.constants)
    start = exact.batch_start(instance.gradients, x0, 1, copies=2)
    counts = 2.0 ** np.arange(0, 13)
    for step in (g.max_step_size(), 0.1 * g.max_step_size()):
        one = exact.l_svrdsg_step(instance.gradients, step, 1e-3, 1, "kept")
        distances = [instance.distance(second) for second in exact.propagate(one, start, 4096)]
        bound = g.bound(step, counts, r0sq=r0sq, D0=D0, sigma_sq=sigma_sq)
        below([distances[int(t)] for t in counts], bound)


@pytest.mark.parametrize("instance", SMALL, ids=name)
def test_l_svrdsg_reaches_the_solution_with_full_batches(instance):
    """The promise of a linear rate is kept in the long run, not only for 60 steps."""
    N, p, x0 = len(instance.q), 0.5, start_of(instance)
    g = theory.l_svrdsg("strongly_convex", N=N, p=p, **instance.constants)
    step = g.max_step_size()
    start = exact.batch_start(instance.gradients, x0, N, copies=2)
    one = exact.l_svrdsg_step(instance.gradients, step, p, N, "kept")
    Psi = [
        instance.distance(second) + 16 * step**2 / p * memory(instance, second)
        for t, second in enumerate(exact.propagate(one, start, 3000))
        if t % 500 == 0
    ]
    below(Psi, g.bound(step, 500 * np.arange(7), Psi0=Psi[0]))


@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("p", [1.0, 0.99, 0.3, 0.02])
@pytest.mark.parametrize(("instance", "b_small"), CASES, ids=IDS)
def test_s_page_with_full_refresh(instance, b_small, p, share):
    N = len(instance.q)
    x0 = start_of(instance)
    delta0 = instance.f_D(x0) - instance.f_D_inf
    g = theory.s_page(N=N, b_small=b_small, p=p, **instance.constants)
    step = share * g.max_step_size()
    start = exact.batch_start(instance.gradients, x0, N, copies=1)
    one = exact.s_page_step(instance.gradients, step, p, N, b_small)
    squares = [instance.gradient_sq(second) for second in exact.propagate(one, start, T - 1)]
    below(np.cumsum(squares) / np.arange(1, T + 1), g.bound(step, np.arange(1, T + 1), Psi0=delta0))


@pytest.mark.parametrize("p", [1.0, 0.3, 0.02])
@pytest.mark.parametrize("b", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_s_page_with_bounded_variance(seed, b, p):
    """All S'HS equal: the one case in which a quadratic has a bounded sketch variance."""
    instance = make("flips", 2, flips(2), seed)
    deviations = instance.c_D - instance.gradients.c
    sigma_sq = np.mean(np.sum(deviations**2, axis=1))
    x0 = start_of(instance)
    delta0 = instance.f_D(x0) - instance.f_D_inf
    g = theory.s_page(N=4, b=b, p=p, sigma_sq=sigma_sq, **instance.constants)
    step = g.max_step_size()
    start = exact.batch_start(instance.gradients, x0, b, copies=1)
    one = exact.s_page_step(instance.gradients, step, p, b, 1)
    squares = [instance.gradient_sq(second) for second in exact.propagate(one, start, 400)]
    counts = np.arange(1, 402)
    below(np.cumsum(squares) / counts, g.bound(step, counts, delta0=delta0))
    exact_start = delta0 + step / (2 * p) * theory.zeta(4, b) * sigma_sq
    np.testing.assert_allclose(g.bound(step, counts, delta0=delta0), g.bound(step, counts, Psi0=exact_start))
