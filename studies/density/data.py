"""Data of the study: digits, CIFAR-10 as embeddings and as small images, source code and its manual.

Each set has training, validation and test rows. Settings are chosen on validation rows; test rows are looked
at once, by the networks that were chosen. Text is what every machine has: a network that continues it is
trained on the source of Python's library, and one that has read the source is adapted to Python's manual.
"""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mast.errors import DataError
from mast.experiments.datasets import (
    Dataset,
    data_folder,
    digits,
    digits_sum,
    file_sum,
    locate,
    read_npz,
    split_rows,
)
from mast.support.checks import Array

FOLDER = "cifar10"  # below a data folder
FILES = {"features": "resnet50_features_10k_2k.npz", "images": "images_10k_2k.npz"}
TEXTS = ("code", "manual")
DIGITS = ("digits", "digit-images")  # as rows of 64 numbers, and as images of one channel
NAMES = (*DIGITS, *FILES, *TEXTS)
LINEAR = "a1a"
TESTED, VALIDATED = dict.fromkeys(DIGITS, 0.3), 0.2  # of all rows (elsewhere a quarter); of the rest
LENGTH = 64  # characters that a row shows
ROWS = 64  # at most, of one document, so that no large one is most of the text
HELD = 400  # at most, that are validated and tested on
SYMBOLS = 97  # printable ASCII, the end of a line, and one for all the rest


class ClassRows(NamedTuple):
    """Inputs and their classes."""

    x: Tensor
    y: Tensor


class Parts(NamedTuple):
    """The rows to train on, to choose settings by, and to test on."""

    train: ClassRows
    validation: ClassRows
    test: ClassRows

    def some(self, count: int) -> Tensor:
        """About `count` training inputs, from all over: rows may be in order of their classes."""
        return self.train.x[:: max(1, len(self.train.x) // count)]


@dataclass(frozen=True)
class Labelled(Dataset):
    """Rows with class labels 0, 1, ...; `name` is one of `NAMES`."""

    split: int = 20261118  # the seed that chooses the tested rows; the next number chooses the validated ones

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
    folder = data_folder(data_dir)
    pixels = Labelled("digits", "", digits_sum())
    if dataset == "digit-images":
        return (Labelled(dataset, "", f"{dataset} {digits_sum()}"),)
    if dataset is not None:
        if dataset not in NAMES:
            return (locate(dataset, data_dir),)
        if dataset in TEXTS:
            return (Labelled(dataset, "", text_sum(dataset)),)
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
    if dataset.name in DIGITS:
        return digits()
    if dataset.name in TEXTS:
        return text_rows(dataset.name)[:2]
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
    x, y = _arrays(dataset)
    rest, test = split_rows(len(y), dataset.split, TESTED.get(dataset.name, 0.25))
    train, validation = (rest[part] for part in split_rows(len(rest), dataset.split + 1, VALIDATED))
    prepared = _prepared(dataset.name, x)
    over = (0, 2, 3) if prepared.ndim == 4 else 0  # images: each channel; else each input
    mean = prepared[train].mean(axis=over, keepdims=True)
    deviation = prepared[train].std(axis=over, keepdims=True)
    standard = torch.from_numpy((prepared - mean) / np.maximum(deviation, 1e-6))
    if standard.dim() == 4:  # the order in which convolutions are fastest
        standard = standard.contiguous(memory_format=torch.channels_last)
    labels = torch.from_numpy(y.astype(np.int64))
    return Parts(*(ClassRows(standard[rows], labels[rows]) for rows in (train, validation, test)))


@lru_cache(maxsize=2)
def _text_parts(name: str, split: int) -> Parts:
    """Whole documents are trained, validated or tested on; of the last two, some rows from all over them."""
    x, y, owner = text_rows(name)
    rest, test = split_rows(owner.max() + 1, split, 0.25)
    train, validation = (rest[part] for part in split_rows(len(rest), split + 1, VALIDATED))

    def part(documents: Any, most: int) -> ClassRows:
        rows = np.flatnonzero(np.isin(owner, documents))
        rows = rows[:: -(-len(rows) // most)]
        return ClassRows(torch.from_numpy(x[rows]), torch.from_numpy(y[rows]))

    return Parts(part(train, len(x)), part(validation, HELD), part(test, HELD))


def _prepared(name: str, x: Any) -> Any:
    """Numbers of about size 1; images at half their width and height."""
    if name in DIGITS:
        return (x / 16).astype(np.float32).reshape((-1, 64) if name == "digits" else (-1, 1, 8, 8))
    if name == "features":
        return x.astype(np.float32)
    n, height, width, channels = x.shape
    halved = x.reshape(n, height // 2, 2, width // 2, 2, channels).mean(axis=(2, 4), dtype=np.float32)
    return np.ascontiguousarray(halved.transpose(0, 3, 1, 2)) / 255


# ---- text -----------------------------------------------------------------------------------------


def documents(name: str) -> list[str]:
    """The files of the library, or the topics of the manual, in order of their names.

    Topics repeat each other; a paragraph stays in the first that has it, so that no text is in two documents.
    """
    if name == "manual":
        from pydoc_data.topics import topics

        seen: set[str] = set()
        found = []
        for _, text in sorted(topics.items()):
            new = [paragraph for paragraph in text.split("\n\n") if paragraph not in seen]
            seen.update(new)
            found.append("\n\n".join(new))
        return found
    library = Path(sysconfig.get_path("stdlib"))
    return [path.read_text(encoding="utf-8", errors="replace") for path in sorted(library.glob("*.py"))]


@lru_cache(maxsize=2)
def text_rows(name: str) -> tuple[Any, Any, Any]:
    """Characters (rows, LENGTH), the characters that follow them, and the number of each row's document."""
    pieces, owners = [], []
    for number, text in enumerate(documents(name)):
        codes = _codes(text)
        count = min(ROWS, (len(codes) - 1) // LENGTH)
        pieces += [codes[i * LENGTH : (i + 1) * LENGTH + 1] for i in range(count)]
        owners += [number] * count
    table = np.stack(pieces)
    return table[:, :-1], table[:, 1:], np.array(owners)


def _codes(text: str) -> Any:
    """A number per character: 0 to 94 for printable ASCII, 95 for the end of a line, 96 for all the rest."""
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32).astype(np.int64)
    printable = (points >= 32) & (points < 127)
    return np.where(printable, points - 32, np.where(points == 10, 95, SYMBOLS - 1))


def text_sum(name: str) -> str:
    """A checksum: the text is another one in every version of Python."""
    return hashlib.sha256("\0".join(documents(name)).encode()).hexdigest()
