"""Grouped: the coordinates of a group live or die together. Any diagonal sketch, over groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mast.arrays import Array, Indices, frozen
from mast.checks import listed
from mast.errors import ArgumentError, NotDiagonalError
from mast.randomness import Key
from mast.sketches.base import Constants, DiagonalDraw, Draw, Sketch
from mast.sketches.laws import Atoms, MomentForm
from mast.sketches.perm_k import _checked_blocks
from mast.sketches.units import Units, units_of


class Grouped(Sketch):
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
        if not isinstance(sketch, Sketch):
            raise ArgumentError(f"Grouped takes a sketch first, got {type(sketch).__name__}")
        if not sketch.diagonal:
            raise NotDiagonalError(f"Grouped needs a diagonal sketch, {sketch!r} is not one")
        self.sketch = sketch
        self.labels = _labels(groups)
        self.groups = int(self.labels.max()) + 1
        sketch._check(self.groups)
        # The members of group g are order[start[g] : start[g + 1]], so that a draw costs what it keeps.
        self._order = np.argsort(self.labels, kind="stable")
        self._start = np.concatenate([[0], np.cumsum(np.bincount(self.labels, minlength=self.groups))])

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        """As the sketch over the groups."""
        return self.sketch.unbiased

    def sample(self, d: int, key: Key) -> Draw:
        """The draw over groups, spread over their members."""
        self._check(d)
        return self._spread(self.sketch.sample(self.groups, key))

    def _spread(self, draw: Draw) -> Draw:
        assert isinstance(draw, DiagonalDraw)
        sizes = np.diff(self._start)[draw.indices]
        total = int(sizes.sum())
        offset = np.repeat(self._start[draw.indices] - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes)
        members = self._order[offset + np.arange(total)]
        ascending = np.argsort(members)
        return DiagonalDraw(self.labels.size, members[ascending], np.repeat(draw.scales, sizes)[ascending])

    def mean(self, d: int) -> Array:
        """The mean over groups."""
        self._check(d)
        return self.sketch.mean(self.groups)[self.labels]

    def _constants(self, d: int) -> Constants:
        return self.sketch._constants(self.groups)

    def expected_square(self, d: int) -> Array:
        """That of the groups."""
        self._check(d)
        return self.sketch.expected_square(self.groups)[self.labels]

    def second_moment(self, d: int) -> Array:
        """That of the groups."""
        self._check(d)
        return self.sketch.second_moment(self.groups)[np.ix_(self.labels, self.labels)]

    def support_size(self, d: int) -> int | None:
        """That of the groups."""
        self._check(d)
        return self.sketch.support_size(self.groups)

    def _support(self, d: int) -> Iterator[tuple[float, Draw]]:
        for probability, draw in self.sketch._support(self.groups):
            yield probability, self._spread(draw)

    def separable(self, d: int) -> tuple[Indices, int] | None:
        """That of the groups."""
        self._check(d)
        inner = self.sketch.separable(self.groups)
        return None if inner is None else (inner[0][self.labels], inner[1])

    def marginals(self, d: int) -> Atoms | None:
        """Those of the groups."""
        self._check(d)
        inner = self.sketch.marginals(self.groups)
        return None if inner is None else [(p[self.labels], c[self.labels]) for p, c in inner]

    def moment_form(self, d: int) -> MomentForm | None:
        """That of the groups."""
        self._check(d)
        inner = self.sketch.moment_form(self.groups)
        if inner is None:
            return None
        return MomentForm(inner.share, inner.m[self.labels], inner.labels[self.labels], inner.extra)

    def components(self) -> list[tuple[float, Sketch]] | None:
        """Those of the sketch over the groups, each grouped alike."""
        inner = self.sketch.components()
        return None if inner is None else [(w, Grouped(s, self.labels)) for w, s in inner]

    @property
    def stride(self) -> int:
        """That of the groups."""
        return self.sketch.stride

    def same_partition(self, other: Sketch) -> bool:
        """That of the groups, if they are the same groups."""
        return (
            isinstance(other, Grouped)
            and np.array_equal(self.labels, other.labels)
            and self.sketch.same_partition(other.sketch)
        )

    def units(self, d: int) -> Units | None:
        """Those of the groups, with the groups' members."""
        self._check(d)
        return self._spread_units(self.sketch.units(self.groups))

    def structure(self, d: int) -> Units | None:
        """That of the groups, with the groups' members."""
        self._check(d)
        return self._spread_units(self.sketch.structure(self.groups))

    def _spread_units(self, inner: Units | None) -> Units | None:
        if inner is None:
            return None
        unit_of = inner.unit_of[self.labels]
        return units_of(inner.kind, unit_of, inner.scales.size, inner.scales, inner.k, inner.thresholds)

    def _check(self, d: int) -> int:
        if super()._check(d) != self.labels.size:
            raise ArgumentError(f"the groups cover {self.labels.size} coordinates, the dimension is {d}")
        return d

    def _label(self) -> str:
        return f"Grouped({self.groups} groups) of {self.sketch._label()}"


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
    members = _checked_blocks(rows)
    if any(block.size == 0 for block in members):
        raise ArgumentError("a group has no members")
    result = np.empty(sum(map(len, members)), dtype=np.int64)
    for number, block in enumerate(members):
        result[block] = number
    return frozen(result)
