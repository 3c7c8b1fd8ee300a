"""torchrun as users start it, and ways to disturb it. Processes are ended by their own numbers only."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PATIENCE = 240  # seconds that a run may take on a busy machine


def environment(**more):
    return os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} | more


class Torchrun:
    """A running torchrun with so many ranks, all of which are gone when the block ends."""

    def __init__(self, *arguments, ranks=4, restarts=0, folder=None, **variables):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={ranks}", f"--max-restarts={restarts}", "--monitor-interval=0.1"]
        self.process = subprocess.Popen(
            [*command, *map(str, arguments)],
            env=environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
        )

    def children(self):
        """The ranks' processes, by rank."""
        found = {}
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        for pid in path.read_text().split():
            try:
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            ranks = [v for v in variables if v.startswith(b"RANK=")]
            if ranks:
                found[int(ranks[0][5:])] = int(pid)
        return found

    def signal(self, rank, number):
        """Send a signal to a rank; whether there was one to get it."""
        pid = self.children().get(rank)
        if pid is None:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait(self):
        """The exit code, and everything that was printed."""
        output, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, output

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self.process.poll() is None:
            ranks = list(self.children().values())
            self.process.kill()
            for pid in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.stdout.close()
        self.process.wait(timeout=30)


def forked(script, *arguments):
    """The exit code of a script beside this file whose ranks are forked, and everything that was printed."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name(script), *map(str, arguments)],
        env=environment(PYTHONPATH=os.pathsep.join(sys.path)),  # the tests' folder is in it
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
    )
    return done.returncode, done.stdout


def rows_of(trace):
    """How many rounds a trace has by now."""
    try:
        return trace.read_text().count("\n")
    except OSError:
        return 0


def until(condition, patience=PATIENCE):
    """Wait for something to be true."""
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)
