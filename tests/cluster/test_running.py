"""Runs in one process: checkpoints and what they refuse by name, theory, traces, arguments."""

import sys
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import mast  # noqa: E402
from cluster import script  # noqa: E402
from mast.cluster import NetworkWorker, ProblemWorker, my_nodes, run, server_for  # noqa: E402
from mast.distributed import run_in_process  # noqa: E402
from mast.engines.torchrun import wire as wires  # noqa: E402
from mast.errors import (  # noqa: E402
    ArgumentError,
    CheckpointError,
    DataError,
    MastError,
    NoGuaranteeError,
    StepSizeWarning,
)
from mast.nn.nodes import NodeRows, cross_entropy  # noqa: E402


def linear(**options):
    return script.made(script.mine(), **options)


def trace_of(path):
    return path.with_name(f"{path.name}.trace.jsonl")


# ---- checkpoints -------------------------------------------------------------------------------------


def test_a_run_in_two_parts_has_the_same_bits_bytes_and_trace(tmp_path):
    path = tmp_path / "folder" / "run.mast"  # which is made
    whole = run(*linear(), rounds=30)
    first = run(*linear(), rounds=12, checkpoint=path)
    assert first.trace["step"].tolist() == list(range(1, 13))
    second = run(*linear(), rounds=30, checkpoint=str(path))
    again = run(*linear(), rounds=30, checkpoint=path)  # nothing is left to do
    for result in (second, again):
        assert (result.x == whole.x).all()
        assert result.nodes == whole.nodes
        assert result.trace["step"].tolist() == list(range(1, 31))
        assert result.trace["bytes"].tolist() == whole.trace["bytes"].tolist()
    assert not list(path.parent.glob(".*lock*"))
    with pytest.raises(ArgumentError, match="is at round 30 already, beyond rounds = 20"):
        run(*linear(), rounds=20, checkpoint=path)
    trace_of(path).unlink()
    assert run(*linear(), rounds=33, checkpoint=path).trace["step"].tolist() == [31, 32, 33]


def test_rows_of_the_trace_say_what_a_round_cost():
    result = run(*linear(), rounds=40)
    trace, parts = result.trace, result.trace[["broadcast", "compute", "gather", "update"]]
    assert (parts.sum(axis=1) >= 0.999 * trace["took"]).all()
    assert (parts >= 0).all().all()
    assert trace["seconds"].iloc[-1] == pytest.approx(trace["took"].sum())
    assert trace["bytes"].iloc[-1] == trace["down"].sum() + trace["up"].sum()
    # what travels against what the participation and the sketches say
    server, _ = linear()
    for t in range(40):
        taking_part = server.participation.sample(t)
        values = sum(server.capacities[i].part(server.participation.key(t, i)).count for i in taking_part)
        assert trace["down"][t] == trace["up"][t] == 8 * values + 64 * len(taking_part)
        assert trace["nodes"][t] == len(taking_part)
    assert [row["answers"] for row in result.nodes][1] == 40
    assert "permk" in result.table().lower()


@pytest.mark.parametrize(
    ("said", "change"),
    [
        ("its seed is 5, here it is 6", {"seed": 6}),
        ("its step_size is", {"step_size": 0.04}),
        ("its participation is", {"participation": 1.0}),
        ("its optimizer is", {"optimizer": "adam"}),
        ("its local_steps is", {"local_steps": 2}),
    ],
)
def test_a_checkpoint_of_other_options_is_refused_by_name(tmp_path, said, change):
    run(*linear(), rounds=3, checkpoint=tmp_path / "c")
    with pytest.raises(CheckpointError, match=said):
        run(*linear(**change), rounds=6, checkpoint=tmp_path / "c")


def test_a_checkpoint_of_other_data_is_refused_by_the_name_of_the_node(tmp_path):
    run(*linear(), rounds=3, checkpoint=tmp_path / "c")
    server, workers = linear()
    workers[2] = ProblemWorker(script.problem(2, l2=0.02))
    with pytest.raises(CheckpointError, match="its objective and data of node 2 is"):
        run(server, workers, 6, checkpoint=tmp_path / "c")


INPUTS, TARGETS = torch.arange(48.0).reshape(12, 4) / 48, torch.arange(12) % 2


def other_loss(model, batch):
    return 2 * cross_entropy(model, batch)


def network(loss=cross_entropy, targets=TARGETS, batch_size=5, activation=nn.ReLU, frozen=0.0):
    model = nn.Sequential(nn.Linear(4, 6), activation(), nn.Linear(6, 2), nn.Linear(2, 2))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.arange(p.numel()).view_as(p) / p.numel() - 0.5)
        model[3].bias.requires_grad_(False).fill_(frozen)
    server = server_for(model, ["neurons:.5", "identity"], step_size=0.1)
    both = (TARGETS, targets)
    return server, {
        node: NetworkWorker(server.capacities[node], model, loss, NodeRows(INPUTS, rows, batch_size))
        for node, rows in enumerate(both)
    }


@pytest.mark.parametrize(
    ("said", "change"),
    [
        ("its data of node 1 is", {"targets": 1 - TARGETS}),
        ("its data of node 0 is", {"batch_size": 4}),
        ("its loss is .*, here it is .*other_loss", {"loss": other_loss}),
        ("its module 1 is .*ReLU.*, here it is .*Tanh", {"activation": nn.Tanh}),
        ("its frozen parameters and buffers is", {"frozen": 1.0}),
    ],
)
def test_a_checkpoint_of_another_network_is_refused_by_name(tmp_path, said, change):
    run(*network(), rounds=2, checkpoint=tmp_path / "c")
    assert run(*network(), rounds=3, checkpoint=tmp_path / "c").steps == 3  # the same, made again
    with pytest.raises(CheckpointError, match=said):
        run(*network(**change), rounds=4, checkpoint=tmp_path / "c")


