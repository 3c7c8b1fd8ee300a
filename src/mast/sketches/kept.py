"""What a draw keeps of a tensor: which entries, and the scales on them. One object for all rooms.

A vector, a weight, the slices of a small model and the values of a message are all "some entries of a
tensor, times their scales". `Kept` says which ones, in the form that is cheapest to store:

- `Everything`: all entries, with one scale, or with scales that broadcast.
- `Mask`: one true or false per entry, and one scale.
- `Entries`: a list of positions, row by row, and their scales. A diagonal draw over a vector is one.
- `Grid`: some rows, some columns (or slices along any dimensions), and scales along them.

The operations are `gather`, `place`, `add` and `scale`, on NumPy arrays and on torch tensors alike. Their
readable form is indexing by `entries`, which works for any array. Where it pays, the work is done by one
compiled pass of `kept_kernels` over the memory, with the same bits and without temporary arrays.

What is kept of a whole model is a mapping from names to `Kept`: `KeptTensors`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mast.arrays import Array, Indices
from mast.errors import ArgumentError

MANY = 1 << 14  #: entries from which on the compiled form is used
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


class Kept(ABC):
    """The kept entries of one tensor of this `shape`: `count` of them, in row-major order."""

    __slots__ = ("count", "shape")

    shape: tuple[int, ...]
    count: int

    @property
    @abstractmethod
    def entries(self) -> Any:
        """An index: ``x[entries]`` is what is kept, of an array or a tensor."""

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """The shape of ``x[entries]``."""
        return (self.count,)

    @property
    @abstractmethod
    def factors(self) -> Any:
        """What kept entries are multiplied with: a number, or an array that broadcasts to `kept_shape`."""

    @property
    def unscaled(self) -> bool:
        """Whether every scale is 1, without a look at each."""
        return isinstance(self.factors, float) and self.factors == 1

    # ---- the readable form ------------------------------------------------------------------

    def gather(self, x: Any, out: Any = None) -> Any:
        """The kept entries of x, into `out` if it is given, which may have another precision."""
        self.check(x)
        if out is None:
            out = _empty_like(x, self.kept_shape)
        out.reshape(self.kept_shape)[...] = _as(x[self.entries], out)
        return out

    def place(self, x: Any, values: Any) -> None:
        """``x[kept] = values``."""
        self.check(x)
        x[self.entries] = _as(values.reshape(self.kept_shape), x)

    def add(self, x: Any, values: Any, factor: float = 1.0) -> None:
        """``x[kept] += factor * values``, in the precision of x."""
        self.check(x)
        x[self.entries] += factor * _as(values.reshape(self.kept_shape), x)

    def copy(self, x: Any, source: Any) -> None:
        """``x[kept] = source[kept]``."""
        x[self.entries] = source[self.entries]

    def scale(self, values: Any) -> None:
        """The kept values of a point or of a gradient are multiplied by their scales, in place."""
        if not self.unscaled:
            values = values if tuple(values.shape) == self.kept_shape else values.reshape(self.kept_shape)
            values *= _as(self.factors, values)

    def check(self, x: Any) -> None:
        """Refuse a tensor of another shape, which might be broadcast in silence."""
        if tuple(x.shape) != self.shape:
            raise ArgumentError(f"what is kept of shape {self.shape} is not that of shape {tuple(x.shape)}")

    # ---- written out ------------------------------------------------------------------------

    def diagonal(self) -> Array:
        """The scale of every entry in the tensor's shape, 0 where it is dropped."""
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
        numbers = np.arange(math.prod(self.shape), dtype=np.int64).reshape(self.shape)
        return np.sort(numbers[self.entries].reshape(-1))


class Everything(Kept):
    """All entries are kept, times one scale or times scales that broadcast to the tensor's shape."""

    __slots__ = ("scales",)

    def __init__(self, shape: Sequence[int], scales: Any = 1.0) -> None:
        self.shape = tuple(shape)
        self.count = math.prod(self.shape)
        self.scales = scales

    @property
    def entries(self) -> Any:
        """All."""
        return ...

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """That of the tensor."""
        return self.shape

    @property
    def factors(self) -> Any:
        """One scale, or as many as there are entries."""
        return self.scales if isinstance(self.scales, float) else self.scales.reshape(self._scale_shape)

    @property
    def _scale_shape(self) -> tuple[int, ...]:
        return self.shape if math.prod(self.scales.shape) == self.count else tuple(self.scales.shape)

    def add(self, x: Any, values: Any, factor: float = 1.0) -> None:
        """Tensors add without a temporary one."""
        self.check(x)
        _add_all(x, values, factor)


