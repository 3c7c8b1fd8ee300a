"""ConditionalImputer: conditional means of a Gaussian, by a covariance or by factors."""

import pickle

import numpy as np
import pandas
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import mast
from mast.errors import ArgumentError, DataError
from mast.learn import factors
from mast.learn.factors import FactorGaussian, fit_factors, outer_sums
from mast.learn.gaussian import FeatureGaussian, mean_and_covariance, zeros_for_nan


def blank(X, share, seed=0):
    return np.where(np.random.default_rng(seed).random(X.shape) < share, np.nan, X)


@parametrize_with_checks([mast.ConditionalImputer(), mast.ConditionalImputer(rank=2)])
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def wine():
    return load_wine(return_X_y=True)


def by_hand(row, mean, C):
    """The row whose gaps are filled by regression, and the covariance that is left."""
    o, m = np.flatnonzero(~np.isnan(row)), np.flatnonzero(np.isnan(row))
    slope = C[np.ix_(m, o)] @ np.linalg.inv(C[np.ix_(o, o)])
    filled, left = row.copy(), np.zeros_like(C)
    filled[m] = mean[m] + slope @ (row[o] - mean[o])
    left[np.ix_(m, m)] = C[np.ix_(m, m)] - slope @ C[np.ix_(o, m)]
    return filled, left


@pytest.mark.parametrize("rank", [None, 3])
def test_gaps_become_conditional_means(wine, rank):
    X = wine[0]
    imputer = mast.ConditionalImputer(rank=rank).fit(X)
    assert imputer.rank_ == rank
    missing = blank(X, 0.6)
    missing[0] = np.nan
    filled = imputer.transform(missing)
    coef = np.random.default_rng(1).standard_normal((2, 13))
    variances = imputer.margin_variance(missing, coef)
    for row, found, variance in zip(missing, filled, variances, strict=True):
        expected, left = by_hand(row, imputer.mean_, imputer.covariance_)
        np.testing.assert_allclose(found, expected, rtol=1e-7)
        np.testing.assert_allclose(variance, np.diag(coef @ left @ coef.T), rtol=1e-6, atol=1e-9)
    there = ~np.isnan(missing)
    assert np.array_equal(filled[there], missing[there])  # bit for bit
    np.testing.assert_allclose(imputer.margin_variance(missing, coef[1]), variances[:, 1])
    assert (imputer.margin_variance(X, coef) == 0).all()
    assert np.array_equal(imputer.transform(X), X)


def test_training_rows_with_gaps_are_not_compared_in_pairs_only():
    """Half of the training cells are blank: hidden cells are predicted nearly as from complete rows."""
    X = load_breast_cancer().data
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    test = blank(X[1::2], 0.5, 2)
    hidden = np.isnan(test)

    def error(train):
        filled = mast.ConditionalImputer().fit(train).transform(test)
        return np.sqrt(np.mean((filled - X[1::2])[hidden] ** 2))

    whole, half = error(X[::2]), error(blank(X[::2], 0.5))
    assert half < 1.15 * whole  # covariances of pairs alone: 1.7 times


def test_em_finds_the_maximum_of_the_likelihood():
    """With many rows shrinkage fades: the gradient of the observed likelihood is 0 at its fixed point."""
    generator = np.random.default_rng(0)
    mixing = generator.standard_normal((4, 4))
    X = blank(generator.standard_normal((20_000, 4)) @ mixing.T + 3, 0.3)
    X[X[:, 0] > 3, 1] = np.nan  # missing where another column is large: means of what is there are off
    mean, C = mean_and_covariance(X, None)
    true = mixing @ mixing.T
    error = 5 * np.sqrt(2 * np.outer(np.diag(true), np.diag(true)) / (0.3 * 20_000))
    assert (np.abs(C - true) < error).all()
    assert (np.abs(mean - 3) < 5 * np.sqrt(np.diag(true) / (0.3 * 20_000))).all()


