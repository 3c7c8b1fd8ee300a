"""Expected smoothness: exact moments, a bound that the measured error never exceeds, and the longer step."""

import numpy as np
import pytest

import mast
from mast import theory
from mast.errors import ArgumentError
from mast.methods.quadratics import by_expected_smoothness, gradient_moments
from theory import quadratic_moments as exact
from theory.instances import INSTANCES, below, name, start_of

T = 80


def moments_by_hand(problem):
    """H_D, E[(S'HS)²] and E|grad f_S(x_D*)|² over the whole support, in plain loops."""
    H, v = problem.objective.hessian(problem.shift), problem.shift
    curvature, square, sigma_sq = np.zeros_like(H), np.zeros_like(H), 0.0
    x = problem.minimizer()
    for probability, draw in problem.sketch.support(problem.dim):
        S = np.diag(draw.diagonal())
        curvature += probability * S @ H @ S
        square += probability * S @ H @ S @ S @ H @ S
        g = S @ problem.objective.gradient(v + S @ (x - v))
        sigma_sq += probability * g @ g
    return curvature, square, sigma_sq


def quadratic(d, seed=0):
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(2 * d, d))
    return mast.Quadratic(A.T @ A / d + 0.1 * np.eye(d), rng.normal(size=d))


def least_squares():
    rng = np.random.default_rng(3)
    return mast.LeastSquares(rng.normal(size=(20, 5)), rng.normal(size=20), l2=0.05)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize(
    "sketch",
    [
        mast.Bernoulli(0.3),
        mast.Bernoulli([0.2, 0.9, 1.0, 0.5, 0.4]),
        mast.RandK(2),
        mast.PermK(2),
        mast.Nested([0.4, 1.0]),
        mast.Sampled(mast.Bernoulli(0.5), 7),
        mast.Grouped(mast.Bernoulli(0.5), [0, 0, 1, 1, 2]),
    ],
    ids=repr,
)
@pytest.mark.parametrize("make", [lambda: quadratic(5), least_squares], ids=["quadratic", "least squares"])
def test_moments_are_those_of_the_support(make, sketch, shifted):
    problem = mast.Problem(make(), sketch, shift=np.linspace(-1, 1, 5) if shifted else None)
    found, by_hand = gradient_moments(problem), moments_by_hand(problem)
    for ours, theirs in zip(found, by_hand, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-12)
    assert gradient_moments(problem, noise=False).sigma_sq is None


@pytest.mark.parametrize("share", [1.0, 0.25])
@pytest.mark.parametrize("instance", INSTANCES, ids=name)
def test_the_measured_error_never_exceeds_the_bound(instance, share):
    """E|x^t - x_D*|², exactly, on the small quadratics of all statements."""
    square = np.einsum("n,nij,njk->ik", instance.q, instance.gradients.H, instance.gradients.H)
    mu = np.linalg.eigvalsh(instance.H_D)[0]
    if mu < 1e-9:
        pytest.skip("H_D is singular: the statement does not apply")
    root = np.linalg.inv(np.linalg.cholesky(instance.H_D))
    Lambda = np.linalg.eigvalsh(root @ square @ root.T)[-1]
    residual = instance.gradients.H @ instance.solution - instance.gradients.c
    sigma_sq = float(instance.q @ (residual**2).sum(axis=1))
    g = theory.expected_smoothness(Lambda=Lambda, mu=mu, sigma_sq=sigma_sq)
    step = share * g.max_step_size()
    x0 = start_of(instance)
    path = exact.propagate(exact.dsgd_step(instance.gradients, step), np.append(x0, 1.0), T)
    measured = [instance.distance(second) for second in path]
    r0sq = np.sum((x0 - instance.solution) ** 2)
    below(measured, g.bound(step, np.arange(T + 1), r0sq=r0sq))


def test_the_longer_of_two_steps_is_taken():
    A, b = mast.data.load("a1a")
    f = mast.LeastSquares(A, b, l2=0.01)
    for keep, longer in ((0.9, False), (0.1, True)):  # a keep is rounded to 32 bits
        problem = mast.Problem(f, mast.Bernoulli(keep))
        printed = keep**2 / f.smoothness
        other = by_expected_smoothness(problem, noise=False).max_step_size()
        assert (other > printed) is longer
        g = mast.guarantee(problem, "dsgd")
        assert g.max_step_size() == pytest.approx(max(other, printed), rel=1e-8)
        assert ("Gower" in g.statement) is longer
        result = mast.minimize(problem, "dsgd", steps=10)
        assert result.step_size == pytest.approx(max(other, printed), rel=1e-8)


def test_other_regimes_and_losses_keep_their_statements():
    problem = mast.Problem(quadratic(5), mast.Bernoulli(0.2))
    assert "Theorem 10" in mast.guarantee(problem, "dsgd", regime="convex").statement
    A, b = mast.data.load("a1a")
    logistic = mast.Problem(mast.Logistic(A, b, kappa=100), mast.Bernoulli(0.1))
    assert by_expected_smoothness(logistic, noise=True) is None
    wide = mast.Problem(quadratic(30), mast.RandK(10))  # a support of millions
    assert by_expected_smoothness(wide, noise=True) is None
    singular = mast.Problem(mast.Quadratic(np.diag([1.0, 0.0]), [1.0, 0.0]), mast.Bernoulli(0.5))
    assert by_expected_smoothness(singular, noise=False) is None


def test_what_a_statement_needs_is_said():
    good = {"Lambda": 20.0, "mu": 0.5, "sigma_sq": 1.5}
    g = theory.expected_smoothness(**good)
    assert g.max_step_size() == 1 / 40
    plan = g.plan(delta=0.1, r0sq=2.0)
    assert g.bound(plan.step_size, plan.iterations, r0sq=2.0) <= plan.target
    assert g.bound(1 / 39, 10, r0sq=2.0) == np.inf
    for constant in ("Lambda", "mu"):
        for bad in (None, -1.0, 0.0, float("nan"), float("inf"), "three"):
            with pytest.raises(ArgumentError, match=constant):
                theory.expected_smoothness(**{**good, constant: bad})
    with pytest.raises(ArgumentError, match="no function and sketch"):
        theory.expected_smoothness(Lambda=1.0, mu=3.0)
    with pytest.raises(ArgumentError, match="sigma_sq is missing"):
        theory.expected_smoothness(Lambda=20.0, mu=0.5).bound(0.01, 5, r0sq=1.0)
