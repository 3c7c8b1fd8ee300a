"""Sparsified versions: what is drawn, what is scored, what is drawn on paper."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.datasets import make_classification, make_regression
from sklearn.linear_model import LogisticRegression

import mast
from mast.errors import ArgumentError


@pytest.fixture(scope="module")
def data():
    return make_classification(300, 12, n_informative=6, n_classes=3, random_state=0)


@pytest.mark.parametrize("density", [None, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("sparse", [False, True])
def test_scores_are_those_of_models_with_features_missing(data, density, sparse):
    X, y = data
    model = mast.MastClassifier(mast.PermK(4), alpha=0.01, missing="scale", random_state=5).fit(X, y)
    scores = model.score_sparsified(scipy.sparse.csr_array(X) if sparse else X, y, density, draws=20)
    sketch = mast.PermK(4) if density is None else mast.RandK(density)
    for i, score in enumerate(scores):
        scales = sketch.draw(12, seed=5, step=i).diagonal()  # what is kept, times the scale; else missing
        served = model.decision_function(X * scales)
        assert score == np.mean(model.classes_[served.argmax(axis=1)] == y)


def test_a_regressor_is_scored_by_r2():
    X, y = make_regression(100, 8, noise=1.0, random_state=0)
    model = mast.MastRegressor(random_state=0).fit(X, y)
    assert model.score_sparsified(X, y, 1.0, draws=1)[0] == pytest.approx(model.score(X, y), rel=1e-12)
    half = mast.MastRegressor(mast.RandK(0.5), missing="scale", random_state=0).fit(X, y)
    plain = mast.MastRegressor(mast.Identity(), missing="scale", random_state=0).fit(X, y)
    assert half.score_sparsified(X, y, 0.5).mean() > plain.score_sparsified(X, y, 0.5).mean()


def test_groups_stay_together_at_any_density(data):
    X, y = data
    groups = np.repeat(np.arange(4), 3)
    model = mast.MastClassifier(mast.Grouped(mast.Bernoulli(0.5), groups), random_state=0).fit(X, y)
    pruned = model.sparsify(density=0.5, seed=2)
    kept = (pruned.coef_ != 0).any(axis=0).reshape(4, 3)
    assert (kept.all(axis=1) | ~kept.any(axis=1)).all()
    assert kept.any(axis=1).sum() == 2


def test_sparsify_prunes_a_copy(data):
    X, y = data
    model = mast.MastClassifier(mast.PermK(4), missing="scale", random_state=0).fit(X, y)
    before = model.coef_.copy()
    pruned = model.sparsify(density=0.25, seed=7)
    assert np.array_equal(model.coef_, before)
    draw = mast.RandK(0.25).draw(12, seed=7)
    np.testing.assert_array_equal(pruned.coef_, draw.apply(before.T).T)
    assert np.count_nonzero(pruned.coef_[0]) == 3
    np.testing.assert_array_equal(pruned.intercept_, model.intercept_)
    assert pruned.sparsify().coef_.format == "csr"
    assert isinstance(pruned.densify().coef_, np.ndarray)


def test_it_is_trained_for_what_is_scored(data):
    """The point of it all: on average over draws, f_D's minimiser has a smaller loss than f's."""
    X, y = data
    y = (y == 1).astype(int)
    sketch = mast.RandK(0.5)
    ours = mast.MastClassifier(sketch, alpha=0.01, missing="scale", method="exact").fit(X, y)
    plain = mast.MastClassifier(mast.Identity(), alpha=0.01, missing="scale").fit(X, y)

    def loss(model):
        total = 0.0
        for probability, draw in sketch.support(12):
            m = (2 * y - 1) * model.decision_function(X * draw.diagonal())
            total += probability * (
                np.logaddexp(0, -m).mean() + 0.005 * (draw.apply(model.coef_[0]) ** 2).sum()
            )
        return total

    assert loss(ours) < loss(plain)


@pytest.mark.parametrize("bad", [0, -1, 1.5, "half", np.nan, [0.5]])
def test_refuses_a_bad_density(data, bad):
    X, y = data
    model = mast.MastClassifier().fit(X, y)
    with pytest.raises(ArgumentError, match="density"):
        model.score_sparsified(X, y, density=bad)


def test_refuses_what_does_not_fit(data):
    X, y = data
    model = mast.MastClassifier().fit(X, y)
    with pytest.raises(ArgumentError, match="draws must be at least 1"):
        model.score_sparsified(X, y, draws=0)
    with pytest.raises(ArgumentError, match="300 rows"):
        model.score_sparsified(X, y[:5])
    with pytest.raises(ValueError, match="12 features"):
        model.score_sparsified(X[:, :3], y)
    with pytest.raises(ArgumentError, match=r"labels such as 0, and y has '[012]'"):
        model.score_sparsified(X, y.astype(str))
    with pytest.raises(ArgumentError, match=r"density must lie in \(0, 1\], got 'half'"):
        model.sparsify("half")


class TestPlot:
    @pytest.fixture(autouse=True)
    def no_window(self):
        matplotlib = pytest.importorskip("matplotlib")
        matplotlib.use("Agg")
        yield
        import matplotlib.pyplot as plt

        plt.close("all")

    def test_against_logistic_regression(self, data):
        X, y = data
        y = y == 1
        model = mast.MastClassifier().fit(X[:150], y[:150])
        baseline = LogisticRegression().fit(X[:150], y[:150])
        ax = model.plot_sparsified(X[150:], y[150:], baseline=baseline, draws=5, densities=[0.5, 1.0])
        lines = {line.get_label(): line.get_ydata() for line in ax.get_lines()}
        assert lines["LogisticRegression"][1] == baseline.score(X[150:], y[150:])
        assert model.plot_sparsified(X, y, draws=3, ax=ax) is ax

    def test_a_regressor(self):
        X, y = make_regression(60, 5, random_state=0)
        ax = mast.MastRegressor().fit(X, y).plot_sparsified(X, y, draws=3)
        assert ax.get_ylabel() == "R²"

    def test_refuses(self, data):
        X, y = data
        model = mast.MastClassifier().fit(X, y)
        for bad in (LogisticRegression(), LogisticRegression().fit(X[:, :3], y)):
            with pytest.raises(ArgumentError, match="baseline"):
                model.plot_sparsified(X, y, baseline=bad)
        with pytest.raises(ArgumentError, match="densities"):
            model.plot_sparsified(X, y, densities=[])
