"""Real runs under torchrun on this machine: kills, stops and restarts, and the examples."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
if sys.platform != "linux":
    pytest.skip("processes are looked up in /proc", allow_module_level=True)

import mast
from cluster import script
from faults.tally import survived
from mast.distributed import run_in_process
from mast.randomness import Key

PATIENCE = 240  # seconds that a run may take on a busy machine
EXAMPLES = Path(__file__).parents[2] / "examples" / "cluster"


class Torchrun:
    """A running torchrun; it and its ranks are gone when the block ends, each by its own number."""

    def __init__(self, *arguments, ranks=2, restarts=0, **variables):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={ranks}", f"--max-restarts={restarts}", "--monitor-interval=0.1"]
        self.process = subprocess.Popen(
            [*command, *map(str, arguments)],
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def ranks(self):
        """The ranks' processes, by rank."""
        found = {}
        with contextlib.suppress(OSError):
            path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
            for pid in path.read_text().split():
                with contextlib.suppress(OSError):
                    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                    found |= {int(v[5:]): int(pid) for v in variables if v.startswith(b"RANK=")}
        return found

    def signal(self, rank, number):
        os.kill(self.ranks()[rank], number)

    def wait(self):
        """The exit code, and everything that was printed."""
        output, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, output

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self.process.poll() is None:
            ranks = list(self.ranks().values())
            self.process.kill()
            for pid in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.stdout.close()
        self.process.wait(timeout=30)


def rows_of(checkpoint):
    """How many rounds the trace beside a checkpoint has by now."""
    try:
        return Path(f"{checkpoint}.trace.jsonl").read_text().count("\n")
    except OSError:
        return 0


def until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def checked(checkpoint, rounds):
    """The result of a run has the bits of one left alone, and its trace every round once."""
    result = mast.Result.load(f"{checkpoint}.result")
    server, workers = script.made({node: script.problem(node) for node in range(len(script.SKETCHES))})
    run_in_process(server, [workers[node] for node in range(len(workers))], rounds)
    assert result.status == "finished"
    assert (result.x == server.x).all()
    assert result.trace["step"].tolist() == list(range(1, rounds + 1))
    assert [row["answers"] for row in result.nodes] == server.state.answered.tolist()


def started(checkpoint, rounds, timeout=60.0, **options):
    return Torchrun(script.__file__, rounds, checkpoint, timeout, **options)


def killed(checkpoint, rounds, moments, **options):
    """One run, disturbed by SIGKILL: `moments` are pairs of a rank and the rounds in the trace by then."""
    with started(checkpoint, rounds, restarts=len(moments) + 1, **options) as run:
        for rank, moment in moments:
            until(lambda moment=moment: rows_of(checkpoint) >= moment or run.process.poll() is not None)
            assert run.process.poll() is None, run.wait()
            run.signal(rank, signal.SIGKILL)
        code, printed = run.wait()
    assert code == 0, printed
    checked(checkpoint, rounds)
    survived("SIGKILL of a rank", len(moments), len(moments), "resumed, with the bits of a run left alone")
    return printed


def test_two_kills_and_the_same_bits(tmp_path):
    """A node's rank dies in the middle, then the server's own; nothing in the result shows it."""
    printed = killed(tmp_path / "c", 150, [(1, 17), (0, 80)])
    assert "150 of 150 rounds" in printed  # the progress line


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_kills_at_odd_moments_and_the_same_bits(tmp_path, number):
    """Of one of three ranks; every other time the store is rank 0's, and dies with it."""
    rank, moment = number % 3, 1 + int(mast.randomness.words(Key(number), 1, 0, 1)[0]) % 250
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": str(number % 2)}
    killed(tmp_path / "c", 300, [(rank, moment)], ranks=3, **variables)


@pytest.mark.slow
def test_a_kill_while_the_ranks_are_starting(tmp_path):
    with started(tmp_path / "c", 40, ranks=3, restarts=1) as run:
        until(lambda: len(run.ranks()) == 3)
        time.sleep(1)
        run.signal(2, signal.SIGKILL)
        code, printed = run.wait()
    assert code == 0, printed
    checked(tmp_path / "c", 40)


@pytest.mark.slow
def test_a_rank_that_is_stopped_is_noticed_and_named(tmp_path):
    """The others end; torchrun ends the stopped one, which takes it half a minute, and starts all again."""
    with started(tmp_path / "c", 300, timeout=5.0, ranks=3, restarts=1) as run:
        until(lambda: rows_of(tmp_path / "c") >= 20)
        stopped = run.ranks()[1]
        run.signal(1, signal.SIGSTOP)
        code, printed = run.wait()
    assert code == 0, printed
    assert re.search(r"LostRankError: rank 0 lost rank 1 in round \d+: .* the timeout of 5 s", printed)
    assert not Path(f"/proc/{stopped}").exists()
    checked(tmp_path / "c", 300)


@pytest.mark.slow
def test_torchrun_itself_is_killed_and_started_again(tmp_path):
    """Its ranks are ended while the next torchrun starts already, which goes on where they were."""
    with started(tmp_path / "c", 300) as run:
        until(lambda: rows_of(tmp_path / "c") >= 20)
        ranks = list(run.ranks().values())
        run.process.kill()
        run.process.wait(timeout=30)
        with started(tmp_path / "c", 300) as second:
            for pid in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            code, printed = second.wait()
    assert code == 0, printed
    checked(tmp_path / "c", 300)


@pytest.mark.parametrize(("name", "rounds", "above"), [("linear", 1000, 0.80), ("network", 60, 0.90)])
def test_the_examples_run(tmp_path, name, rounds, above):
    """Shorter than they are; the largest classes have 0.754 and 0.133 of the rows."""
    path = EXAMPLES / f"train_{name}.py"
    assert len(path.read_text().splitlines()) < 80
    with Torchrun(path, "--rounds", rounds, "--checkpoint", tmp_path / "c") as run:
        code, printed = run.wait()
    assert code == 0, printed
    assert f"finished after {rounds} rounds" in printed
    accuracy, megabytes = re.search(r"accuracy ([\d.]+), +([\d.]+) MB", printed).groups()
    assert float(accuracy) > above
    assert np.isfinite(float(megabytes))
