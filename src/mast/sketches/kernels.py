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


# ---- systems of equations: parts of one matrix, another part for each row --------------------------------

# Eight systems are solved side by side: every number below stands for eight of them, one per system, and the
# processor's wide instructions work on all eight. Systems of different sizes are filled up with the identity.
LANES = 8


def _subtract_dots(rows: int) -> Any:
    """A kernel that works on so many rows at once, whose sums stay in the processor's registers."""

    @intrinsic
    def kernel(
        context: Any, array: Any, at: Any, left: Any, step: Any, right: Any, stride: Any, count: Any
    ) -> Any:
        """array[at + m stride] -= sum over k of array[left + k step] * array[right + m stride + k LANES].

        That is for all rows m and all lanes, in wide instructions, with k = 0, 1, ... below `count`.
        """

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
            ir: Any = vars(cgutils)["ir"]
            eight = ir.VectorType(ir.DoubleType(), LANES)
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            at, left, step, right, stride, count = arguments[1:]

            def place(start: Any, number: Any, distance: Any) -> Any:
                index = builder.add(start, builder.mul(number, distance))
                return builder.bitcast(builder.gep(data, [index]), eight.as_pointer())

            numbers = [at.type(m) for m in range(rows)]
            sums = [cgutils.alloca_once(builder, eight) for _ in numbers]
            for m, total in zip(numbers, sums, strict=True):
                builder.store(builder.load(place(at, m, stride), align=8), total)
            with cgutils.for_range(builder, count) as loop:
                shared = builder.load(place(left, loop.index, step), align=8)
                start = builder.add(right, builder.mul(loop.index, at.type(LANES)))
                for m, total in zip(numbers, sums, strict=True):
                    product = builder.fmul(shared, builder.load(place(start, m, stride), align=8))
                    builder.store(builder.fsub(builder.load(total), product), total)
            for m, total in zip(numbers, sums, strict=True):
                builder.store(builder.load(total), place(at, m, stride), align=8)

        return types.void(array, *[types.int64] * 6), generate

    return kernel


ROWS = 4  # that are worked on at once
_several: Any = _subtract_dots(ROWS)
_single: Any = _subtract_dots(1)


@njit(forceinline=True)
def _subtract(
    flat: Any, rows: Any, at: Any, left: Any, step: Any, right: Any, stride: Any, count: Any
) -> None:
    """flat[at + m stride] -= sum over k < count of flat[left + k step] flat[right + m stride + k LANES]."""
    m = 0
    while m + ROWS <= rows:
        _several(flat, at + m * stride, left, step, right + m * stride, stride, count)
        m += ROWS
    while m < rows:
        _single(flat, at + m * stride, left, step, right + m * stride, stride, count)
        m += 1


@njit(cache=True, nogil=True)
def solve_within(G: Any, chosen: Any, right: Any, out: Any) -> None:
    """For each row r, the y with G_cc y_c = right_c within c = chosen[r], into out[r].

    `right` is (rows, features, columns), or (1, features, columns) for all rows alike. By Cholesky's
    factors, so G must be positive definite; rows of about the same size should follow each other.
    """
    columns, shared = right.shape[2], right.shape[0] == 1
    places = np.zeros((G.shape[0] + 1, LANES), dtype=np.int64)
    sizes = np.zeros(LANES, dtype=np.int64)
    widest = chosen.sum(axis=1).max()
    U = np.empty((widest + columns, _row_length(widest), LANES))  # below the systems their right-hand sides
    for first in range(0, len(chosen), LANES):
        width = _choose(chosen[first : first + LANES], places, sizes)
        _gather(G, places, sizes, width, U)
        U[width : width + columns, :width] = 0.0
        for lane in range(min(LANES, len(chosen) - first)):
            r = 0 if shared else first + lane
            for c in range(columns):
                for i in range(sizes[lane]):
                    U[width + c, i, lane] = right[r, places[i, lane], c]
        _factorise(U, width, columns)
        _substitute(U, width, columns)
        for lane in range(min(LANES, len(chosen) - first)):
            for i in range(sizes[lane]):
                for c in range(columns):
                    out[first + lane, places[i, lane], c] = U[width + c, i, lane]


