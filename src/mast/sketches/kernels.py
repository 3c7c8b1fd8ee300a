"""The draw of a step as a list of surviving units, compiled: the same draw that `Sketch.sample` makes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, uint32, uint64

from mast.randomness import Purpose
from mast.randomness.kernels import below, block, philox, shuffled_in
from mast.sketches.laws import DrawKind

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
) -> int:
    """Fill `kept` with the units that survive step t on a node; returns how many there are.

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
