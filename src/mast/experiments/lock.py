"""One process at a time in an output folder. The lock dies with its process, however that ends."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from mast.errors import ArgumentError, DataError


class FolderInUseError(ArgumentError):
    """Another process is writing to the folder; the message names it."""


@contextlib.contextmanager
def only_process_in(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, made with the folder if need be; refuse if another process holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise DataError(f"{folder}: cannot be written to: {error.strerror or error}") from error
    with file:
        if not _take(file):
            raise FolderInUseError(
                f"{folder} is in use by {_holder(file)}: wait until it ends, or give another folder by --out"
            )
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": platform.node(), "since": time.time()}))
        file.flush()
        yield
        # The file stays: deleting it would let a third process lock a new file beside a waiting one.


def _take(file: IO[str]) -> bool:
    """An exclusive lock of the operating system, which is released when the process ends or dies."""
    try:
        if os.name == "nt":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _holder(file: IO[str]) -> str:
    try:
        file.seek(0)
        note = json.load(file)
        minutes = max(0, round((time.time() - note["since"]) / 60))
        return f"process {note['pid']} on {note['host']}, which began {minutes} min ago"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
