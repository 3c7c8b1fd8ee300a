"""Grouped: the coordinates of a group live or die together. Any diagonal sketch, over groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mast.arrays import Indices, frozen
from mast.checks import listed
from mast.errors import ArgumentError
from mast.sketches.base import Sketch
from mast.sketches.draws import DiagonalDraw, Draw
from mast.sketches.over import Over
from mast.sketches.perm_k import checked_blocks


class Grouped(Over):
    """Apply `sketch` to groups. It has the constants of its sketch over the groups.

    Parameters
    ----------
    sketch
        A diagonal sketch; its coordinates are the groups.
    groups
        One label per coordinate (equal labels are one group, numbered in sorted order), or a
        list of lists of coordinates that cover 0 .. d-1 exactly once.

    >>> import mast
    >>> pairs = mast.Grouped(mast.RandK(1), [0, 0, 1, 1])
    >>> pairs.draw(4).diagonal(), pairs.constants(4).L_D
    (array([0., 0., 2., 2.]), 2.0)
    """

    def __init__(self, sketch: Sketch, groups: Sequence[Any] | ArrayLike) -> None:
        super().__init__(sketch)
        self.labels = _labels(groups)
        self.groups = int(self.labels.max()) + 1
        sketch.check(self.groups)
        # The members of group g are order[start[g] : start[g + 1]], so that a draw costs what it keeps.
        self._order = np.argsort(self.labels, kind="stable")
        self._start = np.concatenate([[0], np.cumsum(np.bincount(self.labels, minlength=self.groups))])

    def arguments(self) -> dict[str, Any]:
        """The sketch, and the labels of the groups."""
        return {"sketch": self.sketch, "groups": self.labels}

    def size(self, d: int) -> int:
        """The number of groups."""
        if d != self.labels.size:
            raise ArgumentError(f"the groups cover {self.labels.size} coordinates, the dimension is {d}")
        return self.groups

    def labels_in(self, d: int) -> Indices:
        """The group of each coordinate."""
        return self.labels

    def spread(self, d: int, draw: Draw) -> Draw:
        """The draw over groups, on their members."""
        assert isinstance(draw, DiagonalDraw)
        sizes = np.diff(self._start)[draw.indices]
        total = int(sizes.sum())
        offset = np.repeat(self._start[draw.indices] - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes)
        members = self._order[offset + np.arange(total)]
        ascending = np.argsort(members)
        return DiagonalDraw(d, members[ascending], np.repeat(draw.scales, sizes)[ascending])

    def same_places(self, other: Over) -> bool:
        """Whether the groups are the same."""
        return isinstance(other, Grouped) and np.array_equal(self.labels, other.labels)

    def label(self) -> str:
        """How many groups of what."""
        return f"Grouped({self.groups} groups) of {self.sketch.label()}"


def _labels(groups: Sequence[Any] | ArrayLike) -> Indices:
    """One group number per coordinate, from labels or from lists of members."""
    rows = listed("groups", groups)
    if not rows:
        raise ArgumentError("there are no groups")
    if np.ndim(rows[0]) == 0:
        if any(np.ndim(row) != 0 for row in rows) or None in rows:
            raise ArgumentError("groups must be one label per coordinate, or lists of coordinates")
        labels = np.asarray(rows)
        if labels.ndim != 1 or (labels.dtype.kind == "f" and not np.isfinite(labels).all()):
            raise ArgumentError("groups must be one label per coordinate, or lists of coordinates")
        return frozen(np.unique(labels, return_inverse=True)[1].astype(np.int64))
    members = checked_blocks(rows)
    if any(block.size == 0 for block in members):
        raise ArgumentError("a group has no members")
    result = np.empty(sum(map(len, members)), dtype=np.int64)
    for index, block in enumerate(members):
        result[block] = index
    return frozen(result)
