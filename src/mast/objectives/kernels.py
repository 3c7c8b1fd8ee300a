"""Sweeps over the non-zeros of a sparse matrix, compiled. `tests/objectives/reference.py` has them readably.

A sparse matrix is the tuple (indptr, indices, data) of its CSR arrays, unpacked by name in the first
line. It is not a named tuple, which Numba takes several times as long to recognise at a call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True)
def gram(A: Any, weights: Any, out: Any) -> None:
    """Add the lower triangle of A' diag(weights) A to `out`; columns ascend within rows."""
    indptr, indices, data = A
    for i in range(indptr.size - 1):
        w = weights[i]
        if w == 0.0:
            continue
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            scaled = w * data[p]
            for q in range(indptr[i], p + 1):
                out[j, indices[q]] += scaled * data[q]


@njit(cache=True)
def pairs(A: Any, factors: Any, labels: Any, place: Any, blocks: int) -> Any:
    """The pairs, block by block: row i of block k holds the non-zeros of row i there, times factors[i].

    Columns have the block labels[j], none if that is negative, and become place[j]. Returns where the pairs
    of each block begin, how many blocks each row touches, the row of each pair, and the matrix of pairs.
    """
    indptr, indices, data = A
    n = indptr.size - 1
    start = np.zeros(blocks + 1, dtype=np.int64)
    entry_start = np.zeros(blocks + 1, dtype=np.int64)
    touched = np.zeros(n, dtype=np.int64)
    seen = np.full(blocks, -1, dtype=np.int64)
    for i in range(n):
        for p in range(indptr[i], indptr[i + 1]):
            k = labels[indices[p]]
            if k < 0:
                continue
            entry_start[k + 1] += 1
            if seen[k] != i:
                seen[k] = i
                start[k + 1] += 1
                touched[i] += 1
    start, entry_start = np.cumsum(start), np.cumsum(entry_start)
    next_pair, next_entry = start.copy(), entry_start.copy()
    rows = np.empty(start[-1], dtype=np.int64)
    out_indptr = np.full(start[-1] + 1, entry_start[-1], dtype=indptr.dtype)
    out_indices = np.empty(entry_start[-1], dtype=indices.dtype)
    out_data = np.empty(entry_start[-1])
    seen[:] = -1
    for i in range(n):
        factor = factors[i]
        for p in range(indptr[i], indptr[i + 1]):
            k = labels[indices[p]]
            if k < 0:
                continue
            entry = next_entry[k]
            if seen[k] != i:
                seen[k] = i
                rows[next_pair[k]] = i
                out_indptr[next_pair[k]] = entry
                next_pair[k] += 1
            out_indices[entry] = place[indices[p]]
            out_data[entry] = factor * data[p]
            next_entry[k] = entry + 1
    return start, touched, rows, (out_indptr, out_indices, out_data)


@njit(forceinline=True)
def _mix(h: Any, word: Any) -> Any:
    """One round of a 64-bit hash (the finaliser of SplitMix64)."""
    h = (h ^ word) + np.uint64(0x9E3779B97F4A7C15)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))


@njit(cache=True)
def equal_rows(B: Any, context: Any, target: Any, first: Any) -> int:
    """Number equal rows alike: target[p] is the number of row p, first[number] where it first occurs.

    Rows are equal if their context, columns and values are (given as bits). Returns how many there are.
    """
    indptr, indices, bits = B
    size = 16
    while size < 2 * target.size:
        size *= 2
    table = np.full(size, -1, dtype=np.int64)
    count = 0
    for p in range(target.size):
        h = _mix(np.uint64(0), np.uint64(context[p]))
        for q in range(indptr[p], indptr[p + 1]):
            h = _mix(_mix(h, np.uint64(indices[q])), bits[q])
        slot = np.int64(h & np.uint64(size - 1))
        while True:
            number = table[slot]
            if number < 0:
                table[slot] = count
                first[count] = p
                target[p] = count
                count += 1
                break
            o = first[number]
            length = indptr[p + 1] - indptr[p]
            same = context[o] == context[p] and indptr[o + 1] - indptr[o] == length
            if same:
                for q in range(length):
                    a, b = indptr[o] + q, indptr[p] + q
                    if indices[a] != indices[b] or bits[a] != bits[b]:
                        same = False
                        break
            if same:
                target[p] = number
                break
            slot = (slot + 1) & (size - 1)
    return count


@njit(cache=True)
def block_grams(B: Any, weights: Any, starts: Any, out: Any) -> None:
    """The matrices B_k' diag(weights) B_k of all blocks, each row by row in `out`, both triangles.

    `starts` say where the pairs, the columns and the matrix of each block begin.
    """
    indptr, indices, data = B
    pair_start, column_start, matrix_start = starts
    for k in range(pair_start.size - 1):
        left = column_start[k]
        size = column_start[k + 1] - left
        begin = matrix_start[k]
        for p in range(pair_start[k], pair_start[k + 1]):
            w = weights[p]
            for q in range(indptr[p], indptr[p + 1]):
                scaled = w * data[q]
                line = begin + (indices[q] - left) * size - left
                for r in range(indptr[p], q + 1):
                    out[line + indices[r]] += scaled * data[r]
        for a in range(size):
            for b in range(a):
                out[begin + b * size + a] = out[begin + a * size + b]


