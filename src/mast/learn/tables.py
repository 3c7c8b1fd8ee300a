"""CSV files as pandas tables of text: every row as long as the header, and the line of every row known.

pandas would fill short rows up without a word and forget the lines, so the csv module reads the rows.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas
from numpy.typing import NDArray

from mast.arrays import Array
from mast.data.unpack import opened, read, unpack
from mast.errors import DataError
from mast.learn.frames import refuse_repeated

#: what stands for a value that is not there
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "-"})
MOSTLY = 0.9  #: a column with this share of numbers, but not all, is taken for numbers with a mistake


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
    r"""Read a CSV file (commas, semicolons or tabs; UTF-8; also gzip and bzip2) with a line of names.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder) / "small.csv"
    ...     _ = file.write_text("age,job\n31,cook\n,nurse\n")
    ...     table = read_table(file)
    >>> table.names, table.column("age"), table.place(1).endswith("small.csv, line 3")
    (['age', 'job'], ['31', ''], True)
    """
    return next(read_tables(path))[0]


def read_tables(path: str | Path, size: int | None = None) -> Iterator[tuple[Table, int]]:
    """A file in pieces of about `size` bytes, each with how many bytes of the file were read by then.

    Without a size it is one piece, and may take no more memory than there is.
    """
    if size is None:
        raw = unpack(read(Path(path)), str(path))
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise DataError(f"{path}, line {line}: this is not UTF-8 text") from None
        whole = next(_tables(io.StringIO(text, newline=""), _delimiter(text), str(path), sys.maxsize))
        yield whole, len(raw)
        return
    with opened(Path(path)) as (stream, position):
        head = stream.peek(1 << 16)[: 1 << 16].decode("utf-8-sig", errors="replace")
        lines = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
        try:
            for table in _tables(lines, _delimiter(head), str(path), size):
                yield table, position()
        except UnicodeDecodeError:
            raise DataError(f"{path}: this is not UTF-8 text") from None


def _tables(text: io.TextIOBase, delimiter: str, path: str, size: int) -> Iterator[Table]:
    """Tables of rows whose cells have about `size` characters together; at least one."""
    header: list[str] = []
    rows: list[list[str]] = []
    lines: list[int] = []
    room = size
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    tables = 0
    try:
        for cells in reader:
            if not any(cells) and len(cells) <= 1:
                continue  # an empty line; a line of empty cells is a row
            if not header:
                header = [name.strip() for name in cells]
                _check_header(header, path)
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"{path}, line {reader.line_num}: found {len(cells)} values, expected {len(header)}, "
                    "one for each column"
                )
            rows.append(cells)
            lines.append(reader.line_num)
            room -= len(cells) + sum(map(len, cells))
            if room <= 0:
                yield Table(path, pandas.DataFrame(rows, index=lines, columns=header, dtype=object))
                rows, lines, room, tables = [], [], size, tables + 1
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from None
    if not header:
        _check_header(header, path)
    if not rows and not tables:
        raise DataError(f"{path}: there is a line of column names, but no rows")
    if rows:
        yield Table(path, pandas.DataFrame(rows, index=lines, columns=header, dtype=object))


def _delimiter(text: str) -> str:
    first = next((line for line in text.splitlines() if line.strip()), "")
    return max(",;\t", key=first.count) if any(c in first for c in ",;\t") else ","


def _check_header(header: list[str], path: str) -> None:
    if not header:
        raise DataError(f"{path}: the file is empty, expected a line of column names and rows")
    if not all(header):
        raise DataError(f"{path}: column {header.index('') + 1} has no name in the first line")
    refuse_repeated(header, f"{path}: ")
    if all(is_number(name) for name in header):
        raise DataError(f"{path}: the first line holds numbers, expected the names of the columns")


def missing(cells: list[str]) -> list[bool]:
    """Which cells hold no value."""
    return [cell.strip().lower() in MISSING for cell in cells]


def cells_as_numbers(cells: list[str]) -> tuple[Array, NDArray[np.bool_]]:
    """The cells as numbers, NaN where one is missing or a text; and which are missing."""
    try:
        values = _floats(cells)
        if not np.isnan(values).any():  # nothing is missing, and nothing is a text: the common case
            return values, np.zeros(len(cells), dtype=bool)
    except ValueError:
        pass
    absent = missing(cells)
    pairs = zip(absent, cells, strict=True)
    known = (float(cell) if not a and is_number(cell) else np.nan for a, cell in pairs)
    return np.fromiter(known, dtype=np.float64, count=len(cells)), np.array(absent, dtype=bool)


def as_numbers(table: Table, name: str) -> Array | None:
    """A column as numbers, NaN where missing; None if it is text; an error if it is nearly all numbers."""
    cells = table.column(name)
    values, absent = cells_as_numbers(cells)
    odd, infinite = complaints(table, name, values, absent)
    if odd:
        if mostly_numbers(int((~np.isnan(values)).sum()), int((~absent).sum())):
            raise DataError(odd)
        return None
    if infinite:
        raise DataError(infinite)
    return values


def mostly_numbers(numbers: int, given: int) -> bool:
    """Whether so many numbers among all that is given make the rest look like mistakes."""
    return numbers >= max(MOSTLY * given, 1)


def complaints(table: Table, name: str, values: Array, absent: NDArray[np.bool_]) -> tuple[str, str]:
    """What is to be said of the first text of a column of numbers, and of its first infinite number."""
    messages = []
    for rows, complaint in (
        (np.isnan(values) & ~absent, "numbers, but here {}"),
        (np.isinf(values), "{}; infinity and numbers beyond double precision are refused"),
    ):
        row = int(rows.argmax())
        text = complaint.format(short_text(table.column(name)[row]))
        messages.append(f"{table.place(row)}: column {name!r} holds {text}" if rows.any() else "")
    return messages[0], messages[1]


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


def short_text(text: str) -> str:
    """A text in quotes, cut where it is long."""
    return repr(text) if len(text) <= 40 else repr(text[:40]) + "..."
