"""Conditional: stand-ins as a sketch of the core."""

import numpy as np
import pytest

import mast
from mast.errors import ArgumentError, BiasedSketchError


def covariance(d=5, seed=0):
    A = np.random.default_rng(seed).standard_normal((d, 2 * d))
    return A @ A.T / (2 * d)


def by_hand(C, mask):
    """T_M: the identity on what is kept, and the regression of the rest on it."""
    T = np.diag(mask.astype(float))
    if mask.any():
        T[np.ix_(~mask, mask)] = C[np.ix_(~mask, mask)] @ np.linalg.inv(C[np.ix_(mask, mask)])
    return T


def test_a_draw_is_the_transpose_of_the_stand_ins_of_its_mask():
    C = covariance()
    for keep in (0.5, np.linspace(0.2, 0.9, 5), mast.PermK(2)):
        sketch = mast.Conditional(C, keep)
        for step in range(5):
            mask = sketch.masks.draw(5, step=step).diagonal() != 0
            np.testing.assert_allclose(sketch.draw(5, step=step).matrix(), by_hand(C, mask).T, atol=1e-12)


def test_constants_are_those_of_all_masks_and_the_bias_is_stated():
    C = covariance()
    sketch = mast.Conditional(C, 0.6)
    support = [(p, draw.matrix()) for p, draw in sketch.support(5)]
    square = sum(p * S.T @ S for p, S in support)
    constants = sketch.constants(5)
    np.testing.assert_allclose([constants.mu_D, constants.L_D], np.linalg.eigvalsh(square)[[0, -1]])
    assert constants.L_max == pytest.approx(max(np.linalg.norm(S, 2) ** 2 for _, S in support))
    assert not constants.estimated
    assert sketch.bias(5) == pytest.approx(np.abs(sum(p * S for p, S in support) - np.eye(5)).max())
    assert not sketch.unbiased
    assert mast.Conditional(C, 1.0).bias(5) == 0
    assert mast.Conditional(covariance(30), 0.5).constants(30).estimated


def test_features_that_say_nothing_of_each_other_are_the_original_dropout():
    sketch = mast.Conditional(np.diag([1.0, 4.0, 9.0]), 0.5)
    unscaled = mast.UnscaledBernoulli(0.5)
    for step in range(5):
        np.testing.assert_array_equal(
            sketch.draw(3, step=step).matrix(), unscaled.draw(3, step=step).matrix()
        )


def test_problems_with_it_are_exact_and_can_be_minimised():
    generator = np.random.default_rng(0)
    A = generator.standard_normal((80, 4)) @ generator.standard_normal((4, 4))
    A -= A.mean(axis=0)
    b = np.where(A @ [1.0, -1, 2, 0] + generator.standard_normal(80) > 0, 1.0, -1.0)
    sketch = mast.Conditional(A.T @ A / 80 + 0.01 * np.eye(4), 0.5)
    problem = mast.Problem(mast.Logistic(A, b, l2=0.1), sketch)
    x = generator.standard_normal(4)
    by_support = sum(p * problem.objective.value(draw.apply(x)) for p, draw in sketch.support(4))
    assert problem.value(x) == pytest.approx(by_support, rel=1e-12)
    estimate = problem.estimate(x, 2000)
    assert abs(estimate.value - by_support) < 5 * estimate.value_stderr
    found = mast.minimize(problem, "agd", steps=600, progress=False)
    np.testing.assert_allclose(found.x, problem.minimizer(), atol=1e-6)
    assert np.abs(problem.gradient(problem.minimizer())).max() < 1e-10
    assert problem.smoothness == pytest.approx(problem.objective.smoothness * sketch.constants(4).L_D)


@pytest.mark.parametrize(
    ("C", "keep"),
    [
        (np.ones((2, 3)), 0.5),
        ([[1.0, 0.5], [0.4, 1.0]], 0.5),
        ([[1.0, 2.0], [2.0, 1.0]], 0.5),
        (np.eye(2), 0.0),
        (np.eye(2), [0.5, 0.5, 0.5]),
        (np.eye(2), mast.Matrices([[[0.0, 1.0], [1.0, 0.0]], [[2.0, -1.0], [-1.0, 2.0]]])),
        (np.full((2, 2), np.nan), 0.5),
    ],
)
def test_refuses(C, keep):
    with pytest.raises(ArgumentError):
        mast.Conditional(C, keep)


def test_another_dimension_is_refused():
    with pytest.raises(ArgumentError, match="3 coordinates"):
        mast.Conditional(np.eye(3), 0.5).draw(4)


def test_what_needs_an_unbiased_sketch_is_refused_and_descent_is_not():
    sketch = mast.Conditional(covariance(3), 0.5)
    problem = mast.Problem(mast.Quadratic(np.diag([1.0, 2.0, 3.0]), np.ones(3)), sketch)
    c = sketch.constants(3)
    assert not c.unbiased
    assert mast.guarantee(problem, "dsgd").max_step_size() >= 1 / (3 * c.L_max)
    with pytest.raises(BiasedSketchError, match=r"E\[S\] = I"):
        mast.theory.problem_bounds(L_f=3.0, L_D=c.L_D, mu_D=c.mu_D)
    found = mast.minimize(problem, "gd", steps=2000, progress=False)
    assert found.step_size == pytest.approx(1 / (3 * sketch.constants(3).L_D))
    np.testing.assert_allclose(found.x, problem.minimizer(), atol=1e-6)
