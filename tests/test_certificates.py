"""Certificates: bounds that hold, and chances that are met, counted over many draws."""

import itertools
import math

import numpy as np
import pytest

import mast
from mast.errors import ArgumentError, NoGuaranteeError


def problem(sketch=None, d=6):
    rows = np.random.default_rng(0).standard_normal((20, d))
    f = mast.LeastSquares(rows, rows @ np.ones(d), l2=0.1)
    return mast.Problem(f, sketch or mast.Bernoulli(0.7))


def exact_variance(p, x):
    support = p.sketch.support(p.dim)
    values = np.array([p.at(draw).value(x) for _, draw in support])
    chances = np.array([probability for probability, _ in support])
    return float(chances @ values**2 - (chances @ values) ** 2)


@pytest.mark.parametrize("keep", [0.7, [0.5, 0.9, 1.0, 0.3, 0.6, 0.8]])
def test_the_bound_is_that_of_efron_and_stein(keep):
    """Against the sum over the whole support."""
    p = problem(mast.Bernoulli(keep))
    x, total = p.minimizer(), 0.0
    q = np.broadcast_to(p.sketch.keep, p.dim)
    for probability, draw in p.sketch.support(p.dim):
        c = draw.diagonal()
        for j in range(p.dim):
            on, off = c.copy(), c.copy()
            on[j], off[j] = 1 / q[j], 0.0
            change = p.objective.value(on * x) - p.objective.value(off * x)
            total += probability * q[j] * (1 - q[j]) * change**2
    assert exact_variance(p, x) <= total
    found = mast.certificate(p, x, draws=4000).deviation_bound
    assert found == pytest.approx(math.sqrt(total), rel=0.05)


def test_other_objectives_are_measured_coordinate_by_coordinate():
    """A quadratic that does not say it is one has the same bound."""
    p = problem()
    f = p.objective
    hidden = mast.Problem(mast.Function(f.value_and_gradient, f.dim, smoothness=f.smoothness), p.sketch)
    x = p.minimizer()
    ours, theirs = (mast.certificate(each, x, draws=30).deviation_bound for each in (p, hidden))
    assert ours == pytest.approx(theirs, rel=1e-10)


def test_on_a1a_the_bound_is_close():
    A, b = mast.data.load("a1a")
    linear = mast.Problem(mast.LeastSquares(A, b, l2=0.01), mast.Bernoulli(0.5))
    c = mast.certificate(linear, linear.minimizer(), draws=400)
    assert 0.95 < c.deviation_bound / c.deviation < 1.4


@pytest.mark.parametrize("sketch", [mast.Bernoulli(0.6), mast.RandK(3)], ids=repr)
def test_a_new_draw_is_rarely_worse_than_the_worst(sketch):
    """Of 10,000 draws, in groups of 20: the last of a group is the worst of all with probability 1/20."""
    p = problem(sketch)
    x = p.minimizer()
    losses = np.array([p.at(p.draw(seed=1, step=i)).value(x) for i in range(10_000)]).reshape(500, 20)
    worse = (losses[:, 19] > losses[:, :19].max(axis=1)).mean()
    chance = mast.certificate(p, x, draws=19).chance_of_worse
    assert chance == 1 / 20
    assert worse <= chance + 5 * math.sqrt(chance * (1 - chance) / 500)
    bound = mast.certificate(p, x, draws=200).deviation_bound
    assert bound is None or losses.std() < 1.1 * bound


def test_what_has_no_bound_says_so():
    c = mast.certificate(problem(mast.RandK(2)), np.ones(6), draws=5)
    assert c.deviation_bound is None
    assert "not independent" in str(c)
    with pytest.raises(NoGuaranteeError, match="Rolling"):
        mast.certificate(problem(mast.Rolling(2)), np.ones(6))
    with pytest.raises(ArgumentError):
        mast.certificate(problem(), np.ones(5))
    with pytest.raises(ArgumentError):
        mast.certificate(problem(), np.ones(6), draws=1)


def objectives_of(d=6):
    A = np.random.default_rng(0).standard_normal((20, d))
    labels = np.sign(A[:, 0])
    return (
        mast.Quadratic(A.T @ A / 20, A.T @ np.ones(20) / 20),
        mast.LeastSquares(A, np.ones(20), l2=0.1),
        mast.Logistic(A, labels, l2=0.1),
    )


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize(
    ("kind", "keep"),
    [
        (mast.Bernoulli, 0.3),
        (mast.Bernoulli, [0.1, 0.9, 0.5, 0.3, 1.0, 0.6]),
        (mast.UnscaledBernoulli, 0.3),
    ],
)
def test_the_bound_is_exact_for_quadratics_and_small_supports(which, keep, kind):
    f, v, x = objectives_of()[which], np.linspace(-1, 1, 6), np.linspace(1, 2, 6)
    problem = mast.Problem(f, kind(keep), shift=v)
    p = np.broadcast_to(keep, 6)
    s = 1 / p if kind is mast.Bernoulli else np.ones(6)
    losses = {m: f.value(v + np.array(m) * s * (x - v)) for m in itertools.product((0, 1), repeat=6)}
    chance = {m: float(np.prod(np.where(m, p, 1 - p))) for m in losses}
    total = 0.0
    for m, j in itertools.product(losses, range(6)):
        kept, dropped = ((*m[:j], bit, *m[j + 1 :]) for bit in (1, 0))
        total += chance[m] * p[j] * (1 - p[j]) * (losses[kept] - losses[dropped]) ** 2
    assert mast.certificate(problem, x, draws=2).deviation_bound == pytest.approx(math.sqrt(total), rel=1e-6)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_coordinates_left_alone_keep_the_others_independent(which):
    f, x = objectives_of()[which], np.linspace(1, 2, 6)
    p = np.array([0.5, 1, 0.5, 0.5, 1, 0.5])
    left_alone = mast.certificate(mast.Problem(f, mast.Except(mast.Bernoulli(0.5), [1, 4])), x, draws=3)
    same = mast.certificate(mast.Problem(f, mast.Bernoulli(p)), x, draws=3)
    assert left_alone.deviation_bound == pytest.approx(same.deviation_bound, rel=1e-9)
    pairs = mast.Grouped(mast.Bernoulli(0.5), [0, 0, 1, 1, 2, 2])
    for sketch in (mast.Nested([0.5, 1.0]), mast.RandK(2), mast.PermK(2), pairs, mast.Gaussian(0.3)):
        assert mast.certificate(mast.Problem(f, sketch), x, draws=3).deviation_bound is None
