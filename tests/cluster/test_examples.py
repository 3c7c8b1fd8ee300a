"""The examples, shorter than they are, and the network under torchrun beside the one in one process."""

import copy
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import mast
from mast import Result
from mast.cluster import run

FOLDER = Path(__file__).parents[2] / "examples" / "cluster"
FILES = sorted(path.name for path in FOLDER.glob("*.toml"))


def shortened(name, out, rounds):
    content = tomllib.loads((FOLDER / name).read_text())
    content["run"] |= {"rounds": rounds, "out": str(out), "progress": False, "draws": 2}
    return content


@pytest.mark.parametrize("name", FILES)
def test_examples_run(name, tmp_path):
    result = run(shortened(name, tmp_path / "out", 25), folder=FOLDER)
    assert result.status == "finished"
    assert len(result.nodes) == 4
    assert result.score > 0.5
    assert result.table().count("\n") == 5
    assert (result.trace["down"] > 0).all()


def test_the_linear_example_beats_the_largest_class(tmp_path):
    """By more than three standard errors after half of its rounds, as its README says."""
    result = run(shortened("linear.toml", tmp_path / "out", 1000), folder=FOLDER)
    _, b = mast.data.load("a1a")
    largest = max(np.mean(b > 0), np.mean(b < 0))
    assert result.score > largest + 3 * (largest * (1 - largest) / len(b)) ** 0.5


def test_there_is_a_linear_model_and_a_network():
    kinds = {tomllib.loads((FOLDER / name).read_text())["model"]["kind"] for name in FILES}
    assert kinds == {"logistic", "network"}


@pytest.mark.skipif(sys.platform == "win32", reason="torchrun's local processes")
def test_two_processes_and_one_agree_on_a_network(tmp_path):
    """From Python, without torchrun: float32, the same draws and batches."""
    content = shortened("network.toml", tmp_path / "two", 6)
    two = run(copy.deepcopy(content), ranks=2, folder=FOLDER)
    assert isinstance(two, Result)
    content["run"]["out"] = str(tmp_path / "one")
    one = run(content, folder=FOLDER)
    # Six rounds with numbers of order one, each with float32 sums of about a hundred terms in another order.
    np.testing.assert_allclose(two.x, one.x, rtol=0, atol=6 * 100 * 2**-24)
    assert [row["capacity"] for row in two.nodes] == [row["capacity"] for row in one.nodes]
    assert [row["down"] for row in two.nodes] == [row["down"] for row in one.nodes]
