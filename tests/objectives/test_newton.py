"""The Newton loop: a line search that holds it back where it must, and a caller that says when to stop."""

from itertools import islice

import numpy as np
import pytest

import mast
from mast.errors import ConvergenceError, UnboundedError
from mast.objectives.newton import hessian_solver, newton, newton_steps

START = np.array([3.0, 1.5])


def derivatives(x):
    """Of sqrt(1 + x²), whose full Newton steps from |x| > 1 lead ever further, and of cosh, where not."""
    root = np.sqrt(1 + x[0] ** 2)
    value = root + np.cosh(x[1])
    return value, np.array([x[0] / root, np.sinh(x[1])]), np.array([root**-3, np.cosh(x[1])])


F = mast.Function(lambda x: derivatives(x)[:2], dim=2, convex=True)


def solver(x, gradient, left):
    """The Hessian is a diagonal, so a step needs no matrix."""
    curvature = derivatives(x)[2]
    return gradient / curvature, curvature


def test_the_step_is_as_short_as_the_steeper_function_needs_it():
    first = next(newton_steps(F, START, solver, patience=2))
    full, diagonal = solver(START, F.gradient(START), 1.0)
    taken = (START - first.x) / full
    np.testing.assert_allclose(taken, taken[0], rtol=1e-12)
    assert first.moved
    assert taken[0] <= 0.5
    assert first.value == F.value(first.x) < F.value(START)
    assert first.before == F.value(START)
    assert first.promised == F.gradient(START) @ full
    np.testing.assert_array_equal(first.diagonal, diagonal)


@pytest.mark.parametrize("scaled", [True, False])
def test_the_value_falls_until_rounding_hides_it(scaled):
    values = [step.value for step in newton_steps(F, START, solver, patience=2, scaled=scaled)]
    assert np.all(np.diff(values) <= 1e-12)
    assert values[-1] == 2.0


@pytest.mark.parametrize("own", [None, solver])
def test_the_minimum(own):
    np.testing.assert_allclose(newton(F, START, own), 0.0, atol=1e-15)


def test_a_hessian_by_differences_gives_the_steps():
    step, diagonal = hessian_solver(F, dense=2)(START, F.gradient(START), 1.0)
    expected, curvature = solver(START, F.gradient(START), 1.0)
    np.testing.assert_allclose(step, expected, rtol=1e-6)  # central differences have about 10 digits
    np.testing.assert_allclose(diagonal, curvature, rtol=1e-6)


def test_the_caller_stops_it():
    steps = list(islice(newton_steps(F, START, solver, patience=2), 3))
    assert len(steps) == 3
    assert all(step.moved for step in steps)


def test_no_minimiser():
    """No value is below all others for exp(-x), and none bounds -x²/2."""
    falling = mast.Function(lambda x: (np.exp(-x).sum(), -np.exp(-x)), dim=1, convex=True)
    with pytest.raises((UnboundedError, ConvergenceError)):
        newton(falling, np.zeros(1))
    bent = mast.Function(lambda x: (-float(x @ x) / 2, -x), dim=2, convex=True)
    with pytest.raises(ConvergenceError, match="unbounded below, not convex"):
        newton(bent, np.ones(2))
