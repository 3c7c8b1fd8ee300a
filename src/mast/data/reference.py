"""LIBSVM text read slowly and readably: the definition that the compiled parser is compared with.

The grammar::

    file    = line *( newline line )
    line    = [ label *( blanks index ":" value ) ] [ blanks ] [ "#" anything ]
    label   = number;  value = number;  index = digits, ascending within a line
    number  = [ "+" | "-" ] ( digits [ "." [ digits ] ] | "." digits ) [ "e" [ "+" | "-" ] digits ]
    blanks  = spaces, tabs and carriage returns
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from mast.data import faults
from mast.data.faults import Fault

_NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_FEATURE = re.compile(rb"([0-9]+):(.*)", re.DOTALL)
_TOKEN = re.compile(rb"[^ \t\r]+")


@dataclass
class Rows:
    """The rows of a file: one label each, and its stored (column, value) pairs, columns from 0."""

    labels: list[float] = field(default_factory=list)
    pairs: list[list[tuple[int, float]]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)


class FaultFound(Exception):
    """Carries the first fault out of the nested loops."""

    def __init__(self, code: int, line: int, start: int) -> None:
        super().__init__(code, line, start)
        self.fault = Fault(code, line, start)


def parse(text: bytes, n_features: int | None = None, zero_based: bool = False) -> Rows | Fault:
    """Read all rows, or say the first fault.

    >>> parse(b"+1 2:.5 # a comment").pairs
    [[(1, 0.5)]]
    >>> parse(b"+1 2:.5 2:1")
    Fault(code=7, line=1, start=8)
    """
    first = 0 if zero_based else 1
    limit = faults.MAX_INDEX - 1 + first if n_features is None else n_features - 1 + first
    rows = Rows()
    start = 0
    try:
        for number, line in enumerate(text.split(b"\n"), start=1):
            _line(line.split(b"#")[0], number, start, first, limit, rows)
            start += len(line) + 1
    except FaultFound as found:
        return found.fault
    return rows


def _line(line: bytes, number: int, start: int, first: int, limit: int, rows: Rows) -> None:
    tokens = [(start + match.start(), match.group()) for match in _TOKEN.finditer(line)]
    if not tokens:
        return
    (at, token), *features = tokens
    label = _float(token, faults.BAD_LABEL, number, at)
    pairs: list[tuple[int, float]] = []
    previous = first - 1
    for at, token in features:
        match = _FEATURE.fullmatch(token)
        if match is None:
            raise FaultFound(faults.BAD_FEATURE, number, at)
        digits, value = match.groups()
        index = int(digits) if len(digits) <= faults.MAX_INDEX_DIGITS else faults.MAX_INDEX + 1
        for wrong, code in (
            (index > faults.MAX_INDEX, faults.INDEX_TOO_LARGE),
            (index < first, faults.INDEX_ZERO),
            (index > limit, faults.INDEX_BEYOND),
            (index == previous, faults.DUPLICATE),
            (index < previous, faults.NOT_ASCENDING),
        ):
            if wrong:
                raise FaultFound(code, number, at)
        previous = index
        pairs.append((index - first, _float(value, faults.BAD_VALUE, number, at)))
    rows.labels.append(label)
    rows.pairs.append(pairs)
    rows.lines.append(number)


def _float(token: bytes, code_if_bad: int, line: int, start: int) -> float:
    if not _NUMBER.fullmatch(token):
        raise FaultFound(code_if_bad, line, start)
    if len(token) > faults.MAX_NUMBER_LENGTH:
        raise FaultFound(faults.TOO_LONG, line, start)
    value = float(token)
    if math.isinf(value):
        raise FaultFound(faults.OVERFLOW, line, start)
    return value