@njit(cache=True)
def grouped_sums(values: Any, groups: Any, out: Any) -> None:
    """The sum of the values of each group, compensated (Kahan): groups may hold millions of equal rows."""
    lost = np.zeros(out.size)
    for i in range(values.size):
        g = groups[i]
        y = values[i] - lost[g]
        total = out[g] + y
        lost[g] = (total - out[g]) - y
        out[g] = total


# ---- all subsets of a row's units: bit j of a mask says whether unit j survives ---------------
# `cases` are (rows, m, start): some rows with m units each, and where the units of every row begin


@njit(cache=True)
def subset_sums(cases: Any, t: Any, bases: Any, out: Any) -> None:
    """The margins of each row for all masks: its base plus the t of the units that survive."""
    rows, m, start = cases
    width = 1 << m
    for r in range(rows.size):
        left = r * width
        out[left] = bases[rows[r]]
        begin = start[rows[r]]
        for j in range(m):
            half = 1 << j
            step = t[begin + j]
            for s in range(half):
                out[left + half + s] = out[left + s] + step


@njit(cache=True)
def independent_weights(cases: Any, keep: Any, rates: Any, out: Any) -> None:
    """The rate of each row times the probability of each mask, units being independent."""
    rows, m, start = cases
    width = 1 << m
    for r in range(rows.size):
        left = r * width
        out[left] = rates[rows[r]]
        begin = start[rows[r]]
        for j in range(m):
            half = 1 << j
            p = keep[begin + j]
            for s in range(half):
                out[left + half + s] = out[left + s] * p
                out[left + s] *= 1.0 - p


@njit(cache=True)
def fold(cases: Any, work: Any, units: Any, totals: Any) -> None:
    """Sum `work` over the masks that hold each unit, and over all; destroys `work`."""
    rows, m, start = cases
    width = 1 << m
    for r in range(rows.size):
        left = r * width
        begin = start[rows[r]]
        for j in range(m - 1, -1, -1):
            half = 1 << j
            total = 0.0
            for s in range(half):
                upper = work[left + half + s]
                total += upper
                work[left + s] += upper
            units[begin + j] = total
        totals[rows[r]] = work[left]


@njit(cache=True)
def fold_pairs(cases: Any, square_start: Any, work: Any, squares: Any, totals: Any) -> None:
    """Sum `work` over the masks that hold each two units, m x m for each row; destroys `work`."""
    rows, m, _ = cases
    width = 1 << m
    upper = np.empty(width)
    for r in range(rows.size):
        left = r * width
        begin = square_start[rows[r]]
        for j in range(m - 1, -1, -1):
            half = 1 << j
            total = 0.0
            for s in range(half):
                upper[s] = work[left + half + s]
                total += upper[s]
                work[left + s] += upper[s]
            squares[begin + j * m + j] = total
            for l in range(j - 1, -1, -1):
                quarter = 1 << l
                total = 0.0
                for s in range(quarter):
                    total += upper[quarter + s]
                    upper[s] += upper[quarter + s]
                squares[begin + j * m + l] = squares[begin + l * m + j] = total
        totals[rows[r]] = work[left]


# ---- gradients of one draw: products with some lines of a matrix, its rows or (by its transpose) columns
# `position` is the place of each index of a line in a short vector, -1 for none; if None, that is the index
# these run once or twice per step of a method, so they take plain arrays: a tuple costs some microseconds


@njit(cache=True)
def scatter_lines(indptr: Any, indices: Any, data: Any, lines: Any, position: Any, size: int, t: Any) -> Any:
    """The sum of the lines, each times its t."""
    out = np.zeros(size)
    for k in range(lines.size):
        step = t[k]
        for p in range(indptr[lines[k]], indptr[lines[k] + 1]):
            i = indices[p]
            if position is None:
                out[i] += step * data[p]
            elif position[i] >= 0:
                out[position[i]] += step * data[p]
    return out


@njit(cache=True)
def gather_lines(indptr: Any, indices: Any, data: Any, lines: Any, position: Any, r: Any) -> Any:
    """The inner product of each line with r."""
    out = np.empty(lines.size)
    for k in range(lines.size):
        total = 0.0
        for p in range(indptr[lines[k]], indptr[lines[k] + 1]):
            i = indices[p]
            if position is None:
                total += data[p] * r[i]
            elif position[i] >= 0:
                total += data[p] * r[position[i]]
        out[k] = total
    return out


@njit(cache=True)
def touched_rows(indptr: Any, indices: Any, columns: Any, position: Any, rows: Any) -> int:
    """List the rows with a non-zero in a kept column; position (all -1 before) says where each stands."""
    count = 0
    for k in range(columns.size):
        for p in range(indptr[columns[k]], indptr[columns[k] + 1]):
            i = indices[p]
            if position[i] < 0:
                position[i] = count
                rows[count] = i
                count += 1
    return count
