"""What is fitted: the minimiser of f_D, with an intercept that is neither sketched nor penalised."""

import warnings

import numpy as np
import pytest
import scipy.sparse
from sklearn.datasets import load_breast_cancer, load_digits, make_regression
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score

import mast
from mast.errors import ArgumentError, DataError, NotExactError
from mast.learn.fitting import SINGLE
from mast.learn.objectives import Softmax
from mast.objectives import losses


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return (X - X.mean(axis=0)) / X.std(axis=0), y


def small(n=60, d=7, seed=0):
    generator = np.random.default_rng(seed)
    X = generator.standard_normal((n, d)) + 0.3
    y = (X @ generator.standard_normal(d) + generator.standard_normal(n) > 0.4).astype(int)
    return X, y


SKETCHES = {
    "perm": mast.PermK(3),
    "bernoulli": mast.Bernoulli(0.6),
    "rand": mast.RandK(3),
    "redrawn": mast.PermK(2, redraw=True),
    "grouped": mast.Grouped(mast.Bernoulli(0.5), [0, 0, 1, 2, 2, 3, 3]),
    "mixture": mast.Mixture([mast.PermK(2), mast.Identity()]),
    "matrices": mast.Matrices([np.diag([2.0, 0, 2, 0, 2, 0, 2]), np.diag([0.0, 2, 0, 2, 0, 2, 0])]),
    "text": "randk:50%",
}


@pytest.mark.parametrize("sketch", SKETCHES.values(), ids=SKETCHES)
class TestTheMinimiserOfF_D:
    def test_without_intercept_it_is_the_problems_own(self, sketch):
        X, y = small()
        model = mast.MastClassifier(
            sketch, kappa=30, missing="scale", fit_intercept=False, method="exact"
        ).fit(X, y)
        used = mast.sketches.parse(sketch) if sketch == "randk:50%" else sketch
        problem = mast.Problem(mast.Logistic(X, 2 * y - 1, kappa=30), used)
        np.testing.assert_allclose(model.coef_[0], problem.minimizer(), rtol=1e-9, atol=1e-12)
        assert model.intercept_ == 0

    @pytest.mark.parametrize("kind", [mast.MastClassifier, mast.MastRegressor])
    def test_with_intercept_the_mean_over_the_support_is_stationary(self, sketch, kind):
        X, y = small()
        model = kind(sketch, alpha=0.05, missing="scale", method="exact").fit(X, y)
        d = X.shape[1]
        coef, intercept = np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])
        gradient = np.zeros(d + 1)
        for probability, draw in model.sketch_.support(d):
            S = draw.matrix()
            margin = X @ (S @ coef) + intercept
            slope = (margin if kind is mast.MastRegressor else 1 / (1 + np.exp(-margin))) - y
            gradient[:d] += probability * (S.T @ (X.T @ slope / len(y) + 0.05 * S @ coef))
            gradient[d] += probability * slope.mean()
        assert np.abs(gradient).max() < 1e-9

    def test_a_sparse_matrix_gives_the_same(self, sketch):
        X, y = small()
        model = mast.MastClassifier(sketch, alpha=0.1, missing="scale", random_state=0)
        dense = model.fit(X, y).coef_
        np.testing.assert_allclose(dense, model.fit(scipy.sparse.csc_matrix(X), y).coef_, rtol=1e-7)


