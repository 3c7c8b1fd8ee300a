"""CSV files as columns of text, checked: every row as long as the header, every line number known."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from mast.arrays import Array
from mast.data.unpack import read, unpack
from mast.errors import DataError

#: what stands for a value that is not there
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "-"})
MOSTLY = 0.9  #: a column with this share of numbers, but not all, is taken for numbers with a mistake


@dataclass(frozen=True)
class Table:
    """A CSV file: its column names, its cells, and the line each row stands in."""

    path: str
    names: list[str]
    rows: list[list[str]]
    lines: list[int]

    def column(self, name: str) -> list[str]:
        """The cells of a column."""
        j = self._places[name]
        return [row[j] for row in self.rows]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: j for j, name in enumerate(self.names)}

    def numbers(self) -> Array | None:
        """All cells as numbers, at once, if all of them are finite numbers."""
        try:
            values = _floats([cell for row in self.rows for cell in row])
        except ValueError:
            return None
        matrix = values.reshape(len(self.rows), len(self.names))
        return matrix if np.isfinite(matrix).all() else None


def read_table(path: str | Path) -> Table:
    r"""Read a CSV file (commas, semicolons or tabs; UTF-8; also gzip and bzip2) with a line of names.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder) / "small.csv"
    ...     _ = file.write_text("age,job\n31,cook\n,nurse\n")
    ...     table = read_table(file)
    >>> table.names, table.column("age"), table.lines
    (['age', 'job'], ['31', ''], [2, 3])
    """
    raw = unpack(read(Path(path)), str(path))
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: this is not UTF-8 text") from None
    header: list[str] = []
    rows, lines = [], []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text), strict=True)
    try:
        for cells in reader:
            if not any(cells) and len(cells) <= 1:
                continue  # an empty line; a line of empty cells is a row
            if not header:
                header = [name.strip() for name in cells]
            elif len(cells) != len(header):
                raise DataError(
                    f"{path}, line {reader.line_num}: found {len(cells)} values, expected {len(header)}, "
                    "one for each column"
                )
            else:
                rows.append(cells)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from None
    _check_header(header, str(path))
    if not rows:
        raise DataError(f"{path}: there is a line of column names, but no rows")
    return Table(str(path), header, rows, lines)


def _delimiter(text: str) -> str:
    first = next((line for line in text.splitlines() if line.strip()), "")
    return max(",;\t", key=first.count) if any(c in first for c in ",;\t") else ","


def _check_header(header: list[str], path: str) -> None:
    if not header:
        raise DataError(f"{path}: the file is empty, expected a line of column names and rows")
    seen: set[str] = set()
    for number, name in enumerate(header, 1):
        if not name:
            raise DataError(f"{path}: column {number} has no name in the first line")
        if name in seen:
            raise DataError(f"{path}: two columns are called {name!r}")
        seen.add(name)
    if all(is_number(name) for name in header):
        raise DataError(f"{path}: the first line holds numbers, expected the names of the columns")


def missing(cells: list[str]) -> list[bool]:
    """Which cells hold no value."""
    return [cell.strip().lower() in MISSING for cell in cells]


def as_numbers(table: Table, name: str, cells: list[str]) -> Array | None:
    """The cells as numbers, NaN where missing; None if this is text; an error if it is nearly all numbers."""
    absent = missing(cells)
    filled = ["nan" if a else cell for a, cell in zip(absent, cells, strict=True)]
    try:
        values = _floats(filled)
    except ValueError:
        given = [(i, cell) for i, (a, cell) in enumerate(zip(absent, cells, strict=True)) if not a]
        odd = [(i, cell) for i, cell in given if not is_number(cell)]
        if len(given) - len(odd) >= MOSTLY * len(given) and len(odd) < len(given):
            line = table.lines[odd[0][0]]
            raise DataError(
                f"{table.path}, line {line}: column {name!r} holds numbers, but here {_short(odd[0][1])}"
            ) from None
        return None
    infinite = np.flatnonzero(np.isinf(values))
    if infinite.size:
        i = int(infinite[0])
        raise DataError(
            f"{table.path}, line {table.lines[i]}: column {name!r} holds {_short(cells[i])}; "
            "infinity and numbers beyond double precision are refused"
        )
    return values


def _floats(cells: list[str]) -> Array:
    """The cells as numbers, one by one: an array of texts would give each the room of the longest."""
    if any("_" in cell for cell in cells):
        raise ValueError("Python's 1_000 is no number in a table")
    return np.fromiter(map(float, cells), dtype=np.float64, count=len(cells))


def is_number(text: str) -> bool:
    """Whether a text is a number as people write it."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _short(text: str) -> str:
    return repr(text) if len(text) <= 40 else repr(text[:40]) + "..."
