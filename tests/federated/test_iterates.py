"""Flower carries the same messages as the other engines: the same iterates, to the last bit."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `federated` is not installed")

from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy

import mast
from federated.samples import NODES, RUN, maker, problems, server
from mast.distributed import ProblemWorker, run_in_process
from mast.errors import ArgumentError
from mast.federated import LocalGrid, MastStrategy, client

ROUNDS = 12


def grid(nodes, **options) -> LocalGrid:
    return LocalGrid(client(maker(nodes)), len(nodes), **options)


@pytest.mark.parametrize(
    ("participation", "local_steps"),
    [
        ({}, 1),
        ({"participation": [1.0, 0.3, 0.6, 1.0]}, 3),
        ({"participants": 2, "coupling": "disjoint"}, 1),
    ],
    ids=["all", "different", "two, disjoint"],
)
def test_same_bits_as_the_distributed_method(participation, local_steps):
    nodes = problems()
    strategy = MastStrategy(server(nodes, participation, local_steps=local_steps))
    result = strategy.start(grid(nodes), num_rounds=ROUNDS)
    inside = mast.minimize(
        mast.Nodes(nodes),
        "distributed",
        ROUNDS,
        0.02,
        seed=7,
        trace=ROUNDS,
        local_steps=local_steps,
        **participation,
    )
    np.testing.assert_array_equal(result.arrays["x"].numpy(), inside.x)
    assert np.any(inside.x != nodes[0].shift)


@pytest.mark.parametrize(("optimizer", "aggregation"), [("momentum:0.9", "mean"), ("adam", "unbiased")])
def test_same_bits_with_a_server_optimizer(optimizer, aggregation):
    nodes = problems()
    expected = server(nodes, optimizer=optimizer, aggregation=aggregation)
    run_in_process(expected, [ProblemWorker(problem, RUN) for problem in nodes], ROUNDS)
    strategy = MastStrategy(server(nodes, optimizer=optimizer, aggregation=aggregation))
    strategy.start(grid(nodes), num_rounds=ROUNDS)
    np.testing.assert_array_equal(strategy.server.x, expected.x)


def test_the_order_of_arrival_does_not_matter():
    class Shuffled(LocalGrid):
        def pull_messages(self, message_ids):
            return super().pull_messages(message_ids)[::-1]

    nodes = problems()
    app = client(maker(nodes))
    ends = []
    for kind in (LocalGrid, Shuffled):
        strategy = MastStrategy(server(nodes))
        strategy.start(kind(app, NODES), num_rounds=5)
        ends.append(strategy.server.x)
    np.testing.assert_array_equal(*ends)


def test_flowers_own_loop_gives_the_same():
    """`Strategy.start` of the base class, which counts its rounds from 1 again each time."""
    nodes = problems()
    ours, theirs = MastStrategy(server(nodes)), MastStrategy(server(nodes))
    ours.start(grid(nodes), num_rounds=6)
    for _ in range(2):
        result = Strategy.start(theirs, grid(nodes), theirs.arrays(), num_rounds=3)
    np.testing.assert_array_equal(result.arrays["x"].numpy(), ours.server.x)


def test_clients_start_where_the_initial_arrays_say():
    nodes = problems()
    x0 = np.linspace(-1, 1, nodes[0].dim)
    strategy = MastStrategy(server(nodes))
    result = strategy.start(grid(nodes), ArrayRecord({"x": Array(x0)}), num_rounds=4)
    inside = mast.minimize(mast.Nodes(nodes), "distributed", 4, 0.02, x0=x0, seed=7, trace=4)
    np.testing.assert_array_equal(result.arrays["x"].numpy(), inside.x)
    with pytest.raises(ArgumentError, match="in this order"):
        MastStrategy(server(nodes)).start(grid(nodes), ArrayRecord([x0]), num_rounds=1)


def test_a_divergence_stops_the_run():
    nodes = problems()
    strategy = MastStrategy(server(nodes, step_size=1e80))
    strategy.start(grid(nodes), num_rounds=50)
    assert strategy.server.diverged
    assert strategy.server.t < 50
