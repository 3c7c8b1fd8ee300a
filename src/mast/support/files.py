"""Files that are whole or not there: written beside their place, then moved into it in one step.

`save` and `load` keep named arrays and a JSON description in one checksummed file, without
pickle: checkpoints, cached results and models are such files.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import secrets
import stat
import struct
import sys
import time
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mast.errors import (
    ArgumentError,
    CheckpointError,
    DataError,
    InUseError,
    MastError,
    MissingExtraError,
)

if TYPE_CHECKING:
    from filelock import BaseFileLock

PATIENCE = 0.05  # seconds between two tries to take a lock
SAY_AFTER = 2.0  # seconds after which a waiting process says for what it waits
_held: set[Path] = set()  # the locks of this process
_MAGIC = b"MAST1\n"
_END_OF_ZIP, _END_OF_ZIP_WITHIN = b"PK\x05\x06", 1 << 16
#: what reading a zip file of arrays raises where it is none: a right checksum does not make it one
_UNREADABLE = (
    ValueError, KeyError, OSError, EOFError, RuntimeError, MemoryError, TypeError, AttributeError,
    SyntaxError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
#: what taking it apart raises where its parts do not fit together
_UNFIT = (MastError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


def as_path(name: str, value: Any) -> Path:
    """A path that a user gave; what cannot be the name of a file is refused.

    >>> as_path("checkpoint", 3)
    Traceback (most recent call last):
    mast.errors.ArgumentError: checkpoint must be a path, got 3
    """
    try:
        path = Path(value)
        os.lstat(path)
    except (TypeError, ValueError) as error:  # a zero within it, letters that no disk takes
        raise ArgumentError(f"{name} must be a path, got {value!r:.80}") from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ArgumentError(f"{name} is too long for a path: {value!s:.80}...") from error
    return path


def write(path: Path, content: bytes) -> None:
    """Write a file; what stood there before stays until the new one is complete."""
    with writing(path) as file:
        file.write(content)


@contextlib.contextmanager
def writing(path: Path, place: Callable[[Path, Path], object] | None = None) -> Iterator[BinaryIO]:
    """A file to be written piece by piece, which takes its place (by a rename) when it is complete."""
    try:
        beside = _beside(path)
        try:
            with beside.open("xb") as file:  # which fails where there is something, and follows no link
                yield file
                file.flush()
                os.fsync(file.fileno())
            (place or os.replace)(beside, path)
            _settle(path.parent)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from error


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, unless it is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{path}: the folder cannot be made: {error.strerror or error}") from error


def remove(path: Path) -> None:
    """Delete a file, and what a process left of it that was killed while it wrote."""
    for each in (path, _partial(path)):
        each.unlink(missing_ok=True)


def _settle(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where the system has that."""
    with contextlib.suppress(OSError, AttributeError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_once(path: Path, content: bytes) -> bool:
    """Write a file unless there is one; says whether it did. Of two processes at once, one does."""
    written = True

    def place(beside: Path, path: Path) -> None:
        nonlocal written
        try:
            os.link(beside, path)  # unlike a rename, this fails if the file exists
        except FileExistsError:
            written = False
        except OSError:  # a file system without links: these two steps are the best there is
            written = not path.exists()
            if written:
                os.replace(beside, path)

    with writing(path, place) as file:
        file.write(content)
    return written


def save(path: Path, description: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a description (JSON) and arrays as one file: a magic line, the sum of the rest, the rest."""
    body = io.BytesIO()
    text = np.frombuffer(json.dumps(description, sort_keys=True).encode(), dtype=np.uint8)
    np.savez(body, **{f"array_{name}": array for name, array in arrays.items()}, description=text)  # type: ignore[arg-type]
    content = body.getvalue()
    write(path, _head(content) + content)


def load(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read what `save` wrote; a foreign, cut or changed file is refused."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    head, content = raw[: len(_MAGIC) + 65], raw[len(_MAGIC) + 65 :]
    if not head.startswith(_MAGIC) and not (raw and _MAGIC.startswith(raw)):
        raise DataError(f"{path} is not a file of MAST's: it does not begin with its mark")
    if head != _head(content):
        whole = _END_OF_ZIP in content[-_END_OF_ZIP_WITHIN:]
        damage = "its checksum does not fit its content" if whole else "it is truncated, its end is missing"
        raise DataError(f"{path} is damaged: {damage}")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            if any(member.file_size > len(content) for member in packed.infolist()):
                raise ValueError("an array claims to be larger than the file")  # `save` compresses nothing
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            arrays = {
                name.removeprefix("array_"): stored[name] for name in stored.files if name != "description"
            }
            description = json.loads(bytes(stored["description"]))
    except _UNREADABLE as error:
        raise DataError(f"{path} is damaged: {error or type(error).__name__}") from error
    if not isinstance(description, dict):
        raise DataError(f"{path} is damaged: it has no description")
    return description, arrays


@contextlib.contextmanager
def damage_refused(path: str | Path) -> Iterator[None]:
    """Whatever goes wrong while a file's content is taken apart, as an error that names the file."""
    try:
        yield
    except (DataError, CheckpointError, MissingExtraError):
        raise
    except _UNFIT as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path} is damaged: its parts do not fit together ({reason:.200})") from error


def load_array(path: Path) -> NDArray[Any]:
    """The array of a .npy file; a file that is none, or holds objects, is refused."""
    try:
        loaded = np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except _UNREADABLE as error:
        raise DataError(f"{path} is not a .npy file: {error or type(error).__name__}") from error
    if not isinstance(loaded, np.ndarray):
        loaded.close()
        raise DataError(f"{path} is not a .npy file: it holds several arrays")
    return loaded


# ---- one writer at a time ------------------------------------------------------------------------


@contextlib.contextmanager
def exclusive(path: Path, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock that belongs to a file, in an empty file beside it that goes away with the lock.

    It belongs to the file that a symbolic link points to. Whoever comes second waits for `wait` seconds, and
    is then refused. The operating system ends the lock with its process, however that ends.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder, exclusive(Path(folder) / "run.mast"):
    ...     [file.name for file in Path(folder).iterdir()]
    ['.run.mast.lock']
    """
    lock = _acquired(path, wait)
    _held.add(lock_of(path))
    try:
        yield
    finally:
        _held.discard(lock_of(path))
        with contextlib.suppress(OSError):
            _partial(Path(os.path.realpath(path))).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # Windows keeps a file that is open; filelock deletes it there
            os.unlink(lock.lock_file)
        lock.release()


def lock_of(path: Path) -> Path:
    """The file that stands for the lock of a file, beside it."""
    path = Path(os.path.realpath(path))
    return path.with_name(f".{path.name}.lock")


def _acquired(path: Path, wait: float) -> BaseFileLock:
    """The lock of a file, taken, and certainly the one that stands in the folder."""
    from filelock import FileLock, Timeout

    file = lock_of(path)
    lock = FileLock(file, thread_local=False, fallback_to_soft=False)
    begun, told = time.monotonic(), False
    while True:
        if not file.parent.is_dir():  # filelock would make it
            raise DataError(f"{path} cannot be written: its folder does not exist")
        if not _may_be_a_lock(file):
            raise DataError(
                f"{path} cannot be locked: {file.name} beside it is not a lock of MAST's; move it away"
            )
        try:
            lock.acquire(blocking=False)
            if _still_there(lock):
                return lock
            lock.release()
        except Timeout:
            waited = time.monotonic() - begun
            if waited >= max(wait, PATIENCE):  # a file that its holder deletes just now looks taken, once
                tried = f", after {waited:.0f} s," if wait else ""
                raise InUseError(
                    f"{path} is{tried} in use by another process: wait until it ends, or use another"
                ) from None
            if waited >= SAY_AFTER and not told:
                limit = "" if wait == float("inf") else f", for at most {wait:.0f} s"
                print(f"waiting for another process: it has {path}{limit}", file=sys.stderr, flush=True)
                told = True
            time.sleep(PATIENCE)
        except (NotImplementedError, OSError) as error:
            if isinstance(error, FileNotFoundError):
                continue  # its last holder deleted it just now
            if isinstance(error, NotImplementedError) or error.errno == errno.ENOSYS:
                raise DataError(
                    f"{path} cannot be locked: its file system has no locks; use another"
                ) from error
            raise DataError(f"{path} cannot be written: {error.strerror or error}") from error


def _may_be_a_lock(file: Path) -> bool:
    """Whether nothing is there, or an empty file with no other name: filelock may open and truncate it."""
    try:
        status = os.lstat(file)
    except OSError:
        return True
    return stat.S_ISREG(status.st_mode) and status.st_nlink <= 1 and status.st_size == 0


def _still_there(lock: BaseFileLock) -> bool:
    """Whether the file was not deleted, by its holder before us, between opening and locking it."""
    held = getattr(getattr(lock, "_context", None), "lock_file_fd", None)
    if os.name == "nt" or held is None:  # an open file cannot be deleted there
        return True
    try:
        return os.path.samestat(os.fstat(held), os.stat(lock.lock_file))
    except FileNotFoundError:
        return False


def _head(content: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(content).hexdigest().encode() + b"\n"


def digest(*parts: Any) -> str:
    """A short sum of arrays, numbers and text, for telling one thing from another."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            total.update(f"{part.dtype.str}{part.shape}".encode())
            total.update(np.ascontiguousarray(part).tobytes())
        else:
            total.update(repr(part).encode())
        total.update(b"|")
    return total.hexdigest()[:16]


def _beside(path: Path) -> Path:
    """Where a file is written before it takes its place.

    Whoever holds the file's lock writes to one name, and so over what a killed process left there. Others may
    meet: each has a name of its own.
    """
    if not path.name:
        raise DataError(f"{str(path)!r} cannot be written: it is not the name of a file")
    if lock_of(path) not in _held:
        return path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    _partial(path).unlink(missing_ok=True)  # a link goes, not what it points to
    return _partial(path)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")
