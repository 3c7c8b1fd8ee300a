"""The rows of a training file: whole, or in pieces where the file is large."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mast import data
from mast.checks import choice
from mast.data.loading import load_pieces
from mast.errors import ArgumentError, DataError
from mast.learn.bundle import as_integers, labels_of, preview
from mast.learn.columns import ColumnLearner, FeatureColumns, learn_columns
from mast.learn.tables import Table, cells_as_numbers, is_number, read_table, read_tables
from mast.progress import Progress

PIECE = 8 << 20  #: bytes of text that are read at a time
ABOVE = 200.0  #: megabytes: larger files are read in pieces
PACKED = 8  #: how much larger a packed file is taken to be
VALUES = 10_000  #: more different labels than this are not counted: they are numbers to regress on
STEPS = 300_000  #: rows that are passed over, all passes together
PASSES = (2, 20)  #: at least and at most


@dataclass(frozen=True)
class TrainingData:
    """Rows to train on, and what is known of them."""

    rows: int
    features: int
    columns: FeatureColumns | None  #: of a CSV file; None for LIBSVM
    target: str | None
    values: NDArray[Any]  #: the different labels
    counts: NDArray[np.int64]  #: how often each stands there
    missing: float  #: the share of cells
    whole: tuple[Any, NDArray[Any]] | None  #: features and labels, unless they come in pieces
    pieces: Callable[[Progress | None], Iterator[tuple[Any, NDArray[Any]]]]

    @property
    def passes(self) -> int:
        """How often pieces are passed over."""
        least, most = PASSES
        return min(max(-(-STEPS // self.rows), least), most)


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


def training_data(
    file: str, target: str | None, drop: list[str], task: str, data_dir: Path | None, size: int | None
) -> TrainingData:
    """The rows of a file; with a size, in pieces of it, after a first look at all of them."""
    if target is None and not is_csv(file):
        if drop:
            raise ArgumentError("--drop is for CSV files, whose columns have names")
        if size is not None:
            return _sparse_pieces(file, data_dir, size)
        X, y = data.load(file, data_dir=data_dir, labels="raw")
        return _whole(X, as_integers(y), None, None)
    if size is not None:
        return _table_pieces(file, target, drop, task, size)
    table = read_table(file)
    name = _checked(table, target, drop)
    text = task == "classify" and not (
        name in table.cells and all(is_number(cell) for cell in table.column(name))
    )
    y = labels_of(table, name, False if text else None)
    columns = learn_columns(table, {name, *drop})
    return _whole(columns.apply(table), y, columns, name)


def _whole(X: Any, y: NDArray[Any], columns: FeatureColumns | None, target: str | None) -> TrainingData:
    values, counts = np.unique(y, return_counts=True)
    missing = 0.0 if columns is None else float(columns.missing_shares(X).mean())
    n, d = X.shape
    return TrainingData(
        n, d, columns, target, values, counts, missing, (X, y), lambda progress: iter([(X, y)])
    )


def _checked(table: Table, target: str | None, drop: list[str]) -> str:
    """The target's name, if it and the columns to leave out are there."""
    if target is None:
        raise DataError(
            f"{table.path}: which column is to be predicted? Give --target, one of {preview(table)}"
        )
    for name in [target, *drop]:
        if name not in table.cells:
            what = "predict" if name == target else "drop"
            more = f"; the columns are {preview(table)}" if name == target else ""
            raise DataError(f"{table.path}: there is no column {name!r} to {what}{more}")
    return target


# ---- in pieces ------------------------------------------------------------------------------


def _table_pieces(file: str, target: str | None, drop: list[str], task: str, size: int) -> TrainingData:
    learner, labels = None, Counter[str]()
    rows, numeric = 0, True
    with _reading(file, "looking at", 1) as progress:
        for table, position in read_tables(file, size):
            if learner is None:
                name = _checked(table, target, drop)
                learner = ColumnLearner({name, *drop})
            learner.add(table)
            rows += len(table.cells)
            texts = labels_of(table, name, numeric=False).tolist()
            if len(labels) <= VALUES:
                labels.update(texts)
            numeric = numeric and not np.isnan(cells_as_numbers(texts)[0]).any()
            progress.advance(position)
    assert learner is not None
    columns = learner.columns()
    missing = 1 - sum(learner.readings[part.name].given for part in columns.parts) / (
        rows * len(columns.parts)
    )
    different = as_integers(np.array([float(v) for v in labels])) if numeric else np.array(list(labels))
    values, places = np.unique(different, return_inverse=True)  # 1 and 1.0 are one number

    def pieces(progress: Progress | None) -> Iterator[tuple[Any, NDArray[Any]]]:
        for table, position in read_tables(file, size):
            y = labels_of(table, name, numeric)
            yield columns.apply(table), y.astype(values.dtype) if numeric else y
            _advance(progress, position)

    counts = np.bincount(places, list(labels.values())).astype(np.int64)
    return TrainingData(rows, len(columns.owners), columns, name, values, counts, missing, None, pieces)


def _sparse_pieces(file: str, data_dir: Path | None, size: int) -> TrainingData:
    found = data.find(file, data_dir)
    path = data.fetch(file, data_dir) if found is None else found.path
    labels = Counter[float]()
    rows, width = 0, 0
    with _reading(path, "looking at", 1) as progress:
        for A, y, position in load_pieces(path, size):
            rows, width = rows + A.shape[0], max(width, A.shape[1])
            if len(labels) <= VALUES:
                labels.update(y.tolist())
            progress.advance(position)
    if found is not None and found.name in data.SETS:
        width = max(width, data.SETS[found.name].features)
    values = as_integers(np.array(sorted(labels)))
    counts = np.array([labels[float(value)] for value in values])

    def pieces(progress: Progress | None) -> Iterator[tuple[Any, NDArray[Any]]]:
        for A, y, position in load_pieces(path, size, width):
            yield A, y.astype(values.dtype)
            _advance(progress, position)

    return TrainingData(rows, width, None, None, values, counts, 0.0, None, pieces)


def fit_in_pieces(file: str, source: TrainingData, models: list[Any], data_dir: Path | None) -> None:
    """Pass over the pieces, for all models at once."""
    path, first = location(file, data_dir), {"classes": source.values}
    with _reading(path, "training on", source.passes) as progress:
        for number in range(source.passes):
            progress.first_byte = number * path.stat().st_size
            for X, y in source.pieces(progress):
                for model in models:
                    model.partial_fit(X, y, **(first if hasattr(model, "decision_function") else {}))


class _ByteProgress(Progress):
    """Progress over the bytes of a file, which is read several times."""

    first_byte = 0


def _reading(path: str | Path, what: str, passes: int) -> _ByteProgress:
    size = Path(path).stat().st_size
    return _ByteProgress(passes * size, f"{what} {path}", unit="bytes")


def _advance(progress: Progress | None, position: int) -> None:
    if isinstance(progress, _ByteProgress):
        progress.advance(progress.first_byte + position)
