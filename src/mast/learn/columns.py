"""From a table to features: numbers standardised, categories one-hot; kept as JSON, applied alike later.

A missing number is NaN, and so are all features of a category that is missing or unknown: the model
knows what to make of it. A column that is absent is missing in every row.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import scipy.sparse

from mast.arrays import Array, Indices
from mast.checks import number, positive
from mast.data.unpack import read
from mast.errors import ArgumentError, DataError
from mast.learn.base import AUTO
from mast.learn.frames import compare
from mast.learn.tables import Table, as_numbers, cell_numbers, holds_numbers, mostly_numbers, number_of
from mast.sketches import Grouped, Sketch, parse

MANY = 1000  #: more categories than this are refused
FEW_ROWS = 50  #: in longer tables a text column that differs in most rows is taken for an identifier
DENSE = 200  #: tables with categories and more features than this become sparse matrices
_INNER = re.compile(
    r"^(?P<file>.+?)(?::(?P<sketch>(?:identity|bernoulli|unscaled|randk|permk|gaussian)(?::.*)?))?$"
)


@dataclass(frozen=True)
class NumberColumn:
    """A numeric column, standardised."""

    name: str
    mean: float
    scale: float

    @property
    def features(self) -> list[str]:
        """The names of its features: one."""
        return [self.name]

    def apply(self, table: Table) -> Any:
        """Its standardised numbers; NaN where one is missing."""
        numbers = as_numbers(table, self.name)
        if numbers is None:
            raise DataError(
                f"{table.path}: column {self.name!r} held numbers in training, here it holds text"
            )
        return ((numbers - self.mean) / self.scale)[:, None]


@dataclass(frozen=True)
class CategoryColumn:
    """A text column, one feature for each value."""

    name: str
    values: list[str]

    @property
    def features(self) -> list[str]:
        """The names of its features, such as ``job=cook``."""
        return [f"{self.name}={value}" for value in self.values]

    def apply(self, table: Table) -> Any:
        """A one in each row, below its value; NaN below all where the value is missing or unknown."""
        texts = [cell.strip() for cell in table.column(self.name)]
        codes = pandas.Index(self.values, dtype=object).get_indexer(texts)
        known, gaps = np.flatnonzero(codes >= 0), np.flatnonzero(codes < 0)
        width = len(self.values)
        rows = np.concatenate([known, np.repeat(gaps, width)])
        columns = np.concatenate([codes[known], np.tile(np.arange(width), gaps.size)])
        cells = np.concatenate([np.ones(known.size), np.full(gaps.size * width, np.nan)])
        return scipy.sparse.csr_array((cells, (rows, columns)), shape=(len(codes), width))


Column = NumberColumn | CategoryColumn


@dataclass(frozen=True)
class FeatureColumns:
    """What becomes of each column, and which were left out, with the reason."""

    parts: list[Column]
    dropped: dict[str, str]

    @property
    def feature_names(self) -> list[str]:
        """The features, such as ``age`` or ``job=cook``."""
        return [name for part in self.parts for name in part.features]

    @property
    def owners(self) -> Indices:
        """For each feature the number of the column it comes from."""
        return np.repeat(np.arange(len(self.parts)), [len(part.features) for part in self.parts])

    def compare(self, table: Table, target: str | None) -> list[str]:
        """A line for columns that the table does not have, and one for those that the model does not know."""
        known, ignored = [part.name for part in self.parts], [str(target), *self.dropped]
        return compare(known, table.names, ignored, f"{table.path}: ")

    def apply(self, table: Table) -> Any:
        """The features of a table's rows, NaN where missing: an array, or a sparse matrix if it is wide."""
        features: list[Any] = [
            part.apply(table)
            if part.name in table.cells
            else np.full((len(table.cells), len(part.features)), np.nan)
            for part in self.parts
        ]
        if any(isinstance(part, CategoryColumn) for part in self.parts) and len(self.owners) > DENSE:
            return scipy.sparse.hstack([scipy.sparse.csr_array(f) for f in features], format="csr")
        return np.column_stack([f.toarray() if scipy.sparse.issparse(f) else f for f in features])

    def missing_shares(self, X: Any) -> Array:
        """The share of the columns that is missing in each row of features."""
        gaps = np.isnan(X.toarray() if scipy.sparse.issparse(X) else X)
        each = 1 / np.bincount(self.owners)[self.owners]
        return np.asarray(gaps @ each / len(self.parts))

    @staticmethod
    def from_json(content: dict[str, Any]) -> FeatureColumns:
        """What `dataclasses.asdict` made of one."""
        parts: list[Column] = [
            CategoryColumn(str(part["name"]), [str(value) for value in part["values"]])
            if "values" in part
            else NumberColumn(
                str(part["name"]), number("mean", part["mean"]), positive("scale", part["scale"])
            )
            for part in content["parts"]
        ]
        columns = FeatureColumns(parts, {str(name): str(why) for name, why in content["dropped"].items()})
        if len(set(columns.feature_names)) < len(columns.feature_names):
            raise DataError("a column, or a value of one, is there twice")
        return columns


