"""The example on Flower's simulation engine, as a user starts it."""

import os
import signal
import subprocess
import sys
import tomllib
import uuid

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `federated` is not installed")
pytest.importorskip("ray", reason="Flower's simulation engine needs Ray")

import mast
from federated.engines import DEFAULTS, EXAMPLE, MARK, example, expected, federation, rounds_done, settled
from mast.distributed import run_in_process
from mast.federated import server_for
from mast.support import files


def complete(made, words):
    """A run from its start to its end; again if Ray took more than its own 30 seconds to start."""
    for _ in range(3):
        run = made.submit(words)
        status = made.wait(run, timeout=900)["status"]
        if "timed out during startup" not in made.log(run):
            break
    assert status == "finished:completed", made.log(run)


def test_two_simulations_are_one_run_to_the_last_bit(tmp_path):
    """The second goes on where the first ended; the bits are those of one process."""
    checkpoint = tmp_path / "checkpoint.mast"
    with federation(4, simulation=True) as made:
        for rounds in (2, 5):
            words = 'strategy="mast" step-size=0.05 local-steps=1'
            complete(made, f'{words} rounds={rounds} draws=3 out="{tmp_path}"')
            assert rounds_done(checkpoint) == rounds
        words = 'strategy="mast" aggregation="mean" local-steps=2 rounds=3 draws=0'
        complete(made, f'{words} out="{tmp_path / "mean"}"')
    _, arrays = files.load(tmp_path / "mean" / "checkpoint.mast")
    by_hand = expected({}, 3, 0.5, local_steps=2, aggregation="mean")
    np.testing.assert_array_equal(arrays["x"], by_hand)
    _, arrays = files.load(checkpoint)
    np.testing.assert_array_equal(arrays["x"], expected({}, 5, 0.05))
    with np.load(tmp_path / "model.npz") as model:
        np.testing.assert_array_equal(model["x"], arrays["x"])
    result = mast.Result.load(tmp_path)
    assert result.trace["nodes"].tolist() == [4] * 5
    assert result.trace["step"].tolist() == [1, 2, 3, 4, 5]
    assert all(row["draws"] == 3 and 0.5 < row["accuracy"] < 0.95 for row in result.nodes)
    for row, kept in zip(result.nodes, (0.9, 0.5, 0.5, 0.25), strict=True):
        assert row["down"] <= 1.02 * 8 * 123 * kept + 1000
        assert row["up"] == row["down"]


def test_published_schemes_in_simulation_have_the_bits_of_one_process(tmp_path):
    """HeteroFL and FjORD: networks of four sizes, in Ray's processes and in this one."""
    with federation(4, simulation=True) as made:
        for scheme in ("heterofl", "fjord"):
            words = f'task="network" strategy="mast" scheme="{scheme}" hidden="16 8" step-size=0.1'
            complete(made, f'{words} rounds=2 local-steps=3 draws=0 out="{tmp_path / scheme}"')
    for scheme in ("heterofl", "fjord"):
        config = DEFAULTS | {"task": "network", "scheme": scheme, "hidden": "16 8"}
        task = example("mast_federation.tasks").task_of(config)
        server = server_for(
            task.model(), [1, 0.75, 0.5, 0.25], scheme=scheme, step_size=0.1, local_steps=3, run=task.run
        )
        run_in_process(server, [task.client(node).worker for node in range(4)], rounds=2)
        _, arrays = files.load(tmp_path / scheme / "checkpoint.mast")
        np.testing.assert_array_equal(arrays["x"], server.x)
        assert (server.x != task.start()).mean() > 0.5  # some pixels are black in every image


def test_the_example_beats_the_largest_class():
    """By more than three standard errors, as it is set up; and it is no worse than FedAvg by three."""
    settings = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    task = example("mast_federation.tasks").task_of(settings)
    rounds, steps = settings["rounds"], settings["local-steps"]
    everything = " ".join(["identity"] * 4)
    ours, fedavg = (
        task.score(expected({"capacities": c}, rounds, task.default_step_size, local_steps=steps))
        for c in ("", everything)
    )
    error = (ours[1] * (1 - ours[1]) / len(mast.data.load("a1a")[1])) ** 0.5
    assert ours[0] > ours[1] + 3 * error
    assert ours[0] > fedavg[0] - 3 * error


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
