"""Clients that drop out: which weights keep the aggregated update unbiased, and what the others do to it."""

import itertools
import logging
import math

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `federated` is not installed")

from flwr.app import ArrayRecord

import mast
from federated.samples import NODES, Dropping, maker, problems, server
from mast.distributed.participation import effective_weights
from mast.errors import ArgumentError
from mast.federated import Dropouts, LocalGrid, MastStrategy, client
from mast.randomness import Key, Purpose, normal, uniform

TRIALS = 1200
RATES = [0.9, 0.4, 0.7, 0.5]


@pytest.fixture(autouse=True)
def _silence(monkeypatch):
    """Thousands of rounds would log a line each."""
    monkeypatch.setattr(logging.getLogger("flwr"), "disabled", True)


# ---- all the ways to drop out, with their probabilities: equalities, for every draw of the sketches --------


def by_who_answers(answering, participation, t):
    """The update of round t for each set of clients that may answer, and what theirs are; all from one x."""
    nodes = problems()
    x = nodes[0].shift + normal(Key(5), 0, nodes[0].dim)
    strategy = MastStrategy(server(nodes, participation, step_size=1.0), answering=answering)
    grid = LocalGrid(client(maker(nodes)), NODES)
    found = {}
    for there in itertools.product((False, True), repeat=NODES):
        strategy.server.state.t = t
        strategy.server.x[...] = x
        messages = strategy.configure_train(t + 1, ArrayRecord(), {}, grid)
        replies = grid.send_and_receive(messages)
        partition = {node_id: c.node_config["partition-id"] for node_id, c in grid.contexts.items()}
        came = [reply for reply in replies if there[partition[reply.metadata.src_node_id]]]
        strategy.aggregate_train(t + 1, came)
        found[there] = x - strategy.server.x
    return found


def mean_over(found, rates, given_an_answer):
    """The mean of the update over who answers; `found[nobody]` is 0 as an update, but may not count."""
    probability = {
        there: math.prod(r if t else 1 - r for r, t in zip(rates, there, strict=True)) for there in found
    }
    mean = sum(probability[there] * h for there, h in found.items())
    nobody = sum(probability[there] for there, h in found.items() if not h.any())
    return mean / (1 - nobody) if given_an_answer else mean


PARTICIPATIONS = [{}, {"participants": 3}, {"participation": [0.8, 1.0, 0.6, 0.9]}]


@pytest.mark.parametrize("participation", PARTICIPATIONS, ids=["all", "three", "coins"])
@pytest.mark.parametrize(
    ("answering", "rates"), [(RATES, RATES), (0.6, [0.6] * 4), ("unknown", [0.6] * 4)], ids=str
)
def test_whatever_the_draw_dropping_out_changes_no_mean(participation, answering, rates):
    """In each round, for whom the server invited: the mean update is that of everybody answering."""
    everybody = (True,) * NODES
    for t in (1, 7):
        full = MastStrategy(server(problems(), participation, step_size=1.0), answering="always")
        full.server.state.t = t
        x = problems()[0].shift + normal(Key(5), 0, problems()[0].dim)
        full.server.x[...] = x
        grid = LocalGrid(client(maker(problems())), NODES)
        full.aggregate_train(t, grid.send_and_receive(full.configure_train(t, ArrayRecord(), {}, grid)))
        found = by_who_answers(answering, participation, t)
        assert len({h.tobytes() for h in found.values()}) > 1  # it does matter who answers
        mean = mean_over(found, rates, answering == "unknown")
        np.testing.assert_allclose(mean, x - full.server.x, rtol=1e-12, atol=1e-12)
        if answering == "unknown":
            np.testing.assert_allclose(found[everybody], x - full.server.x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("answering", ["unknown", "always"])
def test_different_rates_minimise_another_mean(answering):
    """Where the weights do not know the rates, the mean update has other weights, which are known."""
    nodes, t = problems(), 3
    found = by_who_answers(answering, {}, t)
    only = by_who_answers("always", {}, t)  # with one client answering: its own part of the sum
    parts = [only[tuple(j == i for j in range(NODES))] for i in range(NODES)]
    weights = effective_weights(answering, RATES)
    expected = sum(w * part for w, part in zip(weights, parts, strict=True))
    mean = mean_over(found, RATES, answering == "unknown")
    np.testing.assert_allclose(mean, expected, rtol=1e-12, atol=1e-12)
    assert np.abs(weights - 1).max() > 0.1
    assert len(parts) == len(nodes)


# ---- coins: the whole thing, as it happens ----------------------------------------------------------------


class Coins:
    """Client i answers in trial t with probability rates[i]; every question about its partition."""

    def __init__(self, rates):
        self.rates, self.trial = rates, 0

    def __call__(self, partition, message):
        if message.metadata.message_type != "train":
            return True
        return uniform(Key(4242, self.trial, partition), Purpose.COIN) < self.rates[partition]


def updates(nodes, answering, answers, participation=None, trials=TRIALS):
    """h = (x - x_after) / step size, in many rounds from one x, and how many clients answered in each."""
    x = nodes[0].shift + normal(Key(5), 0, nodes[0].dim)
    strategy = MastStrategy(server(nodes, participation, step_size=1.0), answering=answering)
    grid = Dropping(client(maker(nodes)), len(nodes), answers)
    found, counts = [], []
    for trial in range(trials):
        answers.trial = trial
        strategy.server.x[...] = x
        strategy.aggregate_train(1, grid.send_and_receive(strategy.configure_train(1, None, {}, grid)))
        found.append(x - strategy.server.x)
        counts.append(strategy.rows[-1]["nodes"])
    return x, np.array(found), np.array(counts)


def distances(h, expected):
    """How far the mean is from what it should be, in standard errors, by coordinate."""
    error = h.std(axis=0, ddof=1) / np.sqrt(len(h))
    return (h.mean(axis=0) - expected) / error


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
    x, h, counts = updates(nodes, [rate, 1.0, 1.0, 1.0], TooLarge(None))
    assert abs((counts == NODES).mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / TRIALS)
    assert np.abs(distances(h, mast.Nodes(nodes).gradient(x))).max() > 5
    # What it is instead: the mean over small submodels, of which each set of k is as likely as another.
    scales = 2.0 * np.array([mask for mask in itertools.product((0, 1), repeat=8) if sum(mask) <= 3])
    f, v = first.objective, first.shift
    short = np.mean([c * f.gradient(v + c * (x - v)) for c in scales], axis=0)
    rest = sum(problem.gradient(x) for problem in nodes[1:])
    assert np.abs(distances(h, (short + rest) / NODES)).max() < 5


@pytest.mark.parametrize("answering", [0.0, 1.5, "sometimes", [0.5, 0.5], None, float("nan")])
def test_impossible_rates_are_refused(answering):
    with pytest.raises(ArgumentError, match="answering"):
        Dropouts(answering, NODES)


def test_strangers_have_no_weight():
    with pytest.raises(ArgumentError, match="not invited"):
        Dropouts("unknown", NODES).weights({0: 1.0}, [0, 2])
