"""Real runs under torchrun on this machine: bits, bytes, kills, hangs, wrong settings."""

import json
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
if sys.platform != "linux":
    pytest.skip("processes are looked up in /proc", allow_module_level=True)

import mast
from cluster.launching import Torchrun, forked, rows_of, until
from faults.tally import survived
from mast.randomness import Key, normal

CAPACITIES = ["bernoulli:.9", "randk:30", "permk:4", "identity", "permk:4"]
SHARES = [0.5, 1.0, 0.75, 1.0, 1.0]
SEED = 5


def settings(folder, rounds, **run):
    """Five nodes for four ranks, a shift, partial participation, a checkpoint after every round."""
    np.save(folder / "v.npy", shift())
    options = {"rounds": rounds, "seed": SEED, "timeout": 60.0, "checkpoint_seconds": 0.0, "draws": 2} | run
    lines = ["[run]", *(f"{name} = {json.dumps(value)}" for name, value in options.items())]
    path = folder / "train.toml"
    path.write_text(
        "\n".join(lines)
        + f"""
[server]
step_size = 0.05
[nodes]
capacities = {json.dumps(CAPACITIES)}
participation = {json.dumps(SHARES)}
[model]
kind = "logistic"
l2 = 0.01
shift = "v.npy"
[data]
file = "a1a"
split = "interleaved"
"""
    )
    return path


def shift():
    return 0.1 * normal(Key(1), 0, 123)


def undisturbed(rounds):
    """The same in one process."""
    A, b = mast.data.load("a1a")
    problems = [
        mast.Problem(
            mast.Logistic(A[i :: len(SHARES)], b[i :: len(SHARES)], l2=0.01),
            mast.sketches.parse(text),
            shift(),
        )
        for i, text in enumerate(CAPACITIES)
    ]
    result = mast.minimize(
        mast.Nodes(problems),
        "distributed",
        rounds,
        0.05,
        seed=SEED,
        trace=rounds,
        samples=0,
        participation=SHARES,
    )
    return result.x


def checked(folder, rounds):
    """The result of a run, if its trace has every round once and its bits are the undisturbed ones."""
    result = mast.Result.load(folder / "out")
    assert result.status == "finished"
    assert (result.x == undisturbed(rounds)).all()
    trace = result.trace
    assert trace["step"].tolist() == list(range(1, rounds + 1))
    return result


def test_payload_as_the_kernel_sees_it():
    """All bytes that server and node write: headers, gloo's framing and control messages included."""
    code, printed = forked("payload.py")
    assert code == 0, printed
    ways = json.loads(next(line for line in printed.splitlines() if line.startswith("[{")))
    assert sorted(way["rank"] for way in ways) == [0, 1]
    rounds = 30
    for way in ways:
        assert way["values"] < way["written"] <= 1.02 * way["values"] + 1000 * rounds
        assert way["written"] <= way["values"] + 600 * rounds  # as it is now


def values_by_round(rounds):
    """For each node the (round, values kept) in which it took part."""
    from mast.methods.distributed import Roster, stride_of

    sketches = [mast.sketches.parse(text) for text in CAPACITIES]
    roster = Roster(SEED, len(SHARES), stride_of(sketches), "independent", SHARES)
    found = {node: [] for node in range(len(SHARES))}
    for t in range(rounds):
        for node, _ in roster.taking_part(t):
            found[node].append((t, sketches[node].sample(123, roster.key(t, node)).indices.size))
    return found


def kill_twice(folder, moments, rounds, ranks=4):
    """One run, disturbed by SIGKILL of some rank as soon as the trace has so many rounds."""
    trace = folder / "out" / "trace.jsonl"
    with Torchrun(
        "-m", "mast.cluster", settings(folder, rounds), ranks=ranks, restarts=len(moments) + 1
    ) as run:
        for rank, moment in moments:
            until(lambda moment=moment: rows_of(trace) >= moment or run.process.poll() is not None)
            assert run.process.poll() is None, run.wait()
            assert run.signal(rank, signal.SIGKILL)
        code, printed = run.wait()
    assert code == 0, printed
    result = checked(folder, rounds)
    survived("SIGKILL of a rank", len(moments), len(moments), "resumed, with the bits of a run left alone")
    return result, printed


