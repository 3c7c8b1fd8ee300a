"""Some rows, some columns: slices along any dimensions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mast.arrays import Array, Indices
from mast.sketches.kept.base import Kept, add_all, as_tensor, empty_like, kernels, like, memory, written


class Grid(Kept):
    """Some entries along some dimensions and all along the others, with scales along some of them.

    >>> rows_and_columns = Grid([3, 4], {0: np.array([0, 2]), 1: np.array([1, 3])}, {1: np.array([2.0, 2.0])})
    >>> values = rows_and_columns.gather(np.arange(12.0).reshape(3, 4))
    >>> rows_and_columns.scale(values)
    >>> values
    array([[ 2.,  6.],
           [18., 22.]])
    """

    __slots__ = ("_runs", "indices", "scales")

    def __init__(
        self,
        shape: Sequence[int],
        indices: Mapping[int, Indices],
        scales: Mapping[int, Array] | None = None,
    ) -> None:
        self.shape = tuple(shape)
        self.indices = {dim: indices[dim] for dim in sorted(indices)}
        self.scales = dict(scales or {})  # of the kept entries along a dimension
        self.count = math.prod(self.kept_shape)
        self._runs: Any = None

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """Shorter along the dimensions that are cut."""
        return tuple(len(self.indices[d]) if d in self.indices else n for d, n in enumerate(self.shape))

    @property
    def entries(self) -> Any:
        """Every combination of the entries along each dimension."""
        return np.ix_(*(self.indices.get(d, np.arange(n)) for d, n in enumerate(self.shape)))

    @property
    def factors(self) -> Any:
        """The scales, shaped to lie along their dimensions."""
        return self._along(self.scales)

    def spread(self) -> Array:
        """The diagonal of S without its repetitions: an array that broadcasts to the tensor's shape."""
        full = {}
        for dim, scales in self.scales.items():
            full[dim] = np.zeros(self.shape[dim])
            full[dim][self.indices[dim]] = scales
        spread: Array = np.asarray(self._along(full), dtype=float)
        return spread.reshape((1,) * len(self.shape)) if spread.ndim == 0 else spread

    def _along(self, scales: Mapping[int, Array]) -> Any:
        product: Any = 1.0
        for dim, numbers in scales.items():
            shape = [1] * len(self.shape)
            shape[dim] = -1
            product = numbers.reshape(shape) * product
        return product

    def gather(self, x: Any, out: Any = None) -> Any:
        """One pass over the kept rows and columns, where they lie in the first two dimensions."""
        if out is None:
            out = empty_like(x, self.kept_shape)
        flat, target = self._passes(x, out)
        if flat is None:
            self.check(x)
            for dim, index in self.indices.items():
                numpy = isinstance(x, np.ndarray)
                x = np.take(x, index, dim) if numpy else x.index_select(dim, as_tensor(index, x))
            out.reshape(self.kept_shape)[...] = like(x, out)
        else:
            kernels().grid(kernels().GATHER, flat, self.runs, target, flat.dtype.type(1))
        return out

    def place(self, x: Any, values: Any) -> None:
        """One pass over the kept rows and columns."""
        flat, source = self._passes(x, values)
        if flat is None:
            super().place(x, values)
        else:
            kernels().grid(kernels().PLACE, flat, self.runs, source, flat.dtype.type(1))
            written(x)

    def add(self, x: Any, values: Any, factor: float = 1.0) -> None:
        """One pass over the kept rows and columns."""
        flat, source = self._passes(x, values)
        if not self.indices:
            self.check(x)
            add_all(x, values, factor)
        elif flat is None:
            super().add(x, values, factor)
        else:
            kernels().grid(kernels().ADD, flat, self.runs, source, flat.dtype.type(factor))
            written(x)

    @property
    def runs(self) -> Any:
        """Rows, and columns in each, of runs that stay whole. A row that is not cut is one long run."""
        if self._runs is None:
            width = math.prod(self.shape[1:])
            inner = math.prod(self.shape[2:]) if 1 in self.indices else width
            rows = self.indices[0] if 0 in self.indices else np.arange(self.shape[0])
            columns = self.indices.get(1, np.zeros(1, dtype=np.int64))
            self._runs = tuple(kernels().Runs(rows, columns, inner, width))
        return self._runs

    def _passes(self, x: Any, other: Any) -> tuple[Any, Any]:
        if not self.indices or any(dim > 1 for dim in self.indices):
            return None, None
        flat = memory(x, math.prod(self.shape)) if tuple(x.shape) == self.shape else None
        memory_of_other = memory(other, self.count)
        if flat is None or memory_of_other is None or flat.dtype != memory_of_other.dtype:
            return None, None
        return flat, memory_of_other
