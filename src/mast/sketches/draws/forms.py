"""The forms of a draw: everything, a mask, a list of entries, rows and columns; and any matrix."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mast.errors import NotDiagonalError
from mast.sketches.draws.base import Draw, as_tensor, columns, kernels, memory
from mast.support.arrays import Array, Indices

MANY = 1 << 14  #: listed entries from which on the compiled form is used
MANY_EQUAL = 1 << 17  #: equal scales from which on they are one number, read many times
LONG = 32  #: entries that lie together are moved together from this length on


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


class DiagonalDraw(Draw):
    """A diagonal S: `scales` at the positions `indices` (ascending), 0 elsewhere.

    Of a vector `dim` is its length; of a tensor its shape, and positions count row by row. The scales are one
    for each position, or one for all. A `recurring` draw comes back with the very same array of indices,
    which nobody changes: what is made of these, such as a submatrix, is worth keeping.
    """

    def __init__(
        self, dim: int | Sequence[int], indices: Any, scales: Any, *, recurring: bool = False
    ) -> None:
        self.shape = tuple(dim) if isinstance(dim, Sequence) else (dim,)
        self.count = int(indices.shape[0])
        self.indices = indices
        self.scales = scales
        self.recurring = recurring

    def with_scales(self, scales: Any) -> DiagonalDraw:
        """The same positions, with other scales."""
        return DiagonalDraw(self.shape, self.indices, scales, recurring=self.recurring)

    @property
    def entries(self) -> Any:
        """The positions, split by dimension."""
        if len(self.shape) == 1 and not isinstance(self.indices, np.ndarray):
            return self.indices
        return self.positions if len(self.shape) == 1 else np.unravel_index(self.positions, self.shape)

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

    def sparsified(self, x: Array, shift: Array) -> Array:
        """The vector v + S(x - v).

        >>> DiagonalDraw(2, np.array([1]), np.array([2.0])).sparsified(np.array([3.0, 5.0]), np.ones(2))
        array([1., 9.])
        """
        y = shift.copy()
        compiled = self._walk() is not None and x.shape == y.shape == self.shape
        flat, point = (memory(z, self.shape[0]) if compiled else None for z in (y, x))
        if flat is None or point is None:
            v = y[self.entries]
            y[self.entries] = v + self.scales * (x[self.entries] - v)
        else:
            scales = self.scales if np.ndim(self.scales) else np.full(self.count, self.scales)
            kernels().sparsify_entries(flat, self.indices, scales, point, flat)
        return y


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


class MatrixDraw(Draw):
    """An S that is any matrix: it reads and writes all coordinates of a vector."""

    whole = True
    entries = ...

    def __init__(self, matrix: Array) -> None:
        self.shape, self.count = (matrix.shape[0],), matrix.shape[0]
        self._matrix = matrix

    def matrix(self) -> Array:
        """S itself."""
        return self._matrix

    def apply(self, u: ArrayLike) -> Array:
        """S u; u is a vector or a matrix of columns."""
        return self._matrix @ columns("u", u, self.dim)

    def adjoint(self, r: ArrayLike) -> Array:
        """S'r."""
        return self._matrix.T @ columns("r", r, self.dim)

    def gather_scaled(self, gradient: Array) -> Array:
        """S' times a gradient."""
        return self.adjoint(gradient)

    @property
    def indices(self) -> Indices:
        """Only a diagonal S has them."""
        raise NotDiagonalError("this S is a general matrix: it has no kept indices; use matrix()")

    scales = indices

    def __repr__(self) -> str:
        return f"<draw: a {self.dim} x {self.dim} matrix>"


def equal_scales(count: int, scale: float) -> Array:
    """The same scale for each of `count` coordinates; many of them are one number in memory."""
    return np.full(count, scale) if count < MANY_EQUAL else np.broadcast_to(np.float64(scale), count)