class Mask(Kept):
    """Entries whose mask is true are kept, all times the same scale."""

    __slots__ = ("mask", "scales")

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
    def factors(self) -> float:
        """The one scale."""
        return self.scales

    @property
    def positions(self) -> Indices:
        """Where the mask is true."""
        mask = self.mask if isinstance(self.mask, np.ndarray) else self.mask.cpu().numpy()
        return np.flatnonzero(mask)


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
        if len(self.shape) == 1:
            return self.indices
        indices = self.indices if isinstance(self.indices, np.ndarray) else self.indices.cpu().numpy()
        return np.unravel_index(indices.astype(np.int64, copy=False), self.shape)

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
            out = _empty_like(x, self.kept_shape)
        flat, target = self._passes(x, out)
        if flat is None:
            return super().gather(x, out)
        _kernels().gather(flat, self.indices, target)
        return out

    def place(self, x: Any, values: Any) -> None:
        """One pass, where there are many."""
        flat, source = self._passes(x, values)
        if flat is None:
            super().place(x, values)
        else:
            _kernels().place(flat, self.indices, source)
            _written(x)

    def add(self, x: Any, values: Any, factor: float = 1.0) -> None:
        """One pass, where there are many."""
        flat, source = self._passes(x, values)
        if flat is None:
            super().add(x, values, factor)
        else:
            source = source.astype(flat.dtype, copy=False)
            _kernels().add(flat, self.indices, source, flat.dtype.type(factor))
            _written(x)

    def copy(self, x: Any, source: Any) -> None:
        """One pass, where there are many."""
        flat, values = self._passes(x, source, math.prod(self.shape))
        if flat is None:
            super().copy(x, source)
        else:
            _kernels().copy(flat, self.indices, values)
            _written(x)

    def gather_scaled(self, x: Array) -> Array:
        """S'x at the kept entries: the values of a sketched gradient."""
        flat, _ = self._passes(x, None)
        if flat is None:
            product: Array = self.scales * x[self.entries]
            return product
        out = np.empty(self.count)
        _kernels().gather_scaled(flat, self.indices, self.scales, out)
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
            _kernels().sparsify(flat, self.indices, self.scales, point, flat)
        return y

    def _passes(self, x: Any, other: Any, size: int | None = None) -> tuple[Any, Any]:
        """The memory of both, if a compiled pass is worth it and they fit; else None.

        What does not fit goes the readable way, which raises: a pass would read beyond the end.
        """
        if self.count < MANY or not isinstance(self.indices, np.ndarray):
            return None, None
        flat = memory(x, math.prod(self.shape))
        if other is None or flat is None:
            return flat, None
        memory_of_other = memory(other, self.count if size is None else size)
        return (None, None) if memory_of_other is None else (flat, memory_of_other)


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
            out = _empty_like(x, self.kept_shape)
        flat, target = self._passes(x, out)
        if flat is None:
            self.check(x)
            for dim, index in self.indices.items():
                numpy = isinstance(x, np.ndarray)
                x = np.take(x, index, dim) if numpy else x.index_select(dim, _tensor(index, x))
            out.reshape(self.kept_shape)[...] = _as(x, out)
        else:
            _kernels().grid_gather(flat, self.runs, target)
        return out

    def place(self, x: Any, values: Any) -> None:
        """One pass over the kept rows and columns."""
        flat, source = self._passes(x, values)
        if flat is None:
            super().place(x, values)
        else:
            _kernels().grid_place(flat, self.runs, source)
            _written(x)

    def add(self, x: Any, values: Any, factor: float = 1.0) -> None:
        """One pass over the kept rows and columns."""
        flat, source = self._passes(x, values)
        if not self.indices:
            self.check(x)
            _add_all(x, values, factor)
        elif flat is None:
            super().add(x, values, factor)
        else:
            _kernels().grid_add(flat, self.runs, source, flat.dtype.type(factor))
            _written(x)

    @property
    def runs(self) -> Any:
        """Rows, and columns in each, of runs that stay whole. A row that is not cut is one long run."""
        if self._runs is None:
            width = math.prod(self.shape[1:])
            inner = math.prod(self.shape[2:]) if 1 in self.indices else width
            rows = self.indices[0] if 0 in self.indices else np.arange(self.shape[0])
            columns = self.indices.get(1, np.zeros(1, dtype=np.int64))
            self._runs = tuple(_kernels().Runs(rows, columns, inner, width))
        return self._runs

    def _passes(self, x: Any, other: Any) -> tuple[Any, Any]:
        if not self.indices or any(dim > 1 for dim in self.indices):
            return None, None
        flat = memory(x, math.prod(self.shape)) if tuple(x.shape) == self.shape else None
        memory_of_other = memory(other, self.count)
        if flat is None or memory_of_other is None or flat.dtype != memory_of_other.dtype:
            return None, None
        return flat, memory_of_other


