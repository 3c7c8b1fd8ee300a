"""What train.toml may say: every fault is one clear error, before anything starts."""

import copy
import json
import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("torch")

from mast import Result
from mast.cluster import run
from mast.cluster.__main__ import main
from mast.cluster.settings import read, settings_of
from mast.errors import ArgumentError, CheckpointError, DataError, MastError

GOOD = {
    "run": {"rounds": 5, "progress": False, "draws": 2},
    "server": {"step_size": 0.05},
    "nodes": {"count": 3, "capacity": "bernoulli:.5"},
    "model": {"kind": "logistic", "l2": 0.1},
    "data": {"file": "a1a"},
}
NETWORK = {
    "run": {"rounds": 3, "progress": False, "draws": 2},
    "server": {"step_size": 0.05},
    "nodes": {"capacities": ["neurons:.5", "bernoulli:.9"], "local_steps": 2},
    "model": {"kind": "network", "factory": "net.py:model"},
    "data": {"factory": "net.py:data", "batch_size": 4},
}
PROGRAM = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))

def data(node, nodes):
    x = torch.arange(80.0).view(20, 4)[node::nodes] / 80
    return x, (x.sum(1) > 2).long()

def wrong(node, nodes):
    return None

def infinite(node, nodes):
    x, y = data(node, nodes)
    return x / 0, y

def fails(node, nodes):
    raise KeyError("no such shard")

def wide(node, nodes):
    x, y = data(node, nodes)
    return x.repeat(1, 1 + node), y

def no_numbers():
    return infinite(0, 2)

def no_loss(model, batch):
    return model(batch[0]) + None

def no_score(model):
    return 1 / 0

def score(model):
    return float(sum(p.numel() for p in model.parameters()))

