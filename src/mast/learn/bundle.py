"""A trained model in a folder: the model, a plain one to compare with, and how files become features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from mast import data, files
from mast.data.loading import load_pieces
from mast.errors import DataError
from mast.learn.base import SparsifiedLinear
from mast.learn.columns import FeatureColumns
from mast.learn.scoring import as_ours
from mast.learn.storage import pack, read, unpack, write
from mast.learn.tables import Table, as_numbers, missing, read_table, read_tables

KIND = "trained model"
FILE = "model.mast"
PREVIEW = 8  #: names of columns that a message shows


class Features(NamedTuple):
    """What a file holds for a model."""

    X: Any
    y: Any  #: None where the file has no labels
    missing: NDArray[np.float64]  #: the share of the columns that each row misses
    remarks: list[str]


@dataclass(frozen=True)
class Bundle:
    """What `mast train` makes and `mast predict` and `mast evaluate` use."""

    model: Any
    plain_coef: NDArray[np.float64]
    plain_intercept: NDArray[np.float64]
    columns: FeatureColumns | None  # of a CSV file; None for LIBSVM
    target: str | None

    @property
    def plain(self) -> SparsifiedLinear:
        """The plain model, in the form of ours."""
        intercept = self.plain_intercept
        level = intercept if intercept.ndim else float(intercept)
        plain: SparsifiedLinear = as_ours(self.model, self.plain_coef, level)
        return plain

    def save(self, folder: Path) -> Path:
        """Write the file of the folder, which is made if it is not there."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{folder}: the folder cannot be made: {error.strerror}") from error
        model, arrays = pack(self.model)
        description = {
            "model": model,
            "columns": None if self.columns is None else self.columns.as_json(),
            "target": self.target,
        }
        more = {"plain_coef": self.plain_coef, "plain_intercept": self.plain_intercept}
        write(folder / FILE, KIND, description, arrays | more)
        return folder / FILE

    @staticmethod
    def load(folder: Path) -> Bundle:
        """Read a folder that `save` wrote; damaged and foreign ones are refused."""
        path = folder / FILE if folder.is_dir() or not folder.exists() else folder
        if not path.exists():
            raise DataError(f"{folder}: there is no model; `mast train` makes one")
        description, arrays = read(path, KIND)
        with files.damage_refused(path):
            model: Any = unpack(description["model"], arrays, path, SparsifiedLinear)  # type: ignore[type-abstract]
            content = description["columns"]
            columns = None if content is None else FeatureColumns.from_json(content)
            bundle = Bundle(
                model, arrays["plain_coef"], arrays["plain_intercept"], columns, description["target"]
            )
            _ = bundle.plain
            if not isinstance(bundle.target, str | None):
                raise DataError(f"{path} is damaged: its target is not the name of a column")
        if columns is not None and len(columns.feature_names) != model.n_features_in_:
            raise DataError(f"{path} is damaged: its columns do not fit the model")
        return bundle

    # ---- data --------------------------------------------------------------------------

    def features(self, file: str, data_dir: Path | None, size: int | None = None) -> Iterator[Features]:
        """The features of a file, its labels if it has any, and what there is to remark on its columns.

        In pieces of about `size` bytes, if that is given.
        """
        d = self.model.n_features_in_
        if self.columns is not None:
            tables = iter([read_table(file)]) if size is None else (t for t, _ in read_tables(file, size))
            yield from map(self._features, tables)
        elif size is None:
            X, y = data.load(file, d, data_dir, labels="raw")
            yield Features(X, y, np.zeros(X.shape[0]), [])
        else:
            found = data.find(file, data_dir)
            for X, y, _ in load_pieces(file if found is None else found.path, size, d):
                yield Features(X, y, np.zeros(X.shape[0]), [])

    def _features(self, table: Table) -> Features:
        assert self.columns is not None
        remarks = self.columns.compare(table, self.target)
        with np.errstate(over="ignore"):
            X = self.columns.apply(table)
        if np.isinf(X.data if scipy.sparse.issparse(X) else X).any():
            raise DataError(f"{table.path}: numbers that are too large for this model's columns")
        known = self.target in table.cells
        labels = labels_of(table, str(self.target), self._numeric) if known else None
        return Features(X, labels, self.columns.missing_shares(X), remarks)

    @property
    def _numeric(self) -> bool:
        """Whether labels are numbers: those of a regressor, and classes that are."""
        classes = getattr(self.model, "classes_", None)
        return classes is None or classes.dtype.kind in "iuf"


def labels_of(table: Table, target: str, numeric: bool | None = None) -> NDArray[Any]:
    """The target's column, as numbers if they are that (or must be); missing ones are refused."""
    if target not in table.cells:
        raise DataError(
            f"{table.path}: there is no column {target!r} to predict; the columns are {preview(table)}"
        )
    cells = table.column(target)
    absent = missing(cells)
    if any(absent):
        raise DataError(f"{table.place(absent.index(True))}: the target {target!r} is missing")
    numbers = as_numbers(table, target) if numeric is not False else None
    if numbers is not None:
        return as_integers(numbers)
    if numeric:
        raise DataError(f"{table.path}: the target {target!r} holds text, the model predicts numbers")
    return np.array([cell.strip() for cell in cells])


def as_integers(numbers: NDArray[np.float64]) -> NDArray[Any]:
    """Numbers as integers, if all of them are."""
    exact = (numbers == np.round(numbers)).all() and np.abs(numbers).max() < 2**53
    return numbers.astype(np.int64) if exact else numbers


def preview(table: Table) -> str:
    """The first columns' names, for messages."""
    return ", ".join(map(repr, table.names[:PREVIEW])) + (", ..." if len(table.names) > PREVIEW else "")