class KeptTensors(Mapping[str, Kept]):
    """What a draw keeps of each tensor of a model, by name. Its values lie one after the other.

    >>> draw = KeptTensors({"weight": Entries([6], np.array([1, 4]), 3.0), "bias": Everything([2])})
    >>> x = {"weight": np.arange(6.0), "bias": np.ones(2)}
    >>> draw.gather(x, np.empty(draw.count))
    array([1., 4., 1., 1.])
    """

    def __init__(self, kept: Mapping[str, Kept]) -> None:
        self._kept = dict(kept)
        counts = [kept.count for kept in self._kept.values()]
        stops = np.cumsum([0, *counts], dtype=np.int64).tolist()
        #: where the values of each tensor lie among all
        self.slices = {
            name: slice(a, b) for name, a, b in zip(self._kept, stops[:-1], stops[1:], strict=True)
        }
        self.count: int = stops[-1]  #: of all values

    def __getitem__(self, name: str) -> Kept:
        return self._kept[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, values: Any, name: str) -> Any:
        """The values of one tensor, in their shape."""
        return values[self.slices[name]].reshape(self._kept[name].kept_shape)

    def gather(self, tensors: Mapping[str, Any], out: Any) -> Any:
        """The kept entries of all tensors, one tensor after the other."""
        for name, kept in self._kept.items():
            kept.gather(tensors[name], out[self.slices[name]])
        return out

    def place(self, tensors: Mapping[str, Any], values: Any) -> None:
        """``x[kept] = values`` in every tensor."""
        for name, kept in self._kept.items():
            kept.place(tensors[name], values[self.slices[name]])

    def add(self, tensors: Mapping[str, Any], values: Any, factor: float = 1.0) -> None:
        """``x[kept] += factor * values`` in every tensor; nothing else is touched."""
        for name, kept in self._kept.items():
            kept.add(tensors[name], values[self.slices[name]], factor)

    def scale(self, values: Any) -> None:
        """The values of every tensor are multiplied by their scales, in place."""
        for name, kept in self._kept.items():
            kept.scale(values[self.slices[name]])

    def check(self, values: Any) -> None:
        """Refuse values that are not the kept entries, one after the other."""
        contiguous = values.flags.c_contiguous if isinstance(values, np.ndarray) else values.is_contiguous()
        if len(values.shape) != 1 or len(values) != self.count or not contiguous:
            raise ArgumentError(
                f"this draw keeps {self.count} values in one contiguous dimension, got shape "
                f"{tuple(values.shape)}"
            )


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


def _add_all(x: Any, values: Any, factor: float) -> None:
    """``x += factor * values``; tensors round once, where the processor can."""
    if isinstance(x, np.ndarray):
        x += factor * _as(values.reshape(x.shape), x)
    else:
        x.add_(_as(values.reshape(x.shape), x), alpha=factor)


def _written(x: Any) -> None:
    """Tell autograd that a tensor's memory has changed."""
    if not isinstance(x, np.ndarray):
        from torch.autograd.graph import increment_version

        increment_version(x)


def _empty_like(x: Any, shape: tuple[int, ...]) -> Any:
    return np.empty(shape, dtype=x.dtype) if isinstance(x, np.ndarray) else x.new_empty(shape)


def _as(numbers: Any, x: Any) -> Any:
    """Numbers in the precision, and of the library and device, of x."""
    if isinstance(numbers, float):
        return numbers
    if isinstance(x, np.ndarray):
        return np.asarray(numbers).astype(x.dtype, copy=False)
    return (_tensor(numbers, x) if isinstance(numbers, np.ndarray) else numbers).to(x)


def _tensor(numbers: NDArray[Any], x: Any) -> Any:
    """An array as a tensor on the device of x."""
    import torch

    return torch.from_numpy(numbers).to(x.device)


def _kernels() -> ModuleType:
    """The compiled half, imported when first needed."""
    from mast.sketches import kept_kernels

    return kept_kernels
