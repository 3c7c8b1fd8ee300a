"""Missing cells: what is served, what is trained for it, and the tables they come from."""

import pickle

import numpy as np
import pandas
import pytest
import scipy.sparse
from sklearn.covariance import LedoitWolf
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import get_scorer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import mast
from mast.errors import ArgumentError, DataError
from mast.learn import ColumnsWarning, scoring
from mast.learn.gaussian import fit_gaussian, unique_masks
from mast.learn.imputer import Scaling, units
from mast.learn.risk import copies_of, diagonals, pool
from mast.learn.validation import row_hashes, rows_with_nan
from mast.randomness import Key


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return (X - X.mean(axis=0)) / X.std(axis=0), y


def blank(X, share, seed=0):
    """A copy with this share of the cells missing."""
    return np.where(np.random.default_rng(seed).random(X.shape) < share, np.nan, X)


def test_rows_with_gaps():
    X = np.zeros((4, 3))
    X[1, 2] = X[3, 0] = np.nan
    assert rows_with_nan(X).tolist() == [1, 3]
    assert rows_with_nan(scipy.sparse.csr_array(X)).tolist() == [1, 3]
    assert rows_with_nan(np.full((2, 2), 1e308)).size == 0  # a sum that overflows is no gap
    masks = np.random.default_rng(0).random((50, 11)) < 0.5
    different, which = unique_masks(np.vstack([masks, masks[::-1]]))
    assert np.array_equal(different[which], np.vstack([masks, masks[::-1]]))
    assert len(different) == len({row.tobytes() for row in masks})


class TestScale:
    @pytest.mark.parametrize(
        ("rule", "factor"), [(0.2, 1.2 / 0.45), (0.0, 4.0), (np.inf, 1.0), ("keep", 2.0)], ids=str
    )
    def test_what_is_there_is_multiplied_and_nothing_else(self, wine, rule, factor):
        X, y = wine
        X = X[:, :12]
        model = mast.MastClassifier(mast.Bernoulli(0.5), missing="scale", missing_scale=rule).fit(X, y)
        few = X.copy()
        few[:, 3:] = np.nan
        expected = factor * X[:, :3] @ model.coef_[:, :3].T + model.intercept_
        np.testing.assert_allclose(model.decision_function(few), expected, rtol=1e-12)
        complete = np.vstack([X[:5], few[5:]])
        np.testing.assert_array_equal(model.decision_function(complete)[:5], model.decision_function(X)[:5])
        nothing = np.full((2, 12), np.nan)
        np.testing.assert_allclose(model.decision_function(nothing), [model.intercept_] * 2)

    def test_a_group_counts_as_one_feature_and_what_is_never_dropped_as_none(self):
        groups = mast.Grouped(mast.Bernoulli(0.5), [0, 1, 1, 1])
        scaling = Scaling.of(groups, 4, 0.0)
        assert scaling.factors(np.array([[True, False, False, False]]))[0, 0] == pytest.approx(2)
        assert scaling.factors(np.array([[True, True, True, False]]))[0, 0] == pytest.approx(6 / 5)
        beside = mast.Except(mast.Bernoulli(0.5), [0])
        assert units(beside, 4).tolist() == [-1, 0, 1, 2]
        factors = Scaling.of(beside, 4, 0.0).factors(np.array([[True, True, False, False]]))
        np.testing.assert_allclose(factors, [[1, 3, 3, 3]])
        assert units(mast.Mixture([groups, groups]), 4).tolist() == [0, 1, 1, 1]
        both = mast.Mixture([groups, mast.Identity()])
        assert units(both, 4).tolist() == [0, 1, 2, 3]

    @pytest.mark.parametrize("sketch", [mast.Identity(), mast.UnscaledBernoulli(0.5), mast.Gaussian(0.3)])
    def test_what_never_scales_does_not_scale_here(self, sketch):
        assert (Scaling.of(sketch, 3, 0.2).factors(np.array([[True, False, True]])) == 1).all()

    def test_a_shift_is_not_scaled(self, wine):
        X, y = wine
        v = np.linspace(-1, 1, 13)
        model = mast.MastClassifier(shift=v, missing_scale=0.0).fit(X, y == 1)
        few = X.copy()
        few[:, 1:] = np.nan
        served = v[0] + 13 * (model.coef_[0, 0] - v[0])
        np.testing.assert_allclose(model.decision_function(few), served * X[:, 0] + model.intercept_[0])

    def test_training_rows_may_have_gaps(self, wine):
        X, y = wine
        missing = blank(X, 0.3)
        model = mast.MastClassifier(mast.PermK(3), missing="scale").fit(missing, y)
        share = (~np.isnan(missing)).mean(axis=1, keepdims=True)
        filled = np.nan_to_num(missing) * np.where(share == 1, 1, 1.2 / (share + 0.2))
        by_hand = mast.MastClassifier(mast.PermK(3), missing="scale").fit(filled, y)
        np.testing.assert_allclose(model.coef_, by_hand.coef_, rtol=1e-9)
        sparse = mast.MastClassifier(mast.PermK(3)).fit(scipy.sparse.csr_array(missing), y)
        np.testing.assert_allclose(sparse.coef_, by_hand.coef_, rtol=1e-6)
        np.testing.assert_allclose(
            sparse.decision_function(scipy.sparse.csr_array(missing)),
            by_hand.decision_function(missing),
            rtol=1e-6,
        )


