"""The way of kept weights into a small model and back, laid out once for a model and used at every step.

A `Cut` describes one draw tensor by tensor, which is clear, general, and slow beside a training step of a
millisecond: after each product of matrices the processor has forgotten all of Python's code. So what does not
depend on the draw is in tables here, and each way is one call of a compiled kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from mast.nn.units.groups import Segment
from mast.sketches import DiagonalDraw
from mast.sketches.draws.kernels import walk_grid
from mast.support.checks import Indices

_ALL = -1  # in the place of a group: no draw cuts here
_ALIGNED = 16  # each tensor starts at a multiple of this many entries, like one that torch has made
_TYPES = (torch.float32, torch.float64)


class KeptUnits(NamedTuple):
    """The units that a draw keeps, group after group, their scales, and where each group starts."""

    units: Any
    scales: Any
    bounds: Any


class CompiledCut:
    """Moves the kept rows and columns of all tensors in one compiled call each way.

    It is for models whose units own rows and columns only. `segments_of` says how the dimensions of
    tensors are divided among groups, which have this many `units`.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[str, Sequence[int]]],
        segments_of: Mapping[str, Mapping[int, Sequence[Segment]]],
        units: Sequence[int],
    ) -> None:
        self._lists: dict[tuple[tuple[int, ...], ...], int] = {}
        parts = []
        self._full: list[tuple[tuple[int, ...], bool, bool]] = []  # shapes, and whether rows, columns are cut
        for name, shape in shapes:
            own = {dim: [_numbers(p) for p in some] for dim, some in segments_of.get(name, {}).items()}
            full, rows, columns = tuple(shape), own.get(0), own.get(1)
            width = math.prod(full[1:]) if rows or columns else math.prod(full)
            inner = math.prod(full[2:]) if columns else width
            lists = (rows or [(_ALL, full[0] if columns else 1, 0, 0)], columns or [(_ALL, 1, 0, 0)])
            first, second = (self._lists.setdefault(tuple(own), len(self._lists)) for own in lists)
            parts.append((first, second, width, inner))
            self._full.append((full, bool(rows), bool(columns)))
        pieces = [(number, *piece) for own, number in self._lists.items() for piece in own]
        self._parts = np.array(parts, dtype=np.int64).reshape(-1, 4)
        self._pieces = np.array(pieces, dtype=np.int64).reshape(-1, 5)
        self._shapes = [full for full, _, _ in self._full]
        length = sum(run * (1 if s == _ALL else units[s]) for _, s, run, _, _ in pieces)
        self._indices, self._factors = np.zeros(length, dtype=np.int64), np.ones(length)
        self._ends = np.zeros(len(self._lists) + 1, dtype=np.int64)
        self._starts = np.zeros(len(parts), dtype=np.int64)
        self._bounds = b""  # of the units that there is room for
        self._views: list[Tensor] = []
        self._memory = torch.empty(0)
        self._room: Any = None  # the same memory, for the kernels

    @staticmethod
    def units(draws: Sequence[DiagonalDraw]) -> KeptUnits:
        """The kept units of each group, one after the other, as the kernels take them."""
        bounds = np.cumsum([0, *(draw.count for draw in draws)], dtype=np.int64)
        indices, scales = [draw.indices for draw in draws], [draw.scales for draw in draws]
        return KeptUnits(np.concatenate(indices), np.concatenate(scales), bounds)

    def gather(self, units: KeptUnits, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """S x of the kept units, in memory that is used again at each call; None if the tensors do not suit.

        As long as shapes and types stay the same, it is the same list of tensors.
        """
        dtype = tensors[0].dtype
        if not _suit(tensors, dtype, self._shapes):
            return None
        if units.bounds.tobytes() != self._bounds or self._memory.dtype != dtype:
            self._make_room(units.bounds, dtype)
        layout, lists = self._tables()
        gather_units(layout, tuple(units), lists, _addresses(tensors), self._starts, self._room)
        return self._views

    def scatter(self, tensors: Sequence[Tensor], values: Sequence[Tensor | None], factor: float) -> bool:
        """x[kept] += factor * S'values, for the last `gather`; False if the tensors do not suit."""
        dtype = self._memory.dtype
        if not (_suit(tensors, dtype, self._shapes) and _suit(values, dtype, [v.shape for v in self._views])):
            return False
        number = self._factors.dtype.type(factor)
        scatter_units(*self._tables(), _addresses(tensors), _addresses(values), number)
        changed = [x for x, v in zip(tensors, values, strict=True) if v is not None]
        torch.autograd.graph.increment_version(changed)
        return True

    def adam(
        self,
        tensors: Sequence[Tensor],
        averages: tuple[Sequence[Tensor | None], Sequence[Tensor | None]],
        gradients: Sequence[Tensor | None],
        steps: Sequence[float],
        group: Mapping[str, Any],
    ) -> bool:
        """A step of Adam on the kept entries, for the last `gather`; False if the tensors do not suit."""
        dtype = self._memory.dtype
        whole = all(_suit(ts, dtype, self._shapes) for ts in (tensors, *averages))
        if not (whole and _suit(gradients, dtype, [v.shape for v in self._views])):
            return False
        lr, (beta1, beta2), decay = float(group["lr"]), group["betas"], group["weight_decay"]
        decoupled = group.get("decoupled_weight_decay", False)
        kind = self._factors.dtype.type
        numbers = (
            kind(0 if decoupled else decay), kind(1 - lr * decay if decoupled else 1),
            kind(beta1), kind(beta2), kind(group["eps"]), kind(1),
        )  # fmt: skip
        corrections = [(lr / (1 - beta1**t), (1 - beta2**t) ** -0.5) for t in steps]
        places = np.stack([_addresses(ts) for ts in (tensors, *averages, gradients)], axis=1)
        made = np.array(corrections, dtype=kind).reshape(-1, 2)
        adam_units(*self._tables(), places, made, numbers)
        changed = [t for ts in (tensors, *averages) for t, g in zip(ts, gradients, strict=True)
                   if t is not None and g is not None]  # fmt: skip
        torch.autograd.graph.increment_version(changed)
        return True

    def _tables(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The layout, and the lists of the last draw, as kernels take them."""
        return (self._parts, self._pieces), (self._indices, self._factors, self._ends)

    def _make_room(self, bounds: Indices, dtype: torch.dtype) -> None:
        """Tensors of the shapes of what is kept, side by side in one piece of memory."""
        sizes, units = [0] * len(self._lists), np.diff(bounds).tolist()
        for number, group, run, _, _ in self._pieces.tolist():
            sizes[number] += run * (1 if group == _ALL else units[group])
        shapes, starts, n = [], [], 0
        for (full, rows, columns), (first, second, _, _) in zip(
            self._full, self._parts.tolist(), strict=True
        ):
            shape = (*(sizes[first],) * rows, *full[rows:])
            shape = (*shape[:1], sizes[second], *shape[2:]) if columns else shape
            shapes.append(shape)
            starts.append(n)
            n += -(-math.prod(shape) // _ALIGNED) * _ALIGNED
        self._starts[:] = starts
        if self._memory.dtype != dtype or len(self._memory) < n:
            self._memory = torch.empty(n, dtype=dtype)
            self._room = self._memory.numpy()
            self._factors = np.ones(self._indices.size, dtype=self._room.dtype)
        self._views = [
            self._memory[start : start + math.prod(shape)].view(shape)
            for start, shape in zip(starts, shapes, strict=True)
        ]
        self._bounds = bounds.tobytes()


def _numbers(segment: Segment) -> tuple[int, ...]:
    return _ALL if segment.group is None else segment.group, segment.run, segment.offset, int(segment.scaled)


def _suit(tensors: Sequence[Tensor | None], dtype: torch.dtype, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether the kernels, which are given bare addresses, can work on all of these, as this type."""
    if dtype not in _TYPES:
        return False
    for t, shape in zip(tensors, shapes, strict=True):
        if t is not None and not (
            t.dtype == dtype
            and t.shape == shape
            and t.is_cpu
            and t.layout == torch.strided
            and t.is_contiguous()
        ):
            return False
    return True


def _addresses(tensors: Sequence[Tensor | None]) -> Indices:
    return np.array([0 if t is None else t.data_ptr() for t in tensors], dtype=np.int64)


# ---- the kernels -------------------------------------------------------------------------------

# `layout` is what does not depend on the draw: (parts, pieces). A row of `parts` is one tensor: its list of
# rows, its list of columns, the width of a row and the length of a run. A row of `pieces` is one stretch of a
# list: the list, the group (-1: no draw cuts here), the entries per unit, the offset, and whether the entries
# carry the units' scales. `lists` are those of a draw: (indices, factors, ends), kept rows and columns with
# their scales, and where each list ends. All are plain tuples, and so is what is passed for `KeptUnits`:
# Numba's cache on disk would remember the class of a named one, and fail where it has moved.


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
    """`walk_grid` over one tensor."""
    first, second, width, inner = part
    indices, factors, ends = lists
    rows, columns = slice(ends[first], ends[first + 1]), slice(ends[second], ends[second + 1])
    runs, scales = (indices[rows], indices[columns], inner, width), (factors[rows], factors[columns])
    walk_grid(x, runs, scales, values, gather, None, factor)


@njit(cache=True, nogil=True, error_model="numpy")
def adam_units(layout: Any, lists: Any, places: Any, corrections: Any, numbers: Any) -> None:
    """A step of Adam on the kept entries of all tensors, and on the same entries of its two averages.

    A row of `places` has the addresses of a tensor, its averages, and the gradient (0: none), which is that
    of the small tensor and is multiplied by the scales; a row of `corrections` has lr / (1 - beta1^t) and
    1 / sqrt(1 - beta2^t). `numbers` are the options of Adam, in the type of the weights: the decay that is
    added to the gradient, the factor 1 - lr * decay of AdamW, beta1, beta2, eps, and 1.
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
    x[i] = shrink * x[i] - lr * m[i] / (math.sqrt(v[i]) * root + eps)


@njit(cache=True, nogil=True)
def _fill_lists(layout: Any, kept: Any, lists: Any) -> None:
    """The entries of each list, one list after the other: pieces come in the order of their lists."""
    _, pieces = layout
    units, scales, bounds = kept
    indices, factors, ends = lists
    n = 0
    for p in range(pieces.shape[0]):
        number, group, run, offset, scaled = pieces[p]
        if group < 0:  # all of that many
            for k in range(run):
                indices[n], factors[n] = offset + k, 1.0
                n += 1
        else:
            for u in range(bounds[group], bounds[group + 1]):
                for k in range(run):
                    indices[n] = units[u] * run + offset + k
                    factors[n] = scales[u] if scaled else 1.0
                    n += 1
        ends[number + 1] = n
