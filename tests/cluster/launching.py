"""torchrun as users start it, and ways to disturb it. Processes are ended by their own numbers only."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
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


class Launched:
    """``python -m mast.cluster ... --ranks N``; all of it, known by a mark, is gone when the block ends."""

    def __init__(self, *arguments, ranks=2, folder=None, **variables):
        self.mark = uuid.uuid4().hex
        command = [sys.executable, "-m", "mast.cluster", *map(str, arguments), f"--ranks={ranks}"]
        self.process = subprocess.Popen(
            command,
            env=environment(MAST_TESTS_CLUSTER=self.mark, **variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
        )

    def family(self):
        """The numbers of all living processes with the mark."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                alive = (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
                if alive and self.mark.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

    def rank(self, rank):
        """The process of a rank."""
        for pid in self.family():
            with contextlib.suppress(OSError):
                if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    return pid
        return None

    def listening(self):
        """The addresses on which any of the processes listens, as the kernel writes them."""
        sockets = set()
        for pid in self.family():
            with contextlib.suppress(OSError):
                for file in Path(f"/proc/{pid}/fd").iterdir():
                    with contextlib.suppress(OSError):
                        sockets.add(os.readlink(file))
        found = set()
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                    found.add(fields[1].split(":")[0])
        return found

    def wait(self):
        """The exit code, and everything that was printed."""
        output, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, output

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for pid in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate(timeout=60)
