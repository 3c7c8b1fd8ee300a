"""The compiled half of the sketches. Tests compare each kernel with its readable twin.

- `draw_units`: the units that survive a step, as `Sketch.sample` draws them.
- `draw_mask`: a mask, and its product with weights while it is drawn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types, uint32, uint64
from numba.core import cgutils
from numba.extending import intrinsic

from mast.randomness import Purpose
from mast.sketches.compiled import DrawKind
from mast.support.philox import aligned_words, below, block, derive, philox, shuffled_in

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


# ---- a mask and its product: one pass over the weights, in pieces that stay in the cache -----------------

# Random words take time and no memory traffic, products the opposite. So the work goes in small pieces, and
# while the words of one are made, the weights of one further on are fetched: a quarter faster in all.
_PIECE = 256  # coordinates, a multiple of 4
_AHEAD = 512
_LINE = 64  # bytes


@intrinsic
def _prefetch(context: Any, array: Any, index: Any) -> Any:
    """Ask the processor for the cache line of array[index]; nothing depends on whether it obeys."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), cgutils.voidptr_t)
        number = cgutils.int32_t
        ir: Any = vars(cgutils)["ir"]
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        hint = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        builder.call(hint, [pointer, number(0), number(3), number(1)])  # to read, keep in all caches, data

    return types.void(array, types.int64), generate


_fetch: Any = _prefetch


@njit(cache=True, nogil=True)
def draw_mask(
    key: Any, threshold: Any, scale: Any, x: Any, v: Any, y: Any, mask: Any, start: int, stop: int
) -> None:
    """Coordinates start .. stop-1 of the mask and of y = v + S(x - v); v is None where there is no shift."""
    stream = derive(key)
    line = _LINE // x.itemsize
    for first in range(start, stop, _PIECE):
        last = min(first + _PIECE, stop)
        for i in range(first + _AHEAD, min(last + _AHEAD, stop), line):
            _fetch(x, i)
            _fetch(y, i)
            if v is not None:
                _fetch(v, i)
        piece, old, new = mask[first:last], x[first:last], y[first:last]
        aligned_words(stream, threshold, first, piece)
        if v is None:
            for i in range(piece.size):
                new[i] = old[i] * scale if piece[i] else x.dtype.type(0)
        else:
            base = v[first:last]
            for i in range(piece.size):
                new[i] = base[i] + (old[i] - base[i]) * scale if piece[i] else base[i]
