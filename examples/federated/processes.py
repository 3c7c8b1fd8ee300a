"""Processes that end with this one: each is the head of a group of its own, which is stopped as a whole."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

# Looked up here, because a process that was just forked should do as little as possible.
PRCTL = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None
GRACE = 8.0  # seconds between asking processes to end and ending them


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
        return self

    def __exit__(self, *error: object) -> None:
        self.stop(*reversed(self.started))

    def stop(self, *names: str, hard: bool = False) -> None:
        """End processes and all of their groups: politely, then not."""
        chosen = [self.started.pop(name) for name in names]
        for process in chosen:
            send(process, signal.SIGKILL if hard else signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline and any(send(process, 0) for process in chosen):
            time.sleep(0.1)
        for process in chosen:
            send(process, signal.SIGKILL)
            process.wait(timeout=10 * GRACE)


def send(process: subprocess.Popen[bytes], number: int) -> bool:
    """Signal all of a process' group; whether there is still one of it."""
    process.poll()  # or one that has ended would be there as long as nobody asks for its exit code
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter of macOS, for ended ones
        os.killpg(process.pid, number)
        return True
    return False


def end_with_parent() -> None:
    """On Linux, in a new process: ask it to end if the one that started it dies, even by SIGKILL."""
    if PRCTL is not None:
        PRCTL(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG
