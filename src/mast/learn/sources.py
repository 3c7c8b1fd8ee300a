"""The rows of a file, a table or LIBSVM text, whole or in pieces: to train on, or to predict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from mast import data
from mast.arrays import Array
from mast.checks import choice
from mast.data.loading import load_pieces
from mast.errors import ArgumentError, DataError
from mast.learn.columns import ColumnLearner, FeatureColumns
from mast.learn.frames import shown
from mast.learn.tables import Table, as_numbers, missing, read_tables
from mast.progress import Progress

PIECE = 8 << 20  #: bytes of text that are read at a time
PACKED = 8  #: how much larger a packed file is taken to be
VALUES = 10_000  #: more different labels than this are not counted: they are numbers to regress on
STEPS = 300_000  #: rows that are passed over, all passes together
PASSES = (2, 20)  #: at least and at most


def piece_size(file: str, data_dir: Path | None, stream: str, above: float) -> int | None:
    """How many bytes are read at a time; None for all of them."""
    choice("--stream", stream, ("auto", "always", "never"))
    if stream == "auto":
        path = location(file, data_dir)
        packed = PACKED if path.suffix in (".gz", ".bz2") else 1
        stream = "always" if path.is_file() and path.stat().st_size * packed > above * 1e6 else "never"
    return PIECE if stream == "always" else None


def location(file: str, data_dir: Path | None) -> Path:
    """Where a file or a set of this name is; the path itself where there is none."""
    found = None if is_csv(file) else data.find(file, data_dir)
    return Path(file) if found is None else found.path


def is_csv(file: str) -> bool:
    """Whether a file is a table, by its name."""
    name = file.lower().removesuffix(".gz").removesuffix(".bz2")
    return name.endswith((".csv", ".tsv"))


class Rows(NamedTuple):
    """Some rows of a file."""

    X: Any
    y: Any  #: None where there are no labels, or none are asked for
    missing: Array  #: the share of the columns that each row misses
    remarks: list[str]  #: on the columns of the file
    position: int  #: how many bytes of the file were read by then


@dataclass(frozen=True)
class RowReader:
    """How a file becomes rows: a table by what was learned of its columns, LIBSVM text by its width."""

    columns: FeatureColumns | None  #: of a table; None for LIBSVM
    width: int  #: how many features
    target: str | None
    numeric: bool  #: whether labels are numbers

    def rows(
        self, file: str, data_dir: Path | None, size: int | None = None, labels: bool = True
    ) -> Iterator[Rows]:
        """All rows, in pieces of about `size` bytes if that is given."""
        if self.columns is not None:
            for table, position in read_tables(file, size):
                yield self.of_table(table, position, labels)
        else:
            yield from _sparse_rows(file, data_dir, size, self.width)

    def of_table(self, table: Table, position: int, labels: bool) -> Rows:
        """The rows of a table."""
        assert self.columns is not None
        remarks = self.columns.compare(table, self.target)
        with np.errstate(over="ignore"):
            X = self.columns.apply(table)
        if np.isinf(X.data if scipy.sparse.issparse(X) else X).any():
            raise DataError(f"{table.path}: numbers that are too large for this model's columns")
        known = labels and self.target in table.cells
        y = labels_of(table, str(self.target), self.numeric) if known else None
        return Rows(X, y, self.columns.missing_shares(X), remarks, position)


def _sparse_rows(file: str, data_dir: Path | None, size: int | None, width: int | None) -> Iterator[Rows]:
    """The rows of a LIBSVM file or of a set."""
    if size is None:
        whole = data.load(file, width, data_dir, labels="raw")
        pieces: Iterator[tuple[Any, NDArray[np.float64], int]] = iter([(*whole, 0)])
    else:
        pieces = load_pieces(_brought(file, data_dir), size, width)
    for X, y, position in pieces:
        yield Rows(X, y, np.zeros(X.shape[0]), [], position)


def _brought(file: str, data_dir: Path | None) -> Path:
    """Where a LIBSVM file is, or a set, which is downloaded if it is nowhere."""
    found = data.find(file, data_dir)
    return data.fetch(file, data_dir) if found is None else found.path


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


@dataclass(frozen=True)
class TrainingData:
    """A file to train on, and what is known of it after a first look at all rows."""

    file: str
    data_dir: Path | None
    size: int | None
    reader: RowReader
    rows: int
    labels: Counter[Any]  #: how often each label stands there
    missing: float  #: the share of cells
    whole: Rows | None  #: all rows, unless they come in pieces

    @property
    def values(self) -> NDArray[Any]:
        """The different labels, sorted."""
        if not self.reader.numeric:
            return np.array(sorted(self.labels))
        numbers = np.array(sorted(self.labels), dtype=np.float64)
        return as_integers(numbers) if len(self.labels) <= VALUES else numbers  # others were not counted

    @property
    def passes(self) -> int:
        """How often pieces are passed over."""
        least, most = PASSES
        return min(max(-(-STEPS // self.rows), least), most)

    def pieces(self) -> Iterator[Rows]:
        """All rows once more."""
        if self.whole is not None:
            return iter([self.whole])
        return self.reader.rows(self.file, self.data_dir, self.size)

    def pass_over(self, models: list[Any]) -> None:
        """Train all models on the pieces, at once."""
        classes = {"classes": self.values}
        size = location(self.file, self.data_dir).stat().st_size
        with Progress(self.passes * size, f"training on {self.file}", unit="bytes") as progress:
            for number in range(self.passes):
                for rows in self.pieces():
                    for model in models:
                        model.partial_fit(
                            rows.X, rows.y, **(classes if hasattr(model, "decision_function") else {})
                        )
                    progress.advance(number * size + rows.position)


def training_data(
    file: str, target: str | None, drop: list[str], task: str, data_dir: Path | None, size: int | None
) -> TrainingData:
    """The rows of a file; with a size, in pieces of it, after a first look at all of them."""
    if target is None and not is_csv(file):
        if drop:
            raise ArgumentError("--drop is for CSV files, whose columns have names")
        return _sparse_data(file, data_dir, size)
    return _table_data(file, target, drop, task, size)


def _table_data(file: str, target: str | None, drop: list[str], task: str, size: int | None) -> TrainingData:
    learner, labels, rows = None, Counter[str](), 0
    with _looking_at(file, size) as progress:
        for table, position in read_tables(file, size):
            if learner is None:
                name = _checked(table, target, drop)
                learner = ColumnLearner(name, drop)
            learner.add(table)
            rows += len(table.cells)
            texts = labels_of(table, name, numeric=False).tolist()
            if len(labels) <= VALUES:
                labels.update(texts)
            progress.advance(position)
    assert learner is not None
    given = learner.readings[name]
    numeric = not given.odd if task == "classify" else given.is_numeric()
    counts: Counter[Any] = labels
    if numeric:
        counts = Counter[Any]()
        for text, count in labels.items():  # 1 and 1.0 are one number
            counts[float(text)] += count
    columns = learner.columns()
    reader = RowReader(columns, len(columns.owners), name, numeric)
    cells = rows * len(columns.parts)
    absent = 1 - sum(learner.readings[part.name].given for part in columns.parts) / cells
    whole = reader.of_table(table, position, labels=True) if size is None else None
    return TrainingData(file, None, size, reader, rows, counts, absent, whole)


def _sparse_data(file: str, data_dir: Path | None, size: int | None) -> TrainingData:
    labels, rows, width = Counter[float](), 0, 0
    with _looking_at(_brought(file, data_dir) if size is not None else file, size) as progress:
        for piece in _sparse_rows(file, data_dir, size, None):
            rows, width = rows + piece.X.shape[0], max(width, piece.X.shape[1])
            if len(labels) <= VALUES:
                labels.update(piece.y.tolist())
            progress.advance(piece.position)
    found = data.find(file, data_dir)
    if found is not None and found.name in data.SETS:
        width = max(width, data.SETS[found.name].features)
    if not width:
        raise DataError(f"{file}: no row has a feature, so there is nothing to learn from")
    reader = RowReader(None, width, None, True)
    whole = piece._replace(y=as_integers(piece.y)) if size is None else None
    return TrainingData(file, data_dir, size, reader, rows, labels, 0.0, whole)


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


def _looking_at(path: str | Path, size: int | None) -> Any:
    """The progress of a first look at a file, if it is read in pieces."""
    total = Path(path).stat().st_size if size is not None and Path(path).exists() else 0
    return Progress(total, f"looking at {path}", show=None if size is not None else False, unit="bytes")
