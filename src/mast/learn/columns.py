"""From a table to features: numbers standardised, categories one-hot; kept as JSON, applied alike later.

A missing number is NaN, and so are all features of a category that is missing or unknown: the model
knows what to make of it. A column that is absent is missing in every row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas
import scipy.sparse

from mast.arrays import Array, Indices
from mast.checks import number, positive
from mast.errors import DataError
from mast.learn.base import AUTO
from mast.learn.frames import compare
from mast.learn.tables import Table, as_numbers, cell_numbers, holds_numbers, mostly_numbers, number_of
from mast.sketches import Grouped, Sketch, parse

MANY = 1000  #: more categories than this are refused
FEW_ROWS = 50  #: in longer tables a text column that differs in most rows is taken for an identifier
DENSE = 200  #: tables with categories and more features than this become sparse matrices


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


def learn_columns(table: Table, target: str | None = None, drop: Sequence[str] = ()) -> FeatureColumns:
    """What becomes of each column but the target and those to leave out."""
    dropped = dict.fromkeys(drop, "named by --drop")
    names = [name for name in table.names if name not in {target, *drop}]
    parts = [part for name in names if (part := ColumnReading(table, name).column(dropped)) is not None]
    if not parts:
        why = f" ({'; '.join(f'{k!r} is {v}' for k, v in list(dropped.items())[:3])})" if dropped else ""
        raise DataError(f"{table.path}: no column is left to learn from{why}")
    return FeatureColumns(parts, dropped)


class ColumnReading:
    """One column: its numbers, its different texts, and what is odd."""

    def __init__(self, table: Table, name: str) -> None:
        self.path, self.name, cells = table.path, name, table.column(name)
        #: `odd` and `infinite` say where the first text and the first infinite number stand
        values, absent, self.odd, self.infinite = cell_numbers(table, name)
        there = np.flatnonzero(~absent)
        self.rows, self.given = len(cells), there.size
        self.texts = {cell.strip() for cell in {cells[row] for row in there}}
        self.numbers = values[~np.isnan(values)]

    def is_numeric(self) -> bool:
        """Whether it holds numbers only; an error if nearly so."""
        return holds_numbers(self.numbers.size, self.given, self.odd, self.infinite)

    def column(self, dropped: dict[str, str]) -> Column | None:
        """What becomes of it; None where it says nothing, and then why, in `dropped`."""
        if not self.is_numeric():
            return self._category(dropped)
        if not self.given or self.numbers.min() == self.numbers.max():
            dropped[self.name] = "constant" if self.given else "empty"
            return None
        # of all rows: a missing number is the mean
        with np.errstate(all="ignore"):
            mean = float(self.numbers.mean())
            scale = float(np.sqrt(np.sum((self.numbers - mean) ** 2) / self.rows))
        if not (np.isfinite(mean) and np.isfinite(scale)):
            raise DataError(
                f"{self.path}: the numbers of column {self.name!r} are too large to be standardised"
            )
        tiny = 10 * np.finfo(float).eps * max(abs(mean), np.finfo(float).tiny)
        return NumberColumn(self.name, mean, scale if scale > tiny else 1.0)

    def _category(self, dropped: dict[str, str]) -> Column | None:
        count = len(self.texts)
        plain = {text: text.replace(",", "") for text in self.texts if "," in text}
        with_commas = [text for text in plain if not math.isnan(number_of(plain[text]))]
        if mostly_numbers(len(with_commas), count):
            raise DataError(
                f"{self.path}: column {self.name!r} holds numbers with commas, such as {min(with_commas)!r}: "
                "write a decimal point, and nothing between thousands"
            )
        if count > MANY or (self.rows > FEW_ROWS and count > self.given / 2):
            raise DataError(
                f"{self.path}: column {self.name!r} has {count:,} different texts in {self.rows:,} rows, "
                f"which looks like an identifier; leave it out with --drop {self.name!r}"
            )
        if count == 1:
            dropped[self.name] = "constant"
            return None
        return CategoryColumn(self.name, sorted(self.texts))


# ---- columns that live or die together ------------------------------------------------------


def sketch_of(text: str, owners: Indices) -> Sketch:
    """The sketch of the features, given the column that each comes from.

    Features of one column, such as those of one category, live or die together.
    """
    inner = AUTO if text.strip().lower() == "auto" else parse(text)
    if int(owners.max()) + 1 == owners.size:
        return inner  # every feature is a group of its own
    return Grouped(inner, owners)