class TestConditional:
    def test_stand_ins_are_conditional_means(self, wine):
        X, y = wine
        X = 3 * X + np.arange(13)  # with means and units of their own
        model = mast.MastClassifier(random_state=0).fit(X, y)
        assert model.missing_ == "conditional"
        C, mean = model.imputer_.covariance_, model.imputer_.mean_
        missing = blank(X, 0.6)
        filled = np.empty_like(X)
        for row, there in enumerate(~np.isnan(missing)):
            o, m = np.flatnonzero(there), np.flatnonzero(~there)
            filled[row, o] = X[row, o]
            inner = np.linalg.solve(C[np.ix_(o, o)], X[row, o] - mean[o])
            filled[row, m] = mean[m] + C[np.ix_(m, o)] @ inner
        np.testing.assert_allclose(
            model.decision_function(missing), model.decision_function(filled), rtol=1e-8, atol=1e-9
        )

    def test_the_covariance_is_ledoit_and_wolfs(self, wine):
        X, _ = wine
        ours = fit_gaussian(X, None).covariance
        np.testing.assert_allclose(ours, LedoitWolf().fit(X).covariance_, atol=1e-12)
        weights = np.arange(178) % 3
        weighted = fit_gaussian(X, weights.astype(float)).covariance
        repeated = fit_gaussian(np.repeat(X, weights, axis=0), None).covariance
        np.testing.assert_allclose(weighted, repeated, atol=1e-12)

    def test_a_covariance_from_rows_with_gaps(self, wine):
        X, _ = wine
        whole = fit_gaussian(X, None)
        missing = fit_gaussian(blank(X, 0.3), None)
        assert np.linalg.eigvalsh(missing.covariance)[0] > 0
        # the rows that hold both of two columns are half of all: errors near 1/sqrt(89)
        assert np.abs(missing.covariance - whole.covariance).max() < 5 / np.sqrt(89)
        X = X.copy()
        X[:, 4], X[:, 5] = np.nan, 7.0
        odd = fit_gaussian(X, None)
        assert (odd.mean[4], odd.mean[5]) == (0, 7)
        assert np.isfinite(odd.covariance).all()

    @pytest.mark.parametrize("kind", [mast.MastClassifier, mast.MastRegressor])
    def test_it_is_trained_for_what_is_served(self, kind):
        """With few features all masks are listed: the gradient of their mean is 0."""
        generator = np.random.default_rng(0)
        X = generator.standard_normal((90, 4)) @ generator.standard_normal((4, 4)) + 1
        y = (X @ [1, 2, 0, -1] + generator.standard_normal(90) > 0).astype(int)
        sketch = mast.Bernoulli(0.6)
        model = kind(sketch, alpha=0.1).fit(X, y)
        assert (model.method_, model.missing_) == ("exact", "conditional")
        coef, total = np.ravel(model.coef_), 0.1 * np.ravel(model.coef_)
        level = 0.0
        for probability, draw in sketch.support(4):
            T = model.imputer_.gaussian_.served_weights(draw.diagonal()[None] != 0, np.eye(4))[0]
            Z = model.imputer_.mean_ + (X - model.imputer_.mean_) @ T.T
            margin = Z @ coef + np.ravel(model.intercept_)
            slope = (margin if kind is mast.MastRegressor else 1 / (1 + np.exp(-margin))) - y
            total = total + probability * Z.T @ slope / 90
            level += probability * slope.mean()
        assert np.abs(total).max() < 1e-8
        assert abs(level) < 1e-8

    def test_training_rows_may_have_gaps(self, wine):
        X, y = wine
        model = mast.MastClassifier(random_state=0).fit(blank(X[::2], 0.3), y[::2])
        assert model.score(X[1::2], y[1::2]) > 0.93
        assert model.score(blank(X[1::2], 0.3), y[1::2]) > 0.88

    def test_a_pruned_copy_serves_the_kept_features(self, wine):
        X, y = wine
        model = mast.MastClassifier(random_state=0).fit(X, y)
        pruned = model.sparsify(density=0.5, seed=3)
        kept = mast.RandK(0.5).draw(13, seed=3).diagonal() != 0
        assert (pruned.coef_[:, ~kept] == 0).all()
        served = model.decision_function(np.where(kept, X, np.nan))
        np.testing.assert_allclose(pruned.decision_function(X), served, rtol=1e-9, atol=1e-9)
        scores = model.set_params(random_state=3).fit(X, y).score_sparsified(X, y, 0.5, draws=1)
        assert scores[0] == model.score(np.where(kept, X, np.nan), y)

    def test_scores_of_sparsified_models_on_rows_with_gaps(self, wine):
        X, y = wine
        for missing in ("conditional", "scale"):
            model = mast.MastClassifier(missing=missing, random_state=1).fit(X, y)
            scores = model.score_sparsified(blank(X, 0.2), y, 0.5, draws=3)
            assert (scores > 0.6).all()
            assert model.score_sparsified(blank(X, 0.2), y, 1.0, draws=1)[0] == model.score(blank(X, 0.2), y)
            sparse = scipy.sparse.csr_array(blank(X, 0.2))
            assert np.array_equal(model.score_sparsified(sparse, y, 0.5, draws=3), scores)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"shift": np.zeros(13)}, "shift"),
            ({"method": "dsgd"}, "dsgd"),
            ({"sketch": mast.Gaussian(0.5)}, "drops no features"),
        ],
    )
    def test_refuses_what_it_cannot_do(self, wine, options, message):
        X, y = wine
        with pytest.raises(ArgumentError, match=message):
            mast.MastClassifier(missing="conditional", **options).fit(X, y == 1)

    def test_auto(self, wine):
        X, y = wine
        assert mast.MastClassifier().fit(X, y).missing_ == "conditional"
        assert mast.MastClassifier().fit(scipy.sparse.csr_array(X), y).missing_ == "scale"
        assert mast.MastClassifier().fit(np.tile(X, 16), y).missing_ == "conditional"
        for bad in ({"missing": "mean"}, {"missing_scale": -1}, {"missing_scale": "share"}):
            with pytest.raises(ArgumentError, match="missing"):
                mast.MastClassifier(**bad).fit(X, y)


