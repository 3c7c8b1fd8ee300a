"""What clients, networks and people do wrong: rounds go on, and errors say what would be right."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `federated` is not installed")

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

import mast
from federated.samples import NODES, ROUNDS, RUN, Dropping, maker, problems, server, trains, without
from mast.distributed import ProblemWorker
from mast.engines.flower.clients import partition_of
from mast.engines.flower.records import send, unpack_messages
from mast.errors import ArgumentError, DataError, InUseError
from mast.federated import Client, LocalGrid, MastStrategy, client, server_for


def test_an_exception_in_a_client_does_not_stop_the_round(tmp_path):
    nodes = problems()
    own = maker(nodes)

    def make(context):
        if partition_of(context) == 2:
            raise OSError("the disk of this client is broken")
        return own(context)

    strategy = MastStrategy(server(nodes), checkpoint=tmp_path / "run.mast")  # which asks what clients are
    strategy.start(LocalGrid(client(make), NODES), num_rounds=ROUNDS)
    np.testing.assert_array_equal(strategy.server.x, without(2).server.x)


def refusals(own, worker):
    """Why a worker does not train, and does not score, what the server sends to client 0."""
    grid = LocalGrid(client(lambda context: Client(worker, lambda model: {})), own.participation.nodes)
    strategy = MastStrategy(own)
    training = strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)[:1]
    scoring = strategy._submodels(ConfigRecord(), grid)[:1]
    replies = [reply for messages in (training, scoring) for reply in send(grid, messages, 5.0)]
    return [reply.error.reason if reply.has_error() else "" for reply in replies]


def test_a_client_of_another_run_or_sketch_refuses():
    nodes = problems()
    f = nodes[0].objective
    others = [(nodes[0], RUN + 1), (mast.Problem(f, mast.RandK(1)), RUN)]
    for worker in (ProblemWorker(problem, run) for problem, run in others):
        for reason in refusals(server(nodes), worker):
            assert "another model, sketch or run for client 0" in reason
    assert refusals(server(nodes), ProblemWorker(nodes[0], RUN)) == ["", ""]


def test_a_sketch_that_keeps_as_many_elsewhere_is_refused():
    f = problems()[0].objective
    d, sketch = f.dim, mast.PermK(2, seed=0)
    own = server_for(np.zeros(d), [sketch], step_size=0.1)
    assert refusals(own, ProblemWorker(mast.Problem(f, sketch))) == ["", ""]
    for reason in refusals(own, ProblemWorker(mast.Problem(f, mast.PermK(2, seed=1)))):
        assert "another model, sketch or run" in reason


@pytest.mark.parametrize("sketch", ["neurons:.5", "bernoulli:.5"])
def test_a_network_with_another_activation_is_refused(sketch):
    """It has as many weights, and would train a model that is not the server's."""
    torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")
    nn = torch.nn
    from mast.nn.nodes import NetworkWorker, NodeRows, capacity_of, cross_entropy

    def made(activation):
        return nn.Sequential(nn.Linear(4, 6), activation, nn.Linear(6, 3))

    def worker(activation):
        model = made(activation)
        rows = NodeRows(torch.ones(5, 4), torch.arange(5) % 3)
        return NetworkWorker(capacity_of(model, sketch), model, cross_entropy, rows)

    own = server_for(made(nn.ReLU()), [sketch], step_size=0.1)
    assert refusals(own, worker(nn.ReLU())) == ["", ""]
    for reason in refusals(own, worker(nn.Tanh())):
        assert "another model, sketch or run" in reason


def test_a_run_that_every_client_refuses_ends_at_once():
    nodes = problems()
    grid = LocalGrid(client(maker([mast.Problem(p.objective, mast.RandK(1)) for p in nodes])), NODES)
    with pytest.raises(ArgumentError, match=r"no client can train .*; one says: .*RandK"):
        MastStrategy(server(nodes)).start(grid, num_rounds=ROUNDS)


def test_wrong_settings_are_named():
    with pytest.raises(ArgumentError, match="at least one client"):
        server_for(np.zeros(3), [], step_size=0.1)
    with pytest.raises(ArgumentError, match=r"least must lie in 1 \.\. "):
        MastStrategy(server(problems()), least=NODES + 1)
    shares = np.array([1, 0.5], dtype=np.float32)
    assert len(server_for(np.zeros(8), shares, step_size=0.1).capacities) == 2


def test_a_round_without_answers_does_not_move_x():
    nodes = problems()
    strategy = MastStrategy(server(nodes))
    start = strategy.server.x.copy()
    silent = Dropping(client(maker(nodes)), NODES, lambda p, m: not trains(m))
    strategy.start(silent, num_rounds=3)
    np.testing.assert_array_equal(strategy.server.x, start)
    assert strategy.server.t == 3


