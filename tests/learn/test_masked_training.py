"""Any estimator, trained on copies of its rows with blanks."""

import math

import numpy as np
import pytest
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.datasets import load_diabetes, load_wine, make_friedman1
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import mast
from mast.errors import ArgumentError, DataError
from mast.learn import ColumnsWarning

TREES = {"max_iter": 5, "min_samples_leaf": 5}


def by_design(model):
    known = {
        "check_dataframe_column_names_consistency": "absent columns are blanks, and order does not matter"
    }
    if isinstance(model.estimator, HistGradientBoostingClassifier | HistGradientBoostingRegressor):
        known["check_sample_weight_equivalence_on_dense_data"] = "trees count rows, not weights: theirs"
    return known


@parametrize_with_checks(
    [
        mast.MaskedTraining(LogisticRegression()),
        mast.MaskedTraining(Ridge(), shares=(0,)),
        mast.MaskedTraining(HistGradientBoostingClassifier(**TREES), shares=(0.5,), copies=2),
        mast.MaskedTraining(HistGradientBoostingRegressor(**TREES), fill="nan"),
    ],
    expected_failed_checks=by_design,
)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


class Recorder(RegressorMixin, BaseEstimator):
    """An estimator that remembers what it was trained on."""

    def fit(self, X, y, sample_weight=None):
        self.X_, self.y_, self.weights_ = X, y, sample_weight
        return self

    def predict(self, X):
        self.served_ = X
        return np.zeros(len(X))


@pytest.fixture
def rows():
    X, y = make_friedman1(400, 8, random_state=0)
    X[::7, 2] = np.nan
    return X, y


def recorded(rows, **settings):
    return mast.MaskedTraining(Recorder(), **settings).fit(*rows).estimator_


def test_copies_take_the_shares_in_turn(rows):
    X, y = rows
    seen = recorded(rows, fill="nan")
    copies = seen.X_.reshape(5, *X.shape)
    own = np.isnan(X)
    for copy, share in zip(copies, (0, 0.25, 0.5, 0.75, 0), strict=True):
        gone = np.isnan(copy)
        np.testing.assert_array_equal(copy[~gone], X[~gone])
        assert gone[own].all()
        tolerance = 5 * math.sqrt(share * (1 - share) / (~own).sum())
        assert abs(gone[~own].mean() - share) <= tolerance
    assert np.unique(np.isnan(copies[2]), axis=0).shape[0] > 200  # of 256 patterns, not one for all rows
    np.testing.assert_array_equal(seen.y_, np.tile(y, 5))
    assert seen.weights_ is None
    weights = np.arange(len(y)) + 1.0
    weighted = mast.MaskedTraining(Recorder()).fit(X, y, weights).estimator_
    np.testing.assert_array_equal(weighted.weights_, np.tile(weights, 5))


def test_blanks_are_filled_as_the_imputer_fills_them(rows):
    X, _ = rows
    blank, filled = recorded(rows, fill="nan").X_, recorded(rows).X_
    there = ~np.isnan(blank)
    np.testing.assert_array_equal(filled[there], blank[there])
    np.testing.assert_array_equal(filled, mast.ConditionalImputer().fit(X).transform(blank))
    model = mast.MaskedTraining(Recorder()).fit(*rows)
    model.predict(X)
    np.testing.assert_array_equal(model.estimator_.served_, model.imputer_.transform(X))


def test_without_shares_it_is_the_plain_estimator_behind_the_imputer(rows):
    X, y = rows
    plain = make_pipeline(mast.ConditionalImputer(), LinearRegression()).fit(X, y)
    model = mast.MaskedTraining(LinearRegression(), shares=(0,)).fit(X, y)
    np.testing.assert_array_equal(model.estimator_.coef_, plain[-1].coef_)
    np.testing.assert_array_equal(model.predict(X), plain.predict(X))
    assert model.score(X, y) == plain.score(X, y)


def test_trees_that_were_trained_for_blanks_serve_them():
    X, y = make_friedman1(800, 6, noise=0.5, random_state=1)
    trees = HistGradientBoostingRegressor(max_iter=60, random_state=0)
    half = mast.make_missing_scorer(0.5, draws=3)
    trained = mast.MaskedTraining(trees, fill="nan").fit(X[:400], y[:400])
    assert half(trained, X[400:], y[400:]) > half(trees.fit(X[:400], y[:400]), X[400:], y[400:]) + 0.05


def test_two_fits_are_one_and_a_seed_makes_another(rows):
    first, again = recorded(rows, fill="nan").X_, recorded(rows, fill="nan").X_
    np.testing.assert_array_equal(first, again)
    other = recorded(rows, fill="nan", random_state=1).X_
    assert (np.isnan(first) != np.isnan(other)).mean() > 0.1
    by_generator = recorded(rows, fill="nan", random_state=np.random.RandomState(3)).X_
    np.testing.assert_array_equal(
        by_generator, recorded(rows, fill="nan", random_state=np.random.RandomState(3)).X_
    )