class TestWide:
    """More than 200 features: stand-ins by factors."""

    @pytest.fixture
    def made(self):
        generator = np.random.default_rng(0)
        z = generator.standard_normal((600, 5))
        X = z @ generator.standard_normal((5, 260)) + generator.standard_normal((600, 260)) + 2
        return X, (z[:, 0] + z[:, 1] + 0.3 * generator.standard_normal(600) > 0).astype(int)

    def test_they_beat_scaling(self, made):
        X, y = made
        test = blank(X[300:], 0.9)
        models = [mast.MastClassifier(missing=rule).fit(X[:300], y[:300]) for rule in ("auto", "scale")]
        assert models[0].missing_ == "conditional"
        assert models[0].imputer_.rank_ in range(4, 8)
        ours, theirs = (model.score(test, y[300:]) for model in models)
        assert ours > theirs + 0.02
        filled = models[0].imputer_.transform(test)
        np.testing.assert_allclose(models[0].decision_function(test), models[0].decision_function(filled))
        pruned = models[0].sparsify(density=0.2, seed=1)
        kept = np.ravel(pruned.coef_) != 0
        np.testing.assert_allclose(
            pruned.decision_function(X), models[0].decision_function(np.where(kept, X, np.nan))
        )

    def test_training_rows_may_have_gaps_and_files_keep_factors(self, made, tmp_path):
        X, y = made
        model = mast.MastClassifier().fit(blank(X[:300], 0.3), y[:300])
        test = blank(X[300:], 0.5)
        usual = make_pipeline(SimpleImputer(), LogisticRegression()).fit(blank(X[:300], 0.3), y[:300])
        assert model.score(test, y[300:]) > usual.score(test, y[300:]) + 0.02
        model.save(tmp_path / "m")
        again = mast.MastClassifier.load(tmp_path / "m")
        assert np.array_equal(again.predict_proba(test), model.predict_proba(test))

    def test_a_sparse_matrix_on_request(self, made):
        X, y = made
        X = np.where(np.abs(X) > 2, X, 0.0)
        dense = mast.MastClassifier().fit(X, y)
        sparse = mast.MastClassifier(missing="conditional").fit(scipy.sparse.csr_array(X), y)
        np.testing.assert_allclose(sparse.coef_, dense.coef_)
        assert np.array_equal(
            sparse.predict(scipy.sparse.csr_array(blank(X, 0.3))), dense.predict(blank(X, 0.3))
        )
        with pytest.raises(ArgumentError, match="dense"):
            mast.MastClassifier(missing="conditional").fit(
                scipy.sparse.csr_array((10**5, 10**7)), np.arange(10**5) % 2
            )


