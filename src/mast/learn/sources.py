"""The rows of a file, a table or LIBSVM text: to train on, or to predict."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
from numpy.typing import NDArray

from mast import data
from mast.errors import ArgumentError, DataError
from mast.learn.columns import CategoryColumn
from mast.learn.encoder import TableEncoder
from mast.learn.frames import ColumnsWarning, shown
from mast.learn.tables import all_numbers, mended, read_table
from mast.support.arrays import Array


def is_csv(file: str) -> bool:
    """Whether a file is a table, by its name."""
    name = file.lower().removesuffix(".gz").removesuffix(".bz2")
    return name.endswith((".csv", ".tsv"))


# ---- to learn from --------------------------------------------------------------------------------


class TrainingRows(NamedTuple):
    """The rows of a file to train on."""

    X: Any  #: a data frame, or a sparse matrix of a LIBSVM file
    y: NDArray[Any]
    target: str | None
    numeric: bool  #: whether labels are numbers
    without_target: int  #: rows that were left out


def training_rows(
    file: str, target: str | None, drop: list[str], task: str, data_dir: Path | None
) -> TrainingRows:
    """The rows of a file to train on."""
    if target is None and not is_csv(file):
        if drop:
            raise ArgumentError("--drop is for CSV files, whose columns have names")
        X, y = data.load(file, None, data_dir, labels="raw")
        return TrainingRows(X, as_integers(y), None, True, 0)
    frame = read_table(file, [] if target is None else [target])
    target = _checked(file, frame, target, drop)
    rows = len(frame)
    frame = frame[frame[target].notna()]
    if frame.empty:
        raise DataError(f"{file}: the target {target!r} is missing in every row")
    numeric = _is_numeric(file, frame[target], task)
    y = labels_of(file, frame[target], numeric)
    return TrainingRows(
        mended(frame.drop(columns=[target, *drop]), file), y, target, numeric, rows - len(frame)
    )


def _checked(file: str, frame: pandas.DataFrame, target: str | None, drop: list[str]) -> str:
    """The target's name, if it and the columns to leave out are there."""
    names = shown(list(frame))
    if target is None:
        raise DataError(f"{file}: which column is to be predicted? Give --target, one of {names}")
    for name in [target, *drop]:
        if name not in frame:
            what = "predict" if name == target else "drop"
            raise DataError(f"{file}: there is no column {name!r} to {what}; the columns are {names}")
    if len({target, *drop}) == frame.shape[1]:
        raise DataError(f"{file}: no column is left to learn from")
    return target


def _is_numeric(file: str, column: pandas.Series, task: str) -> bool:
    try:
        return all_numbers(column, file) is not None
    except DataError:  # nearly so: numbers with a mistake, unless they are the names of classes
        if task == "classify":
            return False
        raise


def labels_of(file: str, column: pandas.Series, numeric: bool) -> NDArray[Any]:
    """A target that is there in all rows, as numbers or as texts."""
    if not numeric:
        codes, texts = pandas.factorize(column)
        return np.asarray(np.array([text.strip() for text in texts])[codes])
    numbers = all_numbers(column, file)
    if numbers is None:
        raise DataError(f"{file}: the target {column.name!r} holds text, the model predicts numbers")
    if np.isinf(numbers).any():
        raise DataError(f"{file}: the target {column.name!r} holds infinity")
    return as_integers(numbers)


def as_integers(numbers: Array) -> NDArray[Any]:
    """Numbers as integers, if all of them are."""
    exact = (numbers == np.round(numbers)).all() and np.abs(numbers).max() < 2**53
    return numbers.astype(np.int64) if exact else numbers


# ---- to predict -----------------------------------------------------------------------------------


class Rows(NamedTuple):
    """The rows of a file as features."""

    X: Any
    y: Any  #: None where there are no labels, or none are asked for
    missing: Array  #: the share of the columns that each row misses
    remarks: list[str]  #: on the columns of the file
    kept: pandas.DataFrame | None = None  #: columns that are passed on


@dataclass(frozen=True)
class RowReader:
    """How a file becomes rows: a table by its encoder, LIBSVM text by its width."""

    encoder: TableEncoder | None  #: of a table; None for LIBSVM
    width: int  #: how many features
    target: str | None
    numeric: bool  #: whether labels are numbers
    dropped: list[str] = field(default_factory=list)  #: columns that were left out by name

    def rows(self, file: str, data_dir: Path | None, labels: bool = True, keep: Sequence[str] = ()) -> Rows:
        """All rows of a file; where labels are asked for, those that have one."""
        if self.encoder is None:
            if keep:
                raise ArgumentError("--keep is for CSV files, whose columns have names")
            X, y = data.load(file, self.width, data_dir, labels="raw")
            return Rows(X, y, np.zeros(X.shape[0]), [])
        frame = read_table(file, [*self._categories(), *keep, *([self.target] if self.target else [])])
        for name in keep:
            if name not in frame:
                raise DataError(
                    f"{file}: there is no column {name!r} to keep; the columns are {shown(list(frame))}"
                )
        labelled = labels and self.target in frame
        remarks: list[str] = []
        if labelled:
            frame, remarks = self._with_target(file, frame)
        unused = [name for name in (self.target, *self.dropped) if name in frame]
        X, said = encoded(file, self.encoder, frame.drop(columns=unused))
        labels_ = labels_of(file, frame[self.target], self.numeric) if labelled else None
        return Rows(X, labels_, self.encoder.missing_shares(X), remarks + said, frame[list(keep)])

    def _categories(self) -> list[str]:
        """The columns that were texts, and are read as such: numbers would lose how they are written."""
        parts = self.encoder.columns_ if self.encoder else []
        return [part.name for part in parts if isinstance(part, CategoryColumn) and not part.boolean]

    def _with_target(self, file: str, frame: pandas.DataFrame) -> tuple[pandas.DataFrame, list[str]]:
        """The rows that have a target, and a remark on the others."""
        there = frame[self.target].notna()
        if not there.any():
            raise DataError(f"{file}: the target {self.target!r} is missing in every row")
        if there.all():
            return frame, []
        return frame[there], [f"{(~there).sum():,} rows without {self.target!r} are left out"]


def encoded(file: str, encoder: TableEncoder, frame: pandas.DataFrame) -> tuple[Any, list[str]]:
    """The features of a table, and remarks on its columns."""
    with warnings.catch_warnings(record=True) as caught, errors_of(file):
        warnings.simplefilter("always", ColumnsWarning)
        X = encoder.transform(frame)
    return X, [str(warning.message) for warning in caught if warning.category is ColumnsWarning]


@contextmanager
def errors_of(file: str) -> Iterator[None]:
    """Errors name the file."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{file}{',' if str(error).startswith(('line', 'row')) else ':'} {error}") from None
