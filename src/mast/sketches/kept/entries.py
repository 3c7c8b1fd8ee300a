"""Some entries in a list."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mast.arrays import Array, Indices
from mast.sketches.kept.base import Kept, empty_like, kernels, memory, written

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
        """One pass, where there are many."""
        if out is None:
            if self.count < MANY:
                return x[self.entries]
            out = empty_like(x, self.kept_shape)
        flat, target = self._passes(x, out)
        if flat is None:
            return super().gather(x, out)
        kernels().gather(flat, self.indices, target)
        return out

    def place(self, x: Any, values: Any) -> None:
        """One pass, where there are many."""
        flat, source = self._passes(x, values)
        if flat is None:
            super().place(x, values)
        else:
            kernels().place(flat, self.indices, source)
            written(x)

    def add(self, x: Any, values: Any, factor: float = 1.0) -> None:
        """One pass, where there are many."""
        flat, source = self._passes(x, values)
        if flat is None:
            super().add(x, values, factor)
        else:
            source = source.astype(flat.dtype, copy=False)
            kernels().add(flat, self.indices, source, flat.dtype.type(factor))
            written(x)

    def copy(self, x: Any, source: Any) -> None:
        """One pass, where there are many."""
        self.check(source)
        flat, values = self._passes(x, source, math.prod(self.shape))
        if flat is None:
            super().copy(x, source)
        else:
            kernels().copy(flat, self.indices, values)
            written(x)

    def gather_scaled(self, x: Array) -> Array:
        """S'x at the kept entries: the values of a sketched gradient."""
        flat, _ = self._passes(x, None)
        if flat is None:
            product: Array = self.scales * x[self.entries]
            return product
        out = np.empty(self.count)
        kernels().gather_scaled(flat, self.indices, self._each(), out)
        return out

    def sparsified(self, x: Array, shift: Array) -> Array:
        """The vector v + S(x - v).

        >>> Entries([2], np.array([1]), np.array([2.0])).sparsified(np.array([3.0, 5.0]), np.ones(2))
        array([1., 9.])
        """
        y = shift.copy()
        flat, point = self._passes(y, x, math.prod(self.shape))
        if flat is None:
            v = y[self.entries]
            y[self.entries] = v + self.scales * (x[self.entries] - v)
        else:
            kernels().sparsify(flat, self.indices, self._each(), point, flat)
        return y

    def _each(self) -> Array:
        """One scale for each position."""
        return self.scales if np.ndim(self.scales) else np.full(self.count, self.scales)

    def _passes(self, x: Any, other: Any, size: int | None = None) -> tuple[Any, Any]:
        """The memory of both, if a compiled pass is worth it and they fit; else None.

        What does not fit goes the readable way, which raises: a pass would read beyond the end.
        """
        if self.count < MANY or not isinstance(self.indices, np.ndarray):
            return None, None
        flat = memory(x, math.prod(self.shape)) if tuple(x.shape) == self.shape else None
        if other is None or flat is None:
            return flat, None
        memory_of_other = memory(other, self.count if size is None else size)
        return (None, None) if memory_of_other is None else (flat, memory_of_other)
