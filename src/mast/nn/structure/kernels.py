"""Moving slices of tensors, compiled: rows, columns and inner runs, without a temporary of either size.

`take`, `put` and `add` have readable twins in `mast.nn.structure.slicing` (indexing by a grid), and a test
compares them. `gather` and `scatter` do the same to all tensors of a model in one call, because at each step
of training the way through Python would take longer than the moving; a `Cut` is their readable twin.
"""

from __future__ import annotations

from typing import Any

from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic

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


def _from_number(typing_context: Any, address: Any) -> Any:
    """The pointer to an address that came as a number."""

    def convert(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), convert


_pointer: Any = intrinsic(_from_number)


@njit(cache=True, nogil=True)
def gather(
    parts: Any,
    pieces: Any,
    units: Any,
    scales: Any,
    bounds: Any,
    indices: Any,
    factors: Any,
    ends: Any,
    sources: Any,
    starts: Any,
    out: Any,
) -> None:
    """The kept entries of all tensors, times their scales, each tensor's from its start in `out`.

    Lists of entries are written to `indices`, with their `factors` and `ends`, and stay there for `scatter`.
    """
    _list_entries(pieces, units, scales, bounds, indices, factors, ends)
    for p in range(parts.shape[0]):
        rows, columns, width, inner = parts[p]
        x = carray(_pointer(sources[p]), (1 << 60,), out.dtype)
        n = starts[p]
        for i in range(ends[rows], ends[rows + 1]):
            row = indices[i] * width
            if inner == 1:
                for j in range(ends[columns], ends[columns + 1]):
                    out[n] = factors[i] * factors[j] * x[row + indices[j]]
                    n += 1
            else:
                for j in range(ends[columns], ends[columns + 1]):
                    first, factor = row + indices[j] * inner, factors[i] * factors[j]
                    own, new = x[first : first + inner], out[n : n + inner]
                    for k in range(inner):
                        new[k] = factor * own[k]
                    n += inner


@njit(cache=True, nogil=True)
def scatter(
    parts: Any, indices: Any, factors: Any, ends: Any, targets: Any, sources: Any, factor: Any
) -> None:
    """The kept entries of all tensors grow by factor times their scales times the values; 0 is no source."""
    for p in range(parts.shape[0]):
        if sources[p] == 0:
            continue
        rows, columns, width, inner = parts[p]
        x = carray(_pointer(targets[p]), (1 << 60,), factors.dtype)
        values = carray(_pointer(sources[p]), (1 << 60,), factors.dtype)
        n = 0
        for i in range(ends[rows], ends[rows + 1]):
            row = indices[i] * width
            if inner == 1:
                for j in range(ends[columns], ends[columns + 1]):
                    x[row + indices[j]] += factor * (factors[i] * factors[j] * values[n])
                    n += 1
            else:
                for j in range(ends[columns], ends[columns + 1]):
                    first, scale = row + indices[j] * inner, factors[i] * factors[j]
                    own, new = x[first : first + inner], values[n : n + inner]
                    for k in range(inner):
                        own[k] += factor * (scale * new[k])
                    n += inner


@njit(cache=True, nogil=True)
def _list_entries(
    pieces: Any, units: Any, scales: Any, bounds: Any, indices: Any, factors: Any, ends: Any
) -> None:
    """The entries of each list, one list after the other: pieces come in the order of their lists."""
    n = 0
    for p in range(pieces.shape[0]):
        number, space, run, offset, scaled = pieces[p]
        if space < 0:  # all of that many
            for k in range(run):
                indices[n], factors[n] = k, 1.0
                n += 1
        else:
            for u in range(bounds[space], bounds[space + 1]):
                for k in range(run):
                    indices[n] = units[u] * run + offset + k
                    factors[n] = scales[u] if scaled else 1.0
                    n += 1
        ends[number + 1] = n
