"""What travels: values and little more, in both directions."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `federated` is not installed")

from flwr.app import ConfigRecord
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

import mast
from federated.samples import NODES, RUN, maker, problems, server
from mast.distributed import Participation, ProblemWorker, Server, VectorCapacity
from mast.engines.flower.records import payload, unpack_messages
from mast.federated import LocalGrid, MastStrategy, client


def framed(message) -> int:
    """Every byte that Flower makes of a message: its objects, with their heads, before HTTP."""
    return sum(len(found.deflate()) for found in get_all_nested_objects(message).values())


def wide(d):
    """Three clients with d coordinates, of which they keep different shares."""
    f = mast.Function(lambda x: (0.5 * float(x @ x), x), d, smoothness=1.0)
    sketches = [mast.Bernoulli(0.5), mast.RandK(0.25), mast.PermK(10)]
    nodes = [mast.Problem(f, sketch) for sketch in sketches]
    own = Server(
        np.ones(d), [VectorCapacity(s, d) for s in sketches], Participation(0, 3, 10), step_size=0.1, run=RUN
    )
    workers = [ProblemWorker(problem, RUN) for problem in nodes]
    return own, client(lambda context: workers[context.node_config["partition-id"]])


@pytest.mark.parametrize("d", [8, 100_000])
def test_the_payload_is_the_values(d):
    own, app = (server(problems()), client(maker(problems()))) if d == 8 else wide(d)
    nodes = own.participation.nodes
    strategy, grid = MastStrategy(own), LocalGrid(app, nodes)
    config = ConfigRecord({"epochs": 2, "rate": 0.1})
    messages = strategy.configure_train(1, None, config, grid)
    assert len(messages) == nodes
    replies = grid.send_and_receive(messages)
    assert not any(reply.has_error() for reply in replies)
    for message in [*messages, *replies]:
        values = unpack_messages(message.content)[0].values.nbytes
        assert payload(message.content) <= 1.02 * values + 1000
        assert framed(message) <= 1.02 * values + 8000
        assert payload(message.content) >= values
    kept = {unpack_messages(message.content)[0].values.size for message in messages}
    assert len(kept) > 1  # different submodels
    assert max(kept) <= 0.6 * d if d > 8 else True


def test_accounts_are_what_travelled():
    nodes = problems()
    strategy, grid = MastStrategy(server(nodes)), LocalGrid(client(maker(nodes)), NODES)
    down = up = 0
    for _ in range(4):
        messages = strategy.configure_train(1, None, ConfigRecord(), grid)
        down += sum(payload(message.content) for message in messages)
        replies = grid.send_and_receive(messages)
        up += sum(payload(reply.content) for reply in replies)
        strategy.aggregate_train(1, replies)
    assert (sum(strategy.server.state.received.tolist()), sum(strategy.server.state.sent.tolist())) == (
        down,
        up,
    )
    assert sum(row["down"] for row in strategy.rows) == down
    rows = strategy.result().nodes
    assert rows[3]["down"] < rows[0]["down"]
    values = 8 * int(strategy.server.state.values.sum())
    assert values < down <= values + 4 * NODES * 264
