"""scikit-learn's own checks, and its tools."""

from sklearn.utils.estimator_checks import parametrize_with_checks

import mast


@parametrize_with_checks(
    [
        mast.MastClassifier(),
        mast.MastRegressor(),
        mast.MastClassifier(sketch=mast.Bernoulli(0.7), alpha=0.01),
        mast.MastRegressor(sketch=mast.Bernoulli(0.7), alpha=0.01, fit_intercept=False),
    ]
)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)
