"""A slice of a tensor: some entries along one or two of its dimensions, all along the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from mast.arrays import Indices
from mast.nn.factors import compiled, numbers


class Slice:
    """Which entries are kept along which dimensions. Without any, the whole tensor."""

    def __init__(self, full: Sequence[int], kept: Mapping[int, Indices]) -> None:
        self.full = tuple(full)
        self.kept = {dim: np.ascontiguousarray(kept[dim]) for dim in sorted(kept)}
        self.shape = tuple(len(self.kept[d]) if d in self.kept else n for d, n in enumerate(self.full))
        self.count = math.prod(self.shape)

    @cached_property
    def indices(self) -> dict[int, Tensor]:
        """As tensors."""
        return {dim: torch.from_numpy(kept) for dim, kept in self.kept.items()}

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

            rows, columns, inner = self._plan
            kernels.take(numbers(x), rows, columns, inner, self._width, numbers(out))
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

            rows, columns, inner = self._plan
            own = numbers(x)
            kernels.add(own, rows, columns, inner, self._width, numbers(values), own.dtype.type(factor))
            torch.autograd.graph.increment_version(x)
        else:
            x[self.grid(x.device)] += factor * values.to(x.dtype)

    def put(self, x: Tensor, values: Tensor) -> None:
        """x[kept] = values."""
        if not self.kept:
            x.copy_(values)
        elif self._simple and x.dtype == values.dtype and compiled(x, values):
            from mast.nn.structure import kernels

            rows, columns, inner = self._plan
            kernels.put(numbers(x), rows, columns, inner, self._width, numbers(values))
            torch.autograd.graph.increment_version(x)
        else:
            x[self.grid(x.device)] = values.to(x.dtype)

    @cached_property
    def _simple(self) -> bool:
        """Whether only the first two dimensions are cut: rows and columns, of inner parts that stay whole."""
        return max(self.kept) < 2

    @cached_property
    def _plan(self) -> tuple[Indices, Indices, int]:
        """Rows, columns and the length of the inner part; whole columns become part of the inner one."""
        inner = math.prod(self.full[2:])
        rows = self.kept.get(0, np.arange(self.full[0]))
        if 1 in self.kept:
            return rows, self.kept[1], inner
        return rows, np.zeros(1, np.int64), inner * math.prod(self.full[1:2])

    @cached_property
    def _width(self) -> int:
        return math.prod(self.full[1:])
