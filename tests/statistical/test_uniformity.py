"""Monte Carlo tests of the random primitives: fixed seeds, five standard errors."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from mast import randomness
from mast.randomness import EXACT_SHUFFLE, Key, Purpose, threshold

FIVE_SIGMA = 2 * stats.norm.sf(5)


def test_masks_keep_with_their_probability():
    n = 4_000_000
    for p in (0.003, 0.3, 0.7, 0.999):
        kept = randomness.bernoulli(Key(11), threshold(p), 0, n).mean()
        assert abs(kept - p) < 5 * math.sqrt(p * (1 - p) / n)


def test_neighbouring_coordinates_and_steps_are_uncorrelated():
    n, p = 1_000_000, 0.5
    a = randomness.bernoulli(Key(3, step=0), threshold(p), 0, n + 5).astype(float) - p
    b = randomness.bernoulli(Key(3, step=1), threshold(p), 0, n + 5).astype(float) - p
    limit = 5 * p * (1 - p) / math.sqrt(n)
    for lag in (1, 2, 3, 4, 5):
        assert abs((a[:n] * a[lag : n + lag]).mean()) < limit
    assert abs((a * b).mean()) < limit


def test_normals_have_the_normal_distribution():
    z = randomness.normal(Key(5), 0, 400_000)
    assert stats.kstest(z, "norm").pvalue > FIVE_SIGMA
    assert abs(z.mean()) < 5 / math.sqrt(z.size)
    assert abs((z**2).mean() - 1) < 5 * math.sqrt(2 / z.size)
    assert abs((z[::2] * z[1::2]).mean()) < 5 / math.sqrt(z.size / 2)


@pytest.mark.parametrize("n", [3, 4, 5])
def test_all_orders_of_a_small_shuffle_are_equally_likely(n):
    draws = 60_000
    orders = dict.fromkeys(itertools.permutations(range(n)), 0)
    for step in range(draws):
        orders[tuple(randomness.permutation(Key(1, step), Purpose.SUBSET, n).tolist())] += 1
    assert stats.chisquare(list(orders.values())).pvalue > FIVE_SIGMA


def test_integers_have_no_modulo_bias():
    n = 3 * 2**30  # 2^32 mod n is 2^30: taking remainders would hit the first third twice as often
    draws = np.array([randomness.below(Key(2, step), Purpose.BATCH, n) for step in range(30_000)])
    thirds = np.bincount(draws // 2**30, minlength=3)
    assert thirds.size == 3
    assert stats.chisquare(thirds).pvalue > FIVE_SIGMA


N, PART, DRAWS = EXACT_SHUFFLE + 1000, 600, 4000


@pytest.fixture(scope="module")
def parts():
    """The first elements of many large permutations."""
    return np.stack([randomness.permutation(Key(4, t), Purpose.SUBSET, N, 0, PART) for t in range(DRAWS)])


class TestFeistel:
    """The network for large n: first and second moments of subsets and of positions."""

    def test_values_are_uniform_at_each_of_several_positions(self, parts):
        for position in (0, 1, 255, 256, 599):
            counts = np.histogram(parts[:, position], bins=64, range=(0, N))[0]
            assert stats.chisquare(counts).pvalue > FIVE_SIGMA

    def test_neighbouring_positions_are_independent(self, parts):
        for a, b in ((0, 1), (0, 256), (0, 257), (10, 599)):
            table = np.histogram2d(parts[:, a], parts[:, b], bins=8, range=[(0, N)] * 2)[0]
            assert stats.chi2_contingency(table).pvalue > FIVE_SIGMA

    def test_pairs_survive_together_as_often_as_they_should(self, parts):
        # number of survivors in fixed sets: hypergeometric mean and variance, which pins E[c_i c_j]
        for members in (np.arange(4000), np.arange(0, N, 16), np.arange(0, N, 257)):
            inside = np.isin(parts, members).sum(axis=1)
            law = stats.hypergeom(N, members.size, PART)
            assert abs(inside.mean() - law.mean()) < 5 * law.std() / math.sqrt(DRAWS)
            kurtosis = law.stats(moments="k") + 3
            error = law.var() * math.sqrt((float(kurtosis) - 1) / DRAWS)
            assert abs(inside.var() - law.var()) < 5 * error

    def test_differences_between_positions_are_spread_out(self, parts):
        differences = (parts[:, 1] - parts[:, 0]) % N
        counts = np.histogram(differences, bins=64, range=(0, N))[0]
        assert stats.chisquare(counts).pvalue > FIVE_SIGMA
