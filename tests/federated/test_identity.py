"""A checkpoint knows the clients that it began with: one that was changed since is left out by name."""

import logging

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `federated` is not installed")

import mast
from federated.samples import NODES, maker, problems, server
from mast.errors import ArgumentError, CheckpointError
from mast.federated import LocalGrid, MastStrategy, TrainingWorker, client, server_for
from mast.support import files

SHARES = ["neurons:0.5", "bernoulli:0.5", "identity"]


def continued(path, make, own, rounds, caplog):
    """The strategy after `rounds` rounds in all, and what it logged of clients that are left out."""
    logging.getLogger("flwr").propagate = True
    caplog.clear()
    strategy = MastStrategy(own(), checkpoint=path, gathering=0.05)
    strategy.start(LocalGrid(client(make), own().participation.nodes), num_rounds=rounds)
    said = [record.message for record in caplog.records if "is left out" in record.message]
    return strategy, said


def test_a_linear_client_with_other_data_is_left_out(tmp_path, caplog):
    nodes = problems()
    path, own = tmp_path / "run.mast", lambda: server(nodes)
    continued(path, maker(nodes), own, 2, caplog)
    strategy, said = continued(path, maker(problems()), own, 4, caplog)  # the same, made again
    assert (said, strategy.rows[-1]["nodes"]) == ([], NODES)
    other = problems()
    other[2] = mast.Problem(mast.Quadratic(np.eye(8), np.ones(8)), other[2].sketch, other[2].shift)
    strategy, [said] = continued(path, maker(other), own, 6, caplog)
    assert "client 2 is not the one" in said
    assert "it has another objective and data;" in said
    assert strategy.rows[-1]["nodes"] == NODES - 1
    strategy, said = continued(path, maker(nodes), own, 8, caplog)  # the old one is remembered
    assert (said, strategy.rows[-1]["nodes"]) == ([], NODES)


def test_without_a_checkpoint_nobody_is_asked():
    """Where nothing can be compared, clients are not made before they train."""

    class Watched(LocalGrid):
        def push_messages(self, messages):
            asked.extend(message for message in messages if message.metadata.message_type != "train")
            return super().push_messages(messages)

    asked = []
    nodes = problems()
    strategy = MastStrategy(server(nodes), evaluate_draws=0)
    strategy.registry.connected(Watched(client(maker(nodes)), NODES))
    assert len(asked) == NODES
    assert not any(message.content for message in asked)


def networks(**changes):
    """How the clients of a small network are made; what is changed is so for client 1."""
    torch = pytest.importorskip("torch")
    from mast.nn.nodes import NetworkWorker, NodeRows, cross_entropy, mean_squares

    def double(model, batch):
        return 2 * cross_entropy(model, batch)

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    inputs, classes = torch.randn(30, 4), torch.arange(30) % 3
    losses = {"cross_entropy": cross_entropy, "double": double, "mean_squares": mean_squares}

    def make(context):
        i = context.node_config["partition-id"]
        said = changes if i == 1 else {}
        rows = NodeRows(inputs[i::3] + said.get("moved", 0), classes[i::3], said.get("batch_size", 4))
        if "train" in said:
            return TrainingWorker(SHARES[i], model, said["train"])
        loss = losses[said.get("loss", "cross_entropy")]
        return NetworkWorker(SHARES[i], model, loss, rows, batch_norm=said.get("batch_norm", "static"))

    return make, lambda: server_for(model, SHARES, step_size=0.1)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"loss": "double"}, "loss"),
        ({"moved": 1.0}, "data"),
        ({"batch_size": 5}, "data"),
        ({"batch_norm": "local"}, "batch_norm"),
        ({"train": lambda model, assignment: None}, "worker, another train, another loss, another data"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_network_client_that_was_changed_is_left_out(tmp_path, caplog, change, name):
    path = tmp_path / "run.mast"
    make, own = networks()
    continued(path, make, own, 2, caplog)
    strategy, [said] = continued(path, networks(**change)[0], own, 3, caplog)
    assert "client 1 is not the one that the checkpoint's run began with" in said
    assert set(name.split(", another ")) == set(
        said.partition("it has another ")[2].partition(";")[0].split(", another ")
    )
    assert [row["nodes"] for row in strategy.rows] == [3, 3, 2]


def test_a_function_of_the_same_name_is_another(tmp_path, caplog):
    path = tmp_path / "run.mast"
    make, own = networks(train=lambda model, assignment: None)
    continued(path, make, own, 1, caplog)
    _, [said] = continued(path, networks(train=lambda model, assignment: {"n": 1})[0], own, 2, caplog)
    assert "client 1 is not the one" in said
    assert "it has another train;" in said


def test_a_run_whose_clients_are_all_others_ends_at_once(tmp_path, caplog):
    nodes, path = problems(), tmp_path / "run.mast"
    continued(path, maker(nodes), lambda: server(nodes), 1, caplog)
    before = files.load(path)[1]["x"]
    others = [mast.Problem(mast.Quadratic(np.eye(8), np.ones(8)), p.sketch, p.shift) for p in nodes]
    with pytest.raises(ArgumentError, match=r"client \d is not the one .* another objective and data"):
        continued(path, maker(others), lambda: server(nodes), 2, caplog)
    np.testing.assert_array_equal(files.load(path)[1]["x"], before)


@pytest.mark.parametrize(
    "said", [{"name" * 100: "1"}, {"data": "1" * 1000}, {f"{i}": "1" for i in range(99)}]
)
def test_nonsense_is_no_identity(tmp_path, said):
    """A client may not fill the checkpoint."""

    class Grid(LocalGrid):
        def _answer(self, message):
            reply = super()._answer(message)
            if "identity" in reply.content:
                for name, text in said.items():
                    reply.content["identity"][name] = text
            return reply

    nodes = problems()
    strategy = MastStrategy(server(nodes), checkpoint=tmp_path / "run.mast")
    strategy.start(Grid(client(maker(nodes)), NODES), num_rounds=1)
    assert strategy.registry.identities == {}


@pytest.mark.parametrize("clients", [None, {"0": "x"}, {"zero": {}}, {"0": {"data": 3}}], ids=str)
def test_damaged_identities_are_refused(tmp_path, clients):
    path = tmp_path / "run.mast"
    strategy = MastStrategy(server(problems()), checkpoint=path)
    strategy.server.save(path, {"norms": [], "clients": clients, **strategy._rules()})
    with pytest.raises(CheckpointError, match="'clients'"):
        MastStrategy(server(problems()), checkpoint=path)
