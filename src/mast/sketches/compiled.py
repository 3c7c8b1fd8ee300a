"""A sketch for compiled loops: its units as plain arrays, and the kernel that draws them as `sample` does."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numba import njit, uint32, uint64
from numpy.typing import NDArray

from mast.randomness import EXACT_SHUFFLE, Purpose
from mast.sketches.base import Sketch
from mast.sketches.composed import innermost
from mast.sketches.independent import Bernoulli, Identity
from mast.sketches.laws import members_of
from mast.sketches.perm_k import PermK
from mast.sketches.subsets import RandK
from mast.support.checks import Array, Indices
from mast.support.philox import below, block, philox, shuffled_in


class DrawKind(IntEnum):
    """How `draw_units` draws the kept units."""

    ALL = 0  # everything is kept
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
    scales: Array  # of each unit, if it is kept
    thresholds: NDArray[np.uint64]  # of each unit, for masks

    @property
    def single(self) -> bool:
        """Whether exactly one unit is kept, so that all draws can be averaged in one go."""
        return self.kind in (DrawKind.ALL, DrawKind.BLOCK) or (self.kind is DrawKind.SUBSET and self.k == 1)


def unit_arrays(sketch: Sketch, d: int) -> UnitArrays | None:
    """The units of a sketch as arrays; None if compiled loops cannot draw it."""
    law = sketch.law(d)
    drawn = None if law is None else _drawn(innermost(sketch), law.units)
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
    return UnitArrays(kind, k, unit_of, *members_of(unit_of, count), scales, thresholds)


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


_ALL, _BLOCK, _SUBSET, _REDRAWN, _MASK = (int(kind) for kind in DrawKind)
_MASK_PURPOSE = int(Purpose.MASK)
_SUBSET_PURPOSE = int(Purpose.SUBSET)
_PARTITION_PURPOSE = int(Purpose.PARTITION)
_BLOCK_PURPOSE = int(Purpose.BLOCK)


@njit(forceinline=True)
def stream_of(seed: Any, t: Any, node: Any, purpose: Any, index: Any) -> Any:
    """The stream of a key: seed is a pair of words, t the step."""
    high = uint32((uint64(t) >> uint64(32)) | uint64(purpose) << uint64(16))
    return philox(uint32(uint64(t)), high, uint32(node), uint32(index), seed[0], seed[1])


@njit(cache=True)
def draw_units(
    kind: int, k: int, thresholds: Any, seed: Any, t: int, node: int, order: Any, kept: Any
) -> Any:
    """Fill `kept` with the units that step t keeps on a node; returns how many there are.

    `order` is a scratch array that holds 0, 1, 2, ... and is left so.
    """
    if kind == _ALL:
        kept[0] = 0
        return 1
    if kind == _MASK:
        return _mask(stream_of(seed, t, node, _MASK_PURPOSE, 0), thresholds, kept)
    group, purpose, start, stop = node, _SUBSET_PURPOSE, 0, k
    if kind != _SUBSET:  # one of k blocks
        group = node // k
        number = shuffled_in(stream_of(seed, t, group, _BLOCK_PURPOSE, 0), k, node % k)
        if kind == _BLOCK:
            kept[0] = number
            return 1
        purpose = _PARTITION_PURPOSE
        small, larger = order.size // k, order.size % k
        start = number * small + min(number, larger)
        stop = start + small + (1 if number < larger else 0)
    stream = stream_of(seed, t, group, purpose, 0)
    return _part_of_shuffle(stream, order.size, start, stop, order, kept)


@njit(forceinline=True)
def _part_of_shuffle(stream: Any, n: Any, start: Any, stop: Any, order: Any, kept: Any) -> Any:
    """Elements start .. stop-1 of a Fisher-Yates shuffle; afterwards the swaps are undone."""
    swaps = np.empty(stop, dtype=np.int64)
    for i in range(stop):
        j = i + below(stream, i, 0, n - i)
        swaps[i] = j
        order[i], order[j] = order[j], order[i]
    for i in range(start, stop):
        kept[i - start] = order[i]
    for i in range(stop - 1, -1, -1):
        j = swaps[i]
        order[i], order[j] = order[j], order[i]
    return stop - start


@njit(forceinline=True)
def _mask(stream: Any, thresholds: Any, kept: Any) -> Any:
    """The units whose word is below their threshold."""
    n = thresholds.size
    count = 0
    for j in range((n + 3) // 4):
        w = block(stream, j)
        for r in range(4):
            unit = 4 * j + r
            if unit < n and uint64(w[r]) < thresholds[unit]:
                kept[count] = unit
                count += 1
    return count
