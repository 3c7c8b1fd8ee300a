"""The compiled half of the sketches. Tests compare each kernel with its readable twin.

- `draw_units`: the units that survive a step, as `Sketch.sample` draws them.
- `draw_mask`: a mask, and its product with weights while it is drawn.
- `solve_within`, `inverse_sum`: the many small systems of equations of `Conditional`, and their inverses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types, uint32, uint64
from numba.core import cgutils
from numba.extending import intrinsic

from mast.randomness import Purpose
from mast.randomness.kernels import aligned_words, below, block, derive, philox, shuffled_in
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


# ---- systems of equations: parts of one matrix, another part for each row --------------------------------

# Eight systems are solved side by side: every number below stands for eight of them, one per system, and the
# processor's wide instructions work on all eight. Systems of different sizes are filled up with the identity.
LANES = 8


@intrinsic
def _subtract_product(context: Any, array: Any, at: Any, left: Any, right: Any) -> Any:
    """array[at + l] -= array[left + l] * array[right + l] for all lanes l, in wide instructions."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        ir: Any = vars(cgutils)["ir"]
        eight = ir.VectorType(ir.DoubleType(), LANES).as_pointer()
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointers = [builder.bitcast(builder.gep(data, [index]), eight) for index in arguments[1:]]
        old, first, second = (builder.load(pointer, align=8) for pointer in pointers)
        builder.store(builder.fsub(old, builder.fmul(first, second)), pointers[0], align=8)

    return types.void(array, types.int64, types.int64, types.int64), generate


_lanes: Any = _subtract_product


@njit(cache=True, nogil=True)
def solve_within(G: Any, chosen: Any, order: Any, right: Any, out: Any) -> None:
    """For each row r in `order`, the y with G_cc y_c = right_c within chosen[r]: into out[r], 0 elsewhere.

    `right` is (rows, features, columns), or (1, features, columns) for all rows alike. By Cholesky's
    factors, so G must be positive definite; rows of about the same size should follow each other.
    """
    d, columns, shared = G.shape[0], right.shape[2], right.shape[0] == 1
    places = np.zeros((d, LANES), dtype=np.int64)
    sizes = np.zeros(LANES, dtype=np.int64)
    widest = 0
    for r in order:
        widest = max(widest, chosen[r].sum())
    U = np.empty((widest, widest + columns, LANES))  # the systems, and beside them their right-hand sides
    for first in range(0, order.size, LANES):
        lanes = min(LANES, order.size - first)
        width = 0
        sizes[:] = 0
        for lane in range(lanes):
            r, size = order[first + lane], 0
            for j in range(d):
                if chosen[r, j]:
                    places[size, lane] = j
                    size += 1
            sizes[lane] = size
            width = max(width, size)
        U[:width, width : width + columns] = 0.0
        for lane in range(lanes):
            r = 0 if shared else order[first + lane]
            for i in range(sizes[lane]):
                for c in range(columns):
                    U[i, width + c, lane] = right[r, places[i, lane], c]
        _gather(G, places, sizes, width, U)
        _solve(U, width, columns)
        for lane in range(lanes):
            r = order[first + lane]
            for i in range(sizes[lane]):
                for c in range(columns):
                    out[r, places[i, lane], c] = U[i, width + c, lane]


@njit(forceinline=True)
def _gather(G: Any, places: Any, sizes: Any, width: Any, U: Any) -> None:
    """The upper triangles of the chosen parts of G, and of the identity where a system is smaller."""
    for i in range(width):
        for j in range(i, width):
            for lane in range(LANES):
                inside = j < sizes[lane]
                U[i, j, lane] = G[places[i, lane], places[j, lane]] if inside else 0.0
        for lane in range(LANES):
            if i >= sizes[lane]:
                U[i, i, lane] = 1.0


@njit(forceinline=True)
def _solve(U: Any, width: Any, columns: Any) -> None:
    """Cholesky's U'U = G in place, its diagonal 1/U_kk; the columns y beside it become (U'U)^-1 y."""
    flat, row, end = U.ravel(), U.shape[1] * LANES, width + columns
    for k in range(width):
        for lane in range(LANES):
            U[k, k, lane] = 1.0 / np.sqrt(U[k, k, lane])
        for j in range(k + 1, end):
            for lane in range(LANES):
                U[k, j, lane] *= U[k, k, lane]
        for i in range(k + 1, width):
            for j in range(i, end):
                _lanes(flat, i * row + j * LANES, k * row + i * LANES, k * row + j * LANES)
    for i in range(width - 1, -1, -1):
        for j in range(i + 1, width):
            for c in range(width, end):
                _lanes(flat, i * row + c * LANES, i * row + j * LANES, j * row + c * LANES)
        for c in range(width, end):
            for lane in range(LANES):
                U[i, c, lane] *= U[i, i, lane]


@njit(cache=True, nogil=True)
def inverse_sum(G: Any, chosen: Any, order: Any, weights: Any, out: Any) -> None:
    """Add weights[r] times the inverse of G_cc, c the features in chosen[r], to out_cc for r in `order`."""
    d = G.shape[0]
    places = np.zeros((d, LANES), dtype=np.int64)
    sizes = np.zeros(LANES, dtype=np.int64)
    widest = 0
    for r in order:
        widest = max(widest, chosen[r].sum())
    U = np.empty((widest, widest + 1, LANES))  # the last column is for sums
    for first in range(0, order.size, LANES):
        width = 0
        sizes[:] = 0
        for lane in range(min(LANES, order.size - first)):
            size = 0
            for j in range(d):
                if chosen[order[first + lane], j]:
                    places[size, lane] = j
                    size += 1
            sizes[lane] = size
            width = max(width, size)
        _gather(G, places, sizes, width, U)
        _solve(U, width, 0)
        _invert(U, width)
        flat, row, spare = U.ravel(), U.shape[1] * LANES, widest * LANES
        for i in range(width):
            for j in range(i, width):
                U[0, widest] = 0.0
                for m in range(j, width):
                    _lanes(flat, spare, i * row + m * LANES, j * row + m * LANES)
                for lane in range(LANES):
                    if j < sizes[lane]:
                        part = weights[order[first + lane]] * U[0, widest, lane]
                        a, b = places[i, lane], places[j, lane]
                        out[a, b] -= part
                        if i != j:
                            out[b, a] -= part


@njit(forceinline=True)
def _invert(U: Any, width: Any) -> None:
    """The inverse of a triangle U in place, whose diagonal holds 1/U_kk already; the last column is lost."""
    flat, row, last = U.ravel(), U.shape[1] * LANES, U.shape[1] - 1
    for j in range(width):
        for i in range(j):
            U[0, last] = 0.0
            for m in range(i, j):
                _lanes(flat, last * LANES, i * row + m * LANES, m * row + j * LANES)
            for lane in range(LANES):
                U[i, j, lane] = U[0, last, lane] * U[j, j, lane]
