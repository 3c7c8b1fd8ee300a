"""Keep probabilities: the best ones under a budget, and what alternating them with training brings."""

import numpy as np
import pytest

import mast
from mast.allocation import allocate
from mast.errors import ArgumentError


def test_they_are_the_minimiser_of_the_penalty_under_the_budget():
    """No move of probability between two coordinates lowers sum_j s_j² / p_j."""
    scores = np.random.default_rng(0).exponential(size=30)
    p = allocate(scores, 0.25, 0.05)
    assert p.mean() == pytest.approx(0.25, rel=1e-12)
    assert p.min() == 0.05
    slope = (scores / p) ** 2  # what a little more probability saves
    free = (p > 0.05) & (p < 1)
    assert np.ptp(slope[free]) < 1e-9 * slope[free].max()
    assert slope[p == 0.05].max() <= slope[free].min() * (1 + 1e-9)


@pytest.mark.parametrize("scores", [[1.0, 1e-310], [1e-160, 1e-161], [1e-310, 3e-310], [1e200, 1e-150]])
def test_scores_of_any_size_spend_the_budget(scores):
    """Squares and quotients of tiny ones overflow, such as where weights have decayed for long."""
    assert allocate(np.array(scores), 0.4, 0.01).mean() == pytest.approx(0.4)


def test_of_a_quadratic():
    H, b = np.diag([9.0, 4.0, 1.0]), np.ones(3)
    problem = mast.Problem(mast.Quadratic(H, b), mast.Bernoulli(0.5), shift=[1.0, 0.0, 0.0])
    keep = mast.keep_probabilities(problem, [2.0, 1.0, 1.0], budget=0.3, floor=0.01)
    np.testing.assert_allclose(keep, np.array([3, 2, 1]) * 0.15, rtol=1e-12)


def test_large_scores_are_kept_always_and_points_at_the_shift_evenly():
    assert allocate(np.array([1e9, 1.0, 1.0]), 0.5, 0.1) == pytest.approx([1.0, 0.25, 0.25])
    assert allocate(np.zeros(4), 0.3, 0.1).tolist() == [0.3] * 4
    assert allocate(np.array([1.0, 0, 0, 0]), 0.5, 0.1).tolist() == [1.0, 0.1, 0.1, 0.1]


@pytest.mark.parametrize(
    ("budget", "floor"), [(0.1, 0.2), (0.0, 0.1), (1.5, 0.1), (0.5, 0.0), (0.5, -1.0), (np.nan, 0.1)]
)
def test_refuses(budget, floor):
    problem = mast.Problem(mast.Quadratic(np.eye(2), np.ones(2)), mast.Bernoulli(0.5))
    with pytest.raises(ArgumentError):
        mast.keep_probabilities(problem, np.ones(2), budget=budget, floor=floor)


def test_refuses_what_is_no_problem_or_no_point():
    f = mast.Quadratic(np.eye(2), np.ones(2))
    with pytest.raises(ArgumentError):
        mast.keep_probabilities(f, np.ones(2))
    with pytest.raises(ArgumentError):
        mast.keep_probabilities(mast.Problem(f, mast.Bernoulli(0.5)), np.ones(3))


def test_alternated_on_a1a_a_tenth_of_the_weights_does_nearly_what_all_do():
    A, b = mast.data.load("a1a", n_features=119)
    f = mast.LeastSquares(A, b, l2=0.01)
    problem, x = mast.Problem(f, mast.Bernoulli(0.1)), f.minimizer()
    accuracy = lambda y: float(np.mean(np.where(A @ y > 0, 1, -1) == b))  # noqa: E731

    def served(problem, x):
        return np.mean([accuracy(problem.draw(seed=s).apply(x)) for s in range(20)])

    even, even_accuracy = problem.infimum() - f.infimum(), served(problem, problem.minimizer())
    for _ in range(10):
        keep = mast.keep_probabilities(problem, x, budget=0.1, floor=0.01)
        problem = mast.Problem(f, mast.Bernoulli(keep))
        x = problem.minimizer()
    assert keep.mean() == pytest.approx(0.1)
    assert even == pytest.approx(0.167, abs=0.001)
    assert problem.infimum() - f.infimum() < 0.015
    # twelve weights that forward selection chooses have .827: the budget is what limits the accuracy
    assert served(problem, x) > 0.82 > 0.78 > even_accuracy