def test_one_run_at_a_time_on_a_checkpoint(tmp_path):
    """Another one is told so; afterwards it may."""
    path, (server, workers) = tmp_path / "c", linear()

    class Second(ProblemWorker):
        def gradients(self, part, values, header):
            with pytest.raises(MastError, match="in use by"):
                run(*linear(), rounds=2, checkpoint=path)
            return super().gradients(part, values, header)

    workers[3] = Second(workers[3].problem)
    run(server, workers, 1, checkpoint=path)


def test_a_truncated_checkpoint_is_called_that(tmp_path):
    path = tmp_path / "c"
    run(*linear(), rounds=0, checkpoint=path)  # written once
    content = path.read_bytes()
    for size in (3, 200, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(DataError, match="truncated"):
            run(*linear(), rounds=5, checkpoint=path)


# ---- networks, theory ------------------------------------------------------------------------------


def test_a_network_in_a_loop_without_a_cluster_has_the_same_bits():
    result = run(*network(), rounds=5)
    server, workers = network()
    run_in_process(server, [workers[0], workers[1]], 5)
    assert (result.x == server.x).all()
    assert result.guarantee is None
    assert "mast.nn.advise" in result.note
    assert result.x.dtype == np.float32


def test_a_step_size_above_the_limit_is_warned_of():
    limit = linear(step_size="theory")[0].step_size
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        server, _ = linear(step_size=limit)
    assert server.note == server.guarantee.statement
    with pytest.warns(StepSizeWarning, match="is 2 times the limit"):
        server, workers = linear(step_size=2 * limit)
    result = run(server, workers, 2)
    assert result.note.startswith(
        f"no guarantee: step size {2 * limit:.4g} is 2 times the limit {limit:.4g} of "
    )


def test_a_limit_that_depends_on_the_length_of_the_run():
    A, b = mast.data.load("a1a")
    nodes = [
        mast.Problem(mast.NonconvexLogistic(A[i::2], b[i::2], weight=0.1), mast.RandK(60)) for i in (0, 1)
    ]
    with pytest.raises(ArgumentError, match="depends on the length of the run"):
        server_for(nodes, step_size="theory")
    sizes = [server_for(nodes, step_size="theory", rounds=rounds).step_size for rounds in (10, 1000)]
    assert sizes[0] > sizes[1] > 0
    assert "depends on the length" in server_for(nodes, step_size=0.01).note


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"optimizer": "adam"}, "no statement about the optimizer"),
        ({"aggregation": "mean"}, "no statement about the aggregation"),
        ({"local_steps": 2}, "no statement about several local steps"),
        ({"local_step_size": 0.5}, "no statement about local steps of another size"),
        ({"cosine": 100}, "no statement about step sizes that fall"),
    ],
)
def test_theory_says_what_it_does_not_cover(options, said):
    with pytest.raises(NoGuaranteeError, match=said):
        linear(step_size="theory", **options)
    server, _ = linear(**options)  # with a number, it is a note
    assert said in server.note
    assert server.guarantee is None


# ---- arguments -------------------------------------------------------------------------------------


def test_arguments():
    server, workers = linear()
    for call, said in (
        (lambda: run(server, workers, -1), "rounds"),
        (lambda: run(server, workers, 1, timeout=0), "timeout"),
        (lambda: run(server, workers, 1, checkpoint=3), "checkpoint must be a path"),
        (lambda: run(server, {0: script.problem(0)}, 1), "one Worker for each node"),
        (lambda: run(server, workers | {9: workers[0]}, 1), "a node in workers"),
        (lambda: run(server, {}, 1), "node 0 has no worker"),
        (lambda: linear(step_size="fast"), 'positive number or "theory"'),
        (lambda: linear(step_size=-1.0), "step_size must be a positive"),
        (lambda: server_for(nn.Linear(2, 2), step_size=0.1), "a network takes capacities"),
        (lambda: server_for(nn.Linear(2, 2), ["identity"], step_size="theory"), "smoothness .* not known"),
        (lambda: server_for([], step_size=0.1), "at least one node"),
        (lambda: server_for([0.5], step_size=0.1), "node 0 is a mast.Problem where"),
        (lambda: server_for([mast.Identity()], step_size=0.1), "no rank has the problem of node 0"),
    ):
        with pytest.raises((ArgumentError, DataError), match=said):
            call()


def test_nodes_are_dealt_in_even_runs(monkeypatch):
    assert my_nodes(5) == [0, 1, 2, 3, 4]
    monkeypatch.setenv("WORLD_SIZE", "3")
    dealt = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        dealt.append(my_nodes(5))
    assert dealt == [[0, 1], [2, 3], [4]]


def test_restarts_between_machines_need_a_store_of_their_own(monkeypatch):
    variables = {"RANK": "0", "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_MAX_RESTARTS": "3"}
    for name, value in (variables | {"TORCHELASTIC_USE_AGENT_STORE": "True"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ArgumentError, match="set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on every machine"):
        wires.Wire(1.0)


def test_only_contiguous_bytes_travel():
    with pytest.raises(ArgumentError, match="gloo corrupts others silently"):
        wires._tensor(np.zeros(8, np.uint8)[::2])


@pytest.mark.skipif(sys.platform == "win32", reason="limits of processes")
def test_a_full_disk_under_the_trace_is_one_line(tmp_path):
    """The trace may not grow beyond some bytes, as on a full disk; the checkpoint is smaller."""
    import resource
    import signal

    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(DataError, match=r"trace\.jsonl cannot be written: File too large"):
            run(*linear(), rounds=100_000, checkpoint=tmp_path / "c")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
