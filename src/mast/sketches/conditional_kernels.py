"""Many small systems of equations at once, compiled: parts of one matrix, another part for each row.

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


@intrinsic
def _subtract_product(context: Any, target: Any, at: Any, factors: Any, left: Any, right: Any) -> Any:
    """target[at + l] -= factors[left + l] * target[right + l] for all lanes l, in wide instructions."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        ir: Any = vars(cgutils)["ir"]
        eight = ir.VectorType(ir.DoubleType(), LANES).as_pointer()
        data = {
            array: context.make_array(signature.args[array])(context, builder, arguments[array]).data
            for array in (0, 2)
        }
        pointers = [
            builder.bitcast(builder.gep(data[array], [arguments[index]]), eight)
            for array, index in ((0, 1), (2, 3), (0, 4))
        ]
        old, first, second = (builder.load(pointer, align=8) for pointer in pointers)
        builder.store(builder.fsub(old, builder.fmul(first, second)), pointers[0], align=8)

    return types.void(target, types.int64, factors, types.int64, types.int64), generate


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
    U = np.empty((widest, widest, LANES))
    y = np.empty((widest, columns, LANES))
    for first in range(0, order.size, LANES):
        lanes = min(LANES, order.size - first)
        width = 0
        for lane in range(lanes):
            r, size = order[first + lane], 0
            for j in range(d):
                if chosen[r, j]:
                    places[size, lane] = j
                    size += 1
            sizes[lane] = size
            width = max(width, size)
        for lane in range(lanes, LANES):
            sizes[lane] = 0
        _gather(G, places, sizes, width, U)
        y[:width] = 0.0
        for lane in range(lanes):
            r = 0 if shared else order[first + lane]
            for i in range(sizes[lane]):
                for c in range(columns):
                    y[i, c, lane] = right[r, places[i, lane], c]
        _factorise(U, width)
        _substitute(U, width, y)
        for lane in range(lanes):
            r = order[first + lane]
            for i in range(sizes[lane]):
                for c in range(columns):
                    out[r, places[i, lane], c] = y[i, c, lane]


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
def _factorise(U: Any, width: Any) -> None:
    """Cholesky's U'U = G, in place; the diagonal becomes 1/U_kk."""
    flat, row = U.ravel(), U.shape[1] * LANES
    for k in range(width):
        for lane in range(LANES):
            U[k, k, lane] = 1.0 / np.sqrt(U[k, k, lane])
        for j in range(k + 1, width):
            for lane in range(LANES):
                U[k, j, lane] *= U[k, k, lane]
        for i in range(k + 1, width):
            for j in range(i, width):
                _lanes(flat, i * row + j * LANES, flat, k * row + i * LANES, k * row + j * LANES)


@njit(forceinline=True)
def _substitute(U: Any, width: Any, y: Any) -> None:
    """y becomes (U'U)^-1 y."""
    flat, row = U.ravel(), U.shape[1] * LANES
    values, columns = y.ravel(), y.shape[1]
    for i in range(width):
        for c in range(columns):
            for lane in range(LANES):
                y[i, c, lane] *= U[i, i, lane]
        for j in range(i + 1, width):
            for c in range(columns):
                _lanes(
                    values, (j * columns + c) * LANES, flat, i * row + j * LANES, (i * columns + c) * LANES
                )
    for i in range(width - 1, -1, -1):
        for j in range(i + 1, width):
            for c in range(columns):
                _lanes(
                    values, (i * columns + c) * LANES, flat, i * row + j * LANES, (j * columns + c) * LANES
                )
        for c in range(columns):
            for lane in range(LANES):
                y[i, c, lane] *= U[i, i, lane]
