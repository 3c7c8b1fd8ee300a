"""Reads files, whole or as streams, and unpacks gzip and bzip2, known by their first bytes, not the name."""

from __future__ import annotations

import bz2
import contextlib
import io
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mast.arrays import memory
from mast.errors import DataError

_CHUNK = 1 << 16
SHARE = 4  # of the memory: the text may take so much of it, since its numbers need the rest


@contextlib.contextmanager
def _regular(path: Path) -> Iterator[io.BufferedReader]:
    """An open file. Only regular ones: a pipe or a device may never end."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DataError(f"{path}: not a regular file")
            yield file
    except IsADirectoryError:
        raise DataError(f"{path}: this is a folder, not a file") from None
    except (OSError, EOFError, MemoryError, zlib.error) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise DataError(f"{path}: cannot be read: {reason or type(error).__name__}") from error


def read(path: Path) -> bytes:
    """The bytes of a file, as they are."""
    with _regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > memory():
            raise DataError(f"{path}: {size} bytes are more than this machine's memory")
        return file.read()


def unpack(raw: bytes, name: str) -> bytes:
    """The text in `raw`: unpacked if it is gzip or bzip2, itself if not. `name` is for messages.

    >>> import gzip
    >>> unpack(gzip.compress(b"1 1:1"), "mine.gz")
    b'1 1:1'
    """
    if raw[:2] == b"\x1f\x8b":
        return _streams(raw, name, "gzip", b"\x1f\x8b")
    if raw[:3] == b"BZh":  # LIBSVM text starts with a number, so neither can be meant
        return _streams(raw, name, "bzip2", b"BZh")
    return raw


def _streams(raw: bytes, name: str, format: str, magic: bytes) -> bytes:
    """Unpack one stream after the other, as gzip and bzip2 themselves do."""
    room = memory() // SHARE
    parts: list[bytes] = []
    view = memoryview(raw)
    start = 0
    try:
        while True:
            stream: Any = zlib.decompressobj(wbits=31) if format == "gzip" else bz2.BZ2Decompressor()
            while not stream.eof:
                if start >= len(view):
                    raise DataError(
                        f"{name}: the {format} stream ends early, in line {_line(parts)} of the text; "
                        "the file is truncated"
                    )
                parts.append(stream.decompress(bytes(view[start : start + _CHUNK])))
                start += _CHUNK
                room -= len(parts[-1])
                if room < 0:
                    raise DataError(f"{name}: unpacks to more than a quarter of this machine's memory")
            start = min(start, len(view)) - len(stream.unused_data)
            rest = bytes(view[start : start + _CHUNK])
            if not rest.strip(b"\0"):
                return b"".join(parts)
            if not rest.startswith(magic):
                raise DataError(f"{name}: {len(view) - start} bytes of junk after the {format} stream")
    except (zlib.error, OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{name}: the {format} stream is damaged, near line {_line(parts)} of the text ({error})"
        ) from error
    except MemoryError as error:
        raise DataError(f"{name}: unpacks to more than this machine's memory") from error


def _line(parts: list[bytes]) -> int:
    return sum(part.count(b"\n") for part in parts) + 1


def _open_at_once(path: str, flags: int) -> int:
    # Opening a pipe that nobody writes to would wait for ever.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