class TestAgainstScikitLearn:
    @pytest.mark.parametrize("intercept", [True, False])
    def test_without_a_sketch_it_is_logistic_regression(self, cancer, intercept):
        X, y = cancer
        ours = mast.MastClassifier(mast.Identity(), alpha=0.01, fit_intercept=intercept).fit(X, y)
        theirs = LogisticRegression(
            C=1 / (len(y) * 0.01), fit_intercept=intercept, tol=1e-10, max_iter=10_000
        )
        theirs.fit(X, y)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=2e-5)  # l-BFGS stalls near 1e-6
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=2e-5)

    @pytest.mark.parametrize("intercept", [True, False])
    def test_without_a_sketch_it_is_ridge(self, intercept):
        X, y = make_regression(80, 12, noise=3.0, bias=40.0, random_state=0)
        ours = mast.MastRegressor(mast.Identity(), alpha=0.2, fit_intercept=intercept).fit(X, y)
        theirs = Ridge(alpha=0.2 * 80, fit_intercept=intercept).fit(X, y)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-8)
        np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-8)

    def test_class_weights_are_those_of_logistic_regression(self, cancer):
        X, y = cancer
        for weight in ("balanced", {0: 5.0, 1: 0.5}):
            ours = mast.MastClassifier(mast.Identity(), alpha=0.01, class_weight=weight).fit(X, y)
            # our weights have mean 1, theirs do not: their C takes that up
            scale = np.where(y == 0, 5.0, 0.5).mean() if weight != "balanced" else 1.0
            theirs = LogisticRegression(
                C=1 / (len(y) * scale * 0.01), class_weight=weight, tol=1e-10, max_iter=9999
            )
            theirs.fit(X, y)
            np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=5e-5)


def test_kappa_is_the_condition_number_of_the_features(cancer):
    X, y = cancer
    model = mast.MastClassifier(kappa=50).fit(X, y)
    assert model.alpha_ == pytest.approx(mast.Logistic(X, 2 * y - 1, kappa=50).l2, rel=1e-9)