not_a_function = 3
"""


def changed(content, section, **values):
    content = copy.deepcopy(content)
    content.setdefault(section, {})
    content[section].update(values)
    content[section] = {name: value for name, value in content[section].items() if value is not None}
    return content


@pytest.mark.parametrize(
    ("section", "values", "said"),
    [
        ("rum", {"rounds": 5}, r"unknown section \[rum\]; there are run, server"),
        ("run", {"round": 5}, r"unknown key 'round' in \[run\]; it has rounds"),
        ("run", {"rounds": None}, r"rounds is missing in \[run\]: it must be a whole number"),
        ("run", {"rounds": "5"}, r"rounds in \[run\] must be a whole number, got '5'"),
        ("run", {"rounds": True}, "rounds"),
        ("run", {"rounds": -1}, r"rounds in \[run\] must be at least 0"),
        ("run", {"seed": -1}, "seed"),
        ("run", {"timeout": 0}, "timeout"),
        ("run", {"out": "no/such/folder"}, "does not exist"),
        ("run", {"out": "a-file"}, "is not a folder"),
        ("run", {"threads": 0}, "threads"),
        ("run", {"checkpoint_seconds": float("nan")}, "checkpoint_seconds"),
        ("server", {"step_size": "quick"}, 'positive number or "theory"'),
        ("server", {"step_size": 0.0}, "positive"),
        ("server", {"step_size": [0.1]}, "must be a number or text"),
        ("server", {"optimizer": "adagrad"}, "examples are sgd"),
        ("server", {"optimizer": "adam", "step_size": "theory"}, "no statement about the optimizer"),
        ("server", {"wire": "float16"}, "wire"),
        ("server", {"regime": "concave"}, "regime"),
        ("nodes", {"capacity": None}, r"\[nodes\] needs capacity"),
        ("nodes", {"capacities": ["identity"] * 3}, "capacity"),
        ("nodes", {"capacity": None, "capacities": ["identity"]}, "1 capacities for 3 nodes"),
        ("nodes", {"capacity": "bernoulli:1.5"}, r"capacity in \[nodes\]: keep is a probability"),
        ("nodes", {"capacity": "bernouli:.5"}, "unknown sketch"),
        ("nodes", {"capacity": "neurons:.5"}, "whole units of a network"),
        ("nodes", {"count": 0}, "count"),
        ("nodes", {"participation": [0.5, 0.5]}, "one for each of the 3 nodes"),
        ("nodes", {"participants": 4}, "participants"),
        ("nodes", {"coupling": "loose"}, "one of independent, disjoint"),
        ("nodes", {"local_steps": 0}, "local_steps"),
        ("model", {"kind": "svm"}, "one of logistic, least_squares"),
        ("model", {"kappa": 10.0}, "not both"),
        ("model", {"weight": 0.1}, "nonconvex_logistic takes a weight"),
        ("model", {"factory": "net.py:model"}, "no meaning for a linear model"),
        ("model", {"shift": "v.npy"}, "there is no file"),
        ("data", {"file": None}, r"\[data\] needs file"),
        ("data", {"file": "b1b.txt"}, "there is no file"),
        ("data", {"file": None, "files": ["a1a"]}, "1 files for 3 nodes"),
        ("data", {"split": "random"}, "one of contiguous, interleaved"),
        ("data", {"labels": "signs"}, "labels"),
        ("data", {"labels": [0.0]}, "a pair"),
        ("data", {"test": "absent.txt"}, "test in"),
    ],
)
def test_faults(tmp_path, section, values, said):
    (tmp_path / "a-file").write_text("")
    with pytest.raises(ArgumentError, match=said):
        settings_of(changed(GOOD, section, **values), tmp_path, 3)


@pytest.mark.parametrize(
    ("section", "values", "said"),
    [
        ("model", {"factory": None}, "it is missing"),
        ("model", {"factory": "net.py"}, "must be a function such as"),
        ("model", {"factory": "other.py:model"}, "there is no file"),
        ("model", {"l2": 0.1}, "no meaning for a network"),
        ("model", {"loss": "hinge"}, "loss in"),
        ("server", {"step_size": "theory"}, "networks have no known smoothness"),
        ("data", {"file": "a1a"}, "no meaning for a network"),
        ("data", {"batch_size": 0}, "batch_size"),
        ("nodes", {"capacities": ["neurons:.5", "neurons"]}, r"capacities\[1\] in \[nodes\]"),
        ("nodes", {"capacities": ["identity", "identity", "neurons"]}, r"capacities\[2\] in \[nodes\]"),
    ],
)
def test_faults_of_networks(tmp_path, section, values, said):
    (tmp_path / "net.py").write_text(PROGRAM)
    with pytest.raises(ArgumentError, match=said):
        settings_of(changed(NETWORK, section, **values), tmp_path, 2)


@pytest.mark.parametrize(
    ("section", "values", "said"),
    [
        ("model", {"factory": "net.py:missing"}, "no function 'missing'"),
        ("model", {"factory": "net.py:not_a_function"}, "no function"),
        ("model", {"factory": "nothing.like.this:model"}, "cannot be imported"),
        ("model", {"factory": "net.py:dict"}, "no function 'dict'"),
        ("data", {"factory": "net.py:wrong"}, "pair of tensors"),
        ("data", {"factory": "net.py:infinite"}, "inputs of node 0 hold NaN or infinity"),
        ("data", {"factory": "net.py:fails"}, r"KeyError: 'no such shard' \(net.py, line"),
        ("data", {"factory": "net.py:wide"}, r"node 1 failed in round 0: RuntimeError: mat1 and mat2 shapes"),
        ("data", {"test": "net.py:no_numbers"}, "the inputs of the test hold NaN"),
        ("model", {"loss": "net.py:no_loss"}, r"node 0 failed in round 0: TypeError: .*\(net.py, line"),
        ("model", {"score": "net.py:no_score"}, r"the scores: ZeroDivisionError: .*\(net.py, line"),
        ("model", {"shift": "start"}, "take no shift"),
    ],
)
def test_what_the_users_functions_do_wrong(tmp_path, section, values, said):
    (tmp_path / "net.py").write_text(PROGRAM)
    with pytest.raises(MastError, match=said):
        run(changed(NETWORK, section, **values), folder=tmp_path)


def test_a_network_in_one_process(tmp_path):
    (tmp_path / "net.py").write_text(PROGRAM)
    result = run(NETWORK, folder=tmp_path)
    assert result.status == "finished"
    assert [row["capacity"] for row in result.nodes] == ["neurons:.5", "bernoulli:.9"]
    assert 0 <= result.score <= 1
    from safetensors.numpy import load_file

    state = load_file(tmp_path / "out" / "model.safetensors")
    assert state["0.weight"].reshape(-1).tolist() == result.x[:24].tolist()
    other = changed(changed(NETWORK, "model", score="net.py:score"), "run", out="scored")
    scored = run(other, folder=tmp_path)
    assert scored.nodes[0]["score"] == 4 * 3 + 3 + 6 + 3 * 2 + 2  # the parameters of half of the units
    assert scored.score == 4 * 6 + 6 + 12 + 6 * 2 + 2


@pytest.mark.parametrize(
    ("section", "values", "old", "new", "named"),
    [
        (
            "model",
            {},
            "nn.ReLU()",
            "nn.Tanh()",
            r"its module 2 is torch\S+ReLU\(.*, here it is torch\S+Tanh\(",
        ),
        (
            "model",
            {"loss": "net.py:loss"},
            "reduction='sum'",
            "reduction='mean'",
            "its loss is net.py:loss, source",
        ),
        (
            "model",
            {"score": "net.py:score"},
            "numel() for",
            "numel() + 1 for",
            "its score is net.py:score, source",
        ),
        ("data", {}, "x.sum(1) > 2", "x.sum(1) > 1", "its data factory is net.py:data"),
        ("model", {"loss": "net.py:loss"}, "WEIGHT = 1.0", "WEIGHT = 2.0", "its file net.py is"),
        ("model", {"factory": "net.py:own_model"}, "WEIGHT = 1.0", "WEIGHT = 2.0", "its file net.py is"),
        (
            "model",
            {"factory": "net.py:own_model"},
            "WEIGHT * self",
            "WEIGHT + self",
            r"its module \(the model\) is OwnModel\(.* source",
        ),
    ],
)
def test_a_run_of_another_network_is_not_continued(tmp_path, section, values, old, new, named):
    """The shapes are the same: modules, functions, constants and rows tell the two apart."""
    program = (
        PROGRAM
        + """
