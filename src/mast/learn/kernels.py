"""Many small systems of equations, compiled: parts of one matrix, another part for each row.

Eight systems are solved side by side: every number below stands for eight of them, one per system, and the
processor's wide instructions work on all eight. Systems of different sizes are filled up with the identity.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 8


def _subtract_dots(rows: int) -> Any:
    """A kernel that works on `rows` rows at once, whose sums stay in the processor's registers."""

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

    `right` is (rows, features, columns), or (1, features, columns) for all rows. By Cholesky's
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
