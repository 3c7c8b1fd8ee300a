"""One process at a time in an output folder. The lock dies with its process, however that ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from mast.errors import DataError
from mast.locks import InUseError, holder, note, take


class FolderInUseError(InUseError):
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
        if not take(file):
            raise FolderInUseError(
                f"{folder} is in use by {holder(file)}: wait until it ends, or give another folder by --out"
            )
        note(file)
        yield
        # The file stays: deleting it would let a third process lock a new file beside a waiting one.
