"""The example on Flower's simulation engine, as a user starts it."""

import os
import signal
import subprocess
import sys
import uuid

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `federated` is not installed")
pytest.importorskip("ray", reason="Flower's simulation engine needs Ray")

import mast
from federated.engines import EXAMPLE, MARK, expected, federation, rounds_done, settled
from mast import files


def test_two_simulations_are_one_run_to_the_last_bit(tmp_path):
    """The second goes on where the first ended; the bits are those of one process."""
    checkpoint = tmp_path / "checkpoint.mast"
    with federation(4, simulation=True) as made:
        for rounds in (2, 5):
            run = made.submit(f'rounds={rounds} draws=3 out="{tmp_path}"')
            status = made.wait(run, timeout=900)
            assert status["status"] == "finished:completed", made.log(run)
            assert rounds_done(checkpoint) == rounds
    _, arrays = files.load(checkpoint)
    np.testing.assert_array_equal(arrays["x"], expected({}, 5))
    with np.load(tmp_path / "model.npz") as model:
        np.testing.assert_array_equal(model["x"], arrays["x"])
    result = mast.Result.load(tmp_path)
    assert result.trace["nodes"].tolist() == [4] * 5
    assert result.trace["step"].tolist() == [1, 2, 3, 4, 5]
    assert all(row["draws"] == 3 and 0.5 < row["accuracy"] < 0.95 for row in result.nodes)
    for row, kept in zip(result.nodes, (0.9, 0.5, 0.5, 0.25), strict=True):
        assert row["down"] <= 1.02 * 8 * 123 * kept + 1000
        assert row["up"] == row["down"]


def test_ctrl_c_leaves_nothing_running():
    """Interrupted in the middle of a run, which waits for nothing less than an hour."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [
            sys.executable,
            str(EXAMPLE / "run.py"),
            "deployment",
            "--nodes",
            "1",
            "--run-config",
            "rounds=100000",
        ],
        env=os.environ | {MARK: mark, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        process.stdout.readline()  # all of it is started
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130
    assert not settled(mark)
