"""Data that networks are trained on: scikit-learn's digits, and .npz files, both known by their checksum."""

from __future__ import annotations

import contextlib
import hashlib
import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mast.arrays import Array, Indices
from mast.errors import DataError, optional_module


def need_torch() -> None:
    """An error that says how to get PyTorch, unless it is there."""
    optional_module("torch", "neural experiments need PyTorch", "nn")


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """With one thread in torch: cells run in parallel, and sums come in one order."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def data_folder(data_dir: Path | None) -> Path | None:
    """The folder that the user names, or that of the environment."""
    if data_dir is not None and not data_dir.is_dir():
        raise DataError(f"{data_dir}: there is no such folder")
    return data_dir or (Path(os.environ["MAST_DATA"]) if os.environ.get("MAST_DATA") else None)


def digits() -> tuple[Array, Indices]:
    """Pixels and labels of scikit-learn's digits."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return pixels, labels.astype(np.int64)


def digits_sum() -> str:
    """The sha256 of the digits."""
    pixels, labels = digits()
    return hashlib.sha256(pixels.astype("<f8").tobytes() + labels.astype("<i8").tobytes()).hexdigest()


def file_sum(path: Path) -> str:
    """The sha256 of a file."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_npz(path: Path, sha256: str, names: Sequence[str]) -> list[Any]:
    """The named arrays of a file, which must be what it was when it was found, and finite."""
    if file_sum(path) != sha256:
        raise DataError(f"{path}: the file changed while experiments were running on it")
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = [stored[name] for name in names]
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: no .npz file with the arrays {', '.join(names)} ({error})") from error
    for name, array in zip(names, arrays, strict=True):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise DataError(f"{path}: {name} holds NaN or infinity")
    return arrays
