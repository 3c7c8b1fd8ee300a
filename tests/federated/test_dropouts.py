"""Clients that drop out: which weights keep the aggregated update unbiased, and what the others do to it."""

import itertools
import logging
import math

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `federated` is not installed")

import mast
from federated.samples import NODES, maker, problems, server
from mast.errors import ArgumentError
from mast.federated import Dropouts, LocalGrid, MastStrategy, client
from mast.federated.dropouts import effective_weights
from mast.randomness import Key, Purpose, normal, uniform

TRIALS = 1200
RATES = [0.9, 0.4, 0.7, 0.5]


@pytest.fixture(autouse=True)
def _silence(monkeypatch):
    """Thousands of rounds would log a line each."""
    monkeypatch.setattr(logging.getLogger("flwr"), "disabled", True)


class Coins:
    """Client i answers in trial t with probability rates[i]; every question about its partition."""

    def __init__(self, rates):
        self.rates, self.trial = rates, 0

    def __call__(self, partition, message):
        if message.metadata.message_type != "train":
            return True
        return uniform(Key(4242, self.trial, partition), Purpose.COIN) < self.rates[partition]


def updates(answering, answers, roster=None, nodes=None):
    """h = (x - x_after) / step size, in many rounds from one x, and how many clients answered in each."""
    nodes = nodes or problems()
    x = nodes[0].shift + normal(Key(5), 0, nodes[0].dim)
    strategy = MastStrategy(server(nodes, roster, step_size=1.0), answering=answering)
    grid = LocalGrid(client(maker(nodes)), NODES, answers=answers)
    found, counts = [], []
    for trial in range(TRIALS):
        answers.trial = trial
        strategy.server.x[...] = x
        strategy.aggregate_train(1, grid.send_and_receive(strategy.configure_train(1, None, {}, grid)))
        found.append(x - strategy.server.x)
        counts.append(strategy.accounts.rows[-1].answered)
    return x, np.array(found), np.array(counts)


def distances(h, expected):
    """How far the mean is from what it should be, in standard errors, by coordinate."""
    error = h.std(axis=0, ddof=1) / np.sqrt(len(h))
    return (h.mean(axis=0) - expected) / error


def weighted_gradient(x, weights):
    return np.mean([w * problem.gradient(x) for w, problem in zip(weights, problems(), strict=True)], axis=0)


def test_known_rates_are_unbiased():
    x, h, counts = updates(RATES, Coins(RATES), {"participation": [0.8, 1.0, 0.6, 0.9]})
    assert (counts == 0).any()  # rounds without answers are part of it
    assert np.abs(distances(h, mast.Nodes(problems()).gradient(x))).max() < 5


@pytest.mark.parametrize("roster", [{}, {"participants": 3}], ids=["all invited", "three invited"])
def test_unknown_equal_rates_are_unbiased_given_an_answer(roster):
    x, h, counts = updates("unknown", Coins([0.6] * NODES), roster)
    assert np.abs(distances(h[counts > 0], mast.Nodes(problems()).gradient(x))).max() < 5
    assert not h[counts == 0].any()


@pytest.mark.parametrize("answering", ["unknown", "always"])
def test_different_rates_minimise_another_mean(answering):
    """Where the weights do not know the rates, the mean update is the gradient of another, known mean."""
    x, h, counts = updates(answering, Coins(RATES))
    h = h[counts > 0] if answering == "unknown" else h
    expected = weighted_gradient(x, effective_weights(answering, RATES))
    assert np.abs(distances(h, expected)).max() < 5
    assert np.abs(distances(h, mast.Nodes(problems()).gradient(x))).max() > 5


def test_dropping_out_by_the_draw_is_corrected_by_no_weight():
    """Client 0 fails when its submodel is large: the rate is known, and yet the update is biased."""

    class TooLarge(Coins):
        def __call__(self, partition, message):
            if message.metadata.message_type != "train" or partition:
                return True
            return message.content["mast"]["0"].shape[0] <= LIMIT

    sizes = np.array([math.comb(8, k) for k in range(9)])
    small = np.arange(9) <= 3  # of 8 coordinates
    LIMIT = 64 + 8 * 3  # a header of 64 bytes, and three values
    rate = sizes[small].sum() / 256
    first = problems()[0]
    nodes = [mast.Problem(first.objective, mast.Bernoulli(0.5), first.shift), *problems()[1:]]
    x, h, counts = updates([rate, 1.0, 1.0, 1.0], TooLarge(None), nodes=nodes)
    assert abs((counts == NODES).mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / TRIALS)
    assert np.abs(distances(h, mast.Nodes(nodes).gradient(x))).max() > 5
    # What it is instead: the mean over small submodels, of which each set of k is as likely as another.
    scales = 2.0 * np.array([mask for mask in itertools.product((0, 1), repeat=8) if sum(mask) <= 3])
    f, v = first.objective, first.shift
    short = np.mean([c * f.gradient(v + c * (x - v)) for c in scales], axis=0)
    rest = sum(problem.gradient(x) for problem in nodes[1:])
    assert np.abs(distances(h, (short + rest) / NODES)).max() < 5


def test_effective_weights_are_means_over_who_answers():
    rates = np.array([0.9, 0.4, 0.7])
    np.testing.assert_allclose(effective_weights(list(rates), rates), 1.0)
    np.testing.assert_allclose(effective_weights("always", rates), rates)
    expected = np.zeros(3)
    for mask in range(1, 8):
        there = np.array([mask >> i & 1 for i in range(3)], dtype=bool)
        probability = np.where(there, rates, 1 - rates).prod()
        expected[there] += probability * 3 / there.sum()
    np.testing.assert_allclose(effective_weights("unknown", rates), expected / (1 - (1 - rates).prod()))


@pytest.mark.parametrize("answering", [0.0, 1.5, "sometimes", [0.5, 0.5], None, float("nan")])
def test_impossible_rates_are_refused(answering):
    with pytest.raises(ArgumentError, match="answering"):
        Dropouts(answering, NODES)


def test_strangers_have_no_weight():
    with pytest.raises(ArgumentError, match="not invited"):
        Dropouts("unknown", NODES).weights([(0, 1.0)], [0, 2])