@njit(forceinline=True)
def _row_length(width: Any) -> Any:
    """An odd number: rows whose distance is a power of 2 would drive each other out of the cache."""
    return width | 1


@njit(forceinline=True)
def _choose(chosen: Any, places: Any, sizes: Any) -> Any:
    """Which features each lane has, and how many; returns the largest number."""
    sizes[:] = 0
    for lane in range(len(chosen)):
        size = 0
        for j in range(chosen.shape[1]):
            places[size, lane] = j  # until the next one is chosen: a branch would be slower
            size += chosen[lane, j]
        sizes[lane] = size
    return sizes.max()


@njit(forceinline=True)
def _gather(G: Any, places: Any, sizes: Any, width: Any, U: Any) -> None:
    """The lower triangles of the chosen parts of G, and of the identity where a system is smaller."""
    for j in range(width):
        for i in range(j + 1):
            for lane in range(LANES):
                inside = j < sizes[lane]
                U[j, i, lane] = G[places[j, lane], places[i, lane]] if inside else 0.0
        for lane in range(LANES):
            if j >= sizes[lane]:
                U[j, j, lane] = 1.0


@njit(forceinline=True)
def _factorise(U: Any, width: Any, columns: Any) -> None:
    """Cholesky's LL' = G in place, its diagonal 1/L_kk; the columns y, rows below it, become L^-1 y."""
    flat, row = U.ravel(), U.shape[1] * LANES
    for i in range(width):
        start = i * row
        _subtract(flat, width + columns - i, start + i * LANES, start, LANES, start, row, i)
        for lane in range(LANES):
            U[i, i, lane] = 1.0 / np.sqrt(U[i, i, lane])
        for j in range(i + 1, width + columns):
            for lane in range(LANES):
                U[j, i, lane] *= U[i, i, lane]


@njit(forceinline=True)
def _substitute(U: Any, width: Any, columns: Any) -> None:
    """The rows y below the factor L become L'^-1 y."""
    flat, row = U.ravel(), U.shape[1] * LANES
    for i in range(width - 1, -1, -1):
        at, above = width * row + i * LANES, (i + 1) * row + i * LANES
        _subtract(flat, columns, at, above, row, at + LANES, row, width - 1 - i)
        for c in range(width, width + columns):
            for lane in range(LANES):
                U[c, i, lane] *= U[i, i, lane]


@njit(cache=True, nogil=True)
def inverse_sum(G: Any, chosen: Any, weights: Any) -> Any:
    """The sum over r of weights[r] times the inverse of G_cc, c = chosen[r], which is 0 elsewhere."""
    out = np.zeros(G.shape)
    places = np.zeros((G.shape[0] + 1, LANES), dtype=np.int64)
    sizes = np.zeros(LANES, dtype=np.int64)
    widest = chosen.sum(axis=1).max()
    U = np.zeros((2 * widest, _row_length(widest), LANES))  # the inverses of the factors are below these
    for first in range(0, len(chosen), LANES):
        width = _choose(chosen[first : first + LANES], places, sizes)
        _gather(G, places, sizes, width, U)
        _factorise(U, width, 0)
        _invert(U, width)
        for lane in range(min(LANES, len(chosen) - first)):
            weight = weights[first + lane]
            for j in range(sizes[lane]):
                for i in range(j + 1):
                    part = weight * U[j, i, lane]
                    a, b = places[i, lane], places[j, lane]
                    out[a, b] -= part
                    if i != j:
                        out[b, a] -= part
    return out


@njit(forceinline=True)
def _invert(U: Any, width: Any) -> None:
    """Minus the inverse of LL' in place of the factor L; below it V = L'^-1, which makes it -VV'."""
    flat, row = U.ravel(), U.shape[1] * LANES
    below = width * row
    U[width : 2 * width, :width] = 0.0
    for j in range(width):
        _subtract(flat, j, below + j * LANES, j * row, LANES, below, row, j)
        for i in range(j):
            for lane in range(LANES):
                U[width + i, j, lane] *= U[j, j, lane]
        U[width + j, j] = U[j, j]
    U[:width] = 0.0
    for i in range(width):
        start = i * (row + LANES)  # V is 0 before its diagonal
        _subtract(flat, width - i, start, below + start, LANES, below + start, row, width - i)
