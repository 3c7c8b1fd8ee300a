"""Quadratics, user functions, and the Newton method beneath minimisers."""

import math

import numpy as np
import pytest

import mast
from mast.errors import ArgumentError, ConvergenceError, UnboundedError
from mast.objectives import Mean, mean


class TestQuadratic:
    def test_values(self):
        rng = np.random.default_rng(0)
        H = rng.standard_normal((4, 4))
        H = H @ H.T
        b, x = rng.standard_normal(4), rng.standard_normal(4)
        f = mast.Quadratic(H, b, 2.5)
        assert f.value(x) == pytest.approx(0.5 * x @ H @ x - b @ x + 2.5, rel=1e-14)
        np.testing.assert_allclose(f.gradient(x), H @ x - b, rtol=1e-13)
        value, gradient = f.value_and_gradient(x)
        assert value == pytest.approx(f.value(x), rel=1e-15)
        assert np.array_equal(gradient, f.gradient(x))
        eigenvalues = np.linalg.eigvalsh(H)
        assert f.smoothness == pytest.approx(eigenvalues[-1], rel=1e-13)
        assert f.strong_convexity == pytest.approx(eigenvalues[0], rel=1e-10)
        np.testing.assert_allclose(f.minimizer(), np.linalg.solve(H, b), rtol=1e-9)
        assert np.abs(f.gradient(f.minimizer())).max() < 1e-13

    def test_singular_but_bounded(self):
        f = mast.Quadratic([[1.0, 1.0], [1.0, 1.0]], [1.0, 1.0])
        np.testing.assert_allclose(f.minimizer(), [0.5, 0.5])
        assert f.strong_convexity == 0
        assert f.convex

    @pytest.mark.parametrize(("H", "b"), [([[1.0, 0], [0, -1]], [0.0, 0]), ([[1.0, 0], [0, 0]], [0.0, 1])])
    def test_unbounded(self, H, b):
        f = mast.Quadratic(H, b)
        assert f.infimum() == -math.inf
        with pytest.raises(UnboundedError, match="unbounded"):
            f.minimizer()

    def test_indefinite_smoothness_is_that_of_the_gradient(self):
        assert mast.Quadratic([[1.0, 0], [0, -5.0]], [0.0, 0]).smoothness == 5
        assert mast.Quadratic([[1.0, 0], [0, -5.0]], [0.0, 0]).strong_convexity == 0

    @pytest.mark.parametrize(
        ("H", "b", "message"),
        [
            ([[1.0, 2.0]], [1.0], "square"),
            ([[1.0, 2.0], [0.0, 1.0]], [1.0, 1.0], "symmetric"),
            ([[math.nan]], [1.0], "NaN"),
            ([[1.0]], [1.0, 2.0], "b must have 1"),
            ([["a"]], [1.0], "real numbers"),
            (np.empty((0, 0)), [], "at least one"),
        ],
    )
    def test_refuses(self, H, b, message):
        with pytest.raises(ArgumentError, match=message):
            mast.Quadratic(H, b)

    def test_refuses_a_point_of_another_length(self):
        with pytest.raises(ArgumentError, match="x must have 2"):
            mast.Quadratic(np.eye(2), np.ones(2)).value([1.0])


class TestFunction:
    def test_softplus_pair_is_minimised_to_machine_precision(self):
        def call(x):
            e = np.exp(-x)
            return float(np.sum(np.logaddexp(0, -x) + x**2 / 20)), -e / (1 + e) + x / 10

        f = mast.Function(call, 3, smoothness=0.35, strong_convexity=0.1)
        assert f.smoothness == 0.35
        assert np.abs(f.gradient(f.minimizer())).max() < 1e-15
        assert f.infimum() == f.value(f.minimizer())

    def test_an_unknown_smoothness_is_asked_for(self):
        with pytest.raises(ArgumentError, match="smoothness="):
            _ = mast.Function(lambda x: (0.0, 0 * x), 2).smoothness

    def test_a_minimiser_needs_convexity(self):
        with pytest.raises(ArgumentError, match="convex"):
            mast.Function(lambda x: (0.0, 0 * x), 2).minimizer()

    def test_a_given_infimum_is_used(self):
        assert mast.Function(lambda x: (0.0, 0 * x), 2, infimum=-3.0).infimum() == -3

    def test_a_line_has_no_minimiser(self):
        with pytest.raises((ConvergenceError, UnboundedError)):
            mast.Function(lambda x: (float(x[0]), np.ones(1)), 1, convex=True).minimizer()

    @pytest.mark.parametrize("returned", [1.0, (1.0,), (1.0, np.ones(3)), ("a", np.ones(2))])
    def test_refuses_what_is_not_a_value_and_a_gradient(self, returned):
        with pytest.raises(ArgumentError, match="gradient"):
            mast.Function(lambda x: returned, 2).value(np.zeros(2))

    def test_refuses_bad_arguments(self):
        with pytest.raises(ArgumentError, match="callable"):
            mast.Function(3, 2)
        with pytest.raises(ArgumentError, match="dim"):
            mast.Function(lambda x: (0.0, x), 0)
        with pytest.raises(ArgumentError, match="smoothness"):
            mast.Function(lambda x: (0.0, x), 1, smoothness=-1)
        with pytest.raises(ArgumentError, match="convex=False"):
            mast.Function(lambda x: (0.0, x), 1, strong_convexity=1, convex=False)

    def test_the_callable_cannot_change_the_users_point(self):
        def rude(x):
            x[:] = 7
            return 0.0, x

        point = np.zeros(2)
        mast.Function(rude, 2).value(point)
        assert (point == 0).all()


def test_the_default_hessian_is_that_of_the_gradient():
    f = mast.Function(lambda x: (float(np.cosh(x).sum() + x[0] * x[1]), np.sinh(x) + x[::-1]), 2)
    x = np.array([0.3, -0.8])
    expected = np.diag(np.cosh(x)) + np.array([[0, 1], [1, 0]])
    np.testing.assert_allclose(f.hessian(x), expected, atol=1e-8)


def test_means():
    f, g = mast.Quadratic([[2.0]], [0.0]), mast.Quadratic([[1.0]], [4.0], 1.0)
    both = mean([f, g], [0.25, 0.75])
    assert isinstance(both, mast.Quadratic)
    assert both.value([3.0]) == pytest.approx(0.25 * f.value([3.0]) + 0.75 * g.value([3.0]))
    slow = Mean([f, g], [0.25, 0.75])
    assert slow.value([3.0]) == pytest.approx(both.value([3.0]))
    np.testing.assert_allclose(slow.minimizer(), both.minimizer(), rtol=1e-12)
    np.testing.assert_allclose(slow.hessian([1.0]), both.H)
