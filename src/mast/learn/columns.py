"""What becomes of each column of a data frame: learned from training rows, and applied later."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas
from pandas.api import types
from pandas.tseries.api import guess_datetime_format

from mast.errors import DataError
from mast.support.checks import Array, Indices, check_number, check_positive

LEAST_ROWS = 20  #: in shorter tables no column is taken for an identifier
FEW = 10  #: a category with at most FEW values keeps them all
RARE_ROWS, RARE_SHARE = 5, 0.001  #: in others, values of fewer rows, or of a smaller share of them, are rare
MOST = 100  #: features of one category, at most
#: what object columns hold, by pandas' word for it
INFERRED = {
    **dict.fromkeys(("integer", "floating", "mixed-integer-float", "decimal"), "number"),
    **dict.fromkeys(("datetime", "datetime64", "date", "period"), "date"),
    **dict.fromkeys(("timedelta", "timedelta64"), "duration"),
    "boolean": "boolean",
}


@dataclass(frozen=True)
class NumberColumn:
    """A number, standardised."""

    name: str
    mean: float
    scale: float

    @property
    def features(self) -> list[str]:
        """The names of its features."""
        return [self.name]

    def apply(self, column: pandas.Series) -> tuple[Array, list[str]]:
        """Its standardised numbers, NaN where one is missing; and texts that it does not know, here none."""
        return self._standardised(column, as_numbers(column)), []

    def _standardised(self, column: pandas.Series, values: Array) -> Array:
        with np.errstate(over="ignore"):
            values = (values - self.mean) / self.scale
        if np.isinf(values).any():
            where = _place(column, np.isinf(values))
            raise DataError(f"{where} holds a number that is too large for the model")
        return values


@dataclass(frozen=True)
class DateColumn(NumberColumn):
    """A date as one number, the days since 1970, standardised."""

    written: str | None = None  #: the format of texts; None where dates are dates

    def apply(self, column: pandas.Series) -> tuple[Array, list[str]]:
        """The same; texts that are no dates are unknown."""
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


# ---- what cells hold -------------------------------------------------------------------------------


def kind_of(column: pandas.Series) -> str:
    """What a column holds: "number", "duration", "date", "boolean", "category" or "text"."""
    dtype = column.dtype
    if isinstance(dtype, pandas.CategoricalDtype):
        return "date" if dtype.categories.dtype.kind == "M" else "category"
    if types.is_bool_dtype(dtype):
        return "boolean"
    if types.is_complex_dtype(dtype):
        raise DataError(f"column {column.name!r} holds complex numbers, which no model takes")
    if types.is_numeric_dtype(dtype):
        return "number"
    if types.is_datetime64_any_dtype(dtype) or isinstance(dtype, pandas.PeriodDtype):
        return "date"
    if types.is_timedelta64_dtype(dtype):
        return "duration"
    held = types.infer_dtype(column, skipna=True) if types.is_object_dtype(dtype) else "string"
    return INFERRED.get(held, "text")


def as_numbers(column: pandas.Series) -> Array:
    """Cells as numbers, NaN where missing; an error where one is not, or is infinite."""
    kind = kind_of(column)
    values: Array
    if kind in ("category", "text"):
        column = column.astype(object)
        values = pandas.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        wrong = np.isnan(values) & column.notna().to_numpy()
        if wrong.any():
            raise DataError(
                f"{_place(column, wrong)} held numbers in training, here {_first_value(column, wrong)}"
            )
    elif kind == "date":
        raise DataError(f"column {column.name!r} held numbers in training, here it holds dates")
    elif kind == "duration":
        values = (pandas.to_timedelta(column) / pandas.Timedelta(days=1)).to_numpy(dtype=np.float64)
    elif types.is_object_dtype(column.dtype):
        there = column.notna().to_numpy()
        values = np.full(len(column), np.nan)
        values[there] = column[there].astype(np.float64)
    else:
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    infinite = np.isinf(values)
    if infinite.any():
        raise DataError(
            f"{_place(column, infinite)} holds {_first_value(column, infinite)}; infinity and numbers beyond "
            "double precision are refused"
        )
    return values


def as_days(column: pandas.Series, written: str | None) -> Array:
    """Dates as days since 1970 in UTC, NaN where one is missing or cannot be read."""
    kind = kind_of(column)
    if kind in ("number", "duration", "boolean") and column.notna().any():
        raise DataError(f"column {column.name!r} held dates in training, here it holds a {kind}")
    if isinstance(column.dtype, pandas.PeriodDtype):
        column = column.dt.to_timestamp()
    texts = kind in ("category", "text")
    moments = _moments(column.astype(object) if texts else column, written if texts else None)
    return np.asarray((moments - pandas.Timestamp(0, tz="UTC")) / pandas.Timedelta(days=1), dtype=np.float64)


def _moments(column: pandas.Series, written: str | None) -> pandas.Series:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on formats that were guessed: what cannot be read is counted
        return pandas.to_datetime(column, utc=True, errors="coerce", format=written)


def date_format(texts: Sequence[str]) -> str | None:
    """How texts are written as dates: a format of `pandas.to_datetime` that reads them all, or None.

    Days come first where dots separate the parts, and where the first part is no month in some text.
    """
    if not texts or texts[0].isdigit():
        return None  # a number
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        usual, day_first = (guess_datetime_format(texts[0], dayfirst=first) for first in (False, True))
    if usual is None or "%Y" not in usual or not re.search("%[mbB]", usual):
        return None
    dotted = re.match(r"\d{1,2}\.", texts[0]) is not None
    column = pandas.Series(texts, dtype=object)
    formats: list[str | None] = [day_first, usual] if dotted else [usual, "ISO8601", day_first]
    for written in formats:
        if written is not None and _moments(column, written).notna().all():
            return written
    return None


def _text_of(value: Any) -> str:
    """A category as a text: 1 and 1.0 are the same one."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        value = int(value)
    return str(value)


def as_texts(column: pandas.Series) -> tuple[Indices, list[str]]:
    """The number of the text that each cell holds, -1 where it is missing; and these texts."""
    try:
        codes, values = pandas.factorize(column)
    except TypeError:
        raise DataError(f"column {column.name!r} holds lists or the like, which are no categories") from None
    return np.asarray(codes), [_text_of(value) for value in values]


def _place(column: pandas.Series, rows: Any) -> str:
    """Where the first of some rows stands, for messages."""
    row = column.index[int(np.argmax(rows))]
    return f"{column.index.name or 'row'} {row}: column {column.name!r}"


def _first_value(column: pandas.Series, rows: Any) -> str:
    """The value of the first of some rows, for messages."""
    return repr(str(column.iloc[int(np.argmax(rows))])[:40])