@pytest.mark.parametrize("optimizer", ["momentum:0.9", "adam"])
@pytest.mark.parametrize("answering", ["unknown", 0.5])
def test_what_a_round_without_answers_tells_an_optimizer(optimizer, answering):
    """With unknown rates nothing, so its memory rests; with known ones that the estimate was 0."""
    nodes = problems()
    silent = Dropping(client(maker(nodes)), NODES, lambda p, m: not trains(m) or strategy.server.t != 2)
    strategy = MastStrategy(server(nodes, optimizer=optimizer), answering=answering)
    strategy.start(silent, num_rounds=2)
    before = strategy.server.x.copy()
    memory = {name: array.copy() for name, array in strategy.server.optimizer.arrays.items()}
    strategy.start(silent, num_rounds=3)
    moved = bool((strategy.server.x != before).any())
    changed = any((array != memory[name]).any() for name, array in strategy.server.optimizer.arrays.items())
    assert (moved, changed) == ((False, False) if answering == "unknown" else (True, True))


class Deaf(LocalGrid):
    """Clients that never answer, as if the wire were cut: nothing comes back, not even an error."""

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        return [reply for reply in replies if reply.metadata.message_type != "train"]


def test_a_round_waits_no_longer_than_its_timeout():
    nodes = problems()
    strategy = MastStrategy(server(nodes))
    strategy.start(Deaf(client(maker(nodes)), NODES), num_rounds=2, timeout=0.05)
    assert [row["nodes"] for row in strategy.rows] == [0, 0]


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), None, "soon"])
def test_times_are_finite(timeout):
    nodes = problems()
    grid = LocalGrid(client(maker(nodes)), NODES)
    with pytest.raises(ArgumentError, match=r"must be a positive number|is missing"):
        MastStrategy(server(nodes)).start(grid, num_rounds=1, timeout=timeout)
    with pytest.raises(ArgumentError, match=r"must be a positive number|is missing"):
        MastStrategy(server(nodes), gathering=timeout)


def test_one_server_at_a_time_on_a_checkpoint(tmp_path):
    nodes = problems()
    app = client(maker(nodes))

    class Second(LocalGrid):
        def get_node_ids(self):
            with pytest.raises(InUseError):
                MastStrategy(server(nodes), checkpoint=tmp_path / "c.mast").start(
                    LocalGrid(app, NODES), num_rounds=1
                )
            return super().get_node_ids()

    MastStrategy(server(nodes), checkpoint=tmp_path / "c.mast").start(Second(app, NODES), num_rounds=1)


#: a run through the first link, which waits in its second round until a file is there
FIRST = """
import pathlib, sys, time
from federated.samples import *

class Waiting(LocalGrid):
    def get_node_ids(self):
        if strategy.server.t == 1:
            print("in round 2", flush=True)
            while not (folder / "go on").exists():
                time.sleep(0.02)
        return super().get_node_ids()

folder, nodes = pathlib.Path(sys.argv[1]), problems()
strategy = MastStrategy(server(nodes), checkpoint=folder / "first")
strategy.start(Waiting(client(maker(nodes)), NODES), num_rounds=3)
"""


def test_two_processes_through_two_links(tmp_path):
    """The second is refused, and both links lead to one checkpoint and one trace, beside the target."""
    (tmp_path / "target").mkdir()
    for name in ("first", "second"):
        (tmp_path / name).symlink_to(tmp_path / "target" / "run.mast")
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-c", FIRST, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
    )
    nodes = problems()
    grid = LocalGrid(client(maker(nodes)), NODES)
    try:
        assert "in round 2" in process.stdout.readline()
        with pytest.raises(InUseError):
            MastStrategy(server(nodes), checkpoint=tmp_path / "second").start(grid, num_rounds=5)
    finally:
        (tmp_path / "go on").touch()
        process.communicate(timeout=120)
    assert process.returncode == 0
    strategy = MastStrategy(server(nodes), checkpoint=tmp_path / "second")
    strategy.start(grid, num_rounds=5)
    assert [row["step"] for row in strategy.rows] == [1, 2, 3, 4, 5]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "go on", "second", "target"]
    assert {"run.mast", "run.mast.trace.jsonl"} <= {path.name for path in (tmp_path / "target").iterdir()}
    assert not list((tmp_path / "target").glob(".*lock"))


def test_messages_of_others_are_refused():
    with pytest.raises(DataError, match="no message"):
        unpack_messages(RecordDict())
    with pytest.raises(DataError, match="no message"):
        unpack_messages(RecordDict({"mast": ArrayRecord()}))
