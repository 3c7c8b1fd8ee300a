"""Files of data sets: where they are on this machine, what they hold, and whether they are what they claim.

Packed files are unpacked, gzip and bzip2, known by their first bytes and not by the name.

A set without a published checksum is trusted when it is first downloaded: the sha256 of its
text is written beside it, as ``NAME.sha256``, and every later reading is compared with it.
All sums are of the unpacked text, so they do not depend on the packing.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import logging
import os
import re
import stat
import zlib
from pathlib import Path
from typing import NamedTuple

from mast.data.catalogue import SETS
from mast.errors import ArgumentError, DataError
from mast.support.checks import memory_limit
from mast.support.files import as_path, write_once

EMBEDDED = Path(__file__).parent / "embedded"
SUFFIXES = ("", ".gz", ".bz2")
SHARE = 4  # the text of a file may take one part in SHARE of the memory, since its numbers need the rest
_CHUNK = 1 << 20
_LOG = logging.getLogger("mast.data")


class FoundFile(NamedTuple):
    """A file, where it was found ("path", "data_dir", "MAST_DATA", "cached", "embedded") and the set it is.

    `name` is None for a file the user gave by its path: it is what the user says it is.
    """

    path: Path
    where: str
    name: str | None


def cache() -> Path:
    """The user's own folder for downloaded sets."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("mast", appauthor=False))


def data_folders(data_dir: str | os.PathLike[str] | None = None) -> dict[str, Path]:
    """The folders searched, in this order: `data_dir`, ``$MAST_DATA``, the cache, the embedded sets."""
    places: dict[str, Path] = {}
    if data_dir is not None:
        places["data_dir"] = as_path("data_dir", data_dir).expanduser()
    if os.environ.get("MAST_DATA"):
        places["MAST_DATA"] = Path(os.environ["MAST_DATA"]).expanduser()
    places["cached"] = cache()
    places["embedded"] = EMBEDDED
    return places


def find(
    name_or_path: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None
) -> FoundFile | None:
    """Look for a file of this path, then for a set of this name in `data_folders`; None if it is nowhere.

    In each folder ``NAME``, ``NAME.gz`` and ``NAME.bz2`` are tried, also in a subfolder ``libsvm``.

    >>> find("a1a").name
    'a1a'
    """
    if not isinstance(name_or_path, (str, os.PathLike)):
        raise ArgumentError(f"expected the name of a data set or a path, found {name_or_path!r}")
    path = Path(name_or_path).expanduser()
    bare = isinstance(name_or_path, str) and path.name == name_or_path
    if _path_is(path, "is_file") or (not bare and _path_is(path, "exists")):
        return FoundFile(path, "path", set_name(path.name) if bare else None)
    if path.is_absolute():
        return None
    for where, folder in data_folders(data_dir).items():
        if where == "data_dir" and not _path_is(folder, "is_dir"):
            raise DataError(f"{folder}: the data folder does not exist")
        if (file := find_in(folder, str(path))) is not None:
            return FoundFile(file, where, set_name(path.name))
    return None


def find_in(folder: Path, name: str) -> Path | None:
    """The file in this folder that is the set `name`; None if there is none."""
    candidates = (inner / (name + suffix) for inner in (folder, folder / "libsvm") for suffix in SUFFIXES)
    return next((file for file in candidates if _path_is(file, "is_file")), None)


def set_name(file_name: str) -> str:
    """The set a file of this name would be: without the suffix of its packing."""
    path = Path(file_name)
    return path.stem if path.suffix in SUFFIXES[1:] else file_name


def not_found(name: str, data_dir: str | os.PathLike[str] | None, reason: str = "") -> DataError:
    """The error that says what was looked for, where, and where it can be had."""
    searched = [str(folder) for where, folder in data_folders(data_dir).items() if where != "embedded"]
    if Path(name).is_absolute():
        return DataError(f"{name}: no such file")
    looked = f"no file {name}, and no {name}, {name}.gz or {name}.bz2 in {', '.join(searched)}"
    if name not in SETS:
        return DataError(f"{looked}; `mast data list` lists the sets known by name{_similar(name)}")
    return DataError(
        f"{looked}; {reason or 'downloading was not allowed'}; it can be had at {SETS[name].address} "
        "(put it into one of these folders, or name its folder as data_dir or $MAST_DATA)"
    )


def _similar(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, SETS, n=3)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _path_is(path: Path, what: str) -> bool:
    """`Path.is_file` and its like, where a name no file can have (too long, NUL) is no error."""
    try:
        return bool(getattr(path, what)())
    except (OSError, ValueError):
        return False


# ---- contents -----------------------------------------------------------------------------------


def read_bytes(path: Path) -> bytes:
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


def decompress(raw: bytes, name: str) -> bytes:
    """The text in `raw`: unpacked if it is gzip or bzip2, itself if not. `name` is for messages.

    >>> import gzip
    >>> decompress(gzip.compress(b"1 1:1"), "mine.gz")
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


# ---- checksums ----------------------------------------------------------------------------------


def checksum(text: bytes) -> str:
    """The sha256 of a text, as 64 hexadecimal digits."""
    return hashlib.sha256(text).hexdigest()


def _checksum_file(folder: Path, name: str) -> Path:
    """Where the sum of the set `name` in this folder is recorded."""
    return folder / f"{name}.sha256"


def recorded_checksum(folder: Path, name: str) -> str | None:
    """The sum that was recorded here at the first download, if one was."""
    path = _checksum_file(folder, name)
    try:
        with path.open("rb") as file:
            line = file.read(1024)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    match = re.match(rb"([0-9a-f]{64})\s", line)
    if not match:
        raise DataError(f"{path}: this should hold a sha256; delete it to trust {name} as it is now")
    return match.group(1).decode()


def verify_checksum(name: str, path: Path, text: bytes) -> None:
    """Refuse a text that is not the set `name`, where a sum is known."""
    known = SETS[name].sha256 if name in SETS else None
    expected = known or recorded_checksum(path.parent, name)
    if expected is None or (sha256 := checksum(text)) == expected:
        return
    if known:
        its_path = path if path.is_absolute() else f"./{path}"
        advice = f"it is damaged or another file; to load it as it is, give its path ({its_path})"
    else:
        noted = _checksum_file(path.parent, name)
        advice = f"it changed since its first download; if that is right, delete {noted}"
    raise DataError(f"{path}: this is not {name}: its sha256 is {sha256}, expected {expected}; {advice}")


def record_checksum(folder: Path, name: str, sha256: str) -> None:
    """Write the sum beside the file, once: whoever comes second must agree with it."""
    path = _checksum_file(folder, name)
    if write_once(path, f"{sha256}  {name}\n".encode()):
        message = "%s: no checksum is published; trusted as it is now, sha256 %s noted in %s"
        _LOG.warning(message, name, sha256, path)
        return
    first = recorded_checksum(folder, name)
    if first != sha256:
        raise DataError(
            f"{name}: its sha256 is {sha256}, but {first} was recorded at the first download, in {path}; "
            "if the set has changed, delete that file"
        )
