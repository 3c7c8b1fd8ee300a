"""The Newton loop: blocks keep their own step lengths, and the caller says when to stop."""

from itertools import islice

import numpy as np
import pytest

import mast
from mast.errors import ConvergenceError, UnboundedError
from mast.objectives.newton import BlockSum, OneBlock, newton, newton_steps

#: sqrt(1 + x²), whose full Newton steps from |x| > 1 go ever further away, and cosh, where they never do
STEEP, SMOOTH = 0, 1
START = np.array([3.0, 1.5])


class Functions(BlockSum):
    """Each of these functions is a block of one variable."""

    def __init__(self, *which):
        self.which = which

    def derivatives(self, x):
        root = np.sqrt(1 + x**2)
        steep = np.array(self.which) == STEEP
        return [
            np.where(steep, *pair)
            for pair in ((root, np.cosh(x)), (x / root, np.sinh(x)), (root**-3, np.cosh(x)))
        ]

    def evaluate(self, x):
        value, slope, _ = self.derivatives(x)
        return value, slope

    def step(self, x, gradient, left):
        return gradient / self.derivatives(x)[2]

    def dots(self, a, b):
        return a * b

    def spread(self, numbers):
        return numbers


@pytest.mark.parametrize("k", [STEEP, SMOOTH])
def test_a_block_moves_as_if_it_were_alone(k):
    together = [step.x[k] for step in newton_steps(Functions(STEEP, SMOOTH), START, patience=2)]
    apart = [step.x[0] for step in newton_steps(Functions(k), START[[k]], patience=2)]
    assert together[: len(apart)] == apart
    assert set(together[len(apart) :]) <= {apart[-1]}  # it rests while the other goes on
    assert abs(apart[-1]) <= 1e-15


def test_an_objective_is_one_block():
    """Both functions in one: the step is as short as the steeper needs it, and the minimum is the same."""

    def value_and_gradient(x):
        values, slopes = Functions(STEEP, SMOOTH).evaluate(x)
        return values.sum(), slopes

    f = mast.Function(value_and_gradient, dim=2, convex=True)
    first = next(newton_steps(OneBlock(f, dense=2), START, patience=2))
    taken = (START - first.x) / first.step
    np.testing.assert_allclose(taken, taken[0], rtol=1e-12)
    assert taken[0] <= 0.5
    np.testing.assert_allclose(newton(f, START), 0.0, atol=1e-15)


def test_only_the_block_that_needs_it_takes_shorter_steps():
    first = next(newton_steps(Functions(STEEP, SMOOTH), START, patience=2))
    taken = (START - first.x) / first.step
    assert taken[SMOOTH] == 1.0
    assert 0 < taken[STEEP] <= 0.5


def test_the_caller_stops_it():
    steps = list(islice(newton_steps(Functions(STEEP, SMOOTH), START, patience=2), 3))
    assert len(steps) == 3
    assert all(np.diff([step.sizes[SMOOTH] for step in steps]) < 0)


def test_no_minimiser():
    """No value is below all others for exp(-x), and none bounds -x²/2."""
    falling = mast.Function(lambda x: (np.exp(-x).sum(), -np.exp(-x)), dim=1, convex=True)
    with pytest.raises((UnboundedError, ConvergenceError)):
        newton(falling, np.zeros(1))
    bent = mast.Function(lambda x: (-float(x @ x) / 2, -x), dim=2, convex=True)
    with pytest.raises(ConvergenceError, match="unbounded below, not convex"):
        newton(bent, np.ones(2))