def test_a_row_of_weight_two_is_a_row_that_stands_there_twice(rows):
    X, y = rows
    weights = np.random.default_rng(0).integers(0, 3, y.size)
    weighted = mast.MaskedTraining(Ridge()).fit(X, y, sample_weight=weights).estimator_
    repeated = mast.MaskedTraining(Ridge()).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    np.testing.assert_allclose(weighted.coef_, repeated.estimator_.coef_, rtol=1e-8)


def test_classes_and_probabilities():
    X, y = load_wine(return_X_y=True)
    names = np.array(["red", "rosé", "white"])[y]
    model = mast.MaskedTraining(make_pipeline(StandardScaler(), LogisticRegression())).fit(X, names)
    assert list(model.classes_) == ["red", "rosé", "white"]
    X[::2, ::2] = np.nan
    chances = model.predict_proba(X)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(chances))
    assert model.decision_function(X).shape == (len(X), 3)
    assert model.score(X, names) > 0.9
    assert not hasattr(mast.MaskedTraining(Ridge()), "predict_proba")


def test_searches_through_it_and_clones():
    X, y = load_diabetes(return_X_y=True)
    model = mast.MaskedTraining(Ridge())
    grid = {"estimator__alpha": [1e-3, 1e3], "shares": [(0,), (0, 0.5)]}
    search = GridSearchCV(model, grid, cv=3, scoring=mast.make_missing_scorer(0.5, draws=2)).fit(X, y)
    assert search.best_params_["estimator__alpha"] == 1e-3
    assert cross_val_score(search.best_estimator_, X, y, cv=3).min() > 0.3
    copy = clone(search.best_estimator_)
    assert copy.estimator.alpha == 1e-3
    assert not hasattr(copy, "estimator_")


def test_frames_are_read_by_the_names_of_their_columns(rows):
    pandas = pytest.importorskip("pandas")
    X, y = rows
    frame = pandas.DataFrame(X, columns=list("abcdefgh"))
    model = mast.MaskedTraining(Ridge()).fit(frame, y)
    np.testing.assert_array_equal(model.predict(frame[list("hgfedcba")]), model.predict(frame))
    with pytest.warns(ColumnsWarning, match="'b'"):
        absent = model.predict(frame.drop(columns="b"))
    np.testing.assert_array_equal(absent, model.predict(frame.assign(b=np.nan)))
    with pytest.raises(DataError, match="two columns are called 'a'"):
        model.fit(frame[["a", "a"]], y)


def test_frames_with_texts_are_encoded_and_the_features_of_a_column_are_blank_together(rows):
    pandas = pytest.importorskip("pandas")
    X, y = rows
    frame = pandas.DataFrame(X, columns=list("abcdefgh"))
    frame["job"] = np.where(X[:, 0] < 0.3, "cook", np.where(X[:, 1] < 0.5, "nurse", "smith"))
    model = mast.MaskedTraining(Recorder(), fill="nan").fit(frame, y)
    jobs = np.isnan(model.estimator_.X_[:, -3:])
    assert (jobs.any(axis=1) == jobs.all(axis=1)).all()
    assert 0.2 < jobs[:, 0].mean() < 0.4  # (0 + .25 + .5 + .75 + 0)/5
    ridge = mast.MaskedTraining(Ridge()).fit(frame, y)
    apart = mast.TableEncoder().fit(frame)
    piped = mast.MaskedTraining(Ridge()).fit(apart.transform(frame), y)
    np.testing.assert_array_equal(ridge.estimator_.coef_, piped.estimator_.coef_)
    assert np.isfinite(ridge.predict(frame.assign(job=None))).all()
    assert list(ridge.feature_names_in_) == list(frame.columns)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shares": ()}, "at least one share"),
        ({"shares": (0, 1.0)}, "shares must"),
        ({"copies": 0}, "copies must"),
        ({"fill": "mean"}, "fill must"),
        ({"random_state": -1}, "random_state must"),
    ],
)
def test_wrong_settings_are_refused_by_name(rows, settings, message):
    with pytest.raises(ArgumentError, match=message):
        mast.MaskedTraining(Ridge(), **settings).fit(*rows)


def test_weights_for_an_estimator_without_weights_are_refused():
    X, y = load_wine(return_X_y=True)
    with pytest.raises(ArgumentError, match="KNeighborsClassifier takes no sample_weight"):
        mast.MaskedTraining(KNeighborsClassifier()).fit(X, y, sample_weight=np.ones(len(y)))
    assert mast.MaskedTraining(KNeighborsClassifier()).fit(X, y).score(X, y) > 0.6
