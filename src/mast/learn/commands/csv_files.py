"""CSV files as data frames: pandas reads them, and what it would pass over in silence is refused by line."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from mast.data.lookup import decompress, read_bytes
from mast.errors import DataError
from mast.learn.validation import refuse_repeated

#: what stands for a value that is not there, beside the words that pandas knows
MISSING = [form for word in ("?", "-", "na", "n/a", "nan", "null", "none") for form in (word, word.upper())]
MOSTLY = 0.9  #: a column with this share of numbers, but not all, is taken for numbers with a mistake


def read_table(path: str | Path, texts: Collection[str] = ()) -> pandas.DataFrame:
    """A CSV file as a data frame, these columns as texts; rows have the numbers of their lines."""
    raw = decompress(read_bytes(Path(path)), str(path))
    delimiter = _delimiter(raw)
    header = _header(raw, str(path), delimiter)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)  # of rows that are too long
            frame = pandas.read_csv(
                io.BytesIO(raw),
                sep=delimiter,
                header=0,
                names=header,
                index_col=False,
                dtype={name: str for name in texts if name in header},
                na_values=MISSING,
                skipinitialspace=True,
                low_memory=False,
            )
    except (ValueError, OverflowError, RuntimeError, pandas.errors.ParserWarning) as error:
        for _ in _rows(raw, str(path), delimiter, len(header)):
            pass  # refuses the first row that is wrong
        raise DataError(f"{path}: cannot be read as a table: {error}") from None
    if not len(frame):
        raise DataError(f"{path}: there is a line of column names, but no rows")
    _refuse_short_rows(raw, str(path), delimiter, frame)
    ends = (f" {delimiter}".encode(), b" \n", b" \r")
    if b" " in raw and any(end in raw for end in ends):  # the first is quick to see
        for name in _texts(frame):
            frame[name] = frame[name].str.strip()
    lines = raw.count(b"\n") + (not raw.endswith(b"\n"))
    known = lines == len(frame) + 1  # no line is empty, and no cell has two of them
    frame.index = pandas.RangeIndex(len(frame), name="line" if known else "row") + (2 if known else 1)
    return frame


def _texts(frame: pandas.DataFrame) -> list[str]:
    """The columns that hold texts."""
    kinds = (pandas.api.types.infer_dtype(column, skipna=True) for _, column in frame.items())
    return [name for name, kind in zip(frame, kinds, strict=True) if kind == "string"]


# ---- rows as the csv module sees them ----------------------------------------------------------------


def _lines(raw: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8-sig", newline="")


def _delimiter(raw: bytes) -> str:
    first = next((line for line in io.BytesIO(raw) if line.strip()), b"")
    return max(",;\t", key=lambda mark: first.count(mark.encode()))  # commas, if there is none of them


def _rows(raw: bytes, path: str, delimiter: str, width: int | None) -> Iterator[list[str]]:
    """The rows that are not empty, as lists of texts; a row of another width is refused, by its line."""
    reader = csv.reader(_lines(raw), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            if not any(cells) and len(cells) <= 1:
                continue  # an empty line; a line of empty cells is a row
            if width is not None and len(cells) != width:
                raise DataError(
                    f"{path}, line {reader.line_num}: found {len(cells)} values, expected {width}, "
                    "one for each column"
                )
            yield cells
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}, line {_first_bad_line(raw)}: this is not UTF-8 text") from None


def _first_bad_line(raw: bytes) -> int:
    try:
        raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return raw.count(b"\n", 0, error.start) + 1
    return 0


def _header(raw: bytes, path: str, delimiter: str) -> list[str]:
    cells = next(_rows(raw, path, delimiter, None), None)
    if cells is None:
        raise DataError(f"{path}: the file is empty, expected a line of column names and rows")
    header = [name.strip() for name in cells]
    if not all(header):
        raise DataError(f"{path}: column {header.index('') + 1} has no name in the first line")
    refuse_repeated(header, f"{path}: ")
    if not np.isnan(_numbers(header)).any():
        raise DataError(f"{path}: the first line holds numbers, expected the names of the columns")
    return header


def _refuse_short_rows(raw: bytes, path: str, delimiter: str, frame: pandas.DataFrame) -> None:
    """An error for a row with too few cells, which pandas fills up: its last cell is missing, at least."""
    width = frame.shape[1]
    if width == 1 or not frame.iloc[:, -1].isna().any():
        return
    if b'"' not in raw and raw.count(delimiter.encode()) == (len(frame) + 1) * (width - 1):
        return  # too long ones were refused, so that none can be short
    for _ in _rows(raw, path, delimiter, width):
        pass


# ---- texts that should be numbers ---------------------------------------------------------------------


def _numbers(texts: Any) -> Any:
    return np.asarray(pandas.to_numeric(np.asarray(texts, dtype=object), errors="coerce"), dtype=np.float64)


def convert_numbers(frame: pandas.DataFrame, path: str) -> pandas.DataFrame:
    """The table with texts that are all numbers as numbers; nearly all, or with commas, is a mistake."""
    for name in _texts(frame):
        numbers = all_numbers(frame[name], path)
        if numbers is not None:
            frame[name] = numbers
    return frame


def all_numbers(column: pandas.Series, path: str) -> Any:
    """Texts as numbers; None where they are none; an error where nearly all are, or are but for commas."""
    codes, texts = pandas.factorize(column)
    numbers = _numbers(texts)
    if not np.isnan(numbers).any():
        return np.append(numbers, np.nan)[codes]
    wrong, given = np.append(np.isnan(numbers), False)[codes], codes >= 0
    if (given & ~wrong).sum() < max(MOSTLY * given.sum(), 1):
        return _refuse_commas(column.name, pandas.Series(texts, dtype=object), path)
    row = int(wrong.argmax())
    text, where = column.iloc[row], f"{column.index.name} {column.index[row]}"
    shown = repr(text[:40]) + ("..." if len(text) > 40 else "")
    raise DataError(f"{path}, {where}: column {column.name!r} holds numbers, but here {shown}")


def _refuse_commas(name: Any, texts: pandas.Series, path: str) -> None:
    commas = texts[texts.str.contains(",", regex=False)]
    numbers = commas[~np.isnan(_numbers(commas.str.replace(",", "", regex=False)))]
    if len(numbers) and len(numbers) >= MOSTLY * len(texts):
        raise DataError(
            f"{path}: column {name!r} holds numbers with commas, such as {min(numbers)!r}: "
            "write a decimal point, and nothing between thousands"
        )
