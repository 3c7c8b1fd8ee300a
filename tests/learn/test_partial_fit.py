"""Models of rows that come in pieces."""

import numpy as np
import pandas
import pytest
import scipy.sparse
from scipy.special import expit, logsumexp
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.preprocessing import StandardScaler

import mast
from mast.errors import ArgumentError
from mast.learn import fitting, kernels
from mast.learn.copies import pool
from mast.learn.frames import ColumnsWarning
from mast.learn.missing import Moments, StandIns
from mast.randomness import Key


def standard(load):
    """Standardised features and labels, the rows in random order."""
    X, y = load(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return StandardScaler().fit_transform(X)[order], y[order]


def pieces(X, y, passes, count=7):
    """The rows in pieces, several times."""
    for _ in range(passes):
        yield from zip(np.array_split(X, count), np.array_split(y, count), strict=True)


def blank(X, share, seed=0):
    return np.where(np.random.default_rng(seed).random(X.shape) < share, np.nan, X)


def loss_under_draws(model, X, y, sketch, alpha):
    """f_D by 200 draws, the same for all models."""
    coef, intercept = np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)
    d, total = X.shape[1], 0.0
    for scale in pool(sketch, d, 50, 4, Key(99)):
        margin = (X * scale) @ coef.T + intercept
        if not hasattr(model, "classes_"):
            total += 0.5 * np.mean((margin[:, 0] - y) ** 2)
        elif len(model.classes_) == 2:
            total += -np.mean(np.log(expit(np.where(y == model.classes_[1], 1, -1) * margin[:, 0])))
        else:
            codes = np.searchsorted(model.classes_, y)
            total += np.mean(logsumexp(margin, axis=1) - margin[np.arange(len(y)), codes])
    return total / 200 + 0.5 * alpha * np.sum(sketch.expected_square(d) * coef**2)


class TestCloseToTheBatchFit:
    @pytest.mark.parametrize("sketch", [mast.Identity(), mast.Bernoulli(0.6), mast.PermK(2)], ids=repr)
    @pytest.mark.parametrize(
        ("kind", "load"),
        [
            (mast.MastClassifier, load_breast_cancer),
            (mast.MastClassifier, load_wine),
            (mast.MastRegressor, load_diabetes),
        ],
    )
    def test_after_several_passes(self, kind, load, sketch):
        X, y = standard(load)
        y = (y - y.mean()) / y.std() if kind is mast.MastRegressor else y
        model = kind(sketch, alpha=0.01, missing="scale", random_state=0)
        batch = kind(sketch, alpha=0.01, missing="scale", random_state=0).fit(X, y)
        first = {} if kind is mast.MastRegressor else {"classes": np.unique(y)}
        for X_part, y_part in pieces(X, y, 20):
            model.partial_fit(X_part, y_part, **first)
        assert model.method_ == "stochastic"
        best, found = (loss_under_draws(m, X, y, sketch, 0.01) for m in (batch, model))
        zero = 0.5 if kind is mast.MastRegressor else np.log(len(np.unique(y)))
        assert found - best < 0.01 * zero

    def test_with_stand_ins(self):
        X, y = standard(load_breast_cancer)
        model = mast.MastClassifier(alpha=0.01, random_state=0)
        for X_part, y_part in pieces(X[::2], y[::2], 10):
            model.partial_fit(X_part, y_part, classes=[0, 1])
        batch = mast.MastClassifier(alpha=0.01, random_state=0).fit(X[::2], y[::2])
        assert model.missing_ == batch.missing_ == "conditional"
        served = blank(X[1::2], 0.5)
        ours, theirs = model.decision_function(served), batch.decision_function(served)
        # the spread of the answers is about 3
        assert np.sqrt(np.mean((ours - theirs) ** 2)) < 0.1 * theirs.std()
        assert model.score(served, y[1::2]) > batch.score(served, y[1::2]) - 0.02

    def test_sparse_rows_are_the_same_steps(self):
        X, y = standard(load_wine)
        X = np.where(X > 0.5, X, 0.0)
        dense, sparse = (mast.MastClassifier(missing="scale", random_state=0) for _ in range(2))
        for X_part, y_part in pieces(X, y, 2):
            dense.partial_fit(X_part, y_part, classes=[0, 1, 2])
            sparse.partial_fit(scipy.sparse.csr_array(X_part), y_part, classes=[0, 1, 2])
        np.testing.assert_allclose(dense.coef_, sparse.coef_, rtol=1e-9, atol=1e-12)

    def test_fit_can_be_stochastic_too(self):
        X, y = standard(load_breast_cancer)
        sketch = mast.Bernoulli(0.7)
        model, batch = (
            mast.MastClassifier(sketch, alpha=0.01, missing="scale", method=method, random_state=0).fit(X, y)
            for method in ("stochastic", "auto")
        )
        best, found = (loss_under_draws(m, X, y, sketch, 0.01) for m in (batch, model))
        assert found - best < 0.005 * np.log(2)
        assert model.method_ == "stochastic"
        again = mast.MastClassifier(sketch, alpha=0.01, missing="scale", method="stochastic", random_state=0)
        assert np.array_equal(again.fit(X, y).coef_, model.coef_)

    def test_many_rows_are_passed_over(self, monkeypatch):
        X, y = standard(load_breast_cancer)
        monkeypatch.setattr(fitting, "MANY_ROWS", 500)
        assert mast.MastClassifier(missing="scale").fit(X, y).method_ == "stochastic"
        assert mast.MastClassifier(missing="scale").fit(X[:400], y[:400]).method_ == "sampled"
        assert mast.MastClassifier(mast.PermK(4), missing="scale").fit(X, y).method_ == "exact"
        assert mast.MastRegressor(missing="scale").fit(X, y).method_ == "exact"
        assert mast.MastClassifier(missing="scale", method="sampled").fit(X, y).method_ == "sampled"

    def test_units_of_the_columns_do_not_matter(self):
        X, y = standard(load_breast_cancer)
        scale = np.logspace(-3, 3, 30)
        models = [mast.MastClassifier(alpha=0.0, missing="scale", random_state=0) for _ in range(2)]
        for model, rows in zip(models, (X, X * scale), strict=True):
            for X_part, y_part in pieces(rows, y, 2):
                model.partial_fit(X_part, y_part, classes=[0, 1])
        np.testing.assert_allclose(models[0].coef_, models[1].coef_ * scale, rtol=1e-6)


