"""Locks of the operating system: one process at a time, and no lock outlives its process, however it ends."""

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

PATIENCE = 0.05  # seconds between two tries to take a lock


class InUseError(ArgumentError):
    """Another process is at work on the same file or folder; the message names it."""


@contextlib.contextmanager
def exclusive(path: Path, wait: bool = False) -> Iterator[None]:
    """Hold the lock that belongs to a file, in a file beside it that goes away with the lock.

    A second process waits, or is refused by the first one's number.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder, exclusive(Path(folder) / "run.mast"):
    ...     [file.name for file in Path(folder).iterdir()]
    ['.run.mast.lock']
    """
    lock = lock_of(path)
    file = _held(path, lock, wait)
    try:
        note(file)
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows keeps a file that is open; then it is just left there
            lock.unlink()
        file.close()


def lock_of(path: Path) -> Path:
    """The file beside a file that stands for its lock."""
    return path.with_name(f".{path.name}.lock")


def _held(path: Path, lock: Path, wait: bool) -> IO[str]:
    """The lock's file, locked, and certainly the one that stands in the folder."""
    while True:
        try:
            file = lock.open("a+", encoding="utf-8")
        except OSError as error:
            raise DataError(f"{path} cannot be written: {error.strerror or error}") from error
        if take(file):
            if _still_there(file, lock):
                return file
        elif not wait:
            with file:
                raise InUseError(f"{path} is in use by {holder(file)}: wait until it ends, or use another")
        file.close()
        time.sleep(PATIENCE)


def _still_there(file: IO[str], lock: Path) -> bool:
    """Whether the file was not deleted, by its holder before us, between opening and locking it."""
    if os.name == "nt":  # where an open file cannot be deleted
        return True
    try:
        return os.path.samestat(os.fstat(file.fileno()), lock.stat())
    except FileNotFoundError:
        return False


def take(file: IO[str]) -> bool:
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


def note(file: IO[str]) -> None:
    """Write into the lock's file who holds it. On a full disk nobody learns it, and the lock holds."""
    with contextlib.suppress(OSError):
        os.ftruncate(file.fileno(), 0)
        text = json.dumps({"pid": os.getpid(), "host": platform.node(), "since": time.time()})
        os.write(file.fileno(), text.encode())


def holder(file: IO[str]) -> str:
    """Who holds the lock, as its note says."""
    try:
        file.seek(0)
        record = json.load(file)
        minutes = max(0, round((time.time() - record["since"]) / 60))
        return f"process {record['pid']} on {record['host']}, which began {minutes} min ago"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
