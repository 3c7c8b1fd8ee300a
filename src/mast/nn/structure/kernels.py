"""Moving slices of tensors, compiled: rows, columns and inner runs, without a temporary of either size.

Each has a readable twin in `mast.nn.structure.slicing` (indexing by a grid), and a test compares them.
"""

from __future__ import annotations

from typing import Any

from numba import njit

_LONG = 32  # runs from this length on are worth the slices that let the compiler use wide instructions


@njit(cache=True, nogil=True)
def take(x: Any, rows: Any, columns: Any, inner: int, width: int, out: Any) -> None:
    """The kept entries of x, one after the other."""
    n = 0
    for i in range(rows.size):
        row = rows[i] * width
        if inner == 1:
            for j in range(columns.size):
                out[n + j] = x[row + columns[j]]
            n += columns.size
        else:
            for j in range(columns.size):
                first = row + columns[j] * inner
                if inner >= _LONG:
                    own, new = x[first : first + inner], out[n : n + inner]
                    for k in range(inner):
                        new[k] = own[k]
                else:
                    for k in range(inner):
                        out[n + k] = x[first + k]
                n += inner


@njit(cache=True, nogil=True)
def put(x: Any, rows: Any, columns: Any, inner: int, width: int, values: Any) -> None:
    """The kept entries of x are replaced."""
    n = 0
    for i in range(rows.size):
        row = rows[i] * width
        if inner == 1:
            for j in range(columns.size):
                x[row + columns[j]] = values[n + j]
            n += columns.size
        else:
            for j in range(columns.size):
                first = row + columns[j] * inner
                if inner >= _LONG:
                    own, new = x[first : first + inner], values[n : n + inner]
                    for k in range(inner):
                        own[k] = new[k]
                else:
                    for k in range(inner):
                        x[first + k] = values[n + k]
                n += inner


@njit(cache=True, nogil=True)
def add(x: Any, rows: Any, columns: Any, inner: int, width: int, values: Any, factor: Any) -> None:
    """The kept entries of x grow by factor times the values."""
    n = 0
    for i in range(rows.size):
        row = rows[i] * width
        if inner == 1:
            for j in range(columns.size):
                x[row + columns[j]] += factor * values[n + j]
            n += columns.size
        else:
            for j in range(columns.size):
                first = row + columns[j] * inner
                if inner >= _LONG:
                    own, new = x[first : first + inner], values[n : n + inner]
                    for k in range(inner):
                        own[k] += factor * new[k]
                else:
                    for k in range(inner):
                        x[first + k] += factor * values[n + k]
                n += inner