class TestConvention:
    def test_a_class_may_be_missing_in_a_piece(self):
        X, y = standard(load_wine)
        model = mast.MastClassifier(random_state=0)
        for _ in range(10):
            for label in (0, 1, 2):  # sorted by class: each piece has one only
                model.partial_fit(X[y == label], y[y == label], classes=[0, 1, 2])
        assert model.predict_proba(X).shape == (178, 3)
        assert model.score(X, y) > 0.9

    def test_what_is_refused(self):
        X, y = standard(load_wine)
        with pytest.raises(ValueError, match="classes"):
            mast.MastClassifier().partial_fit(X, y)
        with pytest.raises(ArgumentError, match="two classes"):
            mast.MastClassifier().partial_fit(X, y, classes=[0])
        with pytest.raises(ArgumentError, match="label 2"):
            mast.MastClassifier().partial_fit(X, y, classes=[0, 1])
        with pytest.raises(ArgumentError, match="balanced"):
            mast.MastClassifier(class_weight="balanced").partial_fit(X, y, classes=[0, 1, 2])
        with pytest.raises(ArgumentError, match="method"):
            mast.MastClassifier(method="gd").partial_fit(X, y, classes=[0, 1, 2])
        turned = np.roll(np.eye(13), 1, axis=0)
        both = mast.Matrices([np.eye(13) + turned, np.eye(13) - turned])
        with pytest.raises(ArgumentError, match="diagonal"):
            mast.MastClassifier(both, missing="scale").partial_fit(X, y, [0, 1, 2])
        model = mast.MastClassifier().partial_fit(X, y, classes=[0, 1, 2])
        with pytest.raises(ValueError, match="classes"):
            model.partial_fit(X, y, classes=[0, 1])
        with pytest.raises(ValueError, match="features"):
            model.partial_fit(X[:, :4], y)

    def test_a_first_call_that_fails_leaves_nothing_behind(self):
        X, y = standard(load_wine)
        model = mast.MastClassifier(random_state=0)
        with pytest.raises(ValueError, match="infinity"):
            model.partial_fit(np.where(X > 1, np.inf, X), y, classes=[0, 1, 2])
        model.partial_fit(X, y == 2, classes=[False, True])
        assert model.n_features_in_ == 13
        assert model.classes_.tolist() == [False, True]
        with pytest.raises(ArgumentError, match=r"two classes, got \['a'\]"):
            mast.MastClassifier().partial_fit(X, y, classes=["a"])

    def test_after_fit_and_after_a_file_it_goes_on_from_the_weights(self, tmp_path):
        X, y = standard(load_breast_cancer)
        model = mast.MastClassifier(random_state=0).fit(X, y)
        model.save(tmp_path / "model")
        loaded = mast.MastClassifier.load(tmp_path / "model")
        for one in (model, loaded):
            before = one.coef_.copy()
            one.partial_fit(X[:3], y[:3])
            assert 0 < np.abs(one.coef_ - before).max() < 0.5
        np.testing.assert_array_equal(model.coef_, loaded.coef_)
        model.fit(X, y)
        np.testing.assert_array_equal(model.coef_, before)

    def test_rows_with_gaps_frames_and_weights(self):
        X, y = standard(load_breast_cancer)
        names = [f"c{j}" for j in range(30)]
        for missing in ("scale", "conditional"):
            model = mast.MastClassifier(missing=missing, random_state=0)
            for X_part, y_part in pieces(blank(X, 0.3), y, 5):
                model.partial_fit(pandas.DataFrame(X_part, columns=names), y_part, classes=[0, 1])
            assert model.score(pandas.DataFrame(blank(X, 0.3, 1), columns=names), y) > 0.93
            with pytest.warns(ColumnsWarning, match="c29"):
                model.partial_fit(pandas.DataFrame(X, columns=names)[names[:29]], y)
        weights = np.arange(569) % 3
        weighted, without = (mast.MastRegressor(random_state=0, alpha=0.1, missing="scale") for _ in range(2))
        for _ in range(20):
            weighted.partial_fit(X, y, sample_weight=weights)
            without.partial_fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
        np.testing.assert_allclose(weighted.coef_, without.coef_, atol=0.03)

    def test_the_penalty_is_that_of_the_rows_so_far(self):
        X, y = standard(load_breast_cancer)
        model = mast.MastClassifier(random_state=0)
        for number, (X_part, y_part) in enumerate(pieces(X[:500], y[:500], 1, count=5), start=1):
            model.partial_fit(X_part, y_part, classes=[0, 1])
            assert model.alpha_ == pytest.approx(1 / (100 * number))
            assert model.n_iter_[0] == number

    def test_a_shift_is_where_it_starts_and_ends_with_a_large_penalty(self):
        X, y = standard(load_diabetes)
        v = np.linspace(-1, 1, 10)
        model = mast.MastRegressor(mast.Bernoulli(0.5), alpha=0.5, shift=v, random_state=0)
        batch = mast.MastRegressor(mast.Bernoulli(0.5), alpha=0.5, shift=v, random_state=0)
        y = (y - y.mean()) / y.std()
        batch.fit(X, y)
        for _ in range(60):
            model.partial_fit(X, y)
        np.testing.assert_allclose(model.coef_, batch.coef_, atol=0.03)