def test_the_order_of_rows_and_their_copies_do_not_matter(wine):
    X = blank(wine[0], 0.2)
    order = np.random.default_rng(0).permutation(len(X))
    ours = mast.ConditionalImputer().fit(X).covariance_
    np.testing.assert_allclose(mast.ConditionalImputer().fit(X[order]).covariance_, ours, rtol=1e-7)
    weights = np.arange(178) % 3
    weighted = mast.ConditionalImputer().fit(X, sample_weight=weights)
    repeated = mast.ConditionalImputer().fit(np.repeat(X, weights, axis=0))
    np.testing.assert_allclose(weighted.covariance_, repeated.covariance_, rtol=1e-7)
    np.testing.assert_allclose(weighted.mean_, repeated.mean_)


def random_covariance(d):
    A = np.random.default_rng(0).standard_normal((d, 2 * d))
    return A @ A.T / (2 * d)


@pytest.mark.parametrize("d", [9, 30])  # systems of up to 4 and up to 15 equations
def test_many_masks_at_once(d):
    """The compiled systems of equations give what the sketch `Conditional` gives mask by mask."""
    C, generator = random_covariance(d), np.random.default_rng(1)
    gaussian, twin = FeatureGaussian(np.zeros(d), C), mast.Conditional(C, 0.5)
    masks = generator.random((60, d)) < np.linspace(0, 1, 60)[:, None]
    weights, rows = generator.standard_normal((3, d)), generator.standard_normal((60, d))
    served, filled = gaussian.served_weights(masks, weights), gaussian.regress(masks, rows)
    np.testing.assert_allclose(served, twin.apply_masks(masks, weights), atol=1e-10)
    np.testing.assert_allclose(filled, twin.fill(masks, rows), atol=1e-10)
    answers = gaussian.answers(masks, rows, weights)
    np.testing.assert_allclose(answers, twin.answers(masks, rows, weights), atol=1e-10)


@pytest.mark.parametrize("d", [9, 30])
def test_what_a_mask_leaves_open(d):
    """The covariance of the dropped features given the kept ones, and the variance of a margin."""
    C, generator = random_covariance(d), np.random.default_rng(1)
    gaussian = FeatureGaussian(np.zeros(d), C)
    masks = generator.random((60, d)) < np.linspace(0, 1, 60)[:, None]
    masks[0], masks[-1] = False, True
    weights, counts = generator.standard_normal((3, d)), generator.random(60)
    variances, total = gaussian.variances(masks, weights), np.zeros((d, d))
    for mask, count, found in zip(masks, counts, variances, strict=True):
        T = mast.Conditional(C, 0.5).stand_ins(mask)
        left = C - T @ C @ T.T
        total += count * left
        np.testing.assert_allclose(found, np.diag(weights @ left @ weights.T), atol=1e-10)
    np.testing.assert_allclose(gaussian.unexplained(masks, counts), total, atol=1e-10)
    assert (variances[-1] == 0).all()