def test_two_kills_and_the_same_bits_bytes_and_trace(tmp_path):
    """A node's rank dies in the middle, then the server's own; nothing in the result shows it."""
    rounds = 150
    result, printed = kill_twice(tmp_path, [(1, 17), (0, 80)], rounds, ranks=2)
    assert "permk:4" in printed
    assert "accuracy" in printed
    assert f"{rounds} of {rounds} rounds" in printed  # the progress line
    trace = result.trace
    parts = trace[["broadcast", "compute", "gather", "update"]].sum(axis=1)
    assert (parts >= 0.999 * trace["took"]).all()
    assert (trace[["broadcast", "compute", "gather", "update"]] >= 0).all().all()
    # what travels, by the trace and by node, against the values that were kept
    assert (trace["down"] == trace["up"]).all()
    assert trace["bytes"].iloc[-1] == trace["down"].sum() + trace["up"].sum()
    assert trace["seconds"].iloc[-1] == pytest.approx(trace["took"].sum())
    kept = values_by_round(rounds)
    for node, row in enumerate(result.nodes):
        values, answers = sum(count for _, count in kept[node]), len(kept[node])
        assert row["answers"] == answers
        for way in ("down", "up"):
            assert row[way] * answers == pytest.approx(8 * values + 64 * answers)
    for t, (down, nodes) in enumerate(zip(trace["down"], trace["nodes"], strict=True)):
        values = sum(counts[t] for counts in map(dict, kept.values()) if t in counts)
        assert down == 8 * values + 64 * nodes


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_ten_kills_and_the_same_bits(tmp_path, number):
    """One of four ranks dies at a moment that the number decides, sometimes between two rounds' files."""
    rank, moment = number % 4, 1 + int(mast.randomness.words(Key(number), 1, 0, 1)[0]) % 350
    kill_twice(tmp_path, [(rank, moment)], rounds=400)


@pytest.mark.slow
def test_kills_at_both_ends(tmp_path):
    """While the ranks are starting, and again while they score what they have trained."""
    trace = tmp_path / "out" / "trace.jsonl"
    with Torchrun("-m", "mast.cluster", settings(tmp_path, 60), restarts=3) as run:
        until(lambda: len(run.children()) == 4)
        time.sleep(2)
        assert run.signal(3, signal.SIGKILL)
        until(lambda: rows_of(trace) >= 60)
        run.signal(1, signal.SIGKILL)  # unless it has ended by now
        code, printed = run.wait()
    assert code == 0, printed
    checked(tmp_path, 60)


@pytest.mark.slow
def test_a_killed_network_ends_with_the_same_bits(tmp_path):
    """Adam on the server, whole units on the nodes: once in peace, once with two kills."""
    example = Path(__file__).parents[2] / "examples" / "cluster"
    text = (
        (example / "network.toml")
        .read_text()
        .replace("rounds = 300", "rounds = 120\ncheckpoint_seconds = 0.0")
    )
    ends = []
    for name, kills in (("peace", []), ("kills", [(1, 20), (0, 70)])):
        path = tmp_path / name
        path.mkdir()
        (path / "digits.py").write_text((example / "digits.py").read_text())
        (path / "train.toml").write_text(text)
        with Torchrun("-m", "mast.cluster", path / "train.toml", restarts=3) as run:
            for rank, moment in kills:
                trace = path / "out-network" / "trace.jsonl"
                until(lambda trace=trace, moment=moment: rows_of(trace) >= moment)
                assert run.signal(rank, signal.SIGKILL)
            code, printed = run.wait()
        assert code == 0, printed
        ends.append(mast.Result.load(path / "out-network").x)
    assert (ends[0] == ends[1]).all()


@pytest.mark.slow
def test_a_rank_that_hangs_is_noticed(tmp_path):
    """SIGSTOP: the others time out, torchrun ends the silent one and starts all again."""
    trace = tmp_path / "out" / "trace.jsonl"
    with Torchrun("-m", "mast.cluster", settings(tmp_path, 400, timeout=5.0), restarts=2) as run:
        until(lambda: rows_of(trace) >= 20)
        stopped = run.children()[1]
        run.signal(1, signal.SIGSTOP)
        code, printed = run.wait()
    assert code == 0, printed
    assert "lost another rank" in printed
    assert "timeout of 5 s" in printed
    assert not Path(f"/proc/{stopped}").exists()
    checked(tmp_path, 400)


@pytest.mark.slow
def test_without_restarts_a_lost_rank_ends_the_run(tmp_path):
    """Nobody is left waiting; the next run continues from the checkpoint. Here the server has no nodes."""
    path = settings(tmp_path, 300)
    path.write_text(path.read_text().replace("[nodes]", "[nodes]\non_server = false"))
    with Torchrun("-m", "mast.cluster", path, ranks=2) as run:
        until(lambda: rows_of(tmp_path / "out" / "trace.jsonl") >= 20)
        run.signal(1, signal.SIGKILL)
        code, _ = run.wait()
        assert code != 0
    from mast.cluster import run as continue_here

    continue_here(path)  # one rank has all nodes: the order of sums is the same
    checked(tmp_path, 300)