def test_moments_in_pieces_are_those_of_all_rows():
    X, _ = standard(load_wine)
    X = 3 * X + np.arange(13)
    for rows in (X, blank(X, 0.3)):
        moments = Moments(13)
        for part in np.array_split(rows, 5):
            moments.add(part, None)
        whole, found = StandIns.of(rows, mast.Identity(), None), moments.stand_ins(mast.Identity())
        np.testing.assert_allclose(found.mean, whole.mean, atol=1e-12)
        # the fourth moments are taken around the mean so far, and decide the shrinkage only
        np.testing.assert_allclose(found.sketch.covariance, whole.sketch.covariance, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(("loss", "outputs"), [(0, 1), (1, 1), (2, 3)])
def test_the_compiled_pass_is_the_readable_one(loss, outputs):
    generator = np.random.default_rng(0)
    n, d = 40, 6
    A = scipy.sparse.random_array((n, d), density=0.5, rng=generator, format="csr")
    target = {0: np.sign(generator.standard_normal(n)), 1: generator.standard_normal(n)}.get(
        loss, generator.integers(0, 3, n).astype(float)
    )
    base, weights = generator.standard_normal((n, outputs)), generator.random(n)
    scales, which = pool(mast.Bernoulli(0.5), d, 2, 4, Key(1)), np.arange(n) % 8
    sizes, metric = np.linspace(1, 0.2, n), np.append(generator.random(d), 1.0)
    ridge, pull = generator.random(d), generator.standard_normal((d, outputs))
    state = generator.standard_normal((d + 1, outputs)), np.zeros((d + 1, outputs)), np.zeros(d + 1)
    x, total = state[0].copy(), np.zeros((d + 1, outputs))
    for i in range(n):
        row = A[[i]].toarray()[0]
        z = np.append(scales[which[i]] * row, 1.0)
        margin = base[i] + z @ x
        if loss == 2:
            slope = np.exp(margin - logsumexp(margin)) - (np.arange(3) == target[i])
        else:
            slope = margin - target[i] if loss == 1 else -target[i] * expit(-target[i] * margin)
        step = sizes[i] * weights[i]
        factor = step / (1 + step * 0.25 * (metric @ z**2))
        there = np.append(row != 0, True)
        shrink = np.where(there[:-1], step * metric[:-1], 0.0)[:, None]
        x -= factor * (metric * z)[:, None] * slope
        x[:-1] = (x[:-1] - shrink * pull) / (1 + shrink * ridge[:, None])
        total += (i + 1) * x
    rows = (A.indptr.astype(np.int64), A.indices.astype(np.int64), A.data, target, base, weights)
    kernels.pass_over(rows, (scales, which), (loss, 0.25, 0.0, sizes, metric, ridge, pull, True), state)
    np.testing.assert_allclose(state[0], x, rtol=1e-10)
    np.testing.assert_allclose(state[1], total, rtol=1e-10)