class TestFactors:
    def made(self, n, d=600, k=60):
        generator = np.random.default_rng(0)
        loadings = generator.standard_normal((d, k)) / np.sqrt(k)
        return generator.standard_normal((n, k)) @ loadings.T + 0.5 * generator.standard_normal((n, d))

    def test_the_rank_is_that_of_the_data(self):
        """600 columns with 60 factors: half of the cells of new rows are predicted as with the true rank."""
        X = self.made(1200)
        train, test = X[:1000], blank(X[1000:], 0.5)
        hidden = np.isnan(test)

        def error(imputer):
            return np.sqrt(np.mean((imputer.fit(train).transform(test) - X[1000:])[hidden] ** 2))

        auto = mast.ConditionalImputer()
        errors = {rank: error(mast.ConditionalImputer(rank=rank)) for rank in (20, 40, 60)}
        assert error(auto) < 1.01 * errors[60] < 0.8 * errors[40] < 0.9 * errors[20]
        assert 55 <= auto.rank_ <= 66

    def test_training_rows_may_have_gaps(self):
        X = self.made(700, 250, 10)
        test = blank(X[500:], 0.5, 1)
        hidden = np.isnan(test)
        errors = [
            np.sqrt(np.mean((mast.ConditionalImputer().fit(train).transform(test) - X[500:])[hidden] ** 2))
            for train in (X[:500], blank(X[:500], 0.3))
        ]
        assert errors[1] < 1.05 * errors[0] < 0.6

    def test_noise_alone_has_hardly_a_factor(self):
        X = np.random.default_rng(0).standard_normal((300, 210))
        assert mast.ConditionalImputer().fit(X).rank_ <= 2

    def test_the_likelihood_does_not_fall(self):
        X = self.made(300, 40, 3)
        X = blank((X - X.mean(axis=0)) / X.std(axis=0), 0.3)

        mean, deviation = factors.column_moments(X, None)

        def likelihood(covariance):
            total = 0.0
            for row in (X - mean) / deviation:
                o = np.flatnonzero(~np.isnan(row))
                C = covariance[np.ix_(o, o)]
                total -= np.linalg.slogdet(C)[1] + row[o] @ np.linalg.solve(C, row[o])
            return total

        found = fit_factors(X, None, 3).covariance / np.outer(deviation, deviation)
        known, there = np.nan_to_num((X - mean) / deviation), ~np.isnan(X)
        start = factors._principal_components(
            *factors._leading_eigenvectors(known, there, np.ones(300), 3), 3
        )
        assert likelihood(found) > likelihood(start.covariance)

    def test_sums_of_outer_products(self):
        generator = np.random.default_rng(0)
        weights, vectors = generator.random((4, 7)), generator.standard_normal((7, 3))
        np.testing.assert_allclose(
            outer_sums(weights, vectors), np.einsum("ij,jk,jl->ikl", weights, vectors, vectors)
        )

    def test_the_weights_that_serve_what_is_kept(self):
        generator = np.random.default_rng(0)
        model = FactorGaussian(np.zeros(6), generator.standard_normal((6, 2)), generator.random(6) + 0.1)
        same = FeatureGaussian(np.zeros(6), model.covariance)
        masks, weights = generator.random((9, 6)) < 0.5, generator.standard_normal((2, 6))
        rows = generator.standard_normal((9, 6))
        for name in ("served_weights", "variances"):
            ours, theirs = (getattr(m, name)(masks, weights) for m in (model, same))
            np.testing.assert_allclose(ours, theirs, atol=1e-9)
        np.testing.assert_allclose(model.regress(masks, rows), same.regress(masks, rows), atol=1e-9)
        np.testing.assert_allclose(
            model.answers(masks, rows, weights), same.answers(masks, rows, weights), atol=1e-9
        )

    def test_thousands_of_features_and_few_rows(self):
        X = self.made(60, 3000, 2)
        imputer = mast.ConditionalImputer().fit(blank(X, 0.1))
        assert 1 <= imputer.rank_ <= 6
        filled = imputer.transform(blank(X, 0.5, 3))
        hidden = np.isnan(blank(X, 0.5, 3))
        assert np.sqrt(np.mean((filled - X)[hidden] ** 2)) < 0.7


