"""Some rows, some columns: slices along any dimensions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mast.arrays import Array, Indices
from mast.sketches.kept.base import Kept, add_all, as_tensor, kernels

LONG = 32  #: entries that lie together are moved together from this length on


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

    def add(self, x: Any, values: Any, factor: float = 1.0) -> None:
        """Without indices, where nothing is cut."""
        if self.indices:
            super().add(x, values, factor)
        else:
            self.check(x)
            add_all(x, values, factor)

    def _taken(self, x: Any) -> Any:
        for dim, index in self.indices.items():
            numpy = isinstance(x, np.ndarray)
            x = np.take(x, index, dim) if numpy else x.index_select(dim, as_tensor(index, x))
        return x

    def _walk(self) -> tuple[Any, Any] | None:
        """Over rows and columns, if only these are cut."""
        cut = self.indices and all(dim < 2 for dim in self.indices)
        return (kernels().grid, self.runs) if cut else None

    @property
    def runs(self) -> Any:
        """Rows, and columns in each, of runs that stay whole. A row that is not cut is one long run."""
        if self._runs is None:
            width = math.prod(self.shape[1:])
            inner = math.prod(self.shape[2:]) if 1 in self.indices else width
            rows = self.indices[0] if 0 in self.indices else np.arange(self.shape[0])
            columns = self.indices.get(1, np.zeros(1, dtype=np.int64))
            if inner < LONG:
                columns, inner = (columns[:, None] * inner + np.arange(inner)).reshape(-1), 1
            self._runs = tuple(kernels().Runs(rows, columns, inner, width))
        return self._runs
