"""What `mast train` makes: a model, a usual one to compare with, and how files become rows for both."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
from numpy.typing import NDArray

from mast import data
from mast.errors import ArgumentError, DataError
from mast.learn.columns import CategoryColumn
from mast.learn.commands.csv_files import all_numbers, convert_numbers, read_table
from mast.learn.encoder import TableEncoder
from mast.learn.linear import LinearEstimator
from mast.learn.storage import floats, pack, pack_encoder, read, unpack, unpack_encoder, write
from mast.learn.validation import ColumnsWarning, shown
from mast.support import files
from mast.support.checks import Array

FILE = "model.mast"  #: of a trained model, in its folder
KIND = "trained model"


class Rows(NamedTuple):
    """The rows of a file as features."""

    X: Any
    y: Any  #: None where there are no labels, or none are asked for
    missing: Array  #: the share of the columns that each row misses
    remarks: list[str]  #: on the columns of the file
    kept: pandas.DataFrame | None = None  #: columns that are passed on


@dataclass(frozen=True)
class TrainedModel:
    """A trained model, a usual one to compare with, and how files become rows for both.

    The usual one is a linear model that takes what is missing for 0, the mean of a standardised number.
    """

    model: Any
    usual_coef: Array  #: (outputs, features)
    usual_intercept: Array
    encoder: TableEncoder | None  #: of a table; None for LIBSVM
    target: str | None
    dropped: list[str]  #: columns that were left out by name

    def save(self, folder: Path) -> Path:
        """Write the file of the folder, which is made if it is not there."""
        files.make_folder(folder)
        model, arrays = pack(self.model)
        arrays["usual_coef"], arrays["usual_intercept"] = self.usual_coef, self.usual_intercept
        description = {
            "model": model,
            "columns": None if self.encoder is None else pack_encoder(self.encoder),
            "target": self.target,
            "dropped": self.dropped,
        }
        write(folder / FILE, KIND, description, arrays)
        return folder / FILE

    @staticmethod
    def load(folder: Path) -> TrainedModel:
        """Read a folder that `save` wrote; damaged and foreign ones are refused."""
        path = folder / FILE if folder.is_dir() or not folder.exists() else folder
        if not path.exists():
            raise DataError(f"{folder}: there is no model; `mast train` makes one")
        description, arrays = read(path, KIND)
        with files.damage_refused(path):
            model: Any = unpack(description["model"], arrays, path, LinearEstimator)
            outputs, d = model.shift_.shape
            coef = floats(arrays["usual_coef"]).reshape(outputs, d)
            intercept = floats(arrays["usual_intercept"]).reshape(outputs)
            content, target = description["columns"], description["target"]
            encoder = None if content is None else unpack_encoder(content)
            if not isinstance(target, str | None):
                raise DataError(f"{path} is damaged: its target is not the name of a column")
            if encoder is not None and len(encoder.groups_) != d:
                raise DataError(f"{path} is damaged: its columns do not fit the model")
            dropped = [str(name) for name in description["dropped"]]
        return TrainedModel(model, coef, intercept, encoder, target, dropped)

    def rows(self, file: str, data_dir: Path | None, labels: bool = True, keep: Sequence[str] = ()) -> Rows:
        """All rows of a file; where labels are asked for, those that have one."""
        if self.encoder is None:
            if keep:
                raise ArgumentError("--keep is for CSV files, whose columns have names")
            X, y = data.load(file, self.model.n_features_in_, data_dir, labels="raw")
            return Rows(X, y, np.zeros(X.shape[0]), [])
        frame = read_table(file, [*self._categories(), *keep, *([self.target] if self.target else [])])
        for name in keep:
            if name not in frame:
                raise DataError(
                    f"{file}: there is no column {name!r} to keep; the columns are {shown(list(frame))}"
                )
        remarks: list[str] = []
        labelled = labels and self.target in frame
        if labelled:
            frame, remarks = self._with_target(file, frame)
        unused = [name for name in (self.target, *self.dropped) if name in frame]
        X, on_columns = encoded(file, self.encoder, frame.drop(columns=unused))
        classes = getattr(self.model, "classes_", None)
        numeric = classes is None or classes.dtype.kind in "iuf"
        y_ = labels_of(file, frame[self.target], numeric) if labelled else None
        return Rows(X, y_, self.encoder.missing_shares(X), remarks + on_columns, frame[list(keep)])

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


# ---- rows to train on ------------------------------------------------------------------------------


def is_csv(file: str) -> bool:
    """Whether a file is a table, by its name."""
    name = file.lower().removesuffix(".gz").removesuffix(".bz2")
    return name.endswith((".csv", ".tsv"))


def training_rows(
    file: str, target: str | None, drop: list[str], task: str, data_dir: Path | None
) -> tuple[Any, NDArray[Any], int]:
    """The rows of a file to train on, their labels, and how many rows have none and are left out.

    The rows are a data frame, or a sparse matrix of a LIBSVM file.
    """
    if target is None and not is_csv(file):
        if drop:
            raise ArgumentError("--drop is for CSV files, whose columns have names")
        X, y = data.load(file, None, data_dir, labels="raw")
        return X, as_integers(y), 0
    frame = read_table(file, [] if target is None else [target])
    target = _checked(file, frame, target, drop)
    rows = len(frame)
    frame = frame[frame[target].notna()]
    if frame.empty:
        raise DataError(f"{file}: the target {target!r} is missing in every row")
    y = labels_of(file, frame[target], _is_numeric(file, frame[target], task))
    return convert_numbers(frame.drop(columns=[target, *drop]), file), y, rows - len(frame)


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
