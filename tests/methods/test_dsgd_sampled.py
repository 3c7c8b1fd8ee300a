"""The compiled loop of dsgd_sampled against its slow step; draws of compiled loops against `sample`."""

import numpy as np
import pytest
import scipy.sparse

import mast
from mast.errors import ArgumentError
from mast.methods import make
from mast.sketches.compiled import draw_units, unit_arrays
from sketches.samples import SKETCHES, D

COMPILED = {name: sketch for name, sketch in SKETCHES.items() if unit_arrays(sketch, D) is not None}
N = 25
RNG = np.random.default_rng(8)
A = RNG.standard_normal((N, D)) * (RNG.random((N, D)) < 0.5)
SIGNS = np.where(RNG.random(N) < 0.5, -1.0, 1.0)
OBJECTIVES = {
    "logistic": mast.Logistic(scipy.sparse.csr_matrix(A), SIGNS, l2=0.1),
    "dense logistic": mast.Logistic(A, SIGNS, l2=0.1),
    "weighted": mast.Logistic(A, SIGNS, l2=0.1, sample_weight=RNG.random(N)),
    "no penalty": mast.Logistic(A, SIGNS, l2=0.0),
    "least squares": mast.LeastSquares(A, RNG.standard_normal(N), l2=0.3),
    "non-convex": mast.NonconvexLogistic(A, SIGNS, 0.2),
}
SHIFT = RNG.standard_normal(D)


def test_most_sketches_have_a_compiled_form():
    assert {"identity", "bernoulli each", "rand-4", "perm-4, uneven", "grouped perm"} <= set(COMPILED)


@pytest.mark.parametrize("name", COMPILED)
def test_units_survive_as_sampled(name):
    sketch = COMPILED[name]
    u = unit_arrays(SKETCHES[name], D)
    order, kept = np.arange(u.scales.size), np.empty(u.scales.size, dtype=np.int64)
    for seed, t, node in [(1, 0, 0), (2**40 + 3, 7, 5), (5, 2**33, 11), (0, 1, 3)]:
        words = np.array([seed & 0xFFFFFFFF, seed >> 32], dtype=np.uint32)
        count = draw_units(int(u.kind), u.k, u.thresholds, words, t, node, order, kept)
        c = np.zeros(D)
        for unit in kept[:count]:
            c[u.members[u.start[unit] : u.start[unit + 1]]] = u.scales[unit]
        assert np.array_equal(c, sketch.draw(D, seed=seed, step=t, node=node).diagonal())
        assert np.array_equal(order, np.arange(order.size))


def both(problem, options, steps=40):
    """The points after some steps of the compiled loop, and of the slow one."""
    bound = make("dsgd_sampled", options).bind(problem, seed=4)
    assert bound.loop is not None
    fast, slow = bound.start(np.ones(D)), bound.start(np.ones(D))
    sizes = np.linspace(0.02, 0.01, steps)
    bound.advance(fast, 3, sizes)
    for i, size in enumerate(sizes):
        bound.step(slow, 3 + i, size)
    assert fast.gradients == slow.gradients
    return fast.x, slow.x


@pytest.mark.parametrize("shift", [None, SHIFT], ids=["no shift", "shift"])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("batch_size", [1, 4, N])
def test_loop_equals_steps(objective, batch_size, shift):
    problem = mast.Problem(OBJECTIVES[objective], mast.PermK(3), shift)
    fast, slow = both(problem, {"batch_size": batch_size})
    np.testing.assert_allclose(fast, slow, rtol=1e-11, atol=1e-13)
    fast, slow = both(problem, {"batch_size": batch_size, "sketches": "all"})
    np.testing.assert_allclose(fast, slow, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", COMPILED)
def test_loop_equals_steps_for_every_sketch(name):
    problem = mast.Problem(OBJECTIVES["logistic"], COMPILED[name], SHIFT)
    fast, slow = both(problem, {"batch_size": 2})
    np.testing.assert_allclose(fast, slow, rtol=1e-11, atol=1e-13)


def test_a_large_sum_of_terms():
    """More rows than an exact shuffle has: they are chosen by the Feistel network."""
    n = 70_001
    rng = np.random.default_rng(0)
    f = mast.Logistic(rng.standard_normal((n, D)), np.where(rng.random(n) < 0.5, -1.0, 1.0), l2=0.1)
    fast, slow = both(mast.Problem(f, mast.RandK(2)), {"batch_size": 3}, steps=10)
    np.testing.assert_allclose(fast, slow, rtol=1e-11, atol=1e-13)


def test_a_run_has_the_same_bits_however_it_is_cut():
    problem = mast.Problem(OBJECTIVES["logistic"], mast.Bernoulli(0.5))
    bound = make("dsgd_sampled", {}).bind(problem, seed=1)
    whole, parts = bound.start(np.zeros(D)), bound.start(np.zeros(D))
    bound.advance(whole, 0, np.full(500, 0.01))
    for t, count in ((0, 1), (1, 300), (301, 199)):
        bound.advance(parts, t, np.full(count, 0.01))
    assert np.array_equal(whole.x, parts.x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "1 .. 25"),
        ({"batch_size": 26}, "1 .. 25"),
        ({"sketches": "some"}, "one"),
        ({"bath": 1}, "batch_size"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ArgumentError, match=message):
        mast.minimize(mast.Problem(OBJECTIVES["logistic"], mast.PermK(3)), "dsgd_sampled", 10, **options)


def test_averaging_needs_a_finite_support():
    for sketch, message in ((mast.Gaussian(0.5), "finite support"), (mast.PermK(2, redraw=True), "draws")):
        wide = mast.Logistic(RNG.standard_normal((5, 40)), SIGNS[:5], l2=0.1)
        with pytest.raises(mast.MastError, match=message):
            mast.minimize(mast.Problem(wide, sketch), "dsgd_sampled", 5, 0.1, sketches="all")
