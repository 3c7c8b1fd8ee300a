"""The rows of a file, a table or LIBSVM text: to train on, or to predict."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from mast import data
from mast.arrays import Array
from mast.errors import ArgumentError, DataError
from mast.learn.columns import ColumnReading, FeatureColumns, learn_columns
from mast.learn.frames import shown
from mast.learn.tables import Table, as_numbers, missing, read_table


def is_csv(file: str) -> bool:
    """Whether a file is a table, by its name."""
    name = file.lower().removesuffix(".gz").removesuffix(".bz2")
    return name.endswith((".csv", ".tsv"))


class Rows(NamedTuple):
    """The rows of a file."""

    X: Any
    y: Any  #: None where there are no labels, or none are asked for
    missing: Array  #: the share of the columns that each row misses
    remarks: list[str]  #: on the columns of the file


@dataclass(frozen=True)
class RowReader:
    """How a file becomes rows: a table by what was learned of its columns, LIBSVM text by its width."""

    columns: FeatureColumns | None  #: of a table; None for LIBSVM
    width: int  #: how many features
    target: str | None
    numeric: bool  #: whether labels are numbers

    def rows(self, file: str, data_dir: Path | None, labels: bool = True) -> Rows:
        """All rows of a file."""
        if self.columns is not None:
            return self.of_table(read_table(file), labels)
        X, y = data.load(file, self.width, data_dir, labels="raw")
        return Rows(X, y, np.zeros(X.shape[0]), [])

    def of_table(self, table: Table, labels: bool = True) -> Rows:
        """The rows of a table."""
        assert self.columns is not None
        remarks = self.columns.compare(table, self.target)
        with np.errstate(over="ignore"):
            X = self.columns.apply(table)
        if np.isinf(X.data if scipy.sparse.issparse(X) else X).any():
            raise DataError(f"{table.path}: numbers that are too large for this model's columns")
        known = labels and self.target in table.cells
        y = labels_of(table, str(self.target), self.numeric) if known else None
        return Rows(X, y, self.columns.missing_shares(X), remarks)


def labels_of(table: Table, target: str, numeric: bool) -> NDArray[Any]:
    """The target's column, as numbers or as texts; missing ones are refused."""
    cells = table.column(target)
    absent = missing(cells)
    if any(absent):
        raise DataError(f"{table.place(absent.index(True))}: the target {target!r} is missing")
    if not numeric:
        return np.array([cell.strip() for cell in cells])
    numbers = as_numbers(table, target)
    if numbers is None:
        raise DataError(f"{table.path}: the target {target!r} holds text, the model predicts numbers")
    return as_integers(numbers)


def as_integers(numbers: NDArray[np.float64]) -> NDArray[Any]:
    """Numbers as integers, if all of them are."""
    exact = (numbers == np.round(numbers)).all() and np.abs(numbers).max() < 2**53
    return numbers.astype(np.int64) if exact else numbers


# ---- to learn from --------------------------------------------------------------------------


def training_rows(
    file: str, target: str | None, drop: list[str], task: str, data_dir: Path | None
) -> tuple[RowReader, Rows]:
    """The rows of a file to train on, and how later files become rows like them."""
    if target is not None or is_csv(file):
        return _table_rows(file, target, drop, task)
    if drop:
        raise ArgumentError("--drop is for CSV files, whose columns have names")
    X, y = data.load(file, None, data_dir, labels="raw")
    return RowReader(None, X.shape[1], None, True), Rows(X, as_integers(y), np.zeros(X.shape[0]), [])


def _table_rows(file: str, target: str | None, drop: list[str], task: str) -> tuple[RowReader, Rows]:
    table = read_table(file)
    name = _checked(table, target, drop)
    labels_of(table, name, numeric=False)  # refuses what is missing, before anything else is said
    given = ColumnReading(table, name)
    numeric = not given.odd if task == "classify" else given.is_numeric()
    columns = learn_columns(table, name, drop)
    reader = RowReader(columns, len(columns.owners), name, numeric)
    return reader, reader.of_table(table)


def _checked(table: Table, target: str | None, drop: list[str]) -> str:
    """The target's name, if it and the columns to leave out are there."""
    names = shown(table.names)
    if target is None:
        raise DataError(f"{table.path}: which column is to be predicted? Give --target, one of {names}")
    for name in [target, *drop]:
        if name not in table.cells:
            what = "predict" if name == target else "drop"
            raise DataError(f"{table.path}: there is no column {name!r} to {what}; the columns are {names}")
    return target
