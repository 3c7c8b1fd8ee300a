"""A sketch as plain arrays, for compiled loops: its units, and how `mast.sketches.kernels` draws them."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mast.randomness import EXACT_SHUFFLE
from mast.sketches.base import Sketch
from mast.sketches.independent import Bernoulli, Identity
from mast.sketches.laws import Members
from mast.sketches.over import Over
from mast.sketches.perm_k import PermK
from mast.sketches.subsets import RandK
from mast.support.checks import Array, Indices


class DrawKind(IntEnum):
    """How `mast.sketches.kernels` draws the surviving units."""

    ALL = 0  # everything survives
    BLOCK = 1  # one of k units: Perm-K with a fixed partition
    SUBSET = 2  # k units, uniformly: Rand-K
    REDRAWN = 3  # a block of a partition of the units that is new each time
    MASK = 4  # each unit by itself: Bernoulli


class UnitArrays(NamedTuple):
    """The units of a sketch, and how they are drawn."""

    kind: DrawKind
    k: int
    unit_of: Indices  # of each coordinate
    members: Indices  # the coordinates of unit u are members[start[u] : start[u + 1]]
    start: Indices
    scales: Array  # of each unit, if it survives
    thresholds: NDArray[np.uint64]  # of each unit, for masks


def unit_arrays(sketch: Sketch, d: int) -> UnitArrays | None:
    """The units of a sketch as arrays; None if compiled loops cannot draw it."""
    inner, law = sketch, sketch.law(d)
    while isinstance(inner, Over):
        inner = inner.sketch
    drawn = None if law is None else _drawn(inner, law.units)
    if law is None or drawn is None:
        return None
    kind, k = drawn
    count, unit_of = law.units, law.unit_of
    scales, keep = law.per_unit(law.scales), law.per_unit(law.keep)
    if law.alone and kind is DrawKind.ALL:
        unit_of = np.zeros(d, dtype=np.int64)
    elif law.alone and kind is DrawKind.MASK:  # one more unit, that no mask drops
        unit_of = np.where(unit_of < 0, count, unit_of)
        count, scales, keep = count + 1, np.append(scales, 1.0), np.append(keep, 1.0)
    elif law.alone:
        return None
    unit_of = np.ascontiguousarray(unit_of, dtype=np.int64)
    thresholds = (keep * 2.0**32 if kind is DrawKind.MASK else np.empty(0)).astype(np.uint64)
    return UnitArrays(kind, k, unit_of, *Members.of(unit_of, count), scales, thresholds)


def _drawn(sketch: Sketch, units: int) -> tuple[DrawKind, int] | None:
    """How kernels draw a sketch of units, and how many it chooses, or chooses from; None if they cannot."""
    small = units <= EXACT_SHUFFLE
    match sketch:
        case Identity():
            return DrawKind.ALL, 1
        case Bernoulli():
            return DrawKind.MASK, 0
        case RandK() if small:
            return DrawKind.SUBSET, sketch.count(units)
        case PermK() if small and sketch.k <= EXACT_SHUFFLE:
            return DrawKind.REDRAWN if sketch.redraw else DrawKind.BLOCK, sketch.k
    return None