class TestSeveralClasses:
    @pytest.fixture
    def digits(self):
        X, y = load_digits(return_X_y=True)
        return X[:400] / 16, np.array([f"digit {label}" for label in y[:400]])

    @pytest.mark.parametrize("intercept", [True, False])
    def test_without_a_sketch_it_is_multinomial_logistic_regression(self, digits, intercept):
        X, y = digits
        ours = mast.MastClassifier(mast.Identity(), fit_intercept=intercept).fit(X, y)
        theirs = LogisticRegression(fit_intercept=intercept, tol=1e-9, max_iter=10_000).fit(X, y)
        assert ours.method_ == "exact"
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=2e-5)  # l-BFGS stalls near 1e-6
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=2e-5)
        np.testing.assert_allclose(ours.predict_log_proba(X), np.log(ours.predict_proba(X)), rtol=1e-9)

    @pytest.mark.parametrize("missing", ["scale", "conditional"])
    @pytest.mark.parametrize("sketch", [mast.PermK(3), mast.Bernoulli(0.6)], ids=["perm", "bernoulli"])
    def test_the_mean_over_the_support_is_stationary(self, sketch, missing):
        X, _ = small(80, 5)
        y = np.random.default_rng(1).integers(0, 3, 80)
        model = mast.MastClassifier(sketch, alpha=0.05, missing=missing).fit(X, y)
        assert model.method_ == "exact"
        gradient, offset = np.zeros((3, 5)), np.zeros(3)
        for probability, draw in sketch.support(5):
            if missing == "scale":
                Z, ridge = X @ draw.matrix(), draw.diagonal() ** 2 * model.coef_
            else:
                T = model.imputer_.gaussian_.served_weights(draw.diagonal()[None] != 0, np.eye(5))[0]
                Z, ridge = model.imputer_.mean_ + (X - model.imputer_.mean_) @ T.T, model.coef_
            logits = Z @ model.coef_.T + model.intercept_
            chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True) - np.eye(3)[y]
            gradient += probability * (chances.T @ Z / 80 + 0.05 * ridge)
            offset += probability * chances.mean(axis=0)
        assert np.abs(gradient).max() < 1e-8
        assert np.abs(offset).max() < 1e-8

    def test_by_the_method_of_a_theorem(self):
        X, _ = small(60, 4)
        y = np.random.default_rng(1).integers(0, 3, 60)
        exact = mast.MastClassifier(mast.PermK(2), kappa=5, missing="scale", fit_intercept=False).fit(X, y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = mast.MastClassifier(
                mast.PermK(2), kappa=5, fit_intercept=False, method="dsgd", max_iter=20_000, random_state=0
            ).fit(X, y)
        np.testing.assert_allclose(model.coef_, exact.coef_, atol=1e-4)
        assert X.flags.writeable  # it is the caller's

    @pytest.mark.parametrize("name", ["hessian", "curvature"])
    def test_derivatives_are_those_of_the_value(self, name):
        generator = np.random.default_rng(0)
        A, codes = generator.standard_normal((30, 4)), generator.integers(0, 3, 30)
        rates, x = generator.random(30), generator.standard_normal(12)
        f = Softmax(A, codes, 3, rates, losses.Ridge(0.3))
        step = 1e-6 * np.eye(12)
        slopes = [(f.value(x + e) - f.value(x - e)) / 2e-6 for e in step]
        np.testing.assert_allclose(f.gradient(x), slopes, atol=1e-7)
        columns = np.array([(f.gradient(x + e) - f.gradient(x - e)) / 2e-6 for e in step])
        if name == "hessian":
            np.testing.assert_allclose(f.hessian(x), columns, atol=1e-7)
        else:
            product, diagonal = f.curvature(x)
            np.testing.assert_allclose([product(e) for e in np.eye(12)], columns, atol=1e-7)
            np.testing.assert_allclose(diagonal, np.diag(columns), atol=1e-7)
        rows = np.array([3, 8, 8])
        terms = [Softmax(A[[i]], codes[[i]], 3, 30 * rates[[i]], losses.Ridge(0.3)).gradient(x) for i in rows]
        np.testing.assert_allclose(f.term_gradient(x, rows), np.mean(terms, axis=0), atol=1e-12)
        assert f.smoothness >= np.linalg.eigvalsh(f.hessian(x))[-1]

    def test_digits_are_as_good_as_with_logistic_regression(self):
        X, y = load_digits(return_X_y=True)
        X = (X - X.mean(axis=0)) / np.where(X.std(axis=0) > 0, X.std(axis=0), 1)
        ours = mast.MastClassifier(random_state=0).fit(X[::2], y[::2]).score(X[1::2], y[1::2])
        theirs = LogisticRegression(max_iter=1000).fit(X[::2], y[::2]).score(X[1::2], y[1::2])
        assert ours >= theirs - 0.003


@pytest.mark.parametrize("d", [1, 2, 3])
def test_fewer_features_than_blocks(d):
    X, y = small(200, d)
    model = mast.MastClassifier().fit(X, y)
    plain = LogisticRegression().fit(X, y)
    ours, theirs = (roc_auc_score(y, m.decision_function(X)) for m in (model, plain))
    assert ours >= theirs - 0.02
    assert model.score(X, y) >= max(y.mean(), 1 - y.mean()) - 0.01
    assert model.score_sparsified(X, y).shape == (100,)


class TestShift:
    def test_an_estimator_or_its_weights(self, cancer):
        X, y = cancer
        before = LogisticRegression(C=0.1).fit(X, y)
        a = mast.MastClassifier(mast.PermK(4), shift=before, alpha=0.1).fit(X, y)
        b = mast.MastClassifier(mast.PermK(4), shift=before.coef_[0], alpha=0.1).fit(X, y)
        np.testing.assert_allclose(a.coef_, b.coef_, rtol=1e-6, atol=1e-9)
        assert np.array_equal(a.shift_, before.coef_)

    def test_a_large_penalty_pulls_the_sketched_model_and_not_the_distance(self):
        X, y = small()
        v = np.ones(7)
        model = mast.MastClassifier(mast.PermK(4), shift=v, alpha=0.5, fit_intercept=False).fit(X, y)
        problem = mast.Problem(mast.Logistic(X, 2 * y - 1, l2=0.5), mast.PermK(4), v)
        np.testing.assert_allclose(model.coef_[0], problem.minimizer(), rtol=1e-9)
        pruned = model.sparsify(seed=3)
        draw = mast.PermK(4).draw(7, seed=3)
        np.testing.assert_allclose(pruned.coef_[0], v + draw.apply(model.coef_[0] - v))

    @pytest.mark.parametrize(
        "shift", [np.ones(3), np.ones((2, 7)), "model", LogisticRegression(), [np.nan] * 7]
    )
    def test_refuses(self, shift):
        X, y = small()
        with pytest.raises(ArgumentError, match="shift"):
            mast.MastClassifier(shift=shift).fit(X, y)

    def test_refuses_other_classes(self):
        X, y = small()
        with pytest.raises(ArgumentError, match="classes"):
            mast.MastClassifier(shift=LogisticRegression().fit(X, y + 1)).fit(X, y)


class TestMethods:
    def test_sampled_comes_close_to_exact(self):
        X, y = small(400, 8)
        model = mast.MastClassifier(mast.Bernoulli(0.5), alpha=0.05, missing="scale", random_state=3)
        exact = model.set_params(method="exact").fit(X, y).coef_
        assert model.method_ == "exact"
        sampled = model.set_params(method="sampled").fit(X, y).coef_
        assert model.method_ == "sampled"
        off = np.linalg.norm(exact - sampled) / np.linalg.norm(exact)
        assert off < 5 * np.sqrt(8 / (400 * 12))  # one unit of noise per draw and weight

    def test_what_has_no_short_exact_form_is_not_called_exact(self):
        X, y = small(100, 12)
        with pytest.raises(NotExactError, match="method='auto'"):
            mast.MastClassifier(missing="conditional", method="exact").fit(X, y)

    def test_sampled_does_not_care_about_order_and_copies(self):
        X, y = small(50, 6)
        order = np.random.default_rng(1).permutation(50)
        options = {"alpha": 0.1, "missing": "scale", "method": "sampled", "random_state": 0}
        make = lambda: mast.MastClassifier(mast.Bernoulli(0.5), **options)  # noqa: E731
        once = make().fit(X, y).coef_
        np.testing.assert_allclose(make().fit(X[order], y[order]).coef_, once, rtol=1e-7)
        np.testing.assert_allclose(make().fit(np.vstack([X, X]), np.tile(y, 2)).coef_, once, rtol=1e-7)
        assert not np.allclose(make().set_params(random_state=1).fit(X, y).coef_, once, rtol=1e-4)

    @pytest.mark.parametrize(
        ("method", "steps"), [("gd", 3000), ("agd", 500), ("dsgd", 30_000), ("l_svrdsg", 30_000)]
    )
    def test_a_method_by_its_name_comes_to_the_same_point(self, method, steps):
        X, y = small()
        exact = mast.MastClassifier(mast.PermK(2), kappa=5, missing="scale", fit_intercept=False).fit(X, y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = mast.MastClassifier(
                mast.PermK(2),
                kappa=5,
                fit_intercept=False,
                method=method,
                max_iter=steps,
                tol=1e-6,
                random_state=0,
            ).fit(X, y)
        np.testing.assert_allclose(model.coef_, exact.coef_, atol=1e-4 * np.abs(exact.coef_).max())
        assert model.method_ == method

    @pytest.mark.parametrize("method", SINGLE)
    def test_every_method_on_offer_runs_with_an_intercept_too(self, method):
        X, y = small()
        with pytest.warns(ConvergenceWarning):
            model = mast.MastClassifier(mast.PermK(4), method=method, max_iter=50, random_state=0).fit(X, y)
        assert (model.guarantee_ is None) == (method in ("gd", "agd"))
        assert model.n_iter_ == 50

    @pytest.mark.parametrize("method", ["dsgd", "dsgd_sampled"])
    def test_the_intercept_is_not_penalised(self, method):
        X, y = small(200, 3)
        y[:150] = 1  # most rows are of one class: the penalty alone would make the intercept small
        options = {"alpha": 3.0, "missing": "scale", "random_state": 0}
        exact = mast.MastClassifier(mast.Bernoulli(0.8), method="exact", **options).fit(X, y)
        model = mast.MastClassifier(mast.Bernoulli(0.8), method=method, max_iter=3000, **options)
        with pytest.warns(ConvergenceWarning):
            model.fit(X, y)
        assert exact.intercept_[0] > 1
        np.testing.assert_allclose(model.intercept_, exact.intercept_, rtol=0.2)

    def test_an_unknown_method_is_refused_with_the_known(self):
        X, y = small()
        for unknown in ("adam", "gdci", "distributed"):
            with pytest.raises(ArgumentError, match=r"auto, exact, sampled, gd, .*, s_page$"):
                mast.MastClassifier(method=unknown).fit(X, y)

    def test_few_iterations_are_warned_about(self):
        X, y = small()
        with pytest.warns(ConvergenceWarning, match="max_iter"):
            mast.MastClassifier(max_iter=1).fit(X, y)

    def test_warm_start(self):
        X, y = small()
        model = mast.MastClassifier(mast.PermK(4), warm_start=True).fit(X, y)
        assert model.n_iter_[0] > 2
        before = model.coef_
        assert model.fit(X, y).n_iter_[0] <= 2
        np.testing.assert_allclose(model.coef_, before, rtol=1e-9)
        sampled = mast.MastClassifier(random_state=0, warm_start=True).fit(X, y)
        assert sampled.method_ == "sampled"
        assert sampled.fit(X, y).n_iter_[0] == 1

    def test_what_has_no_theory_still_fits(self, cancer):
        X, y = cancer
        model = mast.MastClassifier(mast.Gaussian(0.5), random_state=0).fit(X, y)
        assert (model.method_, model.guarantee_) == ("sampled", None)
        assert model.score(X, y) > 0.9
        biased = mast.MastClassifier(mast.UnscaledBernoulli(0.5), random_state=0).fit(X, y)
        assert biased.guarantee_ is None
        assert biased.score(X, y) > 0.9

    def test_the_guarantee_is_that_of_the_problem(self):
        X, y = small()
        with pytest.warns(ConvergenceWarning):
            model = mast.MastClassifier(
                mast.PermK(4), kappa=20, fit_intercept=False, method="dsgd", max_iter=20
            ).fit(X, y)
        assert mast.MastClassifier(mast.PermK(4)).fit(X, y).guarantee_ is None  # by Newton's method
        problem = mast.Problem(mast.Logistic(X, 2 * y - 1, kappa=20), mast.PermK(4))
        assert model.guarantee_.max_step_size() == pytest.approx(
            mast.guarantee(problem).max_step_size(), rel=1e-9
        )


class TestManyRows:
    """More rows than `MANY_ROWS` are copied once, and some of them are fitted first."""

    @pytest.fixture
    def rows(self):
        generator = np.random.default_rng(1)
        X = generator.standard_normal((4000, 5)) @ generator.standard_normal((5, 5))
        return X, X @ generator.standard_normal((5, 3)) + generator.gumbel(size=(4000, 3))

    @pytest.mark.parametrize("kind", ["numbers", "two", "three"])
    @pytest.mark.parametrize("missing", ["scale", "conditional"])
    def test_they_come_to_the_same_point(self, rows, monkeypatch, kind, missing):
        X, scores = rows
        y = {"numbers": scores[:, 0], "two": scores[:, 0] > 0, "three": scores.argmax(axis=1)}[kind]
        make = mast.MastRegressor if kind == "numbers" else mast.MastClassifier
        weights = 1.0 + np.arange(4000) % 3
        options = {"missing": missing, "random_state": 0}
        for sketch, close in ((mast.Identity(), 1e-6), (mast.Bernoulli(0.7), 0.05)):
            plain = make(sketch, **options).fit(X, y, weights)
            with monkeypatch.context() as patched:
                patched.setattr("mast.learn.fitting.MANY_ROWS", 300)  # 4000, 400 and 40 rows
                patched.setattr("mast.learn.risk.LARGE", 300)
                patched.setattr("mast.learn.risk.MANY_ROWS", 300)
                many = make(sketch, **options).fit(X, y, weights)
            assert (many.method_, many.alpha_) == (plain.method_, plain.alpha_)
            # four copies of each row or one: the sampling error of 4000 draws
            np.testing.assert_allclose(many.coef_, plain.coef_, atol=close * np.abs(plain.coef_).max())
            np.testing.assert_allclose(many.intercept_, plain.intercept_, atol=close)

    def test_a_class_that_is_not_among_the_first_rows(self, rows, monkeypatch):
        X, _ = rows
        y = np.where(np.arange(4000) < 3, 2, (X[:, 0] > 0).astype(int))
        monkeypatch.setattr("mast.learn.fitting.MANY_ROWS", 300)
        model = mast.MastClassifier(mast.Identity(), random_state=0).fit(X, y)
        assert model.predict_proba(X).sum(axis=0)[2] == pytest.approx(3, abs=1e-3)

    @pytest.mark.parametrize("share", [0.0, 0.2])
    def test_blocks_of_rows_are_the_whole(self, rows, monkeypatch, share):
        X = np.where(np.random.default_rng(0).random(rows[0].shape) < share, np.nan, rows[0])
        whole = mast.MastRegressor(random_state=0).fit(X, rows[1][:, 0])
        monkeypatch.setattr("mast.support.checks.BLOCK", 999)
        monkeypatch.setattr("mast.objectives.design.BLOCK", 999)
        parts = mast.MastRegressor(random_state=0).fit(X, rows[1][:, 0])
        np.testing.assert_allclose(parts.coef_, whole.coef_, rtol=1e-9)
        np.testing.assert_allclose(parts.imputer_.covariance_, whole.imputer_.covariance_, rtol=1e-9)


def test_an_exact_fit_does_not_depend_on_the_random_state():
    X, y = small()
    fits = [
        mast.MastClassifier(mast.PermK(4), random_state=s).fit(X, y).coef_
        for s in (0, 1, None, np.random.RandomState(3))
    ]
    assert all(np.array_equal(fits[0], other) for other in fits)


BAD = {
    "kappa": [1.0, np.nan, "x"],
    "alpha": [-1.0, np.inf],
    "max_iter": [0, 1.5],
    "tol": [0.0, -1],
    "sketch": [4, "permk", mast.RandK(9), mast.Bernoulli([0.5, 0.5])],
    "random_state": [-1, "seed"],
    "class_weight": ["x"],
}


def test_refuses_what_cannot_be_learned():
    X = np.arange(8.0).reshape(4, 2)
    with pytest.raises(ArgumentError, match=r"got 1 class: only 1\.0$"):
        mast.MastClassifier().fit(X, np.ones(4))
    for size, name in ((1e160, "X"), (1.0, "y")):
        with pytest.raises(DataError, match=f"values of {name} are so large"):
            mast.MastRegressor().fit(X * size, [1.0, 2.0, 3.0, 1e160])
    model = mast.MastClassifier("randk:7")
    with pytest.raises(ArgumentError, match="RandK"):
        model.fit(X, [0, 1, 0, 1])
    with pytest.raises(NotFittedError):
        model.predict(X)


@pytest.mark.parametrize("parameters", [{name: v} for name, values in BAD.items() for v in values], ids=str)
def test_refuses_bad_parameters(parameters):
    X, y = small()
    with pytest.raises(ValueError):
        mast.MastClassifier(**parameters).fit(X, y)


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
@pytest.mark.parametrize("missing", ["conditional", "scale"])
def test_refuses_class_weights_that_count_rows_backwards(weight, missing):
    X, y = np.arange(12.0).reshape(6, 2), [0, 1, 2, 0, 1, 2]
    with pytest.raises(ArgumentError, match=f"class_weight must be a finite number >= 0, got {weight}"):
        mast.MastClassifier(class_weight={0: weight}, missing=missing).fit(X, y)


class TestHardData:
    @pytest.mark.parametrize("value", [0.0, 1.0])
    def test_features_that_say_nothing(self, value):
        y = np.array([0, 1, 1, 1] * 5)
        model = mast.MastClassifier().fit(np.full((20, 3), value), y)
        assert (model.predict(np.full((2, 3), value)) == 1).all()
        np.testing.assert_allclose(
            model.predict_proba(np.zeros((1, 3)))[0, 1], 0.75, atol=0.02 if value else 1e-9
        )

    @pytest.mark.parametrize("share", [0.0, 0.1])
    @pytest.mark.parametrize("sketch", [None, mast.PermK(2), "auto"])
    @pytest.mark.parametrize("make", [mast.MastRegressor, mast.MastClassifier])
    def test_means_far_from_0_are_taken_up_by_the_intercept(self, make, sketch, share):
        """Ridge centres features, too: otherwise the intercept's column hides all others."""
        X, _ = small(200, 5)
        margin = X @ np.arange(5.0)
        y = margin if make is mast.MastRegressor else np.digitize(margin, [-2.0, 2.0])
        rows = np.where(np.random.default_rng(1).random(X.shape) < share, np.nan, X)
        near, far = make(sketch).fit(rows, y), make(sketch).fit(rows + 1e8, y)
        tolerance = 0.1 if sketch == "auto" else 1e-5  # which cells are dropped depends on the numbers
        np.testing.assert_allclose(far.coef_, near.coef_, atol=tolerance * np.abs(near.coef_).max())
        assert far.score(X + 1e8, y) > near.score(X, y) - 0.05

    def test_scales_that_differ_by_many_orders(self):
        X, y = small(100, 5)
        scaled = X * np.array([1e-6, 1.0, 1e6, 1e3, 1e-3])
        model = mast.MastClassifier(alpha=1e-6).fit(scaled, y)
        assert np.isfinite(model.coef_).all()
        assert model.score(scaled, y) > 0.7

    def test_separable_data_without_a_penalty_warns_and_stays_finite(self):
        X = np.array([[-2.0], [-1.0], [1.0], [2.0]])
        with pytest.warns(ConvergenceWarning):
            model = mast.MastClassifier(mast.Identity(), alpha=0.0, max_iter=20).fit(X, [0, 0, 1, 1])
        assert np.isfinite(model.coef_).all()
        assert model.score(X, [0, 0, 1, 1]) == 1

    def test_a_million_features(self):
        generator = np.random.default_rng(0)
        X = scipy.sparse.random_array((60, 10**6), density=1e-5, rng=generator, format="csr")
        y = np.arange(60) % 2
        X = X + scipy.sparse.csr_array((y * 2.0 - 1, (np.arange(60), np.full(60, 77))), shape=X.shape)
        model = mast.MastClassifier(mast.PermK(4)).fit(X, y)
        assert model.method_ == "exact"
        assert model.score(X, y) == 1
        assert model.score_sparsified(X, y, draws=3).shape == (3,)
        narrow = X[:, : 10**5]
        sampled = mast.MastClassifier(mast.Bernoulli(0.5), method="sampled", random_state=0).fit(narrow, y)
        assert sampled.score(narrow, y) == 1

    def test_a_constant_target(self):
        X = small()[0]
        model = mast.MastRegressor().fit(X, np.full(60, 3.5))
        np.testing.assert_allclose(model.predict(X), 3.5, rtol=1e-9)
        assert mast.MastRegressor().fit(X, np.zeros(60)).intercept_ == 0
