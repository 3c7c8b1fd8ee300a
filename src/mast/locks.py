"""Locks of the operating system: one process at a time, and no lock outlives its process, however it ends."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from mast.errors import ArgumentError, DataError

PATIENCE = 0.05  # seconds between two tries to take a lock
SAY_AFTER = 2.0  # seconds after which a waiting process says for whom it waits
_NOTE = b'{"pid": '  # what a lock's file begins with


class InUseError(ArgumentError):
    """Another process is at work on the same file or folder; the message names it."""


@contextlib.contextmanager
def exclusive(path: Path, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock that belongs to a file, in a file beside it that goes away with the lock.

    A second process waits for so many seconds, and is then refused by the first one's number.

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


def _held(path: Path, lock: Path, wait: float) -> IO[str]:
    """The lock's file, locked, and certainly the one that stands in the folder."""
    begun, told = time.monotonic(), False
    while True:
        file = _opened(path, lock)
        if take(file):
            if _still_there(file, lock):
                return file
        else:
            waited = time.monotonic() - begun
            if waited >= wait:
                with file:
                    tried = f", after {waited:.0f} s," if wait else ""
                    raise InUseError(
                        f"{path} is{tried} in use by {holder(file)}: wait until it ends, or use another"
                    )
            if waited >= SAY_AFTER and not told:
                limit = "" if wait == float("inf") else f", for at most {wait:.0f} s"
                print(f"waiting for {holder(file)}: it has {path}{limit}", file=sys.stderr, flush=True)
                told = True
        file.close()
        time.sleep(PATIENCE)


def _opened(path: Path, lock: Path) -> IO[str]:
    """The lock's file, which is made if it is not there; one that is not ours is left as it is."""
    strange = f"{path} cannot be locked: {lock.name} beside it is not a lock of MAST's; move it away"
    # not through a link, and without waiting for what is at the other end of a pipe
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(lock, flags, 0o666)
    except OSError as error:
        if os.path.islink(lock) or os.path.isdir(lock):
            raise DataError(strange) from error
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from error
    if not _ours(descriptor):
        os.close(descriptor)
        raise DataError(strange)
    return os.fdopen(descriptor, "r+", encoding="utf-8")


def _ours(descriptor: int) -> bool:
    """Whether it is a file with no other name, which is empty or begins as our notes do."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        return False
    if os.name == "nt":  # where a locked file cannot be read
        return True
    return _NOTE.startswith(os.pread(descriptor, len(_NOTE), 0))


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
