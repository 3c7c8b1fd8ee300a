"""A federation that was stopped goes on: the same bits, no draw twice, however the server ended."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `federated` is not installed")

from faults.tally import survived
from federated.samples import NODES, maker, problems, server
from mast.engines.flower.records import unpack_messages
from mast.errors import CheckpointError, DataError
from mast.federated import LocalGrid, MastStrategy, client
from mast.support import files

ROUNDS = 9


class Watched(LocalGrid):
    """Remembers the keys of all draws that were used in training."""

    def __init__(self, *arguments, keys, **options):
        super().__init__(*arguments, **options)
        self.keys = keys

    def _answer(self, message):
        if message.metadata.message_type == "train":
            self.keys += [asked.header.key for asked in unpack_messages(message.content)]
        return super()._answer(message)


@pytest.mark.parametrize(
    ("optimizer", "participation"), [("sgd", {}), ("adam", {"participation": 0.6})], ids=["all", "some"]
)
def test_a_stopped_federation_continues_to_the_same_bits(tmp_path, optimizer, participation):
    nodes = problems()
    app = client(maker(nodes))
    straight, keys = MastStrategy(server(nodes, participation, optimizer=optimizer)), []
    straight.start(Watched(app, NODES, keys=keys), num_rounds=ROUNDS)
    again = []
    for stop in (2, 3, 7, ROUNDS):
        path = tmp_path / "run.mast"
        strategy = MastStrategy(server(nodes, participation, optimizer=optimizer), checkpoint=path)
        result = strategy.start(Watched(app, NODES, keys=again), num_rounds=stop)
        assert strategy.server.t == stop
    np.testing.assert_array_equal(strategy.server.x, straight.server.x)
    assert again == keys
    assert len(set(again)) == len(again)
    assert strategy.server.state.received.tolist() == straight.server.state.received.tolist()
    assert strategy.server.state.answered.tolist() == straight.server.state.answered.tolist()
    assert [row["step"] for row in strategy.rows] == list(range(1, ROUNDS + 1))
    assert sorted(result.train_metrics_clientapp) == [8, 9]


def test_a_finished_run_is_not_trained_again(tmp_path):
    nodes = problems()
    for _ in range(2):
        strategy = MastStrategy(server(nodes), checkpoint=tmp_path / "run.mast")
        strategy.start(LocalGrid(client(maker(nodes)), NODES), num_rounds=3)
        assert strategy.server.t == 3
        assert len(strategy.rows) == 3


def test_another_runs_checkpoint_is_refused(tmp_path):
    nodes = problems()
    path = tmp_path / "run.mast"
    MastStrategy(server(nodes), checkpoint=path).start(LocalGrid(client(maker(nodes)), NODES), num_rounds=2)
    with pytest.raises(CheckpointError, match="step_size"):
        MastStrategy(server(nodes, step_size=0.5), checkpoint=path)
    with pytest.raises(CheckpointError, match="its answering is unknown"):
        MastStrategy(server(nodes), answering=0.5, checkpoint=path)
    description, arrays = files.load(path)
    del arrays["answered"]
    files.save(path, description, arrays)
    with pytest.raises(CheckpointError, match="answered"):
        MastStrategy(server(nodes), checkpoint=path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="damaged"):
        MastStrategy(server(nodes), checkpoint=path)


def test_a_damaged_trace_is_refused_by_its_line(tmp_path):
    """In one line that names the file, before anything is trained; the trace and the checkpoint stay."""
    nodes, path = problems(), tmp_path / "run.mast"
    grid = LocalGrid(client(maker(nodes)), NODES)
    MastStrategy(server(nodes), checkpoint=path).start(grid, num_rounds=4)
    trace = tmp_path / "run.mast.trace.jsonl"
    lines = trace.read_text().splitlines(keepends=True)
    trace.write_text("".join([lines[0], "nonsense\n", *lines[2:]]))
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    strategy = MastStrategy(server(nodes), checkpoint=path)
    with pytest.raises(DataError, match=r"run\.mast\.trace\.jsonl: line 2 is not a row") as error:
        strategy.start(grid, num_rounds=6)
    assert "\n" not in str(error.value)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


KILLED = """
import os, pathlib, signal, sys, time
from federated.samples import *
from mast.federated import *

nodes = problems()
for share in (0.02, 0.05, 0.1, 0.15, 0.2):
    child = os.fork()  # everything is imported: a life costs nothing but its rounds
    if not child:
        strategy = MastStrategy(server(nodes), checkpoint=pathlib.Path(sys.argv[1]))
        strategy.start(LocalGrid(client(maker(nodes)), NODES), num_rounds=80)
        os._exit(1)  # the kill was too late
    time.sleep(share * float(sys.argv[2]))
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""


@pytest.mark.parametrize("norms", [None, ["1"], [True], [0.0], [float("nan")]], ids=str)
def test_norms_that_are_none_are_refused(tmp_path, norms):
    """A median of such numbers would refuse every answer, or none."""
    path = tmp_path / "run.mast"
    strategy = MastStrategy(server(problems()), checkpoint=path)
    strategy.server.save(path, {"norms": norms, **strategy._rules()})
    with pytest.raises(CheckpointError, match="'norms'"):
        MastStrategy(server(problems()), checkpoint=path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="SIGKILL and fork are of POSIX")
def test_a_server_killed_at_any_moment_ends_with_the_same_bits(tmp_path):
    """SIGKILL, again and again, at moments that nobody chose; then once without, in another process."""
    nodes = problems()
    expected = MastStrategy(server(nodes))
    begun = time.monotonic()
    expected.start(LocalGrid(client(maker(nodes)), NODES), num_rounds=80)
    took = time.monotonic() - begun
    path = tmp_path / "run.mast"
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), str(took)],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = MastStrategy(server(nodes), checkpoint=path)
    assert found.server.t < 80
    found.start(LocalGrid(client(maker(nodes)), NODES), num_rounds=80)
    assert found.server.t == 80
    np.testing.assert_array_equal(found.server.x, expected.server.x)
    assert [row["step"] for row in found.rows] == list(range(1, 81))
    left = sorted(p.name for p in tmp_path.iterdir())
    assert left == ["run.mast", "run.mast.trace.jsonl"]  # nothing half written, no lock
    survived("SIGKILL of a federation's server", 5, 5, "resumed, with the bits of a run left alone")


def test_a_round_costs_the_same_after_many(tmp_path):
    """The checkpoint does not grow with the rounds: what does is appended to a file beside it."""
    nodes, path = problems(), tmp_path / "run.mast"
    sizes = []
    for rounds in (20, 200):
        strategy = MastStrategy(server(nodes), checkpoint=path)
        strategy.start(LocalGrid(client(maker(nodes)), NODES), num_rounds=rounds)
        sizes.append(path.stat().st_size)
    assert abs(sizes[1] - sizes[0]) < 1200  # norms of the last answers are numbers with more or fewer digits
    assert len(strategy.rows) == 200
