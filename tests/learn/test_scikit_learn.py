"""scikit-learn's own checks, and its tools."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import (
    check_dataframe_column_names_consistency,
    parametrize_with_checks,
)

import mast

BY_DESIGN = {
    "check_dataframe_column_names_consistency": "absent columns are missing values, and order does not matter"
}


@parametrize_with_checks(
    [
        mast.MastClassifier(),
        mast.MastRegressor(),
        mast.MastClassifier(missing="scale"),
        mast.MastClassifier(sketch=mast.PermK(4), kappa=100, missing="scale"),
        mast.MastClassifier(sketch=mast.Bernoulli(0.7), alpha=0.01),
        mast.MastRegressor(sketch=mast.Bernoulli(0.7), alpha=0.01, fit_intercept=False, missing="scale"),
    ],
    expected_failed_checks=lambda estimator: BY_DESIGN,
)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_the_check_that_fails_by_design_does_fail():
    with pytest.raises(AssertionError):
        check_dataframe_column_names_consistency("MastClassifier", mast.MastClassifier())


@pytest.fixture(scope="module")
def cancer():
    return load_breast_cancer(return_X_y=True)


def test_in_a_pipeline_with_a_search_over_sketches(cancer):
    X, y = cancer
    pipeline = make_pipeline(StandardScaler(), mast.MastClassifier())
    grid = {"mastclassifier__sketch": [mast.PermK(2), mast.Identity()], "mastclassifier__kappa": [10, 1000]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(X, y)
    assert search.best_score_ > 0.95
    assert cross_val_score(pipeline, X, y, cv=3).min() > 0.85


def test_clone_keeps_the_parameters():
    sketch = mast.Bernoulli(0.3)
    model = mast.MastClassifier(sketch, alpha=0.1, class_weight={0: 2.0, 1: 1.0}, random_state=4)
    ours, theirs = clone(model).get_params(), model.get_params()
    assert repr(ours.pop("sketch")) == repr(theirs.pop("sketch"))
    assert ours == theirs


def test_names_of_features(cancer):
    pandas = pytest.importorskip("pandas")
    X, y = cancer
    frame = pandas.DataFrame(X, columns=[f"feature {j}" for j in range(30)])
    model = mast.MastClassifier().fit(frame, y)
    assert list(model.feature_names_in_) == list(frame.columns)
    assert np.array_equal(model.predict(frame[frame.columns[::-1]]), model.predict(frame))
    pipeline = make_pipeline(StandardScaler(), mast.MastClassifier()).set_output(transform="pandas")
    assert pipeline.fit(frame, y).score(frame, y) > 0.9


def test_other_kinds_of_sparse_matrices_and_integers(cancer):
    X, y = cancer
    model = mast.MastClassifier(alpha=1.0, missing="scale", random_state=0)
    expected = model.fit(X.round(), y).coef_
    for form in (scipy.sparse.coo_matrix, scipy.sparse.csc_array, scipy.sparse.lil_matrix):
        np.testing.assert_allclose(model.fit(form(X.round()), y).coef_, expected, rtol=1e-5)
    np.testing.assert_allclose(model.fit(X.round().astype(int), y).coef_, expected)


def test_a_row_of_weight_two_is_a_row_that_stands_there_twice(cancer):
    X, y = cancer
    weights = np.random.default_rng(0).integers(0, 3, y.size)
    for kind in (mast.MastClassifier, mast.MastRegressor):
        weighted = kind(random_state=0).fit(X, y, sample_weight=weights)
        repeated = kind(random_state=0).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
        np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-6)
        assert weighted.alpha_ == pytest.approx(repeated.alpha_)
