"""Some entries in a list."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mast.arrays import Array, Indices
from mast.sketches.kept.base import Kept, kernels, memory

MANY = 1 << 14  #: entries from which on the compiled form is used


class Entries(Kept):
    """Entries in a list of positions (ascending, row by row), with one scale for all or one for each."""

    __slots__ = ("indices", "scales")

    def __init__(self, shape: Sequence[int], indices: Any, scales: Any) -> None:
        self.shape = tuple(shape)
        self.count = int(indices.shape[0])
        self.indices = indices
        self.scales = scales

    @property
    def entries(self) -> Any:
        """The positions, split by dimension."""
        if len(self.shape) == 1 and not isinstance(self.indices, np.ndarray):
            return self.indices
        return self.positions if len(self.shape) == 1 else np.unravel_index(self.positions, self.shape)

    @property
    def factors(self) -> Any:
        """One scale, or one for each position."""
        return self.scales

    @property
    def positions(self) -> Indices:
        """The list itself."""
        indices = self.indices if isinstance(self.indices, np.ndarray) else self.indices.cpu().numpy()
        positions: Indices = indices.astype(np.int64, copy=False)
        return positions

    def gather(self, x: Any, out: Any = None) -> Any:
        """The kept entries; where they are few, indexing makes the array."""
        return x[self.entries] if out is None and self.count < MANY else super().gather(x, out)

    def _walk(self) -> tuple[Any, Any] | None:
        few = self.count < MANY or not isinstance(self.indices, np.ndarray)
        return None if few else (kernels().entries, self.indices)

    def gather_scaled(self, x: Array) -> Array:
        """S'x at the kept entries: the values of a sketched gradient."""
        product: Array = self.scales * self.gather(x)
        return product

    def sparsified(self, x: Array, shift: Array) -> Array:
        """The vector v + S(x - v).

        >>> Entries([2], np.array([1]), np.array([2.0])).sparsified(np.array([3.0, 5.0]), np.ones(2))
        array([1., 9.])
        """
        y = shift.copy()
        flat, point = self._memory(y), self._memory(x)
        if flat is None or point is None:
            v = y[self.entries]
            y[self.entries] = v + self.scales * (x[self.entries] - v)
        else:
            scales = self.scales if np.ndim(self.scales) else np.full(self.count, self.scales)
            kernels().sparsify(flat, self.indices, scales, point, flat)
        return y

    def _memory(self, x: Array) -> Any:
        """The numbers of a point, if a compiled pass over them is worth it and they fit; else None."""
        worth = tuple(x.shape) == self.shape and self._walk() is not None
        return memory(x, math.prod(self.shape)) if worth else None
