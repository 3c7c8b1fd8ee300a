"""CSV files as pandas tables of text: every row as long as the header, and the line of every row known.

pandas would fill short rows up without a word and forget the lines, so the csv module reads the rows.
"""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas
from numpy.typing import NDArray

from mast.arrays import Array
from mast.data.unpack import read, unpack
from mast.errors import DataError
from mast.learn.frames import refuse_repeated

#: what stands for a value that is not there
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "-"})
MOSTLY = 0.9  #: a column with this share of numbers, but not all, is taken for numbers with a mistake
SHOWN = 40  #: characters of a cell in a message


class Table(NamedTuple):
    """A CSV file: its cells as texts under their columns' names; the index holds the line of each row."""

    path: str
    cells: pandas.DataFrame

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return list(self.cells)

    def column(self, name: str) -> list[str]:
        """The texts of a column."""
        return list(self.cells[name])

    def place(self, row: int) -> str:
        """Where a row stands, for messages."""
        return f"{self.path}, line {self.cells.index[row]}"


def read_table(path: str | Path) -> Table:
    """A CSV file as a table; it may take no more memory than there is."""
    raw = unpack(read(Path(path)), str(path))
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: this is not UTF-8 text") from None
    header: list[str] = []
    rows: dict[int, list[str]] = {}  # by their last lines
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text), strict=True)
    try:
        for cells in reader:
            if not any(cells) and len(cells) <= 1:
                continue  # an empty line; a line of empty cells is a row
            if not header:
                header = _header(cells, str(path))
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"{path}, line {reader.line_num}: found {len(cells)} values, expected {len(header)}, "
                    "one for each column"
                )
            rows[reader.line_num] = cells
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from None
    if not header:
        raise DataError(f"{path}: the file is empty, expected a line of column names and rows")
    if not rows:
        raise DataError(f"{path}: there is a line of column names, but no rows")
    return Table(str(path), pandas.DataFrame.from_dict(rows, orient="index", columns=header, dtype=object))


def _delimiter(text: str) -> str:
    first = next((line for line in text.splitlines() if line.strip()), "")
    return max(",;\t", key=first.count)  # commas, if there is none of them


def _header(cells: list[str], path: str) -> list[str]:
    header = [name.strip() for name in cells]
    if not all(header):
        raise DataError(f"{path}: column {header.index('') + 1} has no name in the first line")
    refuse_repeated(header, f"{path}: ")
    if not np.isnan([number_of(name) for name in header]).any():
        raise DataError(f"{path}: the first line holds numbers, expected the names of the columns")
    return header


# ---- cells as numbers -----------------------------------------------------------------------


def number_of(text: str) -> float:
    """A text as a number as people write it; NaN where it is none."""
    try:
        return math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan


def missing(cells: list[str]) -> list[bool]:
    """Which cells hold no value."""
    return [cell.strip().lower() in MISSING for cell in cells]


class CellNumbers(NamedTuple):
    """The cells of a column as numbers, and what is wrong with them."""

    values: Array  #: NaN where a cell is missing or a text
    absent: NDArray[np.bool_]  #: which cells are missing
    odd: str  #: where the first text stands, if there is one
    infinite: str  #: where the first infinite number stands


def cell_numbers(table: Table, name: str) -> CellNumbers:
    """A column as numbers."""
    cells = table.column(name)
    # one by one: an array of texts would give each the room of the longest
    values = np.fromiter(map(number_of, cells), dtype=np.float64, count=len(cells))
    absent = np.isnan(values)
    absent[absent] = missing([cells[row] for row in np.flatnonzero(absent)])

    def first(rows: NDArray[np.bool_], complaint: str) -> str:
        if not rows.any():
            return ""
        row = int(rows.argmax())
        text = repr(cells[row][:SHOWN]) + ("..." if len(cells[row]) > SHOWN else "")
        return f"{table.place(row)}: column {name!r} holds {complaint.format(text)}"

    odd = first(np.isnan(values) & ~absent, "numbers, but here {}")
    infinite = first(np.isinf(values), "{}; infinity and numbers beyond double precision are refused")
    return CellNumbers(values, absent, odd, infinite)


def mostly_numbers(numbers: int, given: int) -> bool:
    """Whether so many numbers among all that is given make the rest look like mistakes."""
    return numbers >= max(MOSTLY * given, 1)


def holds_numbers(numbers: int, given: int, odd: str, infinite: str) -> bool:
    """Whether a column holds numbers only; an error if nearly so, or if one of them is infinite."""
    if odd and not mostly_numbers(numbers, given):
        return False
    if odd or infinite:
        raise DataError(odd or infinite)
    return True


def as_numbers(table: Table, name: str) -> Array | None:
    """A column as numbers, NaN where missing; None if it is text; an error if it is nearly all numbers."""
    values, absent, odd, infinite = cell_numbers(table, name)
    numbers, given = int((~np.isnan(values)).sum()), int((~absent).sum())
    return values if holds_numbers(numbers, given, odd, infinite) else None
