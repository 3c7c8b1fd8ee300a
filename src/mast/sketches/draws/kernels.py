"""The passes of `mast.sketches.draws`, compiled: loops that would otherwise need temporary arrays.

Three families: lists of positions (`DiagonalDraw`), rows and columns (`GridDraw`), and all tensors of a
model in one call (`gather_units`, `scatter_units`), because at each step of training the way through Python
would take longer than the moving. The readable twin of each is indexing, in `forms.py`, and tests compare the
two.

The named tuples say what a kernel takes; they are passed as plain tuples, because Numba's cache on disk would
remember the class of a named one, and fail where it has moved.
"""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple

from numba import carray, njit, types, uint64  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic


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


# ---- rows and columns --------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def grid(x: Any, runs: Any, values: Any, gather: Any, place: Any, factor: Any) -> None:
    """The kept entries of x go to the values, are replaced by them, or grow by factor times them.

    `runs` has the kept rows, which are `width` entries long, and in each the kept columns, which are runs of
    `inner` entries. Long runs are moved as slices, so that the compiler uses wide instructions.
    """
    _walk(x, runs, None, values, gather, place, factor)


@njit(forceinline=True)
def _walk(x: Any, runs: Any, scales: Any, values: Any, gather: Any, place: Any, factor: Any) -> None:
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


# ---- all tensors of a model --------------------------------------------------------------------


class Layout(NamedTuple):
    """Where the units of a model lie: what does not depend on the draw.

    A row of `parts` is one tensor: its list of rows, its list of columns, the width of a row and the length
    of a run. A row of `pieces` is one stretch of a list: the list, the space (-1: no draw cuts here), the
    entries per unit, the offset, and whether the entries carry the units' scales.
    """

    parts: Any
    pieces: Any


class KeptUnits(NamedTuple):
    """The units that a draw keeps, space after space, their scales, and where each space starts."""

    units: Any
    scales: Any
    bounds: Any


class Lists(NamedTuple):
    """Room for the lists of kept rows and columns of a draw, their scales, and where each list ends."""

    indices: Any
    factors: Any
    ends: Any


def _from_number(typing_context: Any, address: Any) -> Any:
    """The pointer to an address that came as a number."""

    def convert(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), convert


_pointer: Any = intrinsic(_from_number)


@njit(cache=True, nogil=True)
def gather_units(layout: Any, kept: Any, lists: Any, sources: Any, starts: Any, out: Any) -> None:
    """The kept entries of all tensors, times their scales, each tensor's from its start in `out`.

    `sources` are addresses. The lists are filled, and stay as they are for `scatter_units`.
    """
    _fill_lists(layout, kept, lists)
    parts, _ = layout
    for p in range(parts.shape[0]):
        x = carray(_pointer(sources[p]), (1 << 60,), out.dtype)
        _walk_part(x, parts[p], lists, out[starts[p] :], True, None)


@njit(cache=True, nogil=True)
def scatter_units(layout: Any, lists: Any, targets: Any, sources: Any, factor: Any) -> None:
    """The kept entries of all tensors grow by factor times their scales times the values; 0 is no source."""
    parts, _ = layout
    for p in range(parts.shape[0]):
        if sources[p] != 0:
            x = carray(_pointer(targets[p]), (1 << 60,), lists[1].dtype)
            values = carray(_pointer(sources[p]), (1 << 60,), lists[1].dtype)
            _walk_part(x, parts[p], lists, values, None, factor)


@njit(forceinline=True)
def _walk_part(x: Any, part: Any, lists: Any, values: Any, gather: Any, factor: Any) -> None:
    """`_walk` over one tensor."""
    first, second, width, inner = part
    indices, factors, ends = lists
    rows, columns = slice(ends[first], ends[first + 1]), slice(ends[second], ends[second + 1])
    runs, scales = (indices[rows], indices[columns], inner, width), (factors[rows], factors[columns])
    _walk(x, runs, scales, values, gather, None, factor)


class AdamNumbers(NamedTuple):
    """The options of Adam, in the type of the weights."""

    decay: Any  # added to the gradient, times the weight
    shrink: Any  # what the weight is multiplied by first: 1 - lr * decay of AdamW
    beta1: Any
    beta2: Any
    eps: Any
    one: Any


@njit(cache=True, nogil=True, error_model="numpy")
def adam_units(layout: Any, lists: Any, places: Any, corrections: Any, numbers: Any) -> None:
    """A step of Adam on the kept entries of all tensors, and on the same entries of its two averages.

    A row of `places` has the addresses of a tensor, its averages, and the gradient (0: none), which is that
    of the small tensor and is multiplied by the scales; a row of `corrections` has lr / (1 - beta1^t) and
    1 / sqrt(1 - beta2^t).
    """
    parts, _ = layout
    indices, factors, ends = lists
    for p in range(parts.shape[0]):
        if places[p, 3] == 0:
            continue
        rows, columns, width, inner = parts[p]
        x = carray(_pointer(places[p, 0]), (1 << 60,), factors.dtype)
        m = carray(_pointer(places[p, 1]), (1 << 60,), factors.dtype)
        v = carray(_pointer(places[p, 2]), (1 << 60,), factors.dtype)
        g = carray(_pointer(places[p, 3]), (1 << 60,), factors.dtype)
        lr, root = corrections[p]
        n = 0
        for i in range(ends[rows], ends[rows + 1]):
            row = indices[i] * width
            for j in range(ends[columns], ends[columns + 1]):
                first, scale = row + indices[j] * inner, factors[i] * factors[j]
                if inner == 1:
                    _adam(x, m, v, first, scale * g[n], lr, root, numbers)
                else:
                    own, mean, square = (
                        x[first : first + inner],
                        m[first : first + inner],
                        v[first : first + inner],
                    )
                    new = g[n : n + inner]
                    for k in range(inner):
                        _adam(own, mean, square, k, scale * new[k], lr, root, numbers)
                n += inner


@njit(forceinline=True, error_model="numpy")
def _adam(x: Any, m: Any, v: Any, i: Any, g: Any, lr: Any, root: Any, numbers: Any) -> None:
    """One entry."""
    decay, shrink, beta1, beta2, eps, one = numbers
    g += decay * x[i]
    m[i] += (one - beta1) * (g - m[i])
    v[i] = beta2 * v[i] + (one - beta2) * g * g
    x[i] = shrink * x[i] - lr * m[i] / (sqrt(v[i]) * root + eps)


@njit(cache=True, nogil=True)
def _fill_lists(layout: Any, kept: Any, lists: Any) -> None:
    """The entries of each list, one list after the other: pieces come in the order of their lists."""
    _, pieces = layout
    units, scales, bounds = kept
    indices, factors, ends = lists
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
