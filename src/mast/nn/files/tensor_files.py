"""Tensors and a JSON description in one safetensors file that knows when it was changed.

Any reader of safetensors opens such a file. The description is its only metadata, under the name
``mast``, and begins with the SHA-256 of the whole file, in which the sum itself is
read as zeros: a flipped bit is noticed wherever it is, in tensors, names or description.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mast import __version__
from mast.errors import DataError
from mast.support import files

_SUM = 64  # hexadecimal digits
_MARK = b'{"__metadata__":{"mast":"{\\"sha256\\":\\"'  # what follows the eight bytes of the header's length
_PLACE = slice(8 + len(_MARK), 8 + len(_MARK) + _SUM)


def write(
    path: str | Path, kind: str, version: int, description: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Path:
    """Write a file of this kind, whole or not at all; equal content gives equal bytes."""
    from safetensors.torch import save

    path = files.as_path("path", path)
    head = {"sha256": "0" * _SUM, "kind": kind, "format": version, "mast_version": __version__}
    text = json.dumps(head | dict(description), separators=(",", ":"), allow_nan=False)
    content = save({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, {"mast": text})
    assert content[8:].startswith(_MARK)  # safetensors puts metadata first
    total = hashlib.sha256(content).hexdigest().encode()
    files.write(path, content[: _PLACE.start] + total + content[_PLACE.stop :])
    return path


def read(path: str | Path, kind: str, version: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description and the tensors; foreign, cut and changed files are refused."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = files.as_path("path", path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    if not raw[8:].startswith(_MARK):
        raise DataError(f"{path} is not a file of MAST's: it does not begin with its mark")
    blank = hashlib.sha256(raw[: _PLACE.start] + b"0" * _SUM)
    blank.update(memoryview(raw)[_PLACE.stop :])
    if raw[_PLACE] != blank.hexdigest().encode():
        raise DataError(f"{path} is damaged: its checksum does not fit its content")
    try:
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        stored = json.loads(header["__metadata__"]["mast"])
        tensors = load(raw)
    except (ValueError, KeyError, RecursionError, SafetensorError) as error:
        raise DataError(f"{path} is damaged: {error}") from error
    if stored.get("kind") != kind:
        raise DataError(f"{path} holds a {stored.get('kind')!s}, not a {kind}")
    if stored.get("format") != version:
        raise DataError(
            f"{path} has format {stored.get('format')!s} of a {kind}, written by MAST "
            f"{stored.get('mast_version')!s}; this is MAST {__version__}, which reads format {version}"
        )
    return stored, tensors


def digest(tensor: Tensor) -> str:
    """A sum that tells one tensor from another: type, shape and every bit count.

    >>> digest(torch.zeros(2)) == digest(torch.zeros(2)), digest(torch.zeros(2)) == digest(torch.zeros(2, 1))
    (True, False)
    """
    t = tensor.detach().cpu().contiguous()
    total = hashlib.sha256(f"{t.dtype} {tuple(t.shape)} ".encode())
    total.update(t.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()[:32]
