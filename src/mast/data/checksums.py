"""Is this file the set it claims to be? Published checksums, and those recorded at the first download.

A set without a published checksum is trusted when it is first downloaded: the sha256 of its
text is written beside it, as ``NAME.sha256``, and every later reading is compared with it.
All sums are of the unpacked text, so they do not depend on the packing.
"""

from __future__ import annotations

import hashlib
import logging
import re
from pathlib import Path

from mast.data.catalogue import SETS
from mast.errors import DataError
from mast.support.files import write_once

_LOG = logging.getLogger("mast.data")


def digest(text: bytes) -> str:
    """The sha256 of a text, as 64 hexadecimal digits."""
    return hashlib.sha256(text).hexdigest()


def note(folder: Path, name: str) -> Path:
    """Where the sum of the set `name` in this folder is recorded."""
    return folder / f"{name}.sha256"


def recorded(folder: Path, name: str) -> str | None:
    """The sum that was recorded here at the first download, if one was."""
    path = note(folder, name)
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


def verify(name: str, path: Path, text: bytes) -> str | None:
    """Refuse a text that is not the set `name`; returns its sum, or None where no sum is known."""
    known = SETS[name].sha256 if name in SETS else None
    expected = known or recorded(path.parent, name)
    if expected is None:
        return None
    sha256 = digest(text)
    if sha256 == expected:
        return sha256
    if known:
        its_path = path if path.is_absolute() else f"./{path}"
        advice = f"it is damaged or another file; to load it as it is, give its path ({its_path})"
    else:
        advice = f"it changed since its first download; if that is right, delete {note(path.parent, name)}"
    raise DataError(f"{path}: this is not {name}: its sha256 is {sha256}, expected {expected}; {advice}")


def record(folder: Path, name: str, sha256: str) -> None:
    """Write the sum beside the file, once: whoever comes second must agree with it."""
    path = note(folder, name)
    if write_once(path, f"{sha256}  {name}\n".encode()):
        message = "%s: no checksum is published; trusted as it is now, sha256 %s noted in %s"
        _LOG.warning(message, name, sha256, path)
        return
    first = recorded(folder, name)
    if first != sha256:
        raise DataError(
            f"{name}: its sha256 is {sha256}, but {first} was recorded at the first download, in {path}; "
            "if the set has changed, delete that file"
        )