WEIGHT = 1.0

def loss(model, batch):
    return WEIGHT * nn.functional.cross_entropy(model(batch[0]), batch[1], reduction='sum')

class OwnModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = model()

    def forward(self, x):
        return WEIGHT * self.layers(x)

def own_model():
    return OwnModel()
"""
    )
    assert old in program
    (tmp_path / "net.py").write_text(program)
    content = changed(NETWORK, section, **values)
    run(content, folder=tmp_path)
    (tmp_path / "net.py").write_text(program + "\n# a comment\n")
    run(content, folder=tmp_path)
    (tmp_path / "net.py").write_text(program.replace(old, new))
    with pytest.raises((DataError, CheckpointError), match=named):
        run(content, folder=tmp_path)


def test_a_run_of_another_version_is_not_continued(tmp_path, monkeypatch):
    run(GOOD, folder=tmp_path)
    monkeypatch.setattr("mast.methods.distributed.server.__version__", "0.0.1")
    with pytest.raises((DataError, CheckpointError), match=r"its version of MAST is .*, here it is 0\.0\.1"):
        run(GOOD, folder=tmp_path)


def test_files_and_their_faults(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path / "absent.toml")
    (tmp_path / "broken.toml").write_text("[run\nrounds = 5")
    with pytest.raises(DataError, match="is not TOML"):
        read(tmp_path / "broken.toml")
    np.save(tmp_path / "v.npy", np.zeros(7))
    with pytest.raises(MastError, match="shift must have 123 entries"):
        run(changed(GOOD, "model", shift="v.npy"), folder=tmp_path)
    (tmp_path / "w.npy").write_bytes(b"nothing")
    with pytest.raises(MastError, match=r"not a .npy file"):
        run(changed(GOOD, "model", shift="w.npy"), folder=tmp_path)
    (tmp_path / "two.txt").write_text("+1 1:1\n-1 2:1\n")
    with pytest.raises(MastError, match="too few for 3 nodes"):
        run(changed(GOOD, "data", file="two.txt"), folder=tmp_path)


def test_a_label_means_the_same_class_in_all_files(tmp_path):
    """Where 1 and 2 are the classes, a node that has 1 only must not take it for +1."""
    (tmp_path / "both.txt").write_text("1 1:1\n2 2:1\n" * 4)
    (tmp_path / "one.txt").write_text("1 1:1\n1 2:1\n" * 4)
    content = changed(changed(GOOD, "nodes", count=2), "data", file=None, files=["both.txt", "one.txt"])
    with pytest.raises(DataError, match=r"the label 1 is the class -1 in both.txt.* but \+1 in one.txt"):
        run(content, folder=tmp_path)
    assert run(changed(content, "data", labels=[1.0, 2.0]), folder=tmp_path).status == "finished"


def test_labels_that_are_all_alike_have_a_score(tmp_path):
    """R² has no spread to compare with there: 0, and the run ends as any other."""
    (tmp_path / "alike.txt").write_text("3 1:1\n3 2:1\n" * 4)
    content = changed(changed(GOOD, "model", kind="least_squares"), "data", file="alike.txt")
    result = run(content, folder=tmp_path)
    assert result.score == 0
    assert [row["R²"] for row in result.nodes] == [0, 0, 0]


def test_scores_that_json_does_not_have(tmp_path):
    row = {"node": 0, "score": float("-inf"), "score lowest": float("-inf"), "score highest": 1.0}
    known = {"status": "finished", "steps": 1, "step_size": 0.1, "note": "", "metric": "score", "rows": []}
    Result(np.zeros(2), **known, guarantee=None, method="m", score=float("inf"), nodes=[row]).save(tmp_path)
    again = Result.load(tmp_path)
    assert again.score != again.score
    assert again.nodes[0]["score"] != again.nodes[0]["score"]
    assert again.nodes[0]["score highest"] == 1


def test_step_sizes_of_theory_and_above(tmp_path, capsys):
    import mast

    theory = run(changed(GOOD, "server", step_size="theory"), folder=tmp_path)
    A, b = mast.data.load("a1a")
    rows = np.array_split(np.arange(len(b)), 3)
    nodes = mast.Nodes([mast.Problem(mast.Logistic(A[r], b[r], l2=0.1), mast.Bernoulli(0.5)) for r in rows])
    inside = mast.minimize(nodes, "distributed", 5, seed=0, trace=5, samples=0)
    assert theory.step_size == inside.step_size
    assert "Theorem 15" in theory.note
    assert (theory.x == inside.x).all()
    above = run(changed(changed(GOOD, "server", step_size=10.0), "run", out="above"), folder=tmp_path)
    assert above.note.startswith("no guarantee: step size 10 is")
    assert "no guarantee" in capsys.readouterr().err
    gaussian = changed(changed(GOOD, "server", step_size="theory"), "nodes", capacity="gaussian:.5")
    with pytest.raises(MastError, match="infinite"):
        run(changed(gaussian, "run", out="gaussian"), folder=tmp_path)
    biased = changed(changed(GOOD, "server", step_size="theory"), "nodes", capacity="unscaled:.5")
    with pytest.raises(MastError, match="biased"):
        run(changed(biased, "run", out="biased"), folder=tmp_path)


def test_more_rounds_continue_and_other_runs_are_refused(tmp_path):
    first = run(GOOD, folder=tmp_path)
    longer = run(changed(GOOD, "run", rounds=12), folder=tmp_path)
    straight = run(changed(GOOD, "run", rounds=12, out="straight"), folder=tmp_path)
    assert (longer.x == straight.x).all()
    assert first.steps == 5
    assert longer.trace["step"].tolist() == list(range(1, 13))
    with pytest.raises(DataError, match="at round 12 already"):
        run(GOOD, folder=tmp_path)
    with pytest.raises((DataError, CheckpointError), match="its seed is 0, here it is 1"):
        run(changed(GOOD, "run", rounds=12, seed=1), folder=tmp_path)
    with pytest.raises((DataError, CheckpointError), match="its data is"):
        run(changed(changed(GOOD, "run", rounds=12), "data", split="interleaved"), folder=tmp_path)


def test_two_runs_do_not_share_a_folder(tmp_path):
    from mast.files import exclusive

    (tmp_path / "out").mkdir()
    with (
        exclusive(tmp_path / "out" / "checkpoint.mast"),
        pytest.raises(DataError, match="in use by another process"),
    ):
        run(GOOD, folder=tmp_path)
    assert run(GOOD, folder=tmp_path).status == "finished"
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {"checkpoint.mast", "trace.jsonl", "result.json", "x.npy"}


def test_a_run_that_diverges_stops(tmp_path):
    content = changed(GOOD, "server", step_size=1e200)
    result = run(changed(changed(content, "run", rounds=50), "model", kind="least_squares"), folder=tmp_path)
    assert result.status == "diverged"
    assert result.steps < 50
    assert len(result.trace) == result.steps
    again = Result.load(result.folder)
    assert again.score != again.score  # NaN, as nothing was scored
    assert again.status == "diverged"


def test_other_models(tmp_path):
    squares = run(changed(changed(GOOD, "model", kind="least_squares"), "run", rounds=300), folder=tmp_path)
    assert squares.metric == "R²"
    assert squares.score > 0
    waves = changed(GOOD, "model", kind="nonconvex_logistic", l2=None, weight=0.01)
    result = run(changed(changed(waves, "server", step_size="theory"), "run", out="waves"), folder=tmp_path)
    assert "non-convex" in result.note
    split = changed(changed(GOOD, "data", split="interleaved", test="a1a"), "run", out="split")
    assert run(split, folder=tmp_path).nodes[0]["draws"] == 2
    adam = changed(changed(GOOD, "server", optimizer="adam", wire="float32"), "run", out="adam")
    assert run(adam, folder=tmp_path).nodes[0]["down"] < run(split, folder=tmp_path).nodes[0]["down"]


def test_the_command(tmp_path, capsys):
    """Exit code 2 and one line for what is wrong; 0 and a table for what is right."""
    lines = [
        line
        for section, values in GOOD.items()
        for line in (f"[{section}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items()))
    ]
    (tmp_path / "good.toml").write_text("\n".join(lines))
    good = subprocess.run(
        [sys.executable, "-m", "mast.cluster", "good.toml"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert good.returncode == 0, good.stderr
    assert "the whole model" in good.stdout
    (tmp_path / "bad.toml").write_text("\n".join(lines).replace("bernoulli:.5", "bernoulli:5"))
    assert main([str(tmp_path / "bad.toml")]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("mast.cluster: capacity in [nodes]: keep is a probability")
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_arguments_of_run(tmp_path):
    with pytest.raises(ArgumentError, match="ranks must be at least 1"):
        run(GOOD, ranks=0, folder=tmp_path)
    with pytest.raises(ArgumentError, match="unknown key"):  # refused before any process starts
        run(changed(GOOD, "run", round=1), ranks=2, folder=tmp_path)
    with pytest.raises(ArgumentError, match="a task cannot be sent to new processes"):
        run(GOOD, ranks=2, folder=tmp_path, task=lambda *a: None)


def test_a_run_leaves_the_threads_as_they_were(tmp_path):
    import torch
    from threadpoolctl import threadpool_info, threadpool_limits

    def threads():
        pools = {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()}
        return {"torch": torch.get_num_threads()} | pools

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with threadpool_limits(2):
            expected = threads()
            run(changed(GOOD, "run", threads=1), folder=tmp_path)
            assert threads() | expected == threads()  # a library may have been loaded in between
    finally:
        torch.set_num_threads(before)


def test_a_file_that_failed_can_be_mended(tmp_path):
    """Half of a module must not stay behind, as if it had been imported."""
    (tmp_path / "net.py").write_text(PROGRAM + "\nraise ImportError('not yet')\n")
    with pytest.raises(DataError, match="not yet"):
        run(NETWORK, folder=tmp_path)
    (tmp_path / "net.py").write_text(PROGRAM)
    assert run(NETWORK, folder=tmp_path).status == "finished"
