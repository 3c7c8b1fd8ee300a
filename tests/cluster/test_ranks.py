"""Several ranks on this machine: bits, what is refused by name, and what the others say when one fails."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
if sys.platform != "linux":
    pytest.skip("ranks are forked", allow_module_level=True)

import mast
from cluster import script
from mast.distributed import run_in_process


@pytest.fixture(scope="module")
def ended():
    """What each rank of each scenario ended with."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("scenarios.py")],
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        timeout=900,
        check=True,
    )
    return json.loads(done.stdout)


def everything():
    """All five problems, in this process."""
    return {node: script.problem(node) for node in range(len(script.SKETCHES))}


def test_three_ranks_one_process_and_minimize_have_the_same_bits(ended):
    server, workers = script.made(everything())
    run_in_process(server, [workers[node] for node in range(5)], 40)
    minimized = mast.minimize(
        mast.Nodes(list(everything().values())),
        "distributed",
        40,
        script.STEP_SIZE,
        seed=script.SEED,
        trace=40,
        samples=0,
        participation=script.SHARES,
    )
    assert (server.x == minimized.x).all()
    for rank, end in enumerate(ended["bits"]):
        shared = {"x": server.x.tolist(), "nodes": 5, "steps": 40}
        assert end["returned"] == shared | {"rows": 0 if rank else 40}


def test_ranks_without_nodes(ended):
    server = mast.cluster.server_for([script.problem(0), script.problem(1)], step_size=0.01)
    run_in_process(server, [mast.cluster.ProblemWorker(script.problem(i)) for i in range(2)], 40)
    assert [end["returned"] for end in ended["more_ranks_than_nodes"]] == [server.x.tolist()] * 4


def test_all_ranks_take_the_step_size_of_theory(ended):
    """That of `mast.minimize`, which has all data at once; no rank has."""
    nodes = mast.Nodes(list(everything().values()))
    result = mast.minimize(
        nodes, "distributed", 3, "theory", regime="strongly_convex", samples=0, participation=script.SHARES
    )
    said = [result.step_size, result.guarantee.statement, True]
    assert [end["returned"] for end in ended["theory"]] == [said] * 2


def test_all_ranks_stop_when_x_diverges(ended):
    (status, steps), other = (end["returned"] for end in ended["divergence"])
    assert [status, steps] == other
    assert status == "diverged"
    assert steps < 10


def test_the_scripts_own_group_is_left_to_it(ended):
    assert [end["returned"] for end in ended["a_group_of_the_scripts_own"]] == [2.0, 2.0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("another_step_size", "rank 1 differs from rank 0 in its step_size (0.060000000000000005, not 0.05)"),
        ("other_rounds", "rank 1 differs from rank 0 in its rounds (6, not 5)"),
        ("a_node_twice", "node 2 has a worker on rank 0 and one on rank 1"),
        ("a_node_without_worker", "node 4 has no worker: every rank gives those of mast.cluster.my_nodes(5)"),
        ("another_sketch", "the worker of node 4 on rank 1 has another sketch than the server"),
        ("another_shift", "node 4 on rank 1 has another shift than node 0 on rank 0"),
        ("another_loss", "rank 1 differs from rank 0 in its loss ("),
        ("another_model", "rank 1 differs from rank 0 in its module 1 (torch.nn.modules.activation.Tanh("),
    ],
)
def test_ranks_that_do_not_fit_together_are_refused_by_name(ended, name, said):
    """On all of them, before the first round."""
    for end in ended[name]:
        assert end["raised"].startswith(f"DataError: {said}"), end


def test_an_error_in_a_node_is_told_by_all_ranks_in_one_line(ended):
    """Neither takes the other for a lost one."""
    here, there = (end["raised"] for end in reversed(ended["rows_that_do_not_fit"]))
    said = "node 1 failed in round 0: RuntimeError: mat1 and mat2 shapes cannot be multiplied"
    assert here.startswith(f"ArgumentError: {said}")
    assert there.startswith(f"DataError: rank 1: {said}")
    ends = [end["raised"] for end in ended["an_error_on_the_servers_rank"]]
    said = "node 0 failed in round 3: ZeroDivisionError: division by zero (scenarios.py, line "
    assert ends[0].startswith(f"ArgumentError: {said}")
    assert all(end.startswith(f"DataError: rank 0: {said}") for end in ends[1:])


def test_a_rank_that_dies_is_named_by_the_others(ended):
    first, dead, last = ended["a_dead_rank"]
    assert dead is None
    assert first["raised"].startswith("LostRankError: rank 0 lost rank 1 in round 3: it died")
    assert last == first
    dead, alive = ended["a_dead_server"]
    assert dead is None
    assert alive["raised"].startswith("LostRankError: rank 1 lost rank 0 ")


def test_a_rank_that_hangs_is_named_by_the_others(ended):
    first, second, hanging = ended["a_rank_that_hangs"]
    said = (
        "LostRankError: rank 0 lost rank 2 in round 3: it died, hangs, or is slower than the timeout of 2 s"
    )
    assert first["raised"].startswith(said)
    assert second == first
    assert "LostRankError" in hanging["raised"]  # it wakes up, and learns that it was given up


def test_payload_as_the_kernel_sees_it(ended):
    """Per round, little more than the values travels each way."""
    rounds = 30
    for end in ended["payload"]:
        wrote, values = end["returned"]
        assert values < wrote <= values + 600 * rounds