@pytest.mark.slow
def test_more_ranks_than_nodes(tmp_path):
    with Torchrun("-m", "mast.cluster", settings(tmp_path, 30), ranks=7) as run:
        code, printed = run.wait()
    assert code == 0, printed
    checked(tmp_path, 30)


def test_a_wrong_config_is_refused_on_rank_0_and_no_rank_hangs(tmp_path):
    path, said = settings(tmp_path, 40), "unknown key 'l3' in [model]"
    path.write_text(path.read_text().replace("l2 = 0.01", "l3 = 0.01"))
    with Torchrun("-m", "mast.cluster", path, ranks=2, restarts=1) as run:
        code, printed = run.wait()
    assert code != 0
    assert "exitcode  : 2" in printed
    assert printed.count(said) == 1  # also where torchrun tries again
    assert "mast.cluster: " in printed
    assert not (tmp_path / "out").exists()


def test_a_fault_that_only_another_rank_can_see(tmp_path):
    """The second node's own file is damaged: rank 0 says so, and all end."""
    good = tmp_path / "good.txt"
    good.write_text("+1 1:1 3:2\n-1 2:1\n" * 4)
    (tmp_path / "bad.txt").write_text("+1 1:1 3:nan\n-1 2:1\n")
    path = settings(tmp_path, 5)
    text = path.read_text().replace('file = "a1a"\nsplit = "interleaved"', 'files = ["good.txt", "bad.txt"]')
    text = text.replace(json.dumps(CAPACITIES), '["identity", "identity"]').replace(json.dumps(SHARES), "1.0")
    path.write_text(text.replace('shift = "v.npy"\n', ""))
    code, printed = forked("forked.py", 2, path)
    assert code == 2
    assert "mast.cluster: rank 1: " in printed
    assert "bad.txt" in printed


PROGRAM = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))

def data(node, nodes):
    width = 4 + node
    return torch.ones(8, width), torch.arange(8) % 2
"""


def test_a_rank_with_another_loss_is_refused(tmp_path):
    program = (
        PROGRAM.replace("4 + node", "4")
        + """
import os

if os.environ["RANK"] == "0":
    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])
else:
    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), 1 - batch[1])
"""
    )
    (tmp_path / "net.py").write_text(program)
    path = tmp_path / "train.toml"
    path.write_text(
        """
[run]
rounds = 3
[server]
step_size = 0.1
[nodes]
capacity = "neurons:.5"
[model]
kind = "network"
factory = "net.py:model"
loss = "net.py:loss"
[data]
factory = "net.py:data"
"""
    )
    code, printed = forked("forked.py", 2, path)
    assert code == 2
    assert "rank 1 differs from rank 0 in its loss (net.py:loss, source" in printed


def test_a_node_that_fails_in_a_round_is_named_once(tmp_path):
    """Its rows do not fit the model: neither rank takes that for a lost one."""
    (tmp_path / "net.py").write_text(PROGRAM)
    path = tmp_path / "train.toml"
    path.write_text(
        """
[run]
rounds = 3
[server]
step_size = 0.1
[nodes]
capacities = ["identity", "neurons:.5"]
[model]
kind = "network"
factory = "net.py:model"
[data]
factory = "net.py:data"
"""
    )
    code, printed = forked("forked.py", 2, path)
    assert code == 2
    said = [line for line in printed.splitlines() if line.startswith("mast.cluster: ")]
    assert len(said) == 1, printed
    assert said[0].startswith("mast.cluster: rank 1: node 1 failed in round 0: RuntimeError: mat1 and mat2")
    assert "lost another rank" not in printed


@pytest.mark.slow
def test_torchrun_itself_is_killed_and_started_again(tmp_path):
    """Its ranks end by themselves, and the next torchrun goes on where they were."""
    path, trace = settings(tmp_path, 300), tmp_path / "out" / "trace.jsonl"
    with Torchrun("-m", "mast.cluster", path) as run:
        until(lambda: rows_of(trace) >= 20)
        ranks = list(run.children().values())
        run.process.kill()
        run.process.wait(timeout=30)
        with Torchrun("-m", "mast.cluster", path) as second:
            code, printed = second.wait()
    assert code == 0, printed
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)
    checked(tmp_path, 300)
