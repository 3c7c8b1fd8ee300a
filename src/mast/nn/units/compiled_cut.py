"""The way of kept weights into a small model and back, laid out once for a model and used at every step.

A `Cut` describes one draw tensor by tensor, which is clear, general, and slow beside a training step of a
millisecond: after each product of matrices the processor has forgotten all of Python's code. So what does not
depend on the draw is in tables here, and each way is one call of a compiled kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mast.nn.units.groups import Segment
from mast.sketches import DiagonalDraw
from mast.sketches.draws.kernels import (
    AdamNumbers,
    KeptUnits,
    Layout,
    Lists,
    adam_units,
    gather_units,
    scatter_units,
)
from mast.support.checks import Indices

_ALL = -1  # in the place of a group: no draw cuts here
_ALIGNED = 16  # each tensor starts at a multiple of this many entries, like one that torch has made
_TYPES = (torch.float32, torch.float64)


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
        self._layout = Layout(
            np.array(parts, dtype=np.int64).reshape(-1, 4), np.array(pieces, dtype=np.int64).reshape(-1, 5)
        )
        self._shapes = [full for full, _, _ in self._full]
        length = sum(run * (1 if s == _ALL else units[s]) for _, s, run, _, _ in pieces)
        ends = np.zeros(len(self._lists) + 1, dtype=np.int64)
        self._kept_lists = Lists(np.zeros(length, dtype=np.int64), np.ones(length), ends)
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
        layout, kept, lists = tuple(self._layout), tuple(units), tuple(self._kept_lists)
        gather_units(layout, kept, lists, _addresses(tensors), self._starts, self._room)
        return self._views

    def scatter(self, tensors: Sequence[Tensor], values: Sequence[Tensor | None], factor: float) -> bool:
        """x[kept] += factor * S'values, for the last `gather`; False if the tensors do not suit."""
        dtype = self._memory.dtype
        if not (_suit(tensors, dtype, self._shapes) and _suit(values, dtype, [v.shape for v in self._views])):
            return False
        number = self._kept_lists.factors.dtype.type(factor)
        layout, lists = tuple(self._layout), tuple(self._kept_lists)
        scatter_units(layout, lists, _addresses(tensors), _addresses(values), number)
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
        kind = self._kept_lists.factors.dtype.type
        numbers = AdamNumbers(
            kind(0 if decoupled else decay), kind(1 - lr * decay if decoupled else 1),
            kind(beta1), kind(beta2), kind(group["eps"]), kind(1),
        )  # fmt: skip
        corrections = [(lr / (1 - beta1**t), (1 - beta2**t) ** -0.5) for t in steps]
        places = np.stack([_addresses(ts) for ts in (tensors, *averages, gradients)], axis=1)
        made = np.array(corrections, dtype=kind).reshape(-1, 2)
        adam_units(tuple(self._layout), tuple(self._kept_lists), places, made, tuple(numbers))
        changed = [t for ts in (tensors, *averages) for t, g in zip(ts, gradients, strict=True)
                   if t is not None and g is not None]  # fmt: skip
        torch.autograd.graph.increment_version(changed)
        return True

    def _make_room(self, bounds: Indices, dtype: torch.dtype) -> None:
        """Tensors of the shapes of what is kept, side by side in one piece of memory."""
        sizes, units = [0] * len(self._lists), np.diff(bounds).tolist()
        for number, group, run, _, _ in self._layout.pieces.tolist():
            sizes[number] += run * (1 if group == _ALL else units[group])
        shapes, starts, n = [], [], 0
        for (full, rows, columns), (first, second, _, _) in zip(
            self._full, self._layout.parts.tolist(), strict=True
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
            factors = np.ones(self._kept_lists.indices.size, dtype=self._room.dtype)
            self._kept_lists = self._kept_lists._replace(factors=factors)
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
