"""f_D: exact against brute force, Monte Carlo against exact; the lemmas and Theorem 1 on random instances."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mast
from mast.errors import ArgumentError, NotExactError
from sketches.samples import FINITE, SKETCHES, UNBIASED, D


def quadratic(seed, d=D, rank=None):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((rank or 2 * d, d))
    return mast.Quadratic(A.T @ A / len(A) + 0.1 * np.eye(d), rng.standard_normal(d), rng.standard_normal())


def smooth_function(seed, d=D):
    """A convex function that is not quadratic: sum of log cosh of linear forms, plus a little |x|²."""
    rng = np.random.default_rng(seed)
    A, b = rng.standard_normal((8, d)), rng.standard_normal(8)

    def call(x):
        z = A @ x - b
        log_cosh = np.logaddexp(z, -z) - math.log(2)
        return float(log_cosh.mean() + 0.05 * x @ x), A.T @ np.tanh(z) / 8 + 0.1 * x

    return mast.Function(
        call, d, smoothness=np.linalg.norm(A.T @ A / 8, 2) + 0.1, strong_convexity=0.1, convex=True
    )


def brute_force(f, sketch, v, x):
    value, gradient = 0.0, np.zeros(x.size)
    for probability, draw in sketch.support(x.size):
        S = draw.matrix()
        value += probability * f.value(v + S @ (x - v))
        gradient += probability * (S.T @ f.gradient(v + S @ (x - v)))
    return value, gradient


@pytest.mark.parametrize(
    ("make", "shifted"), [(quadratic, False), (quadratic, True), (smooth_function, True)]
)
@pytest.mark.parametrize("name", FINITE)
class TestExact:
    def test_value_and_gradient(self, name, make, shifted):
        f, rng = make(1), np.random.default_rng(2)
        v = rng.standard_normal(D) if shifted else np.zeros(D)
        problem = mast.Problem(f, FINITE[name], v if shifted else None)
        x = rng.standard_normal(D)
        value, gradient = brute_force(f, FINITE[name], v, x)
        assert problem.value(x) == pytest.approx(value, rel=1e-12, abs=1e-12)
        np.testing.assert_allclose(problem.gradient(x), gradient, rtol=1e-12, atol=1e-12)
        both = problem.value_and_gradient(x)
        assert both[0] == pytest.approx(value, rel=1e-12, abs=1e-12)
        np.testing.assert_allclose(both[1], gradient, rtol=1e-12, atol=1e-12)

    def test_minimizer(self, name, make, shifted):
        f = make(3)
        v = np.linspace(-1, 1, D) if shifted else None
        problem = mast.Problem(f, FINITE[name], v)
        x = problem.minimizer()
        scale = problem.exact.hessian(x).max()
        assert np.abs(problem.gradient(x)).max() < 1e-13 * max(scale, 1)
        assert problem.infimum() == pytest.approx(problem.value(x), rel=1e-12)
        for direction in np.random.default_rng(4).standard_normal((5, D)):
            assert problem.value(x + 0.01 * direction) > problem.infimum()


def test_gaussian_with_a_quadratic_is_exact():
    f, v, sigma = quadratic(5), np.linspace(0, 1, D), 0.5
    problem = mast.Problem(f, mast.Gaussian(sigma), v)
    x = np.linspace(2, -1, D)
    # E u'(C H C)u = u'Hu + sigma² sum_j H_jj u_j²
    expected = f.value(x) + 0.5 * sigma**2 * float(np.diag(f.H) @ (x - v) ** 2)
    assert problem.value(x) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("name", SKETCHES)
def test_estimate_agrees_with_exact(name):
    problem = mast.Problem(quadratic(6), SKETCHES[name], np.full(D, 0.3))
    x = np.linspace(-1, 1, D)
    estimate = problem.estimate(x, samples=4000, seed=1)
    assert estimate.samples == 4000
    assert abs(estimate.value - problem.value(x)) <= 5 * estimate.value_stderr + 1e-12
    assert (np.abs(estimate.gradient - problem.gradient(x)) <= 5 * estimate.gradient_stderr + 1e-12).all()


def test_the_standard_error_is_right():
    problem = mast.Problem(quadratic(7), mast.Bernoulli(0.5))
    x = np.ones(D)
    values = [problem.estimate(x, samples=50, seed=s) for s in range(400)]
    spread = np.std([e.value for e in values])
    typical = np.sqrt(np.mean([e.value_stderr**2 for e in values]))
    # the standard deviation of a standard deviation of 400 numbers is about 1/sqrt(800) of it
    assert abs(spread / typical - 1) < 5 / math.sqrt(800) * 1.5


def test_what_has_no_exact_form_names_estimate():
    for sketch in (mast.Gaussian(0.5), mast.Bernoulli(0.5)):
        problem = mast.Problem(smooth_function(0, d=30), sketch)
        for ask in (problem.value, problem.gradient):
            with pytest.raises(NotExactError, match="estimate"):
                ask(np.zeros(30))
        with pytest.raises(NotExactError, match="estimate"):
            problem.minimizer()
        assert math.isfinite(problem.estimate(np.ones(30), samples=10).value)


def test_an_objective_of_ones_own_may_know_a_quicker_way_to_a_sketched_gradient():
    class Counted(mast.Quadratic):
        calls = 0

        def sketched_gradient(self, x, draw, shift, rows=None):
            self.calls += 1
            return super().sketched_gradient(x, draw, shift, rows)

    f = Counted(np.eye(3), np.ones(3))
    problem, draw = mast.Problem(f, mast.PermK(3)), mast.PermK(3).draw(3)
    np.testing.assert_allclose(problem.sketched_difference(np.ones(3), np.zeros(3), draw), 9.0)
    mast.minimize(problem, "l_svrdsg", 5, 0.001)
    assert f.calls == 2 + 2 * 5


class TestArguments:
    def test_refusals(self):
        f = quadratic(0)
        with pytest.raises(ArgumentError, match="objective"):
            mast.Problem(3, mast.Identity())
        with pytest.raises(ArgumentError, match="sketch"):
            mast.Problem(f, "permk")
        with pytest.raises(ArgumentError, match="shift must have 6"):
            mast.Problem(f, mast.Identity(), [1.0])
        with pytest.raises(ArgumentError, match="NaN"):
            mast.Problem(f, mast.Identity(), np.full(D, np.nan))
        with pytest.raises(ArgumentError, match="RandK"):
            mast.Problem(f, mast.RandK(7)).value(np.zeros(D))
        with pytest.raises(ArgumentError, match="2 samples"):
            mast.Problem(f, mast.Identity()).estimate(np.zeros(D), samples=1)
        with pytest.raises(ArgumentError, match="x must have 6"):
            mast.Problem(f, mast.Identity()).value([1.0])

    def test_the_shift_is_a_copy(self):
        v = np.zeros(D)
        problem = mast.Problem(quadratic(0), mast.Identity(), v)
        v[:] = 5
        assert not problem.shift.any()

    def test_draws_and_sparsified_models(self):
        problem = mast.Problem(quadratic(0), mast.RandK(2), np.ones(D))
        draw = problem.draw(seed=3, step=1)
        sparse = problem.sparsified(np.full(D, 2.0), draw)
        assert (sparse != 1).sum() == 2
        assert problem.at(draw).value(np.full(D, 2.0)) == problem.objective.value(sparse)
        assert "RandK(2)" in repr(problem)


class TestNodes:
    def test_is_the_mean_of_its_nodes(self):
        problems = [
            mast.Problem(quadratic(i), sketch)
            for i, sketch in enumerate(
                [mast.Bernoulli(0.5), mast.RandK(2), mast.PermK(3), mast.Gaussian(1.0)]
            )
        ]
        nodes = mast.Nodes(problems)
        x = np.linspace(-1, 1, D)
        assert nodes.value(x) == pytest.approx(np.mean([p.value(x) for p in problems]), rel=1e-13)
        np.testing.assert_allclose(
            nodes.gradient(x), np.mean([p.gradient(x) for p in problems], axis=0), rtol=1e-12
        )
        assert np.abs(nodes.gradient(nodes.minimizer())).max() < 1e-12
        assert nodes.objective.value(x) == pytest.approx(np.mean([p.objective.value(x) for p in problems]))
        estimate = nodes.estimate(x, samples=3000)
        assert abs(estimate.value - nodes.value(x)) < 5 * estimate.value_stderr
        assert (np.abs(estimate.gradient - nodes.gradient(x)) < 5 * estimate.gradient_stderr).all()
        assert len(nodes) == 4
        assert nodes[1] is problems[1]
        assert list(nodes) == problems

    def test_of_functions(self):
        problems = [mast.Problem(smooth_function(i), mast.PermK(2, seed=i)) for i in range(3)]
        nodes = mast.Nodes(problems)
        assert np.abs(nodes.gradient(nodes.minimizer())).max() < 1e-14
        assert nodes.infimum() >= np.mean([p.infimum() for p in problems])

    def test_a_strongly_convex_node_does_not_lend_its_convexity(self):
        bent = mast.Problem(mast.Quadratic([[-1.0]], [0.0]), mast.Identity())
        bowl = mast.Problem(mast.Quadratic([[5.0]], [0.0]), mast.Identity())
        assert mast.Nodes([bent, bowl]).strong_convexity == 0

    def test_refusals(self):
        one = mast.Problem(quadratic(0), mast.Identity())
        with pytest.raises(ArgumentError, match="at least one"):
            mast.Nodes([])
        with pytest.raises(ArgumentError, match="node 1 has 2 variables"):
            mast.Nodes([one, mast.Problem(quadratic(0, d=2), mast.Identity())])
        with pytest.raises(ArgumentError, match="another shift"):
            mast.Nodes([one, mast.Problem(quadratic(0), mast.Identity(), np.ones(D))])
        with pytest.raises(ArgumentError, match="must be a Problem"):
            mast.Nodes([one, quadratic(0)])


instances = st.tuples(
    st.integers(0, 2**31), st.sampled_from(sorted(set(UNBIASED) & set(FINITE))), st.booleans(), st.booleans()
)


def instance(seed, name, is_quadratic, shifted):
    rng = np.random.default_rng(seed)
    f = quadratic(seed) if is_quadratic else smooth_function(seed)
    v = rng.standard_normal(D) if shifted else np.zeros(D)
    return f, UNBIASED[name], v, mast.Problem(f, UNBIASED[name], v), rng


def bounds_of(f, sketch, **changes):
    c = sketch.constants(D)
    constants = {"mu_f": f.strong_convexity, "L_D": c.L_D, "mu_D": c.mu_D, "L_max": c.L_max}
    return mast.theory.problem_bounds(L_f=f.smoothness, **{**constants, **changes})


class TestLemmasAndTheorem1:
    """The statements about f_D that hold for any f and any unbiased sketch, on random instances."""

    @settings(max_examples=60, deadline=None)
    @given(instances)
    def test_lemmas_1_to_4(self, drawn):
        f, sketch, v, problem, rng = instance(*drawn)
        bounds = bounds_of(f, sketch)
        assert problem.smoothness == bounds.smoothness
        assert problem.strong_convexity == bounds.strong_convexity
        x, y = rng.standard_normal((2, D))
        bregman = problem.value(y) - problem.value(x) - problem.gradient(x) @ (y - x)
        half = (y - x) @ (y - x) / 2
        tiny = 1e-10 * max(1, abs(problem.value(x)), abs(problem.value(y)))
        assert bounds.strong_convexity * half - tiny <= bregman <= bounds.smoothness * half + tiny
        low, high = bounds.value(f.value(x), (x - v) @ (x - v))  # for convex f in particular f_D >= f
        assert low - 1e-10 <= problem.value(x) <= high + 1e-10
        square = sum(p * float(np.sum(problem.at(draw).gradient(x) ** 2)) for p, draw in sketch.support(D))
        assert square <= bounds.gradient_second_moment(problem.value(x) - f.infimum()) * (1 + 1e-9) + 1e-12

    @settings(max_examples=40, deadline=None)
    @given(instances)
    def test_theorem_1_and_its_nonconvex_form(self, drawn):
        f, sketch, v, problem, _ = instance(*drawn)
        star_sq, sketched_sq = (float((x - v) @ (x - v)) for x in (f.minimizer(), problem.minimizer()))
        bounds, tiny = bounds_of(f, sketch), 1e-9 * max(1, abs(f.infimum()))
        low, high = bounds.loss_at_solution(f.infimum(), star_sq, sketched_sq)
        assert low - tiny <= f.value(problem.minimizer()) <= high + tiny
        low, high = bounds.value_at_solution(f.infimum(), star_sq, sketched_sq)
        assert low - tiny <= problem.infimum() <= high + tiny
        wider = bounds_of(f, sketch, mu_f=0.0).value_at_solution(f.infimum(), star_sq)
        assert wider == (f.infimum(), high)

    def test_a_shift_at_the_minimiser_closes_the_gap(self):
        f = smooth_function(3)
        problem = mast.Problem(f, mast.PermK(3), f.minimizer())
        np.testing.assert_allclose(problem.minimizer(), f.minimizer(), atol=1e-12)
        assert problem.infimum() == pytest.approx(f.infimum(), abs=1e-14)
