"""Sketches as plain arrays, for compiled loops: which units live or die, and how they are drawn.

A unit is a coordinate, a group of them, or a block of a fixed partition. The draw of a step is a
list of units that survive; `mast.sketches.kernels` makes it, and it is the same draw that `sample` makes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mast.arrays import Array, Indices


class Kind(IntEnum):
    """How the surviving units are drawn."""

    ALL = 0  # everything survives
    BLOCK = 1  # one of k units: Perm-K with a fixed partition
    SUBSET = 2  # k units, uniformly: Rand-K
    REDRAWN = 3  # a block of a partition of the units that is new each time
    MASK = 4  # each unit by itself: Bernoulli


class Units(NamedTuple):
    """A sketch as arrays."""

    kind: Kind
    k: int
    unit_of: Indices  # of each coordinate
    members: Indices  # the coordinates of unit u are members[start[u] : start[u + 1]]
    start: Indices
    scales: Array  # of each unit, if it survives
    thresholds: NDArray[np.uint64]  # of each unit, for masks


def units_of(
    kind: Kind,
    unit_of: Indices,
    units: int,
    scales: Array,
    k: int,
    thresholds: NDArray[np.uint64] | None = None,
) -> Units:
    """The arrays, from the unit of each coordinate."""
    start = np.concatenate([[0], np.cumsum(np.bincount(unit_of, minlength=units))]).astype(np.int64)
    return Units(
        kind,
        k,
        np.ascontiguousarray(unit_of, dtype=np.int64),
        np.argsort(unit_of, kind="stable").astype(np.int64),
        start,
        np.ascontiguousarray(scales, dtype=np.float64),
        np.empty(0, np.uint64) if thresholds is None else np.ascontiguousarray(thresholds, dtype=np.uint64),
    )
