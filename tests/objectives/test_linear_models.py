"""Linear models by themselves: values, derivatives, constants, minimisers, and what they refuse."""

import pickle

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import mast
from mast.errors import ArgumentError, DataError, UnboundedError
from mast.objectives import design as design_module
from mast.objectives.losses import HalfSquare, LogLoss
from objectives.linear_samples import CONVEX, FORMATS, MODELS, WEIGHTS, D, N, data


@pytest.fixture(params=FORMATS)
def form(request):
    return FORMATS[request.param]


@pytest.fixture
def f(name, form):
    A, b = data()
    return MODELS[name](form(A), b)


def small_gradient(f):
    """|grad|² at the minimiser."""
    g = f.gradient(f.minimizer())
    return float(g @ g)


@pytest.mark.parametrize("name", MODELS)
class TestDerivatives:
    def test_gradient_is_the_slope_of_the_value(self, f):
        x = np.random.default_rng(2).normal(size=D)
        h = 1e-6
        slopes = [(f.value(x + h * e) - f.value(x - h * e)) / (2 * h) for e in np.eye(D)]
        np.testing.assert_allclose(f.gradient(x), slopes, atol=1e-8)  # h² and rounding / h

    def test_hessian_is_the_slope_of_the_gradient(self, f):
        x = np.random.default_rng(3).normal(size=D)
        h = 1e-6
        slopes = [(f.gradient(x + h * e) - f.gradient(x - h * e)) / (2 * h) for e in np.eye(D)]
        np.testing.assert_allclose(f.hessian(x), slopes, atol=1e-8)
        product, diagonal = f.curvature(x)
        p = np.arange(1.0, D + 1)
        np.testing.assert_allclose(product(p), f.hessian(x) @ p, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(diagonal, np.diag(f.hessian(x)), rtol=1e-12, atol=1e-14)

    def test_all_ways_to_ask_agree(self, f, name):
        A, b = data()
        x = np.random.default_rng(4).normal(size=D)
        value, gradient = f.value_and_gradient(x)
        assert value == pytest.approx(f.value(x), rel=1e-14)
        np.testing.assert_allclose(gradient, f.gradient(x), rtol=1e-13, atol=1e-15)
        dense = MODELS[name](A, b)
        assert value == pytest.approx(dense.value(x), rel=1e-14)
        np.testing.assert_allclose(gradient, dense.gradient(x), rtol=1e-13, atol=1e-15)

    def test_is_the_mean_of_its_terms(self, f):
        x = np.random.default_rng(5).normal(size=D)
        terms = [f.term_gradient(x, np.array([i])) for i in range(f.terms)]
        np.testing.assert_allclose(np.mean(terms, axis=0), f.gradient(x), rtol=1e-12, atol=1e-15)
        rows = np.array([3, 5, 5, 16])
        np.testing.assert_allclose(
            f.term_gradient(x, rows), np.mean([terms[i] for i in rows], axis=0), rtol=1e-12, atol=1e-15
        )

    def test_smoothness_bounds_the_hessian(self, f):
        rng = np.random.default_rng(6)
        for scale in (0.0, 0.1, 1.0, 10.0):
            H = f.hessian(scale * rng.normal(size=D))
            assert np.linalg.eigvalsh(H)[-1] <= f.smoothness * (1 + 1e-12)
            assert np.linalg.eigvalsh(H)[0] >= f.strong_convexity - 1e-12 or not f.convex

    def test_infima_of_terms_are_below_their_values(self, f):
        infima = f.term_infima()
        assert infima.shape == (N,)
        rng = np.random.default_rng(7)
        for _ in range(20):
            x = rng.normal(size=D) * 3
            weights = np.ones(N) if f.weights is None else f.weights
            values = weights * f.loss.value(f._margins(x)) + f.penalty.value(x)
            assert (infima <= values + 1e-14).all()

    def test_can_be_pickled_and_named(self, f, name, form):
        A, b = data()
        x = np.ones(D)
        again = pickle.loads(pickle.dumps(f))
        assert again.value(x) == f.value(x)
        assert again.fingerprint() == f.fingerprint() != MODELS[name](form(2 * A), b).fingerprint()
        assert "17 rows" in repr(f)


@pytest.mark.parametrize("name", CONVEX)
class TestMinimisers:
    def test_gradient_vanishes(self, f):
        assert small_gradient(f) <= 1e-30
        x = f.minimizer()
        assert f.infimum() == pytest.approx(f.value(x), rel=1e-15)
        x[:] = 0  # a copy: the next one is whole again
        assert small_gradient(f) <= 1e-30

    def test_infima_of_terms_are_reached(self, f):
        """Each term alone, minimised by Newton, has the infimum that the formula gives."""
        A = data()[0]
        for i in (0, 3, 8):
            weight = 1.0 if f.weights is None else f.weights[i]
            # l2 divided by the weight, since weights of one row are scaled to 1
            alone = type(f)(A[i : i + 1], f.labels[i : i + 1], l2=f.l2 / weight)
            assert weight * alone.infimum() == pytest.approx(f.term_infima()[i], rel=1e-12, abs=1e-15)


class TestConstants:
    @pytest.mark.parametrize(
        ("n", "d"), [(200, 100), (100, 200), (300, 5), (5, 300), (1, 1), (1, 90), (90, 1)]
    )
    def test_smoothness_is_the_largest_eigenvalue(self, n, d, form):
        A, b = data(n=n, d=d, share=0.2)
        A[0, 0] = 1.0
        weights = np.random.default_rng(0).random(n)
        for w in (None, weights):
            share = np.full(n, 1 / n) if w is None else w / w.sum()
            exact = np.linalg.eigvalsh(A.T @ (share[:, None] * A))[-1]
            assert mast.LeastSquares(form(A), b, sample_weight=w).smoothness == pytest.approx(
                exact, rel=1e-12
            )
            f = mast.Logistic(form(A), b, l2=0.5, sample_weight=w)
            assert f.smoothness == pytest.approx(exact / 4 + 0.5, rel=1e-12)

    def test_clustered_and_repeated_largest_eigenvalues(self):
        """The top eigenvalue twice, and others just below it: Lanczos must not settle below."""
        d = 150
        A = np.diag(np.concatenate([[1.0, 1.0], np.linspace(0.999999, 0.9, d - 2)]))
        f = mast.LeastSquares(scipy.sparse.csr_matrix(A), np.zeros(d))
        assert f.smoothness * d == pytest.approx(1.0, rel=1e-10)
        assert f.smoothness * d >= 1 - 1e-10

    def test_one_large_direction_that_a_plain_start_would_miss(self):
        d = 100
        v = np.where(np.arange(d) % 2, 1.0, -1.0) / 10  # orthogonal to the vector of ones
        A = np.vstack([5 * v, np.eye(d)])
        exact = np.linalg.eigvalsh(A.T @ A)[-1] / len(A)
        assert mast.LeastSquares(A, np.zeros(len(A))).smoothness == pytest.approx(exact, rel=1e-12)

    def test_same_result_each_time(self):
        A, b = mast.data.load("a1a")
        assert mast.Logistic(A, b).smoothness == mast.Logistic(A, b).smoothness

    def test_terms(self, form):
        A, b = data()
        f = mast.Logistic(form(A), b, l2=0.3)
        assert f.terms == N
        np.testing.assert_allclose(f.term_smoothness, (A**2).sum(1) / 4 + 0.3, rtol=1e-14)
        f = mast.NonconvexLogistic(form(A), b, 0.3, sample_weight=WEIGHTS)
        w = WEIGHTS / WEIGHTS.mean()
        np.testing.assert_allclose(f.term_smoothness, w * (A**2).sum(1) / 4 + 0.6, rtol=1e-14)

    def test_kappa(self, form):
        A, b = data()
        for make in (mast.Logistic, mast.LeastSquares):
            f = make(form(A), b, kappa=100)
            assert f.smoothness / f.l2 == pytest.approx(100, rel=1e-12)

    def test_least_squares_knows_its_least_curvature(self):
        A = np.random.default_rng(0).normal(size=(30, 4))
        exact = np.linalg.eigvalsh(A.T @ A / 30)[0]
        assert mast.LeastSquares(A, np.ones(30), l2=0.2).strong_convexity == pytest.approx(exact + 0.2)
        assert mast.LeastSquares(A.T, np.ones(4), l2=0.2).strong_convexity == 0.2

    def test_weights_repeat_rows(self, form):
        A, b = data()
        counts = np.arange(N) % 3
        weighted = mast.Logistic(form(A), b, l2=0.1, sample_weight=counts)
        repeated = mast.Logistic(form(np.repeat(A, counts, axis=0)), np.repeat(b, counts), l2=0.1)
        np.testing.assert_allclose(weighted.minimizer(), repeated.minimizer(), rtol=1e-12, atol=1e-14)
        assert weighted.smoothness == pytest.approx(repeated.smoothness, rel=1e-12)


class TestData:
    @pytest.mark.parametrize("name", ["a1a", "a5a", "w8a"])
    @pytest.mark.parametrize("kappa", [1e2, 1e4])
    def test_solved_to_machine_precision(self, name, kappa, request):
        folder = None if name == "a1a" else request.getfixturevalue("data_dir")
        A, b = mast.data.load(name, data_dir=folder)
        assert small_gradient(mast.Logistic(A, b, kappa=kappa)) <= 1e-30

    def test_separable_without_l2_is_refused(self):
        A, b = mast.data.load("a1a")
        with pytest.raises(UnboundedError, match="separable"):
            mast.Logistic(A, b).minimizer()
        A = np.random.default_rng(0).normal(size=(20, 3))
        with pytest.raises(UnboundedError, match="l2 > 0"):
            mast.Logistic(A, np.sign(A @ [1.0, 2.0, 3.0])).minimizer()

    def test_not_separable_without_l2_is_solved(self):
        rng = np.random.default_rng(0)
        A = rng.normal(size=(40, 3))
        b = np.where(rng.random(40) < 0.5, 1.0, -1.0)
        wide = np.hstack([A, A[:, :1], np.zeros((40, 1))])  # a repeated and an empty column
        for matrix in (A, wide, A * [1, 100, 1e-3]):
            # the rounding of a gradient grows with the largest column
            assert small_gradient(mast.Logistic(matrix, b)) <= 1e-30 * max(
                1.0, np.abs(matrix).max() ** 2 / 10
            )
        for spread in (1e8, 1e-8):  # the infimum does not depend on the units of a column
            scaled = mast.Logistic(A * [1, spread, 1], b)
            assert scaled.infimum() == pytest.approx(mast.Logistic(A, b).infimum(), rel=1e-13)
        far = np.array([[0.5], [0.5], [-0.5], [1000.0]])  # one row far out on the right side
        assert small_gradient(mast.Logistic(far, [1, -1, 1, 1])) <= 1e-30

    def test_least_squares_in_any_units(self):
        rng = np.random.default_rng(1)
        A, b = rng.normal(size=(50, 2)), rng.normal(size=50)
        for spread in (1e8, 1e-8):
            plain, scaled = mast.LeastSquares(A, b), mast.LeastSquares(A * [1, spread], b)
            assert scaled.infimum() == pytest.approx(plain.infimum(), rel=1e-12)
            for sketch in (mast.Bernoulli(0.9), mast.RandK(1), mast.PermK(2)):
                expected = mast.Problem(plain, sketch).infimum()
                assert mast.Problem(scaled, sketch).infimum() == pytest.approx(expected, rel=1e-12)
            assert scaled.strong_convexity > 0

    def test_one_step_to_the_minimum_is_enough(self):
        f = mast.LeastSquares(scipy.sparse.eye_array(5000, format="csr"), np.ones(5000), l2=0.1)
        np.testing.assert_allclose(f.minimizer(), np.full(5000, (1 / 5000) / (1 / 5000 + 0.1)), rtol=1e-10)
        empty = mast.Problem(mast.Logistic([[0.0, 0.0]], [1], l2=0.3), mast.Bernoulli(0.5), [1.0, 2.0])
        np.testing.assert_allclose(empty.minimizer(), [0.5, 1.0], rtol=1e-12)

    def test_the_callers_data_stay_theirs(self):
        A = np.ones((3, 2))
        f = mast.Logistic(A, [1, -1, 1], l2=0.1)
        before = f.value([1.0, 1.0])
        A[:] = 5
        assert f.value([1.0, 1.0]) == before
        S = scipy.sparse.csr_array(np.ones((2, 2)))
        f = mast.LeastSquares(S, [1.0, 1.0])
        before = f.value([1.0, 1.0])
        S.data[:] = 7
        assert f.value([1.0, 1.0]) == before

    def test_shortest_solution_of_least_squares(self):
        rng = np.random.default_rng(0)
        for n, d in ((30, 10), (10, 30)):
            A = rng.normal(size=(n, d))
            A[:, 1] = A[:, 0]
            b = rng.normal(size=n)
            for matrix in (A, scipy.sparse.csr_matrix(A)):
                x = mast.LeastSquares(matrix, b).minimizer()
                np.testing.assert_allclose(x, np.linalg.pinv(A) @ b, rtol=1e-10, atol=1e-12)

    def test_many_columns(self):
        """More columns than a dense Hessian could have; the matrix d x d would take 115 GB."""
        A = scipy.sparse.random(200, 120_000, density=1e-4, random_state=0, format="csr")
        b = np.where(np.random.default_rng(0).random(200) < 0.5, 1.0, -1.0)
        for f in (
            mast.Logistic(A, b, kappa=100),
            mast.LeastSquares(A, b, kappa=100),
            mast.LeastSquares(A, b),
        ):
            assert small_gradient(f) <= 1e-30

    def test_many_columns_and_rows(self, monkeypatch):
        """Conjugate gradients where neither side is small."""
        monkeypatch.setattr("mast.objectives.newton.LARGEST_DIMENSION", 10)
        monkeypatch.setattr("mast.objectives.least_squares.LARGEST_DIMENSION", 10)
        monkeypatch.setattr("mast.objectives.least_squares.DENSE_ENTRIES", 10)
        A = scipy.sparse.random(150, 100, density=0.1, random_state=0, format="csr")
        b = np.where(np.random.default_rng(0).random(150) < 0.5, 1.0, -1.0)
        for f in (
            mast.Logistic(A, b, kappa=1000),
            mast.LeastSquares(A, b, kappa=1000),
            mast.LeastSquares(A, b),
        ):
            assert small_gradient(f) <= 1e-30

    def test_long_indices_and_whole_numbers(self):
        A, b = data()
        A = np.round(A * 3).astype(np.int64)
        S = scipy.sparse.csr_matrix(A)
        S.indices, S.indptr = S.indices.astype(np.int64), S.indptr.astype(np.int64)
        f = mast.Logistic(S, b.astype(int), l2=1)
        assert f.value(np.ones(D)) == pytest.approx(mast.Logistic(A.astype(float), b, l2=1).value(np.ones(D)))
        assert f.design.csr.indices.dtype == np.int32


class TestRefusals:
    def test_labels(self):
        A, b = data()
        with pytest.raises(ArgumentError, match=r"np.where\(b == 1, 1, -1\)"):
            mast.Logistic(A, (b + 1) / 2)
        with pytest.raises(ArgumentError, match="-1 or \\+1"):
            mast.NonconvexLogistic(A, np.arange(N), 0.1)
        with pytest.raises(ArgumentError, match="17 rows"):
            mast.Logistic(A, b[:-1])
        with pytest.raises(DataError, match="NaN"):
            mast.LeastSquares(A, np.where(b > 0, np.nan, 1))

    def test_the_kind_of_error_does_not_hang_on_words_of_its_message(self):
        """NaN is an error of the data; what is no number at all is one of the argument, whatever its name."""
        NaNentries = type("NaNentries", (), {})  # occurs in the message
        A, b = data()
        for refused in (lambda: mast.Logistic(NaNentries(), b), lambda: mast.Logistic(A, NaNentries())):
            with pytest.raises(ArgumentError, match="must be an array of real numbers, got NaNentries"):
                refused()

    def test_data(self):
        A, b = data()
        for bad in (np.nan, np.inf):
            A[2, 1] = bad
            with pytest.raises(DataError, match=r"\[2, 1\]"):
                mast.Logistic(A, b)
            with pytest.raises(DataError, match="row 2, column 1"):
                mast.Logistic(scipy.sparse.csr_matrix(A), b)
        for empty in (np.empty((0, 3)), np.empty((3, 0)), scipy.sparse.csr_matrix((0, 3))):
            with pytest.raises(ArgumentError, match="at least one row"):
                mast.Logistic(empty, np.ones(empty.shape[0]))
        with pytest.raises(ArgumentError, match="dimension"):
            mast.Logistic(np.ones(3), [1])
        with pytest.raises(ArgumentError, match="real numbers"):
            mast.Logistic(scipy.sparse.csr_matrix(np.eye(2) * 1j), [1, -1])

    def test_regularisation(self):
        A, b = data()
        with pytest.raises(ArgumentError, match="not both"):
            mast.Logistic(A, b, l2=0.1, kappa=10)
        for kappa in (1, 0.5, -3, np.nan, np.inf):
            with pytest.raises(ArgumentError, match="above 1"):
                mast.LeastSquares(A, b, kappa=kappa)
        for l2 in (-1, np.nan, np.inf):
            with pytest.raises(ArgumentError, match="l2"):
                mast.Logistic(A, b, l2=l2)
        with pytest.raises(ArgumentError, match="number"):
            mast.Logistic(A, b, l2="much")
        with pytest.raises(ArgumentError, match="weight"):
            mast.NonconvexLogistic(A, b, -0.1)
        with pytest.raises(ArgumentError, match="all rows of A are zero"):
            mast.Logistic(np.zeros((2, 2)), [1, -1], kappa=10)

    def test_weights(self):
        A, b = data()
        for weights, message in ((-WEIGHTS, "negative"), (0 * WEIGHTS, "positive"), (WEIGHTS[:3], "entries")):
            with pytest.raises(ArgumentError, match=message):
                mast.Logistic(A, b, sample_weight=weights)

    def test_non_convex_has_no_minimiser(self):
        A, b = data()
        f = mast.NonconvexLogistic(A, b, 0.1)
        assert f.infimum() == 0.0
        assert not f.infimum_exact
        assert f.convex is False
        assert f.strong_convexity == 0.0
        with pytest.raises(ArgumentError, match="not convex"):
            f.minimizer()

    def test_points(self):
        A, b = data()
        with pytest.raises(ArgumentError, match="6 entries"):
            mast.Logistic(A, b).value(np.ones(5))


class TestLosses:
    @given(arrays(float, 5, elements=st.floats(-1e300, 1e300)))
    @settings(deadline=None)
    def test_log_loss_never_overflows(self, m):
        loss = LogLoss()
        value, slope = loss.value_and_slope(m)
        assert np.isfinite(value).all()
        assert ((slope <= 0) & (slope >= -1)).all()
        np.testing.assert_allclose(loss.value(m), value, rtol=1e-15)
        np.testing.assert_allclose(loss.slope(m), slope, rtol=1e-14)
        curvature = loss.curvature(m)
        with np.errstate(under="ignore"):
            np.testing.assert_allclose(curvature, slope * (-1.0 - slope), rtol=1e-14, atol=1e-15)
        assert ((curvature >= 0) & (curvature <= 0.25 * (1 + 1e-15))).all()

    @given(st.floats(-700, 700))
    @settings(deadline=None)
    def test_log_loss_has_all_digits(self, m):
        """Against log1p and expm1, which are right to the last digit or two."""
        value = LogLoss().value(np.array([m]))[0]
        exact = np.log1p(np.exp(-m)) if m > -30 else -m + np.exp(m)
        assert value == pytest.approx(exact, rel=4e-16)

    def test_half_square(self):
        m = np.array([-2.0, 3.0])
        loss = HalfSquare()
        for got in (loss.value(m), loss.value_and_slope(m)[0]):
            np.testing.assert_array_equal(got, [2.0, 4.5])
        np.testing.assert_array_equal(loss.slope(m), m)
        np.testing.assert_array_equal(loss.curvature(m), 1.0)


def test_gram_matrices_agree(monkeypatch):
    """Compiled, by BLAS in slices, and dense: one matrix."""
    from objectives import reference

    A, _ = data(n=40, d=7)
    weights = np.random.default_rng(0).random(40)
    exact = reference.gram(A, weights)
    sparse = design_module.Design(scipy.sparse.csr_matrix(A))
    np.testing.assert_allclose(design_module.Design(A).gram(weights), exact, rtol=1e-13, atol=1e-15)
    monkeypatch.setattr(design_module, "DENSE_SHARE", 2.0)
    np.testing.assert_allclose(sparse.gram(weights), exact, rtol=1e-13, atol=1e-15)
    monkeypatch.setattr(design_module, "DENSE_SHARE", 0.0)
    np.testing.assert_allclose(sparse.gram(weights), exact, rtol=1e-13, atol=1e-15)
