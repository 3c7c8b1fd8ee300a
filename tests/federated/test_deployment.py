"""The example on Flower's deployment engine: SuperLink and SuperNodes on 127.0.0.1, killed and restarted."""

import shutil

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `federated` is not installed")

from federated.engines import expected, federation, rounds_done, wait_for_round
from mast.support import files
from mast.trace import TraceFile

TWO = {"nodes": 2, "capacities": "bernoulli:0.5 permk:4"}
STEP = 0.05
# Times are the most that is waited, for machines that are busy with other things.
WORDS = (
    f'capacities="{TWO["capacities"]}" step-size={STEP} strategy="mast" local-steps=1 draws=0 '
    "gathering=300.0 timeout=300.0"
)


def rows_of(checkpoint):
    return TraceFile(checkpoint.with_name(f"{checkpoint.name}.trace.jsonl")).rows()


@pytest.mark.slow
def test_a_supernode_killed_in_a_round(tmp_path):
    """The federation goes on without it, in the same run; before that it gives the bits of one process.

    Flower misses its heartbeat after a minute, and its round ends then.
    """
    checkpoint = tmp_path / "checkpoint.mast"
    with federation(2, simulation=False) as made:
        run = made.submit(f'{WORDS} rounds=3 out="{tmp_path}"')
        wait_for_round(checkpoint, 1)
        one = files.load(checkpoint)
        made.processes.stop("supernode-1", hard=True)
        status = made.wait(run, timeout=900)
        assert status["status"] == "finished:completed", made.log(run)
    rows = rows_of(checkpoint)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[0]["nodes"] == 2
    assert rows[-1]["nodes"] == 1
    np.testing.assert_array_equal(one[1]["x"], expected(TWO, one[0]["numbers"]["round"], STEP))
    assert all(row["down"] <= 2 * (1.02 * 8 * 123 + 1000) for row in rows)


@pytest.mark.slow
def test_a_server_killed_and_restarted(tmp_path):
    """SuperLink and ServerApp die; a new SuperLink and the same command end with the undisturbed bits."""
    checkpoint = tmp_path / "checkpoint.mast"
    words = f'{WORDS} rounds=4 out="{tmp_path}"'
    with federation(2, simulation=False) as made:
        made.submit(words)
        wait_for_round(checkpoint, 2)
        made.processes.stop("superlink", "superexec", hard=True)
        assert rounds_done(checkpoint) in (2, 3)
        made.start_link()
        run = made.submit(words)
        status = made.wait(run, timeout=900)
        assert status["status"] == "finished:completed", made.log(run)
    _, arrays = files.load(checkpoint)
    assert [row["nodes"] for row in rows_of(checkpoint)] == [2] * 4
    np.testing.assert_array_equal(arrays["x"], expected(TWO, 4, STEP))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_all_of_it_with_tls(tmp_path):
    with federation(2, simulation=False, tls=True) as made:
        run = made.submit(f'{WORDS} rounds=1 out="{tmp_path}"')
        status = made.wait(run, timeout=900)
        assert status["status"] == "finished:completed", made.log(run)
    _, arrays = files.load(tmp_path / "checkpoint.mast")
    np.testing.assert_array_equal(arrays["x"], expected(TWO, 1, STEP))
