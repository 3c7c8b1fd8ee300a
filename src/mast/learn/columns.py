"""From a table to features: numbers standardised, categories one-hot; kept as JSON, applied alike later.

A missing number is NaN, and so are all features of a category that is missing or unknown: the model
knows what to make of it. A column that is absent is missing in every row.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas
import scipy.sparse

from mast.arrays import Array, Indices
from mast.errors import DataError
from mast.learn.frames import compare
from mast.learn.tables import Table, as_numbers, missing

MANY = 1000  #: more categories than this are refused
FEW_ROWS = 50  #: in longer tables a text column that differs in most rows is taken for an identifier
WIDE = 1000  #: tables with more columns than this are first tried as one block of numbers
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
        try:
            return compare([part.name for part in self.parts], table.names, [str(target), *self.dropped])
        except DataError as error:
            raise DataError(f"{table.path}: {error}") from None

    def apply(self, table: Table) -> Any:
        """The features of a table's rows, NaN where missing: an array, or a sparse matrix if it is wide."""
        numbers = [part for part in self.parts if isinstance(part, NumberColumn)]
        there = all(part.name in table.cells for part in numbers)
        if there and len(numbers) == len(self.parts) and len(numbers) > WIDE:
            block = table.numbers([part.name for part in numbers])
            if block is not None:
                means, scales = zip(*((part.mean, part.scale) for part in numbers), strict=True)
                return (block - means) / scales
        features: list[Any] = [
            part.apply(table)
            if part.name in table.cells
            else np.full((len(table.cells), len(part.features)), np.nan)
            for part in self.parts
        ]
        if len(numbers) < len(self.parts) and len(self.owners) > DENSE:
            return scipy.sparse.hstack([scipy.sparse.csr_array(f) for f in features], format="csr")
        return np.column_stack([f.toarray() if scipy.sparse.issparse(f) else f for f in features])

    def missing_shares(self, X: Any) -> Array:
        """The share of the columns that is missing in each row of features."""
        gaps = np.isnan(X.toarray() if scipy.sparse.issparse(X) else X)
        each = 1 / np.bincount(self.owners)[self.owners]
        return np.asarray(gaps @ each / len(self.parts))

    def as_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)

    @staticmethod
    def from_json(content: dict[str, Any]) -> FeatureColumns:
        """What `as_json` wrote."""
        parts: list[Column] = [
            CategoryColumn(str(part["name"]), [str(value) for value in part["values"]])
            if "values" in part
            else NumberColumn(str(part["name"]), float(part["mean"]), float(part["scale"]))
            for part in content["parts"]
        ]
        return FeatureColumns(parts, {str(name): str(why) for name, why in content["dropped"].items()})


def learn_columns(table: Table, leave_out: set[str]) -> FeatureColumns:
    """Decide what becomes of each column but those left out, numbers by scikit-learn's transformers."""
    names = [name for name in table.names if name not in leave_out]
    dropped: dict[str, str] = {}
    block = table.numbers(names) if len(names) > WIDE else None
    parts: list[Column] = (
        [*_standard(names, block, dropped)] if block is not None else _one_by_one(table, names, dropped)
    )
    if not parts:
        why = f" ({'; '.join(f'{k!r} is {v}' for k, v in list(dropped.items())[:3])})" if dropped else ""
        raise DataError(f"{table.path}: no column is left to learn from{why}")
    return FeatureColumns(parts, dropped)


def _one_by_one(table: Table, names: list[str], dropped: dict[str, str]) -> list[Column]:
    numeric: dict[str, Array] = {}
    parts: dict[str, Column] = {}
    for name in names:
        numbers = as_numbers(table, name)
        if numbers is None:
            parts |= {part.name: part for part in _categories(table, name, dropped)}
        elif np.isnan(numbers).all():
            dropped[name] = "empty"
        else:
            numeric[name] = numbers
    if numeric:
        block = np.column_stack(list(numeric.values()))
        parts |= {part.name: part for part in _standard(list(numeric), block, dropped)}
    return [parts[name] for name in names if name in parts]


def _standard(names: list[str], block: Array, dropped: dict[str, str]) -> list[NumberColumn]:
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(SimpleImputer().fit_transform(block))
    spread = np.nanmax(block, axis=0) - np.nanmin(block, axis=0)
    parts = []
    for name, mean, scale, width in zip(names, scaler.mean_, scaler.scale_, spread, strict=True):
        if width == 0:
            dropped[name] = "constant"
        elif not (np.isfinite(mean) and np.isfinite(scale)):
            raise DataError(f"column {name!r}: its numbers are too large to be standardised")
        else:
            parts.append(NumberColumn(name, float(mean), float(scale)))
    return parts


def _categories(table: Table, name: str, dropped: dict[str, str]) -> list[CategoryColumn]:
    cells = table.column(name)
    texts = [cell.strip() for cell, absent in zip(cells, missing(cells), strict=True) if not absent]
    values = sorted(set(texts))
    if len(values) > MANY or (len(cells) > FEW_ROWS and len(values) > len(texts) / 2):
        raise DataError(
            f"{table.path}: column {name!r} has {len(values):,} different texts in {len(cells):,} rows, "
            f"which looks like an identifier; leave it out with --drop {name!r}"
        )
    if len(values) == 1:
        dropped[name] = "constant"
        return []
    return [CategoryColumn(name, values)]
