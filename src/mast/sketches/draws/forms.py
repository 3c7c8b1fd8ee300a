"""What is kept of one tensor: what every draw can do, by indexing, and its forms.

Everything, a mask, a list of entries, rows and columns; and any matrix.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mast.errors import ArgumentError, NotDiagonalError
from mast.support.checks import Array, Indices, numbers, refuse_too_large

_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
MANY = 1 << 14  #: listed entries from which on the compiled form is used
MANY_EQUAL = 1 << 17  #: equal scales from which on they are one number, read many times
LONG = 32  #: entries that lie together are moved together from this length on


class Draw(ABC):
    """One S on a tensor of this `shape`: `count` kept entries, in row-major order, and their scales.

    Of a vector, `apply(u)` is S u and `adjoint(r)` is S'r.
    """

    shape: tuple[int, ...]
    count: int
    scales: Any
    whole = False  #: whether nothing is cut: every entry is kept

    @property
    @abstractmethod
    def entries(self) -> Any:
        """An index: ``x[entries]`` is what is kept, of an array or a tensor."""

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """The shape of ``x[entries]``."""
        return self.shape if self.whole else (self.count,)

    @property
    def factors(self) -> Any:
        """What kept entries are multiplied with: a number, or an array that broadcasts to `kept_shape`."""
        return self.scales

    @property
    def unscaled(self) -> bool:
        """Whether every scale is 1, without a look at each."""
        return isinstance(self.factors, float) and self.factors == 1

    @property
    def dim(self) -> int:
        """How many entries the tensor has."""
        return math.prod(self.shape)

    # ---- S on vectors -----------------------------------------------------------------------

    def apply(self, u: ArrayLike) -> Array:
        """S u; u may be float32 or float64, a vector or a matrix of columns."""
        u = columns("u", u, self.dim)
        out, kept = np.zeros_like(u), self.positions
        out[kept] = (u[kept].T * self.each_scale().astype(u.dtype, copy=False)).T
        return out

    def adjoint(self, r: ArrayLike) -> Array:
        """S'r, which is S r where S is diagonal."""
        return self.apply(r)

    def matrix(self) -> Array:
        """S as a dense matrix."""
        refuse_too_large(f"the {self.dim:,} x {self.dim:,} matrix of a draw", float(self.dim) ** 2)
        return np.diag(self.diagonal().reshape(-1))

    def sparsified(self, x: Array, shift: Array) -> Array:
        """The point v + S(x - v)."""
        return shift + self.apply(x - shift)

    def gather_scaled(self, gradient: Array) -> Array:
        """S' times a gradient, at the kept entries."""
        product: Array = self.factors * self.gather(gradient)
        return product

    # ---- the operations ---------------------------------------------------------------------

    def gather(self, x: Any, out: Any = None) -> Any:
        """The kept entries of x, into `out` if it is given, which may have another precision."""
        if out is None:
            numpy = isinstance(x, np.ndarray)
            out = np.empty(self.kept_shape, x.dtype) if numpy else x.new_empty(self.kept_shape)
        if not self._pass(x, out, gathers=True):
            self.check(x)
            out.reshape(self.kept_shape)[...] = like(self._indexed(x), out)
        return out

    def place(self, x: Any, values: Any) -> None:
        """``x[kept] = values``."""
        if not self._pass(x, values):
            self.check(x)
            x[self.entries] = like(values.reshape(self.kept_shape), x)

    def add(self, x: Any, values: Any, factor: float = 1.0) -> None:
        """``x[kept] += factor * values``, in the precision of x; whole tensors round once, where they can."""
        if self._pass(x, values, factor):
            return
        self.check(x)
        values = like(values.reshape(self.kept_shape), x)
        if self.whole and not isinstance(x, np.ndarray):
            x.add_(values, alpha=factor)
        else:
            x[... if self.whole else self.entries] += factor * values

    def copy(self, x: Any, source: Any) -> None:
        """``x[kept] = source[kept]``."""
        self.check(source)
        self.place(x, self.gather(source))

    def _indexed(self, x: Any) -> Any:
        """``x[entries]``, by the quickest way to index."""
        return x[self.entries]

    def _walk(self) -> tuple[Any, Any] | None:
        """The kernel that walks over the kept entries, and what tells it where they are; None: indexing."""
        return None

    def _pass(self, x: Any, values: Any, factor: float | None = None, *, gathers: bool = False) -> bool:
        """Gather, place, or add with a factor, by one compiled pass; False if it cannot, or is not worth it.

        What does not fit goes the readable way, which raises: a pass would read beyond the end.
        """
        walk = self._walk() if tuple(x.shape) == self.shape else None
        if walk is None:
            return False
        flat, others = memory(x, math.prod(self.shape)), memory(values, self.count)
        if flat is None or others is None:
            return False
        kernel, where = walk
        if gathers:
            kernel(flat, where, others, True, None, None)
            return True
        if factor is None:
            kernel(flat, where, others, None, True, None)
        else:
            others = others.astype(flat.dtype, copy=False)
            kernel(flat, where, others, None, None, flat.dtype.type(factor))
        if not isinstance(x, np.ndarray):
            from torch.autograd.graph import increment_version

            increment_version(x)  # tells autograd that the memory has changed
        return True

    def scale(self, values: Any) -> None:
        """The kept values of a point or of a gradient are multiplied by their scales, in place."""
        if not self.unscaled:
            values = values if tuple(values.shape) == self.kept_shape else values.reshape(self.kept_shape)
            values *= like(self.factors, values)

    def check(self, x: Any) -> None:
        """Refuse a tensor of another shape, which might be broadcast in silence."""
        if tuple(x.shape) != self.shape:
            raise ArgumentError(f"what is kept of shape {self.shape} is not that of shape {tuple(x.shape)}")

    # ---- written out ------------------------------------------------------------------------

    def diagonal(self) -> Array:
        """The scale of every entry in the tensor's shape, 0 where it is dropped."""
        refuse_too_large(f"the diagonal of {tuple(self.shape)} entries", math.prod(self.shape))
        c = np.zeros(self.shape)
        c[self.entries] = self.factors
        return c

    def each_scale(self) -> Array:
        """The scale of each kept entry, as many as there are `positions`."""
        factors = self.factors if isinstance(self.factors, float | np.ndarray) else self.factors.cpu().numpy()
        return np.broadcast_to(np.asarray(factors), self.kept_shape).reshape(-1)

    @property
    def positions(self) -> Indices:
        """The kept entries as positions in the flattened tensor, ascending."""
        places = np.arange(math.prod(self.shape), dtype=np.int64).reshape(self.shape)
        return np.sort(places[self.entries].reshape(-1))

    def __repr__(self) -> str:
        return f"<draw: keeps {self.count} of {self.dim} coordinates>"


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
    for each position, or one for all. Draws with the same `name` have the same indices: what is made of
    these, such as a submatrix, is worth keeping.
    """

    def __init__(self, dim: int | Sequence[int], indices: Any, scales: Any, *, name: Hashable = None) -> None:
        self.shape = tuple(dim) if isinstance(dim, Sequence) else (dim,)
        self.count = int(indices.shape[0])
        self.indices = indices
        self.scales = scales
        self.name = name

    def with_scales(self, scales: Any) -> DiagonalDraw:
        """The same positions, with other scales."""
        return DiagonalDraw(self.shape, self.indices, scales, name=self.name)

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


def columns(name: str, value: ArrayLike, d: int) -> Array:
    """A vector, or a matrix of columns, with d entries in each; an error for anything else."""
    array: Any = np.asarray(value)
    if array.dtype != np.float32:
        array = numbers(name, array, array.ndim, finite=False)
    if array.ndim not in (1, 2) or array.shape[0] != d:
        raise ArgumentError(f"{name} must have {d} entries, as the draw has, got shape {array.shape}")
    result: Array = array
    return result


# ---- memory: arrays, and tensors of torch, which is not imported here -----------------------------------


def memory(x: Any, size: int) -> NDArray[Any] | None:
    """The numbers of x as a flat array that shares its memory, if compiled passes can work on it.

    They do not look where they read, so that x must have this many numbers.
    """
    if not isinstance(x, np.ndarray):
        if not x.is_cpu or not x.is_contiguous():
            return None
        try:
            x = x.detach().numpy()
        except (TypeError, RuntimeError):  # half precision, sparse layouts, tensors without values
            return None
    fits = x.dtype in _FLOATS and x.flags.c_contiguous and x.size == size
    return x.reshape(-1) if fits else None


def like(values: Any, x: Any) -> Any:
    """Numbers in the precision, and of the library and device, of x."""
    if isinstance(values, float):
        return values
    if isinstance(x, np.ndarray):
        return np.asarray(values).astype(x.dtype, copy=False)
    return (as_tensor(values, x) if isinstance(values, np.ndarray) else values).to(x)


def as_tensor(values: NDArray[Any], x: Any) -> Any:
    """An array as a tensor on the device of x."""
    import torch

    return torch.from_numpy(values).to(x.device)


def kernels() -> ModuleType:
    """The compiled half, imported when first needed."""
    from mast.sketches.draws import kernels as compiled

    return compiled
