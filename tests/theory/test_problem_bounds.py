"""How f_D relates to f: Lemmas 1, 3 and 12 on quadratics, and formulas at chosen numbers."""

import math

import numpy as np
import pytest

from mast import theory
from mast.errors import ArgumentError, BiasedSketchError
from theory.instances import INSTANCES, name


@pytest.mark.parametrize("instance", INSTANCES, ids=name)
def test_smoothness_and_convexity(instance):
    bounds = theory.problem_bounds(**{k: v for k, v in instance.constants.items() if k != "gap"})
    eigenvalues = np.linalg.eigvalsh(instance.H_D)
    assert eigenvalues[-1] <= bounds.smoothness * (1 + 1e-12)
    assert eigenvalues[0] >= bounds.strong_convexity * (1 - 1e-12)
    assert eigenvalues[-1] / eigenvalues[0] <= bounds.condition_number * (1 + 1e-12)
    norms = np.array([np.linalg.norm(S, 2) ** 2 for S in instance.S])
    assert bounds.smoothness <= bounds.lipschitz(instance.q @ norms) * (1 + 1e-12)
    for S, H in zip(instance.S, instance.gradients.H, strict=True):
        square = np.linalg.eigvalsh(S.T @ S)
        eigenvalues = np.linalg.eigvalsh(H)
        assert eigenvalues[-1] <= bounds.L_f * square[-1] + 1e-9
        assert eigenvalues[0] >= bounds.mu_f * max(square[0], 0) - 1e-9


def test_formulas_at_chosen_numbers():
    bounds = theory.problem_bounds(L_f=3.0, mu_f=0.5, L_D=5.0, mu_D=2.0, L_max=25.0)
    assert bounds.smoothness == 15
    assert bounds.strong_convexity == 1
    assert bounds.condition_number == 2.5 * 6
    assert bounds.value(1.0, 2.0) == (1 + 1 * 0.5 / 2 * 2, 1 + 4 * 3 / 2 * 2)
    assert bounds.loss_at_solution(1.0, 2.0, 4.0) == (1.0, 1 + 12 - 1)
    assert bounds.value_at_solution(1.0, 2.0, 4.0) == (2.0, 13.0)
    assert bounds.gradient_second_moment(2.0) == 2 * 3 * 25 * 2
    low, high = bounds.value(np.array([1.0, 2.0]), np.array([0.0, 2.0]))
    np.testing.assert_allclose(low, [1, 2.5])
    np.testing.assert_allclose(high, [1, 14])
    assert theory.problem_bounds(L_f=1, L_D=2).condition_number == math.inf


def test_uniform_bernoulli_leaves_the_condition_number_alone():
    assert theory.problem_bounds(L_f=8, mu_f=2, L_D=1 / 0.3, mu_D=1 / 0.3).condition_number == 4


def test_refusals():
    with pytest.raises(BiasedSketchError, match=r"E\[S\] = I"):
        theory.problem_bounds(L_f=1, L_D=0.7)
    with pytest.raises(BiasedSketchError, match=r"mu_D = 0 is below 1.*E\[S\] = I"):
        theory.problem_bounds(L_f=1, L_D=1, mu_D=0)  # of a sketch that never keeps some coordinates
    with pytest.raises(ArgumentError, match="L_max is missing"):
        theory.problem_bounds(L_f=1, L_D=2).gradient_second_moment(1.0)
    with pytest.raises(ArgumentError, match="distance_sq must not be negative"):
        theory.problem_bounds(L_f=1, L_D=2).value(0.0, -1.0)
    with pytest.raises(ArgumentError, match="f must be finite"):
        theory.problem_bounds(L_f=1, L_D=2).value(float("nan"), 1.0)
