"""The passes of `mast.sketches.draws`, compiled: loops that would otherwise need temporary arrays.

Three families: lists of positions (`DiagonalDraw`), masks, also while they are drawn (`MaskDraw`), and rows
and columns (`GridDraw`). The readable twin of each is indexing, in `base.py`, and tests compare the two.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types, uint64
from numba.core import cgutils
from numba.extending import intrinsic

from mast.support.philox import aligned_words, derive


@njit(forceinline=True)
def _move(x: Any, i: Any, values: Any, n: Any, scale: Any, gather: Any, place: Any, factor: Any) -> None:
    """Gather an entry times its scale, place it, or add factor times its scale: the one that is not None.

    Numba leaves out what is None, so that arrays which are only read may be read-only.
    """
    if gather is not None:
        values[n] = x[i] if scale is None else scale * x[i]
    if place is not None:
        x[i] = values[n]
    if factor is not None:
        x[i] += factor * (values[n] if scale is None else scale * values[n])


# ---- lists of positions ------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def entries(x: Any, positions: Any, values: Any, gather: Any, place: Any, factor: Any) -> None:
    """The entries of x at the positions go to the values, are replaced by them, or grow by them."""
    for k in range(positions.size):
        _move(x, uint64(positions[k]), values, k, None, gather, place, factor)


@njit(cache=True, nogil=True)
def copy(x: Any, positions: Any, source: Any) -> None:
    """x[positions] = source[positions], or 0 where the source is None."""
    for k in range(positions.size):
        i = uint64(positions[k])
        x[i] = x.dtype.type(0) if source is None else source[i]


@njit(cache=True, nogil=True)
def sparsify_entries(y: Any, positions: Any, scales: Any, x: Any, v: Any) -> None:
    """y = v + scales * (x - v) at the positions; y and v may be the same, and v may be None for 0."""
    for k in range(positions.size):
        i = uint64(positions[k])
        y[i] = scales[k] * x[i] if v is None else v[i] + scales[k] * (x[i] - v[i])


# ---- masks -------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def select(mask: Any, scale: Any, x: Any, out: Any) -> None:
    """out = scale * x where the mask is true, 0 elsewhere."""
    zero = x.dtype.type(0)
    for i in range(x.size):
        out[i] = x[i] * scale if mask[i] else zero


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


# ---- rows and columns --------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def grid(x: Any, runs: Any, values: Any, gather: Any, place: Any, factor: Any) -> None:
    """The kept entries of x go to the values, are replaced by them, or grow by factor times them.

    `runs` has the kept rows, which are `width` entries long, and in each the kept columns, which are runs of
    `inner` entries. Long runs are moved as slices, so that the compiler uses wide instructions.
    """
    walk_grid(x, runs, None, values, gather, place, factor)


@njit(forceinline=True)
def walk_grid(x: Any, runs: Any, scales: Any, values: Any, gather: Any, place: Any, factor: Any) -> None:
    """`_move` the kept entries, row by row; the scale of each is that of its row times that of its column."""
    rows, columns, inner, width = runs
    n = 0
    for i in range(rows.size):
        row = rows[i] * width
        if inner == 1:
            for j in range(columns.size):
                scale = None if scales is None else scales[0][i] * scales[1][j]
                _move(x, row + columns[j], values, n + j, scale, gather, place, factor)
            n += columns.size
            continue
        for j in range(columns.size):
            scale = None if scales is None else scales[0][i] * scales[1][j]
            first = row + columns[j] * inner
            run, new = x[first : first + inner], values[n : n + inner]
            for k in range(inner):
                _move(run, k, new, k, scale, gather, place, factor)
            n += inner
