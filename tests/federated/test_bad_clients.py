"""Clients that lie: about their number, with answers of any size, and with numbers by name."""

import logging

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `federated` is not installed")

from flwr.app import Context, MetricRecord, RecordDict

import mast
from federated.samples import DIM, NODES, maker, problems, server
from mast.distributed import Participation, ProblemWorker, Server, VectorCapacity
from mast.engines.flower.records import LONGEST_NAME, MOST_METRICS
from mast.engines.flower.registry import ClientRegistry, NormLimit
from mast.errors import ArgumentError, CheckpointError
from mast.federated import LocalGrid, MastStrategy, client, server_for


class Changed(LocalGrid):
    """A grid whose client `bad` has its answers' values, or its reply, changed."""

    def __init__(self, *arguments, bad, change=None, reply=None, **options):
        super().__init__(*arguments, **options)
        self.bad, self.change, self.reply = bad, change, reply

    def _answer(self, message):
        reply = super()._answer(message)
        partition = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
        if partition == self.bad and message.metadata.message_type == "train":
            if self.change is not None:
                raw = reply.content["mast"]["0"].numpy().copy()
                values = raw[64:].view(np.float64)
                values[...] = self.change(values)
                reply.content["mast"]["0"] = type(reply.content["mast"]["0"])(raw)
            if self.reply is not None:
                self.reply(reply)
        return reply


def test_long_answers_in_single_precision_have_a_norm():
    """Four squares of 1.5e19 overflow in float32: the norm was infinite, and accepted."""
    own = server_for(np.zeros(4, dtype=np.float32), [mast.Identity()] * 2, step_size=0.1)
    f = mast.Quadratic(np.zeros((4, 4)), np.full(4, -1.5e19))
    make = maker([mast.Problem(f, mast.Identity())] * 2, run=0)
    strategy = MastStrategy(own)
    strategy.start(LocalGrid(client(make), 2), num_rounds=1)
    assert strategy.norms.accepted == pytest.approx([3e19, 3e19])


def test_the_norm_limit_follows_what_all_do():
    norms = NormLimit(10.0)
    for size in (1.0, 100.0, 1e4):  # all grow together
        assert norms.too_long({0: size, 1: size, 2: 1e9 * size}) == [2]
    assert norms.too_long({0: 1e12}) == [0]
    for _ in range(100):
        norms.too_long({0: 1.0, 1: 1.0})
    assert len(norms.accepted) == 64


def test_the_first_answers_are_measured_by_the_model():
    def refused(*norms):
        return NormLimit(100.0).too_long(dict(enumerate(norms)), length=3.0)

    assert refused(1.0, 1e3) == [1]
    assert refused(1e-3, 2.0) == []  # much longer than the other, but shorter than the model
    assert refused(1e20, 3e20) == []  # two of one size: the units are unusual, not the clients
    assert refused(0.0, 1e30) == [1]
    assert refused(0.0, 0.0, 1e30) == [2]
    assert refused(1e5) == []
    assert refused(1e7) == [0]
    still = NormLimit(100.0)
    assert still.too_long({0: 0.0, 1: 0.0, 2: 0.0}, length=3.0) == []
    assert still.accepted == []  # else the median of norms were 0


def federation(clients, kind):
    """Clients that hold all of a model: a linear one that starts at 0, or a fresh network."""
    if kind == "zeros":
        own = [mast.Problem(p.objective, mast.Identity()) for p in problems()[:clients]]
        capacities = [VectorCapacity(p.sketch, DIM) for p in own]
        server = Server(np.zeros(DIM), capacities, Participation(0, clients), step_size=0.1)
        return server, [ProblemWorker(p) for p in own]
    torch = pytest.importorskip("torch")
    from mast.nn.nodes import NetworkWorker, NodeRows, mean_squares

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).double()
    inputs = torch.randn(10 * clients, 4, dtype=torch.float64)
    rows = [NodeRows(inputs[i::clients], inputs[i::clients, :1]) for i in range(clients)]
    made = [NetworkWorker("identity", model, mean_squares, own) for own in rows]
    return server_for(model, ["identity"] * clients, step_size=0.1, local_steps=3), made


def ends(clients, kind, change=None, **options):
    """A run of eight rounds in which the last client's values may be changed: `change(values, round)`."""
    own, workers = federation(clients, kind)
    strategy = MastStrategy(own, **options)
    app = client(lambda context: workers[context.node_config["partition-id"]])
    spoil = None if change is None else lambda values: change(values, own.t + 1)
    strategy.start(Changed(app, clients, bad=clients - 1, change=spoil), num_rounds=8)
    return strategy


