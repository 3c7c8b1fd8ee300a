"""Processes that all end with this one: started in groups of their own, stopped by their numbers.

Also if this one is killed: a guard, another process, waits for that and ends all that is left. It is this
file, run as ``python processes.py HOME``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

# Looked up here, because a process that was just forked should do as little as possible.
PRCTL = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None
GRACE = 8.0  # seconds between asking a process to end and ending it


class Processes:
    """What was started; at the end of the `with` block nothing of it runs, whatever happened inside."""

    def __init__(self, logs: Path, environment: dict[str, str]) -> None:
        self.logs, self.environment = logs, environment
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process; what it says goes to a file of its name."""
        with (self.logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        self.started[name] = process
        return process

    def last_words(self, name: str, lines: int = 20) -> str:
        """The end of what a process said."""
        said = (self.logs / f"{name}.log").read_text(errors="replace").splitlines()
        return "\n".join(said[-lines:])

    def __enter__(self) -> Processes:
        """From here on a guard watches; it ends by itself when this process has ended, however that was."""
        watched, self._held = os.pipe()
        mark = {"FLWR_HOME": self.environment["FLWR_HOME"]}
        command = [sys.executable, __file__, mark["FLWR_HOME"]]
        unmarked = {name: value for name, value in self.environment.items() if name != "FLWR_HOME"}
        self._guard = subprocess.Popen(command, env=unmarked, stdin=watched, start_new_session=True)
        os.close(watched)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(*reversed(self.started))
        strays = self.strays()  # children of processes that had ended by themselves
        for pid, birth in strays.items():
            if alive(pid, birth):
                send(pid, signal.SIGKILL)
        gone(strays)
        os.write(self._held, b"all ended")
        os.close(self._held)
        self._guard.wait(timeout=10 * GRACE)

    def strays(self) -> dict[int, str]:
        """Processes that have the home of these in their environment."""
        return marked(self.environment["FLWR_HOME"])

    def stop(self, *names: str, hard: bool = False) -> None:
        """End processes and all that they started: politely, then not."""
        chosen = [self.started.pop(name) for name in names]
        family = {pid: birth for process in chosen for pid, birth in descendants(process.pid).items()}
        for process in chosen:
            send(process.pid, signal.SIGKILL if hard else signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline and any(alive(pid, birth) for pid, birth in family.items()):
            time.sleep(0.1)
        for pid, birth in family.items():
            if alive(pid, birth):
                send(pid, signal.SIGKILL)
        for process in chosen:
            process.wait(timeout=10 * GRACE)
        gone(family)


def marked(home: str) -> dict[int, str]:
    """Processes that have this home in their environment: whoever started them, they are ours."""
    mark = f"FLWR_HOME={home}".encode()
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = born(int(folder.name))
    return found


def guard(home: str) -> None:
    """Wait until the process that holds the other end of standard input is gone; then end what it left.

    Unless it said that it has done that itself.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # Ctrl-C is for the others
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read():
        return
    while left := marked(home):  # again: some of them may have started others meanwhile
        for pid, birth in left.items():
            if alive(pid, birth):
                send(pid, signal.SIGKILL)
        time.sleep(0.1)
    shutil.rmtree(home, ignore_errors=True)


def descendants(pid: int) -> dict[int, str]:
    """A process and all that it started, and when each was born, so that no later one is taken for it."""
    parents: dict[int, list[int]] = {}
    births: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            own = int(folder.name)
            parents.setdefault(int(fields(own)[1]), []).append(own)
            births[own] = born(own)
    found, left = {}, [pid]
    while left:
        one = left.pop()
        if one in births:
            found[one] = births[one]
        left += parents.get(one, [])
    return found


def gone(family: dict[int, str]) -> None:
    """Wait until killed processes have ended, and take leave of those that this process has adopted."""
    deadline = time.monotonic() + 10 * GRACE
    while any(alive(pid, birth) for pid, birth in family.items()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in family:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def adopt_orphans() -> None:
    """On Linux: children of children that ended are this process' own, and none is left as a zombie."""
    linux_only(36, 1)  # PR_SET_CHILD_SUBREAPER


def bury_orphans() -> None:
    """Take leave of all that have ended: for a process that waits for no other child."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def end_with_parent() -> None:
    """On Linux, in a new process: ask it to end if the one that started it dies, even by SIGKILL."""
    linux_only(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def linux_only(option: int, value: int) -> None:
    """Set an option of the process, where the system has such options."""
    if PRCTL is not None:
        PRCTL(option, value, 0, 0, 0)


def alive(pid: int, birth: str) -> bool:
    """Whether the process born then still runs."""
    with contextlib.suppress(OSError):
        return fields(pid)[0] != "Z" and born(pid) == birth
    return False


def born(pid: int) -> str:
    """When a process began."""
    return fields(pid)[19]


def fields(pid: int) -> list[str]:
    """What the system says of a process, after its name: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def send(pid: int, number: signal.Signals) -> None:
    """Signal a process, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    guard(sys.argv[1])
