"""The sketch of a command line: any sketch over columns, or over groups that a file lists."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np

from mast.arrays import Indices
from mast.data.unpack import read
from mast.errors import ArgumentError, DataError
from mast.learn.base import AUTO
from mast.sketches import Grouped, Sketch, parse

_INNER = re.compile(
    r"^(?P<file>.+?)(?::(?P<sketch>(?:identity|bernoulli|unscaled|randk|permk|gaussian)(?::.*)?))?$"
)


def sketch_of(text: str, owners: Indices, names: list[str]) -> Sketch:
    """The sketch of the features, given the column that each comes from and the columns' names.

    Features of one column, such as those of one category, live or die together. ``groups:FILE`` makes
    each line of the file, column names between commas, one group; columns that it does not list are
    groups of their own. The groups are sketched as ``auto`` does, or by what follows, as in
    ``groups:FILE:bernoulli:0.5``.
    """
    if text.strip().lower() == "auto":
        inner, labels = AUTO, owners
    elif not text.strip().lower().startswith("groups:"):
        inner, labels = parse(text), owners
    else:
        match = _INNER.match(text.strip()[len("groups:") :])
        if match is None:
            raise ArgumentError("groups: needs a file, as in groups:groups.txt")
        inner = parse(match["sketch"]) if match["sketch"] else AUTO
        labels = _group_labels(Path(match["file"]), names)[owners]
    labels = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    if int(labels.max()) + 1 == labels.size and (np.diff(labels) > 0).all():
        return inner  # every feature is a group of its own
    return Grouped(inner, labels)


def _group_labels(path: Path, names: list[str]) -> Indices:
    place: dict[str, int] = {name: j for j, name in enumerate(names)}
    labels = np.full(len(names), -1, dtype=np.int64)
    try:
        lines = read(path).decode("utf-8-sig").splitlines()
        rows = list(csv.reader(lines, strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: groups are lines of column names between commas ({error})") from None
    for number, row in enumerate(rows, 1):
        for member in _members([cell.strip() for cell in row if cell.strip()], place):
            if member not in place:
                raise DataError(f"{path}, line {number}: there is no column {member!r}")
            if labels[place[member]] >= 0:
                raise DataError(f"{path}, line {number}: {member!r} is in two groups")
            labels[place[member]] = number
    alone = np.flatnonzero(labels < 0)
    labels[alone] = len(rows) + 1 + np.arange(alone.size)
    return labels


def _members(cells: list[str], place: dict[str, Any]) -> list[str]:
    """The names in a line; where columns are numbers, 3-7 is a range of them."""
    out: list[str] = []
    for cell in cells:
        match = re.fullmatch(r"(\d+)-(\d+)", cell)
        if cell not in place and match:
            first, last = int(match[1]), int(match[2])
            out += [str(j) for j in range(first, min(last, first + len(place)) + 1)]
        else:
            out.append(cell)
    return out