class TestDefaults:
    def test_fits_are_repeatable(self, wine):
        X, y = wine
        models = [mast.MastClassifier(random_state=seed).fit(X, y).coef_ for seed in (None, None, 0, 1)]
        assert np.array_equal(models[0], models[1])
        assert np.array_equal(models[0], models[2])
        assert not np.array_equal(models[0], models[3])

    def test_no_sketch_is_the_plain_model(self, wine):
        X, y = wine
        for kind in (mast.MastClassifier, mast.MastRegressor):
            plain = kind(None).fit(X, y)
            assert repr(plain.sketch_) == repr(mast.Identity())
            assert np.array_equal(plain.coef_, kind(mast.Identity()).fit(X, y).coef_)
            assert plain.missing_ == "conditional"


class TestProbabilities:
    def test_the_margin_is_divided_by_what_is_left_open(self, wine):
        X, y = wine
        served = blank(X, 0.6)
        served[0] = X[0]
        for sketch, share in (("auto", 0.75), (None, 1.0)):
            model = mast.MastClassifier(sketch).fit(X, y == 1)
            v = model.imputer_.margin_variance(served, model.coef_[0])
            margin = model.decision_function(served) / np.sqrt(1 + share * np.pi * v / 8)
            np.testing.assert_allclose(model.predict_proba(served)[:, 1], 1 / (1 + np.exp(-margin)))
            np.testing.assert_allclose(
                model.predict_log_proba(served), np.log(model.predict_proba(served)), rtol=1e-9
            )
            assert v[0] == 0

    def test_of_several_classes(self, wine):
        X, y = wine
        model, served = mast.MastClassifier().fit(X, y), blank(X, 0.6)
        v = model.imputer_.margin_variance(served, model.coef_ - model.coef_.mean(axis=0)).mean(axis=1)
        logits = model.decision_function(served) / np.sqrt(1 + 0.25 * np.pi * v / 8)[:, None]
        chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(model.predict_proba(served), chances, rtol=1e-9)
        assert np.array_equal(model.predict(served), chances.argmax(axis=1))

    def test_they_are_truer(self):
        """Gaussian features of which most are missing: the log-loss falls."""
        generator = np.random.default_rng(0)
        X = generator.standard_normal((4000, 10)) @ generator.standard_normal((10, 10))
        y = X @ generator.standard_normal(10) + generator.standard_normal(4000) > 0
        model = mast.MastClassifier(None).fit(X[:2000], y[:2000])
        served = blank(X[2000:], 0.6)
        margin, p = model.decision_function(served), model.predict_proba(served)[:, 1]
        plain = 1 / (1 + np.exp(-margin))

        def losses(p):
            return -np.log(np.where(y[2000:], p, 1 - p))

        gain = losses(plain) - losses(p)
        assert gain.mean() > 5 * gain.std() / np.sqrt(2000)


