"""Certificates: bounds that hold, and chances that are met, counted over many draws."""

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