class ColumnLearner:
    """Decides what becomes of each column, from a table that may come in pieces; of the target, too."""

    def __init__(self, target: str | None = None, drop: Sequence[str] = ()) -> None:
        self.target, self.drop = target, list(drop)
        self.readings: dict[str, ColumnReading] = {}
        self.path = ""

    def add(self, table: Table) -> None:
        """Read some rows."""
        self.path = table.path
        for name in table.names:
            if name not in self.drop:
                self.readings.setdefault(name, ColumnReading(name)).add(table)

    def columns(self) -> FeatureColumns:
        """What becomes of each column, after all rows."""
        dropped = dict.fromkeys(self.drop, "named by --drop")
        readings = [reading for reading in self.readings.values() if reading.name != self.target]
        parts = [part for reading in readings if (part := reading.column(self.path, dropped)) is not None]
        if not parts:
            why = f" ({'; '.join(f'{k!r} is {v}' for k, v in list(dropped.items())[:3])})" if dropped else ""
            raise DataError(f"{self.path}: no column is left to learn from{why}")
        return FeatureColumns(parts, dropped)


class RunningMoments:
    """The mean of numbers that come in pieces, and the sum of squares around it."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, np.float64(0), np.float64(0)

    def add(self, numbers: Array) -> None:
        """Count these numbers."""
        if not numbers.size:
            return
        with np.errstate(all="ignore"):  # whoever uses them looks whether they are finite
            total, mean = self.count + numbers.size, numbers.mean()
            apart = (mean - self.mean) ** 2 * self.count * numbers.size / total
            self.squares += np.sum((numbers - mean) ** 2) + apart
            self.mean += (mean - self.mean) * numbers.size / total
        self.count = total


class ColumnReading:
    """One column, as far as it has been read: the moments of its numbers, and its different texts."""

    def __init__(self, name: str) -> None:
        self.name, self.rows, self.given = name, 0, 0
        self.numbers, self.least, self.most = RunningMoments(), np.inf, -np.inf
        self.texts: set[str] = set()
        self.odd = ""  # where the first text stands
        self.infinite = ""  # where the first infinite number stands

    def add(self, table: Table) -> None:
        """Read the column of a table."""
        cells = table.column(self.name)
        values, absent, odd, infinite = cell_numbers(table, self.name)
        there = np.flatnonzero(~absent)
        self.rows += len(cells)
        self.given += there.size
        if len(self.texts) <= MANY:
            self.texts.update(cell.strip() for cell in {cells[row] for row in there})
        self.odd, self.infinite = self.odd or odd, self.infinite or infinite
        numbers = values[~np.isnan(values)]
        self.numbers.add(numbers)
        if numbers.size:
            self.least, self.most = min(self.least, numbers.min()), max(self.most, numbers.max())

    def is_numeric(self) -> bool:
        """Whether it holds numbers only; an error if nearly so."""
        return holds_numbers(self.numbers.count, self.given, self.odd, self.infinite)

    def column(self, path: str, dropped: dict[str, str]) -> Column | None:
        """What becomes of it; None where it says nothing, and then why, in `dropped`."""
        if not self.is_numeric():
            return self._category(path, dropped)
        if not self.given or self.least == self.most:
            dropped[self.name] = "constant" if self.given else "empty"
            return None
        # of all rows: a missing number is the mean
        mean, scale = float(self.numbers.mean), float(np.sqrt(self.numbers.squares / self.rows))
        if not (np.isfinite(mean) and np.isfinite(scale)):
            raise DataError(f"{path}: the numbers of column {self.name!r} are too large to be standardised")
        tiny = 10 * np.finfo(float).eps * max(abs(mean), np.finfo(float).tiny)
        return NumberColumn(self.name, mean, scale if scale > tiny else 1.0)

    def _category(self, path: str, dropped: dict[str, str]) -> Column | None:
        count = len(self.texts)
        plain = {text: text.replace(",", "") for text in self.texts if "," in text}
        with_commas = [text for text in plain if not math.isnan(number_of(plain[text]))]
        if mostly_numbers(len(with_commas), count):
            raise DataError(
                f"{path}: column {self.name!r} holds numbers with commas, such as {min(with_commas)!r}: "
                "write a decimal point, and nothing between thousands"
            )
        if count > MANY or (self.rows > FEW_ROWS and count > self.given / 2):
            raise DataError(
                f"{path}: column {self.name!r} has {count:,} different texts in {self.rows:,} rows, "
                f"which looks like an identifier; leave it out with --drop {self.name!r}"
            )
        if count == 1:
            dropped[self.name] = "constant"
            return None
        return CategoryColumn(self.name, sorted(self.texts))


# ---- columns that live or die together ------------------------------------------------------


def sketch_of(text: str, owners: Indices, names: list[str]) -> Sketch:
    """The sketch of the features, given the column that each comes from and the columns' names.

    Features of one column, such as those of one category, live or die together. ``groups:FILE`` makes
    each line of the file, column names between commas, one group; columns that it does not list are
    groups of their own. The groups are sketched as ``auto`` does, or by what follows, as in
    ``groups:FILE:bernoulli:0.5``.
    """
    if text.strip().lower() == "auto":
        inner, labels = AUTO, owners
    elif not text.strip().lower().startswith("groups:"):
        inner, labels = parse(text), owners
    else:
        match = _INNER.match(text.strip()[len("groups:") :])
        if match is None:
            raise ArgumentError("groups: needs a file, as in groups:groups.txt")
        inner = parse(match["sketch"]) if match["sketch"] else AUTO
        labels = _group_labels(Path(match["file"]), names)[owners]
    labels = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    if int(labels.max()) + 1 == labels.size and (np.diff(labels) > 0).all():
        return inner  # every feature is a group of its own
    return Grouped(inner, labels)


def _group_labels(path: Path, names: list[str]) -> Indices:
    place: dict[str, int] = {name: j for j, name in enumerate(names)}
    labels = np.full(len(names), -1, dtype=np.int64)
    try:
        lines = read(path).decode("utf-8-sig").splitlines()
        rows = list(csv.reader(lines, strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: groups are lines of column names between commas ({error})") from None
    for line, row in enumerate(rows, 1):
        for member in _members([cell.strip() for cell in row if cell.strip()], place):
            if member not in place:
                raise DataError(f"{path}, line {line}: there is no column {member!r}")
            if labels[place[member]] >= 0:
                raise DataError(f"{path}, line {line}: {member!r} is in two groups")
            labels[place[member]] = line
    alone = np.flatnonzero(labels < 0)
    labels[alone] = len(rows) + 1 + np.arange(alone.size)
    return labels


def _members(cells: list[str], place: dict[str, Any]) -> list[str]:
    """The names in a line; where columns are numbers, 3-7 is a range of them."""
    out: list[str] = []
    for cell in cells:
        match = re.fullmatch(r"(\d+)-(\d+)", cell)
        if cell not in place and match:
            first, last = int(match[1]), int(match[2])
            out += [str(j) for j in range(first, min(last, first + len(place)) + 1)]
        else:
            out.append(cell)
    return out
