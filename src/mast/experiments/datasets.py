"""Data sets of the experiments: LIBSVM files, digits and .npz files, each known by its checksum."""

from __future__ import annotations

import contextlib
import hashlib
import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mast import data
from mast.data.unpack import read, unpack
from mast.errors import ArgumentError, DataError
from mast.objectives import Logistic
from mast.randomness import Key, Purpose, normal, permutation
from mast.support.checks import Array, Indices


@dataclass(frozen=True)
class Dataset:
    """A LIBSVM file by its name, its place and the sha256 of its text."""

    name: str
    path: str
    sha256: str

    def load(self) -> tuple[Any, Array]:
        """The rows and the labels -1/+1; refused if the file is no longer what it was."""
        return _load(self.path, self.sha256)


class Halves(NamedTuple):
    """Training and test rows, as (A, b) pairs."""

    train: tuple[Any, Array]
    test: tuple[Any, Array]


def locate(name_or_path: str, data_dir: Path | None = None) -> Dataset:
    """Find a data set as `mast.data.load` does, and note its checksum.

    >>> locate("a1a").sha256[:8]
    'eb54c45f'
    """
    loaded = data.load(name_or_path, data_dir=data_dir)
    if np.unique(loaded.b).size < 2:
        raise DataError(f"{loaded.path}: all labels are equal, so there is nothing to classify")
    name = loaded.path.name.removesuffix(".gz").removesuffix(".bz2")
    return Dataset(name, str(loaded.path.resolve()), _sum(str(loaded.path)))


@lru_cache(maxsize=4)
def _load(path: str, sha256: str) -> tuple[Any, Array]:
    if _sum(path) != sha256:
        raise DataError(f"{path}: the file changed while experiments were running on it")
    return data.load(path)


def _sum(path: str) -> str:
    return hashlib.sha256(unpack(read(Path(path)), path)).hexdigest()


def split_rows(n: int, seed: int, test_share: float) -> tuple[Indices, Indices]:
    """Training and test rows: the two parts of a keyed shuffle.

    >>> [part.size for part in split_rows(10, seed=0, test_share=0.25)]
    [8, 2]
    """
    tested = int(n * test_share)
    if not 0 < tested < n:
        raise ArgumentError(f"{n} rows cannot be split into training and test rows")
    order = permutation(Key(seed), Purpose.SPLIT, n)
    return np.sort(order[tested:]), np.sort(order[:tested])


@lru_cache(maxsize=4)
def halves(dataset: Dataset, seed: int, test_share: float) -> Halves:
    """The rows to train on and the rows to test on."""
    A, b = dataset.load()
    train, test = split_rows(b.size, seed, test_share)
    return Halves((A[train], b[train]), (A[test], b[test]))


@lru_cache(maxsize=8)
def logistic(
    dataset: Dataset, kappa: float, split_seed: int | None = None, test_share: float = 0.25
) -> Logistic:
    """The l2-regularised logistic loss on the whole set, or on the training rows of a split."""
    A, b = dataset.load() if split_seed is None else halves(dataset, split_seed, test_share).train
    return Logistic(A, b, kappa=kappa)


def gaussian_start(d: int, seed: int) -> Array:
    """x0 ~ N(0, I), from a key of its own."""
    return normal(Key(seed).child(0, Purpose.START), 0, d)


# ---- what networks are trained on -----------------------------------------------------------------


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
    return hashlib.sha256(read(path)).hexdigest()


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
