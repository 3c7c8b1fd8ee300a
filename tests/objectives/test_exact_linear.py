"""f_D of linear models in closed form, against brute force over the support; minimisers; what has no form."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import mast
from mast.errors import ArgumentError, NotExactError, UnboundedError
from mast.objectives import Mean
from mast.objectives.exact import Separable
from mast.objectives.least_squares import SketchedLeastSquares
from mast.objectives.losses import SketchedSaturating
from mast.objectives.rowwise import Rowwise
from objectives.linear_samples import CONVEX, FORMATS, MODELS, D, data, halves
from sketches.samples import FINITE, SKETCHES

TOLERANCE = 1e-12  # of closed forms: sums of some hundred terms of size 1, and scales up to 10


def brute_force(problem):
    """The mean over the support, whatever closed form there may be."""
    support = problem.sketch.support(problem.dim)
    return Mean([problem.at(draw) for _, draw in support], [p for p, _ in support])


def shift_for(shifted, d=D):
    return np.random.default_rng(9).normal(size=d) if shifted else None


@pytest.mark.parametrize(("sketch", "model", "form", "shifted"), halves(FINITE, MODELS))
def test_agrees_with_brute_force(sketch, model, form, shifted):
    A, b = data()
    f = MODELS[model](FORMATS[form](A), b)
    problem = mast.Problem(f, FINITE[sketch], shift_for(shifted))
    exact, brute = problem.exact, brute_force(problem)
    x = np.random.default_rng(3).normal(size=D)
    value, gradient = brute.value_and_gradient(x)
    assert exact.value(x) == pytest.approx(value, rel=TOLERANCE)
    np.testing.assert_allclose(exact.gradient(x), gradient, rtol=TOLERANCE, atol=TOLERANCE)
    again, both = exact.value_and_gradient(x)
    assert again == pytest.approx(value, rel=TOLERANCE)
    np.testing.assert_allclose(both, gradient, rtol=TOLERANCE, atol=TOLERANCE)
    H = brute.hessian(x)
    np.testing.assert_allclose(exact.hessian(x), H, rtol=TOLERANCE, atol=TOLERANCE)
    assert np.linalg.eigvalsh(H)[-1] <= exact.smoothness * (1 + 1e-12)
    assert exact.convex is not True or np.linalg.eigvalsh(H)[0] >= exact.strong_convexity - 1e-12


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("sketch", FINITE)
def test_minimiser_and_infimum(sketch, model, shifted):
    A, b = data()
    f = MODELS[model](scipy.sparse.csr_matrix(A), b)
    problem = mast.Problem(f, FINITE[sketch], shift_for(shifted))
    if model not in CONVEX:
        assert problem.infimum() == 0.0
        assert not problem.exact.infimum_exact
        with pytest.raises(ArgumentError, match="convex"):
            problem.minimizer()
        return
    x = problem.minimizer()
    g = brute_force(problem).gradient(x)
    # gradients here are sums of parts as large as the scale of the sketch times the smoothness
    assert g @ g <= 1e-30 * max(1.0, problem.exact.smoothness * np.linalg.norm(x)) ** 2
    assert problem.infimum() == pytest.approx(problem.value(x), rel=1e-13)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("sketch", SKETCHES)
def test_least_squares_by_moments_equals_its_matrix(sketch, shifted, monkeypatch):
    """The form for very many dimensions, made to serve a few, for every sketch there is."""
    A, b = data()
    f = mast.LeastSquares(A, b, l2=0.1)
    problem = mast.Problem(f, SKETCHES[sketch], shift_for(shifted))
    matrix = problem.exact
    monkeypatch.setattr("mast.objectives.least_squares.LARGEST_MATRIX", 0)
    exact = mast.Problem(f, SKETCHES[sketch], shift_for(shifted)).exact
    assert not isinstance(exact, mast.Quadratic)
    x = np.random.default_rng(4).normal(size=D)
    assert exact.value(x) == pytest.approx(matrix.value(x), rel=TOLERANCE)
    np.testing.assert_allclose(exact.gradient(x), matrix.gradient(x), rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_allclose(exact.hessian(x), matrix.hessian(x), rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_allclose(exact.minimizer(), matrix.minimizer(), rtol=1e-10, atol=1e-12)
    if isinstance(exact, SketchedLeastSquares):
        product, diagonal = exact.curvature(x)
        np.testing.assert_allclose(product(x), matrix.hessian(x) @ x, rtol=TOLERANCE, atol=TOLERANCE)
        np.testing.assert_allclose(diagonal, np.diag(matrix.hessian(x)), rtol=TOLERANCE, atol=TOLERANCE)


def arrow(f, labels, K, shift):
    """Closed form and brute force where one of K blocks survives, and coordinates labelled -1 always do."""
    labels = np.asarray(labels)
    draws = []
    for k in range(K):
        c = np.where(labels == k, float(K), 0.0)
        c[labels == -1] = 1.0
        draws.append(np.diag(c))
    sketch = mast.Matrices(draws)
    penalty = f.penalty.sketched(sketch, shift)
    if penalty is None:  # it asks the law of a sketch, and a list of matrices has none
        penalty = SketchedSaturating(f.penalty, [(np.full(D, 1 / K), np.diag(c)) for c in draws], shift)
    exact = Separable(f, sketch, shift, penalty, labels, K)
    return exact, brute_force(mast.Problem(f, sketch, shift))


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("labels", "K"),
    [([0, 1, 0, 1, 1, -1], 2), ([-1, 0, 1, 2, 3, -1], 4), ([-1] * 6, 1), ([2, 0, -1, 2, 2, 0], 3)],
)
def test_coordinates_that_always_survive(labels, K, model, form, shifted):
    A, b = data()
    A[:, 5] = 1.0  # an intercept
    f = MODELS[model](FORMATS[form](A), b)
    shift = shift_for(shifted)
    exact, brute = arrow(f, labels, K, np.zeros(D) if shift is None else shift)
    x = np.random.default_rng(5).normal(size=D)
    assert exact.value(x) == pytest.approx(brute.value(x), rel=TOLERANCE)
    assert exact.value_and_gradient(x)[0] == pytest.approx(brute.value(x), rel=TOLERANCE)
    np.testing.assert_allclose(exact.gradient(x), brute.gradient(x), rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_allclose(exact.hessian(x), brute.hessian(x), rtol=TOLERANCE, atol=TOLERANCE)
    product, diagonal = exact.curvature(x)
    np.testing.assert_allclose(product(x), brute.hessian(x) @ x, rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_allclose(diagonal, np.diag(brute.hessian(x)), rtol=TOLERANCE, atol=TOLERANCE)
    if model in CONVEX:
        g = brute.gradient(exact.minimizer())
        assert g @ g <= 1e-29


@pytest.mark.parametrize("keep", [[0.5, 1.0, 0.3, 1.0, 0.9, 1.0], [1.0] * 6])
@pytest.mark.parametrize("shifted", [False, True])
def test_coordinates_that_a_bernoulli_never_drops(keep, shifted):
    A, b = data()
    problem = mast.Problem(mast.Logistic(A, b, l2=0.1), mast.Bernoulli(keep), shift_for(shifted))
    assert isinstance(problem.exact, Rowwise)
    x = np.random.default_rng(6).normal(size=D)
    H = brute_force(problem).hessian(x)
    product, diagonal = problem.exact.curvature(x)
    np.testing.assert_allclose(problem.exact.hessian(x), H, rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_allclose(product(x), H @ x, rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_allclose(diagonal, np.diag(H), rtol=TOLERANCE, atol=TOLERANCE)


class TestForms:
    """Which form is used where, and where there is none."""

    def test_rows_may_be_long_for_blocks_but_not_for_subsets(self):
        A, b = data(n=20, d=40, share=1.0)
        f = mast.Logistic(A, b, l2=0.1)
        assert isinstance(mast.Problem(f, mast.PermK(4)).exact, Separable)
        for sketch in (mast.Bernoulli(0.5), mast.RandK(20), mast.PermK(2, redraw=True)):
            with pytest.raises(NotExactError, match="estimate"):
                mast.Problem(f, sketch).value(np.zeros(40))
        with pytest.raises(NotExactError, match="estimate"):
            mast.Problem(f, mast.Mixture([mast.Identity(), mast.Bernoulli(0.5)])).minimizer()

    def test_groups_count_not_coordinates(self):
        A, b = data(n=20, d=40, share=1.0)
        f = mast.Logistic(A, b, l2=0.1)
        grouped = mast.Grouped(mast.Bernoulli(0.5), np.arange(40) // 4)
        problem = mast.Problem(f, grouped)
        assert isinstance(problem.exact, Rowwise)
        x = np.random.default_rng(0).normal(size=40)
        brute = brute_force(problem)
        np.testing.assert_allclose(problem.gradient(x), brute.gradient(x), rtol=TOLERANCE, atol=TOLERANCE)

    def test_gaussian(self):
        A, b = data()
        for f in (mast.Logistic(A, b, l2=0.1), mast.NonconvexLogistic(A, b, 0.1)):
            with pytest.raises(NotExactError, match="infinite"):
                mast.Problem(f, mast.Gaussian(0.5)).value(np.zeros(D))
        assert isinstance(mast.Problem(mast.LeastSquares(A, b), mast.Gaussian(0.5)).exact, mast.Quadratic)

    def test_cost_does_not_depend_on_the_dimension(self):
        """Short rows among 10^5 coordinates: all subsets of a row, not of the coordinates."""
        rng = np.random.default_rng(0)
        d = 100_000
        A = scipy.sparse.random(60, d, density=5e-5, random_state=0, format="csr")
        f = mast.Logistic(A, np.where(rng.random(60) < 0.5, 1, -1), kappa=10)
        used = np.unique(A.indices)
        small = mast.Logistic(A[:, used], f.labels, l2=f.l2)
        problem, restricted = (mast.Problem(g, mast.Bernoulli(0.5)) for g in (f, small))
        x = problem.minimizer()
        g = problem.gradient(x)
        assert g @ g <= 1e-30
        np.testing.assert_allclose(x[used], restricted.minimizer(), rtol=1e-9, atol=1e-12)
        for sketch in (mast.RandK(0.5), mast.PermK(7, redraw=True), mast.RandK(1), mast.PermK(7)):
            assert np.isfinite(mast.Problem(f, sketch).value(x))

    def test_mixture_takes_each_components_own_form(self):
        A, b = data()
        mixture = mast.Mixture([mast.PermK(2), mast.Bernoulli(0.5)])
        exact = mast.Problem(mast.Logistic(A, b, l2=0.1), mixture).exact
        assert [type(f) for f in exact.objectives] == [Separable, Rowwise]


class TestEdges:
    @pytest.mark.parametrize("sketch", [mast.PermK(3), mast.RandK(1), mast.Bernoulli(0.5), mast.Identity()])
    @pytest.mark.parametrize(("n", "d"), [(1, 1), (1, 5), (6, 1), (2, 3)])
    def test_one_row_or_one_column(self, sketch, n, d):
        A, b = data(n=n, d=d, share=1.0)
        for form in FORMATS.values():
            problem = mast.Problem(mast.Logistic(form(A), b, l2=0.1), sketch, np.ones(d))
            x = np.full(d, 0.5)
            assert problem.value(x) == pytest.approx(brute_force(problem).value(x), rel=TOLERANCE)
            g = brute_force(problem).gradient(problem.minimizer())
            assert g @ g <= 1e-29

    @pytest.mark.parametrize("sketch", [mast.PermK(2), mast.RandK(1), mast.Bernoulli(0.5), mast.Identity()])
    def test_nothing_but_zeros(self, sketch):
        for form in FORMATS.values():
            f = mast.Logistic(form(np.zeros((3, 4))), [1, -1, 1], l2=0.1)
            problem = mast.Problem(f, sketch)
            assert problem.value(np.zeros(4)) == pytest.approx(np.log(2), rel=1e-15)
            np.testing.assert_array_equal(problem.minimizer(), np.zeros(4))

    def test_extreme_margins_do_not_warn(self):
        A, b = data()
        for sketch in (mast.PermK(2), mast.Bernoulli(0.5)):
            problem = mast.Problem(mast.Logistic(1e3 * A, b, l2=0.1), sketch, np.ones(D))
            value, gradient = problem.value_and_gradient(np.full(D, 1e3))
            assert np.isfinite(value)
            assert np.isfinite(gradient).all()
            assert np.isfinite(problem.gradient(np.full(D, 1e3))).all()

    def test_equal_rows_are_merged(self):
        """Binary data leave few different (row, block) pairs, and f_D stays the same."""
        rng = np.random.default_rng(0)
        A = (rng.random((500, 8)) < 0.3).astype(float)
        b = np.where(rng.random(500) < 0.5, 1.0, -1.0)
        problem = mast.Problem(mast.Logistic(scipy.sparse.csr_matrix(A), b, l2=0.1), mast.PermK(4))
        assert problem.exact.pairs.weights.size == 4 * 2 * 3  # 3 patterns of 2 columns, 2 labels
        x = rng.normal(size=8)
        brute = brute_force(problem)
        np.testing.assert_allclose(problem.gradient(x), brute.gradient(x), rtol=TOLERANCE, atol=TOLERANCE)
        assert problem.value(x) == pytest.approx(brute.value(x), rel=TOLERANCE)

    def test_large_residuals_are_no_separation(self, monkeypatch):
        """Far from 0 the log-loss is flat and the square is not: it has a minimiser without l2."""
        monkeypatch.setattr("mast.objectives.least_squares.LARGEST_MATRIX", 0)
        f = mast.LeastSquares([[1.0], [-1.0]], [-1000.0, -1000.0])
        problem = mast.Problem(f, mast.PermK(1))
        assert isinstance(problem.exact, Separable)
        assert problem.minimizer() == pytest.approx([0.0], abs=1e-12)
        assert problem.infimum() == pytest.approx(500_000.0, rel=1e-15)

    def test_separable_data_without_l2(self):
        A = np.random.default_rng(0).normal(size=(30, 4))
        f = mast.Logistic(A, np.sign(A @ [1.0, 1.0, 1.0, 1.0]))
        one_sided = mast.Logistic(np.abs(A), np.ones(30))
        for sketch in (mast.PermK(2), mast.RandK(1), mast.Bernoulli(0.5)):
            with pytest.raises(UnboundedError):
                mast.Problem(one_sided, sketch).minimizer()
        with pytest.raises(UnboundedError):
            mast.Problem(f, mast.Identity()).minimizer()
        # in single coordinates nothing separates, so Rand-1 has a minimiser all the same
        x = mast.Problem(f, mast.RandK(1)).minimizer()
        assert np.linalg.norm(mast.Problem(f, mast.RandK(1)).gradient(x)) <= 1e-15


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 9), st.integers(1, 5), st.floats(0.1, 1.0))
@settings(deadline=None, max_examples=40)
def test_random_shapes(seed, n, d, K, share):
    """Perm-K and Bernoulli on data of any small shape, both forms of data."""
    rng = np.random.default_rng(seed)
    A = rng.integers(-2, 3, size=(n, d)) * (rng.random((n, d)) < share)
    b = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    x, v = rng.normal(size=d), rng.integers(0, 2) * rng.normal(size=d)
    for matrix in (A, scipy.sparse.csr_matrix(A)):
        f = mast.Logistic(matrix, b, l2=0.1)
        for sketch in (mast.PermK(K, seed=seed), mast.Bernoulli(share)):
            problem = mast.Problem(f, sketch, v)
            brute = brute_force(problem)
            assert problem.value(x) == pytest.approx(brute.value(x), rel=TOLERANCE)
            np.testing.assert_allclose(problem.gradient(x), brute.gradient(x), rtol=TOLERANCE, atol=TOLERANCE)
            H = brute.hessian(x)
            np.testing.assert_allclose(problem.exact.hessian(x), H, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["a1a", "a5a", "w8a"])
@pytest.mark.parametrize("sketch", [mast.PermK(10), mast.RandK(1)])
@pytest.mark.parametrize("kappa", [1e2, 1e4])
def test_real_data_solved_to_machine_precision(name, sketch, kappa, request):
    folder = None if name == "a1a" else request.getfixturevalue("data_dir")
    A, b = mast.data.load(name, data_dir=folder)
    f = mast.Logistic(A, b, kappa=kappa)
    v = np.cos(np.arange(f.dim)) / 10
    for shift in (None, v):
        problem = mast.Problem(f, sketch, shift)
        g = problem.gradient(problem.minimizer())
        assert g @ g <= 1e-30


def test_bernoulli_on_real_data():
    """a1a has up to 14 features a row: all their subsets, against a Monte Carlo estimate."""
    A, b = mast.data.load("a1a")
    problem = mast.Problem(mast.Logistic(A[:150], b[:150], kappa=100), mast.Bernoulli(0.5))
    x = problem.minimizer()
    g = problem.gradient(x)
    assert g @ g <= 1e-30
    sample = problem.estimate(x, samples=400, seed=1)
    assert abs(sample.value - problem.value(x)) <= 5 * sample.value_stderr
    # |mean gradient| against its standard error, coordinate by coordinate, for all 119 at once
    assert (np.abs(sample.gradient) <= 5 * sample.gradient_stderr + 1e-12).all()
