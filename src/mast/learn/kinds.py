"""What the cells of a data frame hold, and cells as numbers, as days and as texts."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas
from pandas.api import types
from pandas.tseries.api import guess_datetime_format

from mast.errors import DataError
from mast.support.arrays import Array, Indices

#: what object columns hold, by pandas' word for it
INFERRED = {
    **dict.fromkeys(("integer", "floating", "mixed-integer-float", "decimal"), "number"),
    **dict.fromkeys(("datetime", "datetime64", "date", "period"), "date"),
    **dict.fromkeys(("timedelta", "timedelta64"), "duration"),
    "boolean": "boolean",
}


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
                f"{place(column, wrong)} held numbers in training, here {first_of(column, wrong)}"
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
            f"{place(column, infinite)} holds {first_of(column, infinite)}; infinity and numbers beyond "
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


def text_of(value: Any) -> str:
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
    return np.asarray(codes), [text_of(value) for value in values]


def place(column: pandas.Series, rows: Any) -> str:
    """Where the first of some rows stands, for messages."""
    row = column.index[int(np.argmax(rows))]
    return f"{column.index.name or 'row'} {row}: column {column.name!r}"


def first_of(column: pandas.Series, rows: Any) -> str:
    """The value of the first of some rows, for messages."""
    return repr(str(column.iloc[int(np.argmax(rows))])[:40])