class TestIndicators:
    @pytest.fixture
    def made(self):
        """Whether the first column is blank says most of the label; the last has no gaps."""
        generator = np.random.default_rng(0)
        X = generator.standard_normal((900, 5)) + 1
        y = (generator.random(900) < 0.5).astype(int)
        X[:, 1] += 0.5 * y
        X[(generator.random(900) < np.where(y, 0.8, 0.2)), 0] = np.nan
        X[generator.random(900) < 0.2, 2] = np.nan
        return X, y

    @pytest.mark.parametrize("missing", ["conditional", "scale"])
    @pytest.mark.parametrize("sketch", ["auto", None, mast.Bernoulli(0.6)])
    def test_blanks_that_mean_something(self, made, missing, sketch, tmp_path):
        X, y = made
        model = mast.MastClassifier(sketch, missing=missing, add_indicator=True).fit(X[:600], y[:600])
        plain = mast.MastClassifier(sketch, missing=missing).fit(X[:600], y[:600])
        assert model.indicators_.tolist() == [0, 2]
        assert model.coef_.shape == (1, 7)
        assert model.n_features_in_ == 5
        assert model.score(X[600:], y[600:]) > plain.score(X[600:], y[600:]) + 0.05
        assert model.score_sparsified(X, y, 0.5, draws=3).shape == (3,)
        model.save(tmp_path / "m")
        again = mast.MastClassifier.load(tmp_path / "m")
        assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
        added = model.explain(X)
        np.testing.assert_allclose(added.sum(axis=1) + model.intercept_, model.decision_function(X))

    def test_masks_of_training_are_not_marked(self, made):
        X = np.nan_to_num(made[0], nan=1.0)
        model = mast.MastClassifier(add_indicator=True).fit(X, made[1])
        assert model.indicators_.size == 0
        assert np.array_equal(model.coef_, mast.MastClassifier().fit(X, made[1]).coef_)

    def test_of_a_sparse_matrix(self, made):
        X, y = made
        model = mast.MastClassifier(add_indicator=True, missing="scale", alpha=0.01)
        dense = model.fit(X, y).decision_function(X)
        sparse = model.fit(scipy.sparse.csr_array(X), y).decision_function(scipy.sparse.csr_array(X))
        np.testing.assert_allclose(sparse, dense, rtol=1e-5, atol=1e-8)

    def test_with_a_shift(self, made):
        X, y = made
        model = mast.MastClassifier(add_indicator=True, shift=np.ones(5)).fit(X, y)
        assert model.shift_.tolist() == [[1, 1, 1, 1, 1, 0, 0]]
        assert model.predict(X).shape == y.shape


class TestExplain:
    @pytest.mark.parametrize("missing", ["conditional", "scale"])
    def test_contributions_add_up(self, wine, missing):
        X, y = wine
        served = blank(X, 0.4)
        served[0] = X[0]
        several = mast.MastClassifier(missing=missing).fit(X, y)
        added = several.explain(served)
        assert added.shape == (178, 3, 13)
        np.testing.assert_allclose(added.sum(axis=2) + several.intercept_, several.decision_function(served))
        regressor = mast.MastRegressor(missing=missing).fit(X, y)
        added = regressor.explain(served)
        np.testing.assert_allclose(added.sum(axis=1) + regressor.intercept_, regressor.predict(served))
        np.testing.assert_array_equal(added[0], X[0] * regressor.coef_)
        gone = np.isnan(served)
        if missing == "scale":
            assert (added[gone] == 0).all()
        else:
            filled = regressor.imputer_.transform(served)
            np.testing.assert_allclose(added[gone], (filled * regressor.coef_)[gone])

    def test_a_shift_is_explained_too(self, wine):
        X, y = wine
        model = mast.MastRegressor(shift=np.arange(13.0)).fit(X, y)
        served = blank(X, 0.4)
        np.testing.assert_allclose(
            model.explain(served).sum(axis=1) + model.intercept_, model.predict(served), atol=1e-9
        )


