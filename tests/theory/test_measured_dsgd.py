"""DSGD, exact and inexact: the measured error never exceeds the bound."""

from itertools import combinations

import numpy as np
import pytest

from mast import theory
from theory import quadratic_moments as exact
from theory.instances import INSTANCES, below, check_regimes, make, name, rand_k, start_of

T = 80
SHARES = [1.0, 0.25]


def check(instance, gradients, promise, share):
    check_regimes(instance, gradients, promise, share, start_of(instance), T)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("gap", ["gap", "sharp_gap"])
@pytest.mark.parametrize("instance", INSTANCES, ids=name)
def test_exact_gradients(instance, gap, share):
    constants = {**instance.constants, "gap": getattr(instance, gap)}
    check(instance, instance.gradients, lambda regime: theory.dsgd(regime, **constants), share)


@pytest.mark.parametrize("instance", INSTANCES, ids=name)
def test_nonconvex_bound_above_the_limit(instance):
    g = theory.dsgd("nonconvex", **instance.constants)
    x0 = start_of(instance)
    delta0 = instance.f_D(x0) - instance.f_D_inf
    for factor in (1.1, 3.0):
        step = factor * g.max_step_size(20)
        seconds = exact.propagate(exact.dsgd_step(instance.gradients, step), np.append(x0, 1.0), 19)
        squares = [instance.gradient_sq(second) for second in seconds]
        bound = g.bound(step, 20, delta0=delta0)
        assert np.isfinite(bound)
        below(min(squares), bound)


@pytest.mark.parametrize("instance", INSTANCES, ids=name)
def test_a_start_at_the_solution_measures_the_noise_alone(instance):
    g = theory.dsgd("strongly_convex", **{**instance.constants, "gap": instance.sharp_gap})
    step = g.max_step_size()
    z0 = np.append(instance.solution, 1.0)
    measured = [
        instance.distance(second)
        for second in exact.propagate(exact.dsgd_step(instance.gradients, step), z0, 300)
    ]
    below(measured, g.bound(step, np.arange(301), r0sq=0.0))


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("variance", [0.0, 5.0])
@pytest.mark.parametrize("instance", INSTANCES, ids=name)
def test_additive_noise(instance, variance, share):
    """A = 0, B = 1, C the variance of a noise that is plus or minus one vector."""
    noise = np.full(len(instance.b), np.sqrt(variance / len(instance.b)))
    H, c, q = instance.gradients
    noisy = exact.Gradients(
        np.concatenate([H, H]), np.concatenate([c + noise, c - noise]), np.concatenate([q, q]) / 2
    )
    check(
        instance,
        noisy,
        lambda regime: theory.dsgd_inexact(regime, A=0, B=1, C=variance, **instance.constants),
        share,
    )


def finite_sum(seed, n=3, d=2):
    """N terms x'H_i x/2 - b_i'x, their mean as an instance under Rand-1, and their constants."""
    rng = np.random.default_rng(seed)
    roots = rng.standard_normal((n, d, d)) * rng.uniform(0.3, 2, (n, 1, 1))
    Hs = np.einsum("nji,njk->nik", roots, roots) + 0.1 * np.eye(d)
    bs = 2 * rng.standard_normal((n, d))
    instance = make("mean", d, rand_k(d, 1), seed, H=Hs.mean(axis=0))
    instance.b = bs.mean(axis=0)
    instance.__post_init__()
    infima = [-b @ np.linalg.solve(H, b) / 2 for H, b in zip(Hs, bs, strict=True)]
    terms = [
        exact.sketched_gradients(H, b, instance.S, instance.v, instance.q)
        for H, b in zip(Hs, bs, strict=True)
    ]
    return instance, terms, [np.linalg.eigvalsh(H)[-1] for H in Hs], instance.f_inf - np.mean(infima)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("sketches", ["one", "all"])
@pytest.mark.parametrize("batch_size", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_sampled_terms(seed, batch_size, sketches, share):
    instance, terms, L_fi, terms_gap = finite_sum(seed)
    batches = [list(chosen) for chosen in combinations(range(3), batch_size)]
    H = np.concatenate([np.mean([terms[i].H for i in chosen], axis=0) for chosen in batches])
    c = np.concatenate([np.mean([terms[i].c for i in chosen], axis=0) for chosen in batches])
    q = np.tile(instance.q, len(batches)) / len(batches)
    if sketches == "all":
        means = [exact.mean_gradient(term) for term in terms]
        H, c = (
            np.array([np.mean([means[i][k] for i in chosen], axis=0) for chosen in batches]) for k in (0, 1)
        )
        q = np.full(len(batches), 1 / len(batches))
    abc = theory.sampling_constants(
        L_fi=L_fi,
        batch_size=batch_size,
        sketches=sketches,
        L_f=instance.L_f,
        L_D=instance.L_D,
        L_max=instance.L_max,
        terms_gap=terms_gap,
    )
    check(
        instance,
        exact.Gradients(H, c, q),
        lambda regime: theory.dsgd_inexact(regime, **abc._asdict(), **instance.constants),
        share,
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_the_inequality_of_sampled_terms(seed, batch_size):
    """E|g_S(x)|² <= 2A (f_S - f^inf) + B |grad f_S|² + C at random points, for each sketch."""
    instance, terms, L_fi, terms_gap = finite_sum(seed)
    A, B, C = theory.sampling_constants(
        L_fi=L_fi, batch_size=batch_size, L_max=instance.L_max, terms_gap=terms_gap
    )
    for x in np.random.default_rng(seed).standard_normal((20, 2)) * 3:
        for k, S in enumerate(instance.S):
            each = np.array([term.H[k] @ x - term.c[k] for term in terms])
            means = [each[list(chosen)].mean(axis=0) for chosen in combinations(range(3), batch_size)]
            left = np.mean([mean @ mean for mean in means])
            whole = each.mean(axis=0)
            right = 2 * A * (instance.f_S(S, x) - instance.f_inf) + B * (whole @ whole) + C
            assert left <= right * (1 + 1e-10)


@pytest.mark.parametrize("draws", [1, 2, 3])
@pytest.mark.parametrize("instance", INSTANCES[2:8], ids=name)
def test_averaged_draws(instance, draws):
    if len(instance.q) ** draws > 300:
        pytest.skip("too many combinations of draws")
    grids = np.meshgrid(*[np.arange(len(instance.q))] * draws)
    picks = np.stack([grid.ravel() for grid in grids], axis=1)
    H, c, q = instance.gradients
    averaged = exact.Gradients(H[picks].mean(axis=1), c[picks].mean(axis=1), q[picks].prod(axis=1))
    check(
        instance,
        averaged,
        lambda regime: theory.averaged_draws(regime, draws=draws, **instance.constants),
        1.0,
    )
