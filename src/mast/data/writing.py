"""Files that are whole or not there: written beside their place, then moved into it in one step."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from mast.errors import DataError


def write(path: Path, content: bytes) -> None:
    """Write a file; what stood there before stays until the new one is complete."""
    with _beside(path, content) as beside:
        os.replace(beside, path)


def write_once(path: Path, content: bytes) -> bool:
    """Write a file unless there is one; says whether it did. Of two processes at once, one does."""
    with _beside(path, content) as beside:
        try:
            os.link(beside, path)  # unlike a rename, this fails if the file exists
        except FileExistsError:
            return False
        except OSError:  # a file system without links: the two steps below are the best there is
            if path.exists():
                return False
            os.replace(beside, path)
        return True


@contextlib.contextmanager
def _beside(path: Path, content: bytes) -> Iterator[Path]:
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        try:
            with beside.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            yield beside
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from error
