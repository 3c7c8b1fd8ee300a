"""Reads whole files, and unpacks gzip and bzip2, known by their first bytes and not by the name."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import stat
import zlib
from pathlib import Path

from mast.errors import DataError
from mast.support.checks import memory_limit

_CHUNK = 1 << 20
SHARE = 4  # of the memory: the text may take so much of it, since its numbers need the rest


def read(path: Path) -> bytes:
    """The bytes of a file, as they are. Only regular files: a pipe or a device may never end."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise DataError(f"{path}: not a regular file")
            if status.st_size > memory_limit():
                raise DataError(f"{path}: {status.st_size} bytes are more than this machine's memory")
            return file.read()
    except IsADirectoryError:
        raise DataError(f"{path}: this is a folder, not a file") from None
    except (OSError, MemoryError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise DataError(f"{path}: cannot be read: {reason or type(error).__name__}") from error


def unpack(raw: bytes, name: str) -> bytes:
    """The text in `raw`: unpacked if it is gzip or bzip2, itself if not. `name` is for messages.

    >>> import gzip
    >>> unpack(gzip.compress(b"1 1:1"), "mine.gz")
    b'1 1:1'
    """
    stream: gzip.GzipFile | bz2.BZ2File
    if raw[:2] == b"\x1f\x8b":
        kind, stream = "gzip", gzip.GzipFile(fileobj=io.BytesIO(raw))
    elif raw[:3] == b"BZh":  # LIBSVM text starts with a number, so neither can be meant
        kind, stream = "bzip2", bz2.BZ2File(io.BytesIO(raw))
    else:
        return raw
    parts: list[bytes] = []
    room = memory_limit() // SHARE
    try:
        while chunk := stream.read(_CHUNK):
            parts.append(chunk)
            room -= len(chunk)
            if room < 0:
                raise DataError(f"{name}: unpacks to more than a quarter of this machine's memory")
        return b"".join(parts)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{name}: the {kind} stream is damaged: {error}") from error
    except MemoryError as error:
        raise DataError(f"{name}: unpacks to more than this machine's memory") from error


def _open_at_once(path: str, flags: int) -> int:
    # Opening a pipe that nobody writes to would wait for ever.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
