"""What a draw keeps of a network: everything, a mask, or rows and columns of a tensor; and all of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from mast.errors import ArgumentError
from mast.randomness import Key
from mast.sketches.draws.base import Draw, as_tensor, kernels
from mast.support.checks import Array, Indices

LONG = 32  #: entries that lie together are moved together from this length on

D = TypeVar("D", bound=Draw)


class FullDraw(Draw):
    """All entries are kept, times one scale or times scales that broadcast to the tensor's shape."""

    whole = True

    def __init__(self, shape: Sequence[int], scales: Any = 1.0) -> None:
        self.shape = tuple(shape)
        self.count = math.prod(self.shape)
        each = not isinstance(scales, float) and math.prod(scales.shape) == self.count
        self.scales = scales.reshape(self.shape) if each else scales

    @property
    def entries(self) -> Any:
        """All."""
        return ...


class MaskDraw(Draw):
    """Entries whose mask is true are kept, all times the same scale."""

    scales: float

    def __init__(self, shape: Sequence[int], mask: Any, scale: float) -> None:
        self.shape = tuple(shape)
        self.mask = mask  # of an array or tensor, in any shape of that size
        self.scales = scale

    @property
    def count(self) -> int:  # type: ignore[override]
        """How many are true; counting takes a pass."""
        return int(self.mask.sum())

    @property
    def entries(self) -> Any:
        """The mask itself."""
        return self.mask.reshape(self.shape)

    @property
    def positions(self) -> Indices:
        """Where the mask is true."""
        return np.flatnonzero(self.mask if isinstance(self.mask, np.ndarray) else self.mask.cpu().numpy())


class GridDraw(Draw):
    """Some entries along some dimensions and all along the others, with scales along some of them.

    >>> rows, columns = np.array([0, 2]), np.array([1, 3])
    >>> rows_and_columns = GridDraw([3, 4], {0: rows, 1: columns}, {1: np.array([2.0, 2.0])})
    >>> values = rows_and_columns.gather(np.arange(12.0).reshape(3, 4))
    >>> rows_and_columns.scale(values)
    >>> values
    array([[ 2.,  6.],
           [18., 22.]])
    """

    def __init__(
        self,
        shape: Sequence[int],
        indices: Mapping[int, Indices],
        scales: Mapping[int, Array] | None = None,
    ) -> None:
        self.shape = tuple(shape)
        self.indices = {dim: indices[dim] for dim in sorted(indices)}
        self.scales = dict(scales or {})  # of the kept entries along a dimension
        self.whole = not self.indices
        self.count = math.prod(self.kept_shape)

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

    def compact_diagonal(self) -> Array:
        """The diagonal of S without its repetitions: an array that broadcasts to the tensor's shape."""
        full = {}
        for dim, scales in self.scales.items():
            full[dim] = np.zeros(self.shape[dim])
            full[dim][self.indices[dim]] = scales
        diagonal: Array = np.asarray(self._along(full), dtype=float)
        return diagonal.reshape((1,) * len(self.shape)) if diagonal.ndim == 0 else diagonal

    def _along(self, scales: Mapping[int, Array]) -> Any:
        product: Any = 1.0
        for dim, along in scales.items():
            shape = [1] * len(self.shape)
            shape[dim] = -1
            product = along.reshape(shape) * product
        return product

    def _indexed(self, x: Any) -> Any:
        for dim, index in self.indices.items():
            numpy = isinstance(x, np.ndarray)
            x = np.take(x, index, dim) if numpy else x.index_select(dim, as_tensor(index, x))
        return x

    def _walk(self) -> tuple[Any, Any] | None:
        """Over rows and columns, if only these are cut."""
        cut = self.indices and all(dim < 2 for dim in self.indices)
        return (kernels().grid, self.runs) if cut else None

    @cached_property
    def runs(self) -> tuple[Indices, Indices, int, int]:
        """Rows, and columns in each, of runs that stay whole. A row that is not cut is one long run."""
        width = math.prod(self.shape[1:])
        inner = math.prod(self.shape[2:]) if 1 in self.indices else width
        rows = self.indices[0] if 0 in self.indices else np.arange(self.shape[0])
        columns = self.indices.get(1, np.zeros(1, dtype=np.int64))
        if inner < LONG:
            columns, inner = (columns[:, None] * inner + np.arange(inner)).reshape(-1), 1
        return rows, columns, inner, width


class ModelDraw(dict[str, D], Generic[D]):
    """A draw by name, and the key that it was drawn with. The values of all lie one after the other.

    >>> from mast.sketches.draws import DiagonalDraw, FullDraw
    >>> draw = ModelDraw({"weight": DiagonalDraw([6], np.array([1, 4]), 3.0), "bias": FullDraw([2])})
    >>> x = {"weight": np.arange(6.0), "bias": np.ones(2)}
    >>> draw, draw.gather(x, np.empty(draw.count))
    (<draw: weight: 2 of 6, bias: 2 of 2>, array([1., 4., 1., 1.]))
    """

    def __init__(self, draws: Mapping[str, D], key: Key | None = None) -> None:
        super().__init__(draws)
        self.key = Key() if key is None else key

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where the values of each tensor lie among all."""
        stops = np.cumsum([0, *(draw.count for draw in self.values())], dtype=np.int64).tolist()
        return {name: slice(a, b) for name, a, b in zip(self, stops[:-1], stops[1:], strict=True)}

    @cached_property
    def count(self) -> int:
        """How many values there are."""
        return max((part.stop for part in self.slices.values()), default=0)

    @property
    def shares(self) -> dict[str, float]:
        """The share that is kept, by name."""
        return {name: draw.count / draw.dim for name, draw in self.items()}

    def of(self, values: Any, name: str) -> Any:
        """The values of one tensor, in their shape."""
        return values[self.slices[name]].reshape(self[name].kept_shape)

    def gather(self, tensors: Mapping[str, Any], out: Any) -> Any:
        """The kept entries of all tensors, one tensor after the other."""
        for name, draw in self.items():
            draw.gather(tensors[name], out[self.slices[name]])
        return out

    def place(self, tensors: Mapping[str, Any], values: Any) -> None:
        """``x[kept] = values`` in every tensor."""
        for name, draw in self.items():
            draw.place(tensors[name], values[self.slices[name]])

    def add(self, tensors: Mapping[str, Any], values: Any, factor: float = 1.0) -> None:
        """``x[kept] += factor * values`` in every tensor; nothing else is touched."""
        for name, draw in self.items():
            draw.add(tensors[name], values[self.slices[name]], factor)

    def scale(self, values: Any) -> None:
        """The values of every tensor are multiplied by their scales, in place."""
        for name, draw in self.items():
            draw.scale(values[self.slices[name]])

    def check(self, values: Any) -> None:
        """Refuse values that are not the kept entries, one after the other."""
        contiguous = values.flags.c_contiguous if isinstance(values, np.ndarray) else values.is_contiguous()
        if len(values.shape) != 1 or len(values) != self.count or not contiguous:
            raise ArgumentError(
                f"this draw keeps {self.count} values in one contiguous dimension, got shape "
                f"{tuple(values.shape)}"
            )

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}: {draw.count} of {draw.dim}" for name, draw in self.items())
        return f"<draw: {parts}>"
