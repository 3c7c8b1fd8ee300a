"""Except: its own refusals, and that every exact form of f_D takes coordinates that are left alone."""

import numpy as np
import pytest

import mast
from mast.errors import ArgumentError

INNER = {
    "perm": mast.PermK(3),
    "bernoulli": mast.Bernoulli(0.6),
    "rand-2": mast.RandK(2),
    "redrawn": mast.PermK(3, redraw=True),
    "mixture": mast.Mixture([mast.Bernoulli(0.6), mast.PermK(2)]),
    "grouped": mast.Grouped(mast.Bernoulli(0.5), [0, 1, 1, 2, 0]),
}


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
@pytest.mark.parametrize("kind", [mast.Logistic, mast.LeastSquares])
def test_exact_forms_equal_enumeration(inner, kind):
    generator = np.random.default_rng(0)
    A = generator.standard_normal((30, 7))
    b = np.sign(A[:, 0] + generator.standard_normal(30))
    sketch = mast.Except(inner, [0, -1])
    shift = generator.standard_normal(7)
    f = kind(A, b, l2=0.1)
    problem = mast.Problem(f, sketch, shift)
    x = generator.standard_normal(7)
    listed = [(p, problem.at(draw).value_and_gradient(x)) for p, draw in sketch.support(7)]
    value, gradient = problem.value_and_gradient(x)
    assert value == pytest.approx(sum(p * v for p, (v, _) in listed), rel=1e-12)
    np.testing.assert_allclose(gradient, sum(p * g for p, (_, g) in listed), atol=1e-11)


@pytest.mark.parametrize("inner", [mast.Bernoulli(0.6), mast.RandK(3), mast.Gaussian(0.5)])
def test_moment_form_is_the_second_moment(inner):
    sketch = mast.Except(inner, [2, 5])
    form = sketch.law(8).moment_form()
    moment = form.share * np.outer(form.m, form.m)
    moment += np.where(form.labels[:, None] == form.labels, form.extra[form.labels], 0.0)
    np.testing.assert_allclose(moment, sketch.second_moment(8), atol=1e-13)


def test_the_compiled_loop_makes_the_same_draws():
    A, b = mast.data.load("a1a")
    problem = mast.Problem(mast.Logistic(A, b, kappa=50), mast.Except(mast.Bernoulli(0.5), [-1]))
    from mast.methods import make

    method = make("dsgd_sampled", {}).bind(problem, 3)
    assert method.loop is not None
    fast, slow = method.start(np.zeros(123)), method.start(np.zeros(123))
    method.advance(fast, 0, np.full(50, 0.1))
    for t in range(50):
        method.step(slow, t, 0.1)
    np.testing.assert_allclose(fast.x, slow.x, atol=1e-14)


@pytest.mark.parametrize("kept", [[], [0.5], [[1]], "a"])
def test_refuses_what_is_no_list_of_coordinates(kept):
    with pytest.raises(ArgumentError, match="kept"):
        mast.Except(mast.Identity(), kept)


def test_refuses_what_does_not_fit():
    with pytest.raises(ArgumentError, match="coordinate 4"):
        mast.Except(mast.Identity(), [4]).draw(4)
    with pytest.raises(ArgumentError, match="every coordinate"):
        mast.Except(mast.Identity(), [0, -1]).draw(2)
    with pytest.raises(ArgumentError, match="takes a sketch"):
        mast.Except("permk", [0])