class TestOddTables:
    def test_columns_without_a_value_and_constants(self, wine):
        for columns in (6, 300):
            X = np.tile(wine[0], (1, 24))[:, :columns].copy()
            X[:, 2], X[:, 3] = np.nan, 7.0
            filled = mast.ConditionalImputer().fit(X).transform(np.where(np.arange(columns) == 0, X, np.nan))
            assert (filled[:, 2] == 0).all()
            np.testing.assert_allclose(filled[:, 3], 7)
            assert np.isfinite(filled).all()
        alone = mast.ConditionalImputer().fit(np.full((3, 2), np.nan)).transform([[np.nan, 1.0]])
        assert np.array_equal(alone, [[0.0, 1.0]])

    @pytest.mark.parametrize("shape", [(1, 3), (2, 40), (5, 300)])
    def test_fewer_rows_than_columns(self, shape):
        X = np.random.default_rng(0).standard_normal(shape)
        filled = mast.ConditionalImputer().fit(blank(X, 0.2)).transform(blank(X, 0.5, 1))
        assert np.isfinite(filled).all()

    def test_zeros_of_a_sparse_matrix_are_values(self, wine):
        X = np.where(wine[0] > np.median(wine[0], axis=0), wine[0], 0.0)
        dense = mast.ConditionalImputer().fit(X)
        for form in (scipy.sparse.csr_array, scipy.sparse.coo_matrix):
            sparse = mast.ConditionalImputer().fit(form(X))
            assert np.array_equal(sparse.covariance_, dense.covariance_)
            served = sparse.transform(form(blank(X, 0.3)))
            assert isinstance(served, np.ndarray)
            assert np.array_equal(served, dense.transform(blank(X, 0.3)))
        with pytest.raises((ArgumentError, DataError), match="dense"):
            dense.fit(scipy.sparse.csr_array((10**8, 10**6)))

    def test_refuses(self, wine):
        X = wine[0]
        with pytest.raises(ValueError, match="infinity"):
            mast.ConditionalImputer().fit(np.where(X > 100, np.inf, X))
        with pytest.raises(DataError, match="overflow"):
            mast.ConditionalImputer().fit(X * 1e160)
        for rank in (-1, 1.5, "full"):
            with pytest.raises(ArgumentError, match="rank"):
                mast.ConditionalImputer(rank=rank).fit(X)
        with pytest.raises(ValueError, match=r"(?i)sample.weight"):
            mast.ConditionalImputer().fit(X, sample_weight=np.zeros(178))
        with pytest.raises(ArgumentError, match="13 features"):
            mast.ConditionalImputer().fit(X).margin_variance(X, np.ones(12))

    def test_refuses_frames_in_words(self):
        numbers = pandas.DataFrame({"a": [1.0, 2.0, 3.0], "b": [3.0, np.nan, 1.0]})
        texts = numbers.assign(b=["x", "y", None])
        with pytest.raises(DataError, match="'b'; mast"):
            mast.ConditionalImputer().fit(texts)
        with pytest.raises(DataError, match=r"held numbers in training.*'b'"):
            mast.ConditionalImputer().fit(numbers).transform(texts)
        with pytest.raises(DataError, match="two columns are called 'a'"):
            mast.ConditionalImputer().fit(numbers.set_axis(["a", "a"], axis=1))


def test_zeros_stand_for_nan_and_nothing_else():
    values = np.array([[np.nan, -1.5, 0.0], [2.5, np.nan, 1e-300]])
    assert np.array_equal(zeros_for_nan(values), [[0.0, -1.5, 0.0], [2.5, 0.0, 1e-300]])


def test_frames(wine):
    X, y = wine
    frame = pandas.DataFrame(blank(X, 0.3), columns=[f"c{j}" for j in range(13)])
    imputer = mast.ConditionalImputer().set_output(transform="pandas").fit(frame)
    filled = imputer.transform(frame)
    assert list(filled.columns) == list(frame.columns) == list(imputer.get_feature_names_out())
    assert not filled.isna().any().any()
    plain = clone(imputer).set_output(transform="default").fit(frame).transform(frame)
    assert np.array_equal(plain, filled.to_numpy())
    again = pickle.loads(pickle.dumps(imputer)).transform(frame)
    assert np.array_equal(again, filled)
    model = make_pipeline(mast.ConditionalImputer(), LogisticRegression(max_iter=10_000)).fit(frame, y)
    assert model.score(frame, y) > 0.9
