"""Faults that one rank alone sees: said once and clearly, on rank 0, while no rank is left waiting."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from mast.errors import ArgumentError, MastError

OURS = str(Path(__file__).parents[1])
LIBRARIES = ("site-packages", "dist-packages", str(Path(traceback.__file__).parent), "<")


class NodeError(ArgumentError):
    """What a node was given to do failed: the user's loss, batches or model."""


@contextlib.contextmanager
def blamed(node: int, when: str) -> Iterator[None]:
    """Turn whatever the user's functions raise into an error that names the node, and the line."""
    try:
        yield
    except MastError:
        raise
    except Exception as error:
        raise NodeError(f"node {node} failed {when}: {in_one_line(error)}") from error


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


def end_with_parent(every: float = 0.25) -> None:
    """End this process soon after the one that started it is gone: nobody would start it again.

    Otherwise the ranks of a torchrun that was killed would go on, and hold the folder of the results.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(every)
        print("mast.cluster: torchrun is gone, so this rank ends", file=sys.stderr, flush=True)
        os._exit(1)

    threading.Thread(target=watch, name="mast-parent", daemon=True).start()
