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
