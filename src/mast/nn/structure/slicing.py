"""A slice of a tensor: some entries along one or two of its dimensions, all along the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from mast.arrays import Indices
from mast.nn.factors import compiled, numbers

_ONE = np.zeros(1, dtype=np.int64)


class Slice:
    """Which entries are kept along which dimensions. Without any, the whole tensor."""

    __slots__ = ("_indices", "_inner", "_simple", "_width", "count", "full", "kept", "shape")

    def __init__(self, full: Sequence[int], kept: Mapping[int, Indices]) -> None:
        self.full = tuple(full)
        self.kept = {dim: kept[dim] for dim in sorted(kept)}
        self.shape = tuple(len(kept[d]) if d in kept else n for d, n in enumerate(self.full))
        self.count = math.prod(self.shape)
        # Cut in the first two dimensions only, it is rows and columns of inner parts that stay whole.
        self._simple = all(dim < 2 for dim in kept)
        self._width = math.prod(self.full[1:])
        self._inner = math.prod(self.full[2:]) if 1 in kept else self._width
        self._indices: dict[int, Tensor] | None = None

    @property
    def indices(self) -> dict[int, Tensor]:
        """The kept entries along each dimension, as tensors."""
        if self._indices is None:
            self._indices = {dim: torch.from_numpy(kept) for dim, kept in self.kept.items()}
        return self._indices

    # ---- the readable form, for any tensor --------------------------------------------------

    def grid(self, device: torch.device) -> tuple[Tensor, ...]:
        """Index tensors such that x[grid] is what is kept."""
        index = [
            self.indices[d].to(device) if d in self.kept else torch.arange(n, device=device)
            for d, n in enumerate(self.full)
        ]
        return torch.meshgrid(*index, indexing="ij") if index else ()

    # ---- the fast forms ---------------------------------------------------------------------

    def take(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """x[kept], perhaps written to `out`."""
        if out is None:
            out = torch.empty(self.shape, dtype=x.dtype, device=x.device)
        if not self.kept:
            return out.copy_(x)
        if len(self.kept) == 1 and x.dtype == out.dtype and x.device.type == "cpu" and out.is_contiguous():
            ((dim, index),) = self.indices.items()
            return torch.index_select(x, dim, index, out=out)
        if self._simple and x.dtype == out.dtype and compiled(x, out):
            from mast.nn.structure import kernels

            rows, columns = self._rows_and_columns()
            kernels.take(numbers(x), rows, columns, self._inner, self._width, numbers(out))
            return out
        picked = x
        for dim, index in self.indices.items():
            picked = picked.index_select(dim, index.to(x.device))
        return out.copy_(picked)

    def add(self, x: Tensor, values: Tensor, factor: float) -> None:
        """x[kept] += factor * values."""
        if not self.kept:
            x.add_(values.to(x.dtype), alpha=factor)
        elif self._simple and x.dtype == values.dtype and compiled(x, values):
            from mast.nn.structure import kernels

            rows, columns = self._rows_and_columns()
            own = numbers(x)
            kernels.add(own, rows, columns, self._inner, self._width, numbers(values), own.dtype.type(factor))
            torch.autograd.graph.increment_version(x)
        else:
            x[self.grid(x.device)] += factor * values.to(x.dtype)

    def put(self, x: Tensor, values: Tensor) -> None:
        """x[kept] = values."""
        if not self.kept:
            x.copy_(values)
        elif self._simple and x.dtype == values.dtype and compiled(x, values):
            from mast.nn.structure import kernels

            rows, columns = self._rows_and_columns()
            kernels.put(numbers(x), rows, columns, self._inner, self._width, numbers(values))
            torch.autograd.graph.increment_version(x)
        else:
            x[self.grid(x.device)] = values.to(x.dtype)

    def _rows_and_columns(self) -> tuple[Indices, Indices]:
        """Rows, and columns in each; a row that is not cut is one long column."""
        rows = self.kept[0] if 0 in self.kept else np.arange(self.full[0])
        return rows, self.kept.get(1, _ONE)