class TestServing:
    def test_in_a_pipeline_as_people_write_it(self):
        X, y = load_breast_cancer(return_X_y=True)
        model = make_pipeline(StandardScaler(), mast.MastClassifier(random_state=0)).fit(X[::2], y[::2])
        plain = make_pipeline(StandardScaler(), LogisticRegression()).fit(X[::2], y[::2])
        assert model.score(X[1::2], y[1::2]) >= plain.score(X[1::2], y[1::2]) - 0.005
        served = blank(X[1::2], 0.75)
        mean = np.where(np.isnan(served), plain[0].mean_, served)
        assert model.score(served, y[1::2]) > plain.score(mean, y[1::2])
        chances = model.predict_proba(served)
        np.testing.assert_allclose(chances.sum(axis=1), 1)
        assert np.array_equal(model.predict(served), (model.decision_function(served) > 0).astype(int))

    def test_a_data_frame_may_lack_columns_and_have_others(self, wine):
        X, y = wine
        names = [f"c{j}" for j in range(13)]
        frame = pandas.DataFrame(X, columns=names)
        model = mast.MastClassifier(random_state=0).fit(frame, y)
        few = frame[["c3", "c0", "c12"]].assign(other=1.0)
        with pytest.warns(ColumnsWarning) as said:
            served = model.decision_function(few)
        assert [str(w.message) for w in said] == [
            "absent, so missing in every row: 'c1', 'c2', 'c4', 'c5', 'c6' and 5 more",
            "unknown to the model, so ignored: 'other'",
        ]
        blanked = X.copy()
        blanked[:, [j for j in range(13) if j not in (0, 3, 12)]] = np.nan
        np.testing.assert_array_equal(
            served, model.decision_function(pandas.DataFrame(blanked, columns=names))
        )
        with pytest.raises(DataError, match="none of the model's columns"):
            model.predict(pandas.DataFrame({"x": [1.0]}))

    def test_columns_that_are_no_numbers_or_stand_there_twice_are_named(self, wine):
        X, y = wine
        frame = pandas.DataFrame(X[:, :3], columns=["a", "b", "c"])
        dates = pandas.date_range("2020", periods=len(y))
        odd = frame.assign(b="much", c=dates)
        with pytest.raises(DataError, match=r"held numbers in training, and now do not: 'b', 'c'"):
            mast.MastClassifier().fit(frame, y).predict(odd)
        twice = frame[["a", "b", "a"]]
        with pytest.raises(DataError, match="two columns are called 'a'"):
            mast.MastClassifier().fit(twice, y)
        with pytest.raises(DataError, match="two columns are called 'a'"):
            mast.MastClassifier().fit(frame, y).predict(twice)

    def test_a_warning_points_to_the_line_that_called(self, wine):
        X, y = wine
        frame = pandas.DataFrame(X, columns=[f"c{j}" for j in range(13)])
        model = mast.MastClassifier(random_state=0).fit(frame, y)
        for serve in (model.predict, lambda rows: model.score_sparsified(rows, y, draws=1)):
            with pytest.warns(ColumnsWarning) as caught:
                serve(frame.drop(columns="c3"))
            assert caught[0].filename == __file__

    def test_infinity_is_refused(self, wine):
        X, y = wine
        model = mast.MastClassifier(random_state=0).fit(X, y)
        with pytest.raises(ValueError, match="infinity"):
            model.predict(np.where(X > 1, np.inf, X))


class TestCopies:
    def test_of_a_mixture_each_row_gets_every_component_as_often_as_its_weight_says(self):
        sketch = mast.Mixture([mast.Identity(), mast.Bernoulli(0.5)], [0.25, 0.75])
        drawn = pool(sketch, 40, 10, 8, Key(0)).reshape(10, 8, 40)
        assert ((drawn == 1).all(axis=2).sum(axis=1) == 2).all()

    @pytest.mark.parametrize(
        "sketch",
        [
            mast.Bernoulli(0.3),
            mast.Bernoulli(np.linspace(0.2, 1, 6)),
            mast.UnscaledBernoulli(0.3),
            mast.RandK(2),
            mast.Grouped(mast.Bernoulli(0.4), [0, 0, 1, 2, 2, 1]),
            mast.Except(mast.Bernoulli(0.4), [2]),
        ],
        ids=repr,
    )
    def test_draws_have_the_moments_of_the_sketch(self, sketch):
        drawn = diagonals(sketch, 6, 4000, Key(3))
        error = 5 * drawn.std(axis=0) / np.sqrt(4000) + 1e-12
        assert (np.abs(drawn.mean(axis=0) - sketch.mean(6)) <= error).all()
        products = drawn[:, :, None] * drawn[:, None, :]
        error = 5 * products.std(axis=0) / np.sqrt(4000) + 1e-12
        assert (np.abs(products.mean(axis=0) - sketch.second_moment(6)) <= error).all()

    def test_numbers_of_rows_depend_on_their_content_only(self, wine):
        X, _ = wine
        X = np.where(X > 1, 0.0, X)
        numbers = row_hashes(X)
        assert np.unique(numbers).size == np.unique(X, axis=0).shape[0]
        assert np.array_equal(row_hashes(scipy.sparse.csr_array(X)), numbers)
        assert np.array_equal(row_hashes(X[::-1]), numbers[::-1])
        assert np.array_equal(row_hashes(-0.0 * X), np.zeros(178, dtype=np.uint64))

    def test_a_short_support_is_listed(self, wine):
        X, _ = wine
        listed = copies_of(X, mast.PermK(3), 0, None)
        assert listed.exact
        assert listed.rows.shape == (3 * 178, 13)
        np.testing.assert_allclose(listed.rows.reshape(3, 178, 13).mean(axis=0), X, atol=1e-12)
        assert not copies_of(X, mast.PermK(3), 0, None, listing=False).exact