#: what a client sends in a round, and whether it is the attack
ATTACKS = {
    "from round 1": lambda values, t, bad: bad,
    "in round 5": lambda values, t, bad: bad if t == 5 else values,
    "in round 5, zeros before": lambda values, t, bad: bad if t == 5 else 0.0 if t < 5 else values,
}


@pytest.mark.parametrize("kind", ["zeros", "network"])
@pytest.mark.parametrize("clients", [1, 2, 3])
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_one_client_does_not_end_a_model(attack, clients, kind, caplog):
    """Its 1e30 counts as little as NaN would, however few others there are and whenever it comes."""
    logging.getLogger("flwr").propagate = True
    attacked = ends(clients, kind, lambda values, t: attack(values, t, 1e30))
    assert f"without client {clients - 1}: its answer of norm" in caplog.text
    expected = ends(clients, kind, lambda values, t: attack(values, t, np.nan))
    np.testing.assert_array_equal(attacked.server.x, expected.server.x)
    assert np.abs(attacked.server.x).max() < 10


def test_without_a_limit_any_number_counts():
    assert np.abs(ends(2, "zeros", lambda values, t: 1e30, norm_limit=None).server.x).max() > 1e20
    with pytest.raises(ArgumentError, match="norm_limit"):
        MastStrategy(server(problems()), norm_limit=0.5)


@pytest.mark.parametrize("kind", ["zeros", "network"])
@pytest.mark.parametrize("clients", [1, 2, 3])
def test_honest_clients_notice_nothing(clients, kind, caplog):
    """The bits of a run without limit, and no warning but that one client alone cannot be judged."""
    logging.getLogger("flwr").propagate = True
    limited = ends(clients, kind)
    alone = [record for record in caplog.records if "nothing to compare its answer with" in record.message]
    assert len(alone) == (clients == 1)
    np.testing.assert_array_equal(limited.server.x, ends(clients, kind, norm_limit=None).server.x)
    assert limited.server.state.answered.tolist() == [8] * clients


def test_norms_are_part_of_a_checkpoint(tmp_path):
    """A continued federation decides as one that was never stopped."""
    nodes, path = problems(), tmp_path / "run.mast"

    def ends(rounds, checkpoint=None, **options):
        strategy = MastStrategy(server(nodes), checkpoint=checkpoint, **options)
        change = lambda values: values * (1 if strategy.server.t < 3 else 1e6)  # noqa: E731
        strategy.start(Changed(client(maker(nodes)), NODES, bad=0, change=change), num_rounds=rounds)
        return strategy.server

    ends(3, path)
    np.testing.assert_array_equal(ends(6, path).x, ends(6).x)
    with pytest.raises(CheckpointError, match=r"its norm_limit is 100\.0, here it is None"):
        ends(6, path, norm_limit=None)


def test_a_partition_stays_with_the_client_that_had_it_first():
    nodes = problems()
    grid = LocalGrid(client(maker(nodes)), NODES)
    calls = ClientRegistry(NODES, 60.0)
    first = calls.connected(grid)
    thief = Context(1, 1, {"partition-id": 1, "num-partitions": NODES}, RecordDict(), {})
    grid.contexts[1] = thief
    assert calls.connected(grid) == first
    assert calls.connected(grid) == first
    del grid.contexts[first[1]]  # only where the first one is gone, another may take its place
    assert calls.connected(grid)[1] == 1


def test_a_partition_can_be_bound_to_a_node():
    nodes = problems()
    grid = LocalGrid(client(maker(nodes)), NODES)
    owners = ClientRegistry(NODES, 60.0).connected(grid)
    thief = Context(1, 1, {"partition-id": 1, "num-partitions": NODES}, RecordDict(), {})
    grid.contexts = {1: thief, **grid.contexts}
    strategy = MastStrategy(server(nodes), node_ids=owners)
    assert strategy.registry.connected(grid) == owners
    del grid.contexts[owners[1]]
    assert sorted(strategy.registry.connected(grid)) == [0, 2, 3]


def test_metrics_are_bounded(tmp_path):
    """A client may tell numbers by name, not fill the server's memory, log and trace."""

    def flood(reply):
        many = {f"{i}": 1.0 for i in range(10_000)}
        reply.content["metrics"] = MetricRecord(
            {"x" * 100_000: 1.0, "huge": 1e308, "loss": 0.5, "passes": 1.0, "step": -1} | many
        )

    nodes = problems()
    strategy = MastStrategy(server(nodes), checkpoint=tmp_path / "run.mast")
    strategy.start(Changed(client(maker(nodes)), NODES, bad=1, reply=flood), num_rounds=2)
    [_, row] = strategy.rows
    assert row["loss"] == 0.5
    assert "huge" not in row
    assert len(row) <= MOST_METRICS + 16
    assert max(map(len, row)) <= LONGEST_NAME
