"""Data of the study: digits, CIFAR-10 as embeddings and as small images, source code and its manual.

Each set has training, validation and test rows. Settings are chosen on validation rows; test rows are looked
at once, by the networks that were chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mast.arrays import Array
from mast.errors import DataError
from mast.experiments.datasets import Dataset, locate, split_rows
from mast.experiments.density import text
from mast.experiments.network_data import data_folder, digits, digits_sum, file_sum, need_torch, read_npz

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = "cifar10"  # below a data folder
FILES = {"features": "resnet50_features_10k_2k.npz", "images": "images_10k_2k.npz"}
TEXTS = ("code", "manual")
NAMES = ("digits", *FILES, *TEXTS)
LINEAR = "a1a"
TESTED, VALIDATED = {"digits": 0.3}, 0.2  # of all rows (elsewhere a quarter); of the rest
SPLITS = (
    (20261118, 20261119),
    (20261120, 20261121),
    (20261122, 20261123),
)  # seeds that no pilot has used, of tested and validated rows


class ClassRows(NamedTuple):
    """Inputs and their classes."""

    x: Tensor
    y: Tensor


class Parts(NamedTuple):
    """The rows to train on, to choose settings by, and to test on."""

    train: ClassRows
    validation: ClassRows
    test: ClassRows


@dataclass(frozen=True)
class Labelled(Dataset):
    """Rows with class labels 0, 1, ...; `name` is one of `NAMES`."""

    split: int = 0  # of three: what one has decided is judged by the next

    def load(self) -> tuple[Any, Array]:
        """All rows, flattened, and their labels."""
        x, y = _arrays(self)
        return x.reshape(len(x), -1), y

    def parts(self) -> Parts:
        """The three parts, standardised by the training rows."""
        return _text_parts(self.name, self.split) if self.name in TEXTS else _parts(self)

    def known(self) -> ClassRows:
        """What a network has seen that is then fine-tuned: half of the classes, or source code."""
        if self.name in TEXTS:
            return _text_parts("code", self.split).train
        rows = self.parts().train
        half = rows.y < (1 + int(rows.y.max())) // 2
        return ClassRows(rows.x[half], rows.y[half])


def find(effort: str, dataset: str | None, data_dir: Path | None) -> tuple[Dataset, ...]:
    """Digits, CIFAR-10 features if the folder has them, a1a for the linear case; or the one that is named."""
    need_torch()
    folder = data_folder(data_dir)
    pixels = Labelled("digits", "", digits_sum())
    if dataset is not None:
        if dataset not in NAMES:
            return (locate(dataset, data_dir),)
        if dataset in TEXTS:
            return (Labelled(dataset, "", text.text_sum(dataset)),)
        return (pixels if dataset == "digits" else _file(dataset, folder),)
    files: list[Dataset] = []
    if effort != "fast" and folder is not None and (folder / FOLDER / FILES["features"]).is_file():
        files = [_file("features", folder)]
    return (pixels, *files, locate(LINEAR, data_dir))


def _file(name: str, folder: Path | None) -> Labelled:
    relative = Path(FOLDER) / FILES[name]
    if folder is None:
        raise DataError(f"{relative} is needed: give the folder that holds it by --data-dir")
    return Labelled(name, str((folder / relative).resolve()), file_sum(folder / relative))


@lru_cache(maxsize=1)
def _arrays(dataset: Labelled) -> tuple[Any, Any]:
    """All rows and their labels: the files' own halves are put together, and split anew."""
    if dataset.name == "digits":
        return digits()
    if dataset.name in TEXTS:
        return text.rows(dataset.name)[:2]
    letter, rank = ("f", 2) if dataset.name == "features" else ("x", 4)
    names = (f"{letter}_train", "y_train", f"{letter}_test", "y_test")
    path = Path(dataset.path)
    x, y, x_test, y_test = read_npz(path, dataset.sha256, names)
    fit = x.shape[1:] == x_test.shape[1:]
    if x.ndim != rank or not fit or y.shape != x.shape[:1] or y_test.shape != x_test.shape[:1]:
        raise DataError(f"{path}: {names[0]} and {names[2]} must have {rank} dimensions and a label per row")
    return np.concatenate([x, x_test]), np.concatenate([y, y_test])


@lru_cache(maxsize=1)
def _parts(dataset: Labelled) -> Parts:
    import torch

    x, y = _arrays(dataset)
    tested, validated = SPLITS[dataset.split]
    rest, test = split_rows(len(y), tested, TESTED.get(dataset.name, 0.25))
    train, validation = (rest[part] for part in split_rows(len(rest), validated, VALIDATED))
    prepared = _prepared(dataset.name, x)
    over = (0, 2, 3) if prepared.ndim == 4 else 0  # images: each channel; else each input
    mean = prepared[train].mean(axis=over, keepdims=True)
    spread = prepared[train].std(axis=over, keepdims=True)
    standard = torch.from_numpy((prepared - mean) / np.maximum(spread, 1e-6))
    if standard.dim() == 4:  # the order in which convolutions are fastest
        standard = standard.contiguous(memory_format=torch.channels_last)
    labels = torch.from_numpy(y.astype(np.int64))
    return Parts(*(ClassRows(standard[rows], labels[rows]) for rows in (train, validation, test)))


@lru_cache(maxsize=2)
def _text_parts(name: str, split: int) -> Parts:
    """Whole documents are trained, validated or tested on; of the last two, some rows from all over them."""
    import torch

    x, y, owner = text.rows(name)
    rest, test = split_rows(owner.max() + 1, SPLITS[split][0], 0.25)
    train, validation = (rest[part] for part in split_rows(len(rest), SPLITS[split][1], VALIDATED))

    def part(documents: Any, most: int) -> ClassRows:
        rows = np.flatnonzero(np.isin(owner, documents))
        rows = rows[:: -(-len(rows) // most)]
        return ClassRows(torch.from_numpy(x[rows]), torch.from_numpy(y[rows]))

    return Parts(part(train, len(x)), part(validation, text.HELD), part(test, text.HELD))


def _prepared(name: str, x: Any) -> Any:
    """Numbers of about size 1; images at half their width and height."""
    if name == "digits":
        return (x / 16).astype(np.float32)
    if name == "features":
        return x.astype(np.float32)
    n, height, width, channels = x.shape
    halved = x.reshape(n, height // 2, 2, width // 2, 2, channels).mean(axis=(2, 4), dtype=np.float32)
    return np.ascontiguousarray(halved.transpose(0, 3, 1, 2)) / 255