class TestScores:
    def test_the_scorer_is_the_mean_over_blank_cells(self, wine):
        X, y = wine
        model = mast.MastClassifier(random_state=0).fit(X, y)
        scorer = mast.make_missing_scorer(share=0.5, draws=4, seed=3)
        scores = [model.score(scoring.mask_cells(X, 0.5, 3, draw), y) for draw in range(4)]
        assert scorer(model, X, y) == pytest.approx(np.mean(scores))
        gone = np.isnan(scoring.mask_cells(X, 0.5, 3, 1))
        assert abs(gone.mean() - 0.5) < 5 * 0.5 / np.sqrt(gone.size)
        frame = pandas.DataFrame(X, columns=[f"c{j}" for j in range(13)])
        assert np.array_equal(scoring.mask_cells(frame, 0.5, 3, 1).isna().to_numpy(), gone)
        assert mast.make_missing_scorer(0.0)(model, X, y) == model.score(X, y)
        loss = mast.make_missing_scorer(0.5, 4, 3, get_scorer("neg_log_loss"))
        assert loss(model, X, y) < 0
        assert mast.make_missing_scorer(0.5, 4, 3, "neg_log_loss")(model, X, y) == loss(model, X, y)
        for bad in (1.0, -0.1, "half"):
            with pytest.raises(ArgumentError, match="share"):
                mast.make_missing_scorer(bad)
        with pytest.raises(ArgumentError, match="sparse"):
            scorer(model, scipy.sparse.csr_array(X), y)

    def test_in_a_search(self, wine):
        X, y = wine
        grid = {"missing": ["conditional", "scale"]}
        search = GridSearchCV(
            mast.MastClassifier(random_state=0),
            grid,
            cv=2,
            scoring=mast.make_missing_scorer(0.75, 5),
            n_jobs=1,
        ).fit(X, y)
        assert search.best_score_ > 0.6
        assert pickle.loads(pickle.dumps(mast.make_missing_scorer(0.5))) == mast.make_missing_scorer(0.5)

    def test_the_display(self, wine):
        matplotlib = pytest.importorskip("matplotlib")
        matplotlib.use("Agg")
        X, y = wine
        ours = mast.MastClassifier(random_state=0).fit(X[::2], y[::2])
        plain = make_pipeline(SimpleImputer(), LogisticRegression()).fit(X[::2], y[::2])
        display = mast.MissingDisplay.from_estimators(
            {"MAST": ours, "mean": plain}, X[1::2], y[1::2], shares=[0.5, 0.0], draws=3, score_name="accuracy"
        )
        assert display.shares == [0.0, 0.5]
        assert display.scores["MAST"].shape == (2, 3)
        assert display.scores["mean"][0, 0] == plain.score(X[1::2], y[1::2])
        assert [line.get_label() for line in display.lines_] == ["MAST", "mean"]
        np.testing.assert_allclose(display.lines_[0].get_ydata(), display.scores["MAST"].mean(axis=1))
        assert display.ax_.get_ylabel() == "accuracy"
        assert display.plot(display.ax_).figure_ is display.figure_
        matplotlib.pyplot.close("all")
        both = mast.MissingDisplay.from_estimators([ours, plain, ours], X, y, shares=[0.0], draws=1)
        assert list(both.scores) == ["MastClassifier 1", "Pipeline", "MastClassifier 3"]
        with pytest.raises(ArgumentError, match="nothing to draw"):
            mast.MissingDisplay.from_estimators([], X, y)

    def test_verbose_prints_a_line_per_iteration(self, wine, capsys):
        X, y = wine
        model = mast.MastClassifier(mast.PermK(3), verbose=True).fit(X, y)
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) >= model.n_iter_[0]
        assert lines[0].startswith("MastClassifier, iteration 1: loss ")
