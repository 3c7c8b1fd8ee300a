"""Faults that one rank alone sees: said once and clearly, on rank 0, while no rank is left waiting."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from mast.errors import MastError

_parent = [os.getppid()]  # who started this process: noted before anything heavy is imported, ...
if hasattr(os, "register_at_fork"):  # ... and again where it was forked
    os.register_at_fork(after_in_child=lambda: _parent.__setitem__(0, os.getppid()))
OURS = str(Path(__file__).parents[1])
LIBRARIES = ("site-packages", "dist-packages", str(Path(traceback.__file__).parent), "<")


def in_one_line(error: BaseException) -> str:
    """An exception as one line: its kind, the first line it says, and where in the user's own code.

    >>> in_one_line(ValueError("too small"))
    'ValueError: too small'
    """
    if isinstance(error, MastError):
        return str(error)
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(OURS) and not any(part in frame.filename for part in LIBRARIES)
    ]
    return f"{text} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else text


def end_with_parent(words: str, every: float = 0.25) -> None:
    """End this process soon after the one that started it is gone: nobody would start it again.

    Otherwise the ranks of a launcher that was killed would go on, and hold the folder of the results.
    """

    def watch() -> None:
        while os.getppid() == _parent[0]:
            time.sleep(every)
        print(words, file=sys.stderr, flush=True)
        os._exit(1)

    threading.Thread(target=watch, name="mast-parent", daemon=True).start()


def end_stopped_siblings() -> None:
    """Kill ranks of this machine that are stopped (SIGSTOP): the launcher would wait half a minute for them.

    Only processes of the same launcher, as the system tells it; where it does not, nothing is done.
    """
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state == "T" and int(parent) == _parent[0] and int(folder.name) != os.getpid():
                os.kill(int(folder.name), signal.SIGKILL)
