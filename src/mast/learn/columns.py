"""What becomes of each column of a data frame: learned from training rows, and applied alike later."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas
from pandas.api import types

from mast.errors import DataError
from mast.learn.kinds import as_days, as_numbers, as_texts, date_format, kind_of, place
from mast.support.arrays import Array, Indices
from mast.support.checks import check_number, check_positive

LEAST_ROWS = 20  #: in shorter tables no column is taken for an identifier
FEW = 10  #: a category with at most so many values keeps them all
RARE_ROWS, RARE_SHARE = 5, 0.001  #: in others, values of fewer rows, or of a smaller share of them, are rare
MOST = 100  #: features of one category, at most


@dataclass(frozen=True)
class NumberColumn:
    """A number, standardised."""

    name: str
    mean: float
    scale: float

    @property
    def features(self) -> list[str]:
        """Its name."""
        return [self.name]

    def apply(self, column: pandas.Series) -> tuple[Array, list[str]]:
        """Its standardised numbers, NaN where one is missing; and texts that it does not know, here none."""
        return self._standardised(column, as_numbers(column)), []

    def _standardised(self, column: pandas.Series, values: Array) -> Array:
        with np.errstate(over="ignore"):
            values = (values - self.mean) / self.scale
        if np.isinf(values).any():
            where = place(column, np.isinf(values))
            raise DataError(f"{where} holds a number that is too large for the model")
        return values


@dataclass(frozen=True)
class DateColumn(NumberColumn):
    """A date as one number, the days since 1970, standardised."""

    written: str | None = None  #: the format of texts; None where dates are dates

    def apply(self, column: pandas.Series) -> tuple[Array, list[str]]:
        """Its standardised numbers, NaN where one is missing; and texts that are no dates."""
        days = as_days(column, self.written)
        unread = column[np.isnan(days) & column.notna().to_numpy()]
        return self._standardised(column, days), [str(text) for text in unread.unique()]


@dataclass(frozen=True)
class CategoryColumn:
    """A category, one feature for each of its values, and one for all that are rare."""

    name: str
    categories: list[str]
    rare: list[str]
    boolean: bool = False

    @property
    def features(self) -> list[str]:
        """Such as ``job_cook``."""
        values = [*self.categories, "(rare)"] if self.rare else self.categories
        return [f"{self.name}_{value}" for value in values]

    def apply(self, column: pandas.Series) -> tuple[Indices, list[str]]:
        """The number of the feature that is 1 in each row, -1 where the cell is missing; and unseen texts."""
        codes, texts = as_texts(column)
        if self.boolean:  # numbers and other spellings are booleans too
            texts = [{"1": "True", "0": "False"}.get(text, text.capitalize()) for text in texts]
        features = pandas.Index([*self.categories, *self.rare], dtype=object).get_indexer(texts)
        unseen = [text for text, feature in zip(texts, features, strict=True) if feature < 0]
        return np.append(np.minimum(features, len(self.categories)), -1)[codes], unseen


Column = NumberColumn | CategoryColumn


def column_from_json(content: dict[str, Any]) -> Column:
    """The column that `dataclasses.asdict` made JSON of."""
    name = str(content["name"])
    if "categories" in content:
        categories, rare = ([str(value) for value in content[key]] for key in ("categories", "rare"))
        if len({*categories, *rare}) < len(categories) + len(rare):
            raise DataError(f"a value of column {name!r} is there twice")
        return CategoryColumn(name, categories, rare, bool(content["boolean"]))
    mean, scale = check_number("mean", content["mean"]), check_positive("scale", content["scale"])
    if "written" not in content:
        return NumberColumn(name, mean, scale)
    return DateColumn(name, mean, scale, None if content["written"] is None else str(content["written"]))


# ---- from training rows ----------------------------------------------------------------------------


def learn_column(column: pandas.Series, find_ids: bool) -> Column | str:
    """What becomes of a column; or why it is left out."""
    name, kind = str(column.name), kind_of(column)
    if kind in ("category", "boolean", "text") and not column.notna().any():
        return "empty"
    if kind in ("category", "boolean"):
        return _category(column, *as_texts(column), kind == "boolean")
    if kind == "text":
        codes, texts = as_texts(column)
        written = date_format(texts)
        if written is not None:
            return _number(name, as_days(column, written), DateColumn, written=written)
        if find_ids and len(column) >= LEAST_ROWS and len(set(texts)) == (codes >= 0).sum():
            return "an identifier, whose texts are all different"
        return _category(column, codes, texts)
    if kind == "date":
        return _number(name, as_days(column, None), DateColumn, written=None)
    if find_ids and len(column) >= LEAST_ROWS and _numbers_rows(column):
        return "an identifier, whose numbers are all different"
    return _number(name, as_numbers(column), NumberColumn)


def _numbers_rows(column: pandas.Series) -> bool:
    """Whether integers are all different, and follow each other or are called an id."""
    integers = column.dropna()
    whole = types.is_integer_dtype(column.dtype) or (
        types.is_object_dtype(column.dtype) and types.infer_dtype(integers) == "integer"
    )
    if not whole or not integers.is_unique:
        return False
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", str(column.name))
    called = bool(words) and "id" in (words[0].lower(), words[-1].lower())
    return called or int(integers.max()) - int(integers.min()) == len(integers) - 1


def _number(name: str, values: Array, kind: type[NumberColumn], **more: Any) -> Column | str:
    there = values[~np.isnan(values)]
    if not there.size or there.min() == there.max():
        return "constant" if there.size else "empty"
    with np.errstate(all="ignore"):
        mean, scale = float(there.mean()), float(there.std())
    if not (np.isfinite(mean) and np.isfinite(scale)):
        raise DataError(f"the numbers of column {name!r} are too large to be standardised")
    tiny = 10 * np.finfo(float).eps * max(abs(mean), float(np.finfo(float).tiny))
    return kind(name, mean, scale if scale > tiny else 1.0, **more)


def _category(column: pandas.Series, codes: Indices, texts: list[str], boolean: bool = False) -> Column | str:
    counts: dict[str, int] = {}
    for text, count in zip(texts, np.bincount(codes[codes >= 0], minlength=len(texts)), strict=True):
        counts[text] = counts.get(text, 0) + int(count)
    if len(counts) == 1:
        return "constant"
    rare: list[str] = []
    if len(counts) > FEW:
        least = max(RARE_ROWS, RARE_SHARE * len(column))
        by_count = sorted(counts, key=lambda text: (-counts[text], text))
        frequent = [text for text in by_count if counts[text] >= least]
        if len(frequent) < len(counts) - 1 or len(counts) > MOST:
            rare = sorted(by_count[min(len(frequent), MOST - 1) :])
    if len(rare) == len(counts):
        return "a text whose values are all rare"
    return CategoryColumn(str(column.name), sorted(counts.keys() - set(rare)), rare, boolean)
