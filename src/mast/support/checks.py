"""Checked arguments: what users pass becomes a number, a vector or a matrix as it should be, or an error.

An error names the argument, what it has to be, and what it was.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mast.errors import ArgumentError, DataError, MastError

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

LARGE = 10**7  #: numbers that fit into any memory
BLOCK = 1 << 22  #: numbers that are made at a time
LARGEST_ENTRY = 1e150  #: of data: the square of a larger number overflows


def check_number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
) -> float:
    """`value` as a finite float above `above`, below `below`, at least `least` and at most `most`.

    >>> check_number("momentum", 0.9, least=0, below=1)
    0.9
    >>> check_number("momentum", 1, least=0, below=1)
    Traceback (most recent call last):
    mast.errors.ArgumentError: momentum must lie in [0, 1), got 1
    """
    if value is None:
        raise ArgumentError(f"{name} is missing: pass {name}=...")
    try:
        if isinstance(value, str | bytes | bool) or getattr(value, "ndim", 0) != 0:
            raise TypeError  # float() would accept them
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        result = math.nan
    fits = (
        math.isfinite(result)
        and (above is None or result > above)
        and (least is None or result >= least)
        and (below is None or result < below)
        and (most is None or result <= most)
    )
    if not fits:
        raise ArgumentError(f"{name} must {_range(above, least, below, most)}, got {value!r}")
    return result


def check_positive(name: str, value: Any) -> float:
    """A finite number above 0."""
    return check_number(name, value, above=0)


def check_nonnegative(name: str, value: Any) -> float:
    """A finite number, 0 or more."""
    return check_number(name, value, least=0)


def check_optional(name: str, value: Any) -> float | None:
    """A finite number, 0 or more; None where the caller does not know it."""
    return None if value is None else check_nonnegative(name, value)


def check_probability(name: str, value: Any) -> float:
    """A number in (0, 1]: the probability of something that may happen."""
    return check_number(name, value, above=0, most=1)


def check_int(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """`value` as an int within the limits; a float is not a whole number, even 3.0.

    >>> check_int("nodes", 4, 1, 3)
    Traceback (most recent call last):
    mast.errors.ArgumentError: nodes must lie in 1 .. 3, got 4
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        result = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name} must be a whole number, got {value!r}") from None
    if (least is not None and result < least) or (most is not None and result > most):
        limits = f"be at least {least}" if most is None else f"lie in {least} .. {most}"
        raise ArgumentError(f"{name} must {limits}, got {value!r}")
    return result


def check_choice(name: str, value: Any, allowed: Iterable[str]) -> str:
    """One of a few words.

    >>> check_choice("coupling", "some", ["independent", "disjoint"])
    Traceback (most recent call last):
    mast.errors.ArgumentError: coupling must be one of 'independent', 'disjoint', got 'some'
    """
    words = list(allowed)
    if not isinstance(value, str) or value not in words:
        raise ArgumentError(f"{name} must be one of {', '.join(map(repr, words))}, got {value!r}")
    return value


def check_list(name: str, value: Any) -> list[Any]:
    """`value` as a list; a text is not one."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ArgumentError(f"{name} must be a list, got {value!r}")
    return list(value)


def _range(above: float | None, least: float | None, below: float | None, most: float | None) -> str:
    upper = below if most is None else most
    if upper is not None:
        left = f"({above:g}" if least is None else f"[{least:g}"
        return f"lie in {left}, {upper:g}{')' if most is None else ']'}"
    if above is not None:
        return "be a positive number" if above == 0 else f"be a finite number above {above:g}"
    return "be a finite number" if least is None else f"be a finite number >= {least:g}"


# ---- arrays ----------------------------------------------------------------------------------------------


def numbers(name: str, value: ArrayLike, ndim: int, *, finite: bool = True) -> Array:
    """`value` as a float64 array of `ndim` dimensions."""
    dense: Any = value
    if hasattr(value, "toarray"):
        dense = checked_sparse(name, value)
        refuse_too_large(f"{name} as a dense array", float(math.prod(dense.shape)))
    try:
        if np.iscomplexobj(dense):
            raise TypeError
        array = np.asarray(dense.toarray() if dense is not value else dense, dtype=np.float64)
    except (TypeError, ValueError):
        raise ArgumentError(f"{name} must be an array of real numbers, got {type(value).__name__}") from None
    if array.ndim != ndim:
        raise ArgumentError(f"{name} must have {ndim} dimension(s), got shape {array.shape}")
    if finite:
        refuse_nonfinite(name, array, ArgumentError)
    return array


def refuse_nonfinite(name: str, array: Array, error: type[MastError]) -> None:
    """Raise `error` if the array holds NaN or infinity, and say where."""
    if not np.isfinite(array).all():
        where = np.argwhere(~np.isfinite(array))[0].tolist()
        raise error(f"{name} holds NaN or infinity, first at position {where}")


def vector(name: str, value: ArrayLike, d: int | None = None, *, finite: bool = True) -> Array:
    """`value` as a vector, of length d if that is given."""
    array = numbers(name, value, 1, finite=finite)
    if d is not None and array.size != d:
        raise ArgumentError(f"{name} must have {d} entries, got {array.size}")
    return array


def symmetric(name: str, value: ArrayLike) -> Array:
    """`value` as a symmetric matrix."""
    array = numbers(name, value, 2)
    if array.shape[0] != array.shape[1]:
        raise ArgumentError(f"{name} must be square, got shape {array.shape}")
    size = np.abs(array).max(initial=0.0)
    off = np.abs(array - array.T).max(initial=0.0)
    if off > 1e-10 * size:
        raise ArgumentError(f"{name} must be symmetric, but an entry differs from its mirror by {off:.3g}")
    return (array + array.T) / 2


def csr(name: str, A: Any) -> Any:
    """A sparse matrix as CSR in float64, sorted, without duplicates or stored zeros; the caller's stays."""
    import scipy.sparse

    A = checked_sparse(name, A)
    if A.ndim != 2:
        raise ArgumentError(f"{name} must have 2 dimensions, got shape {A.shape}")
    A = scipy.sparse.csr_array(A, dtype=np.float64, copy=True)
    if not np.isfinite(A.data).all():
        position = int(np.flatnonzero(~np.isfinite(A.data))[0])
        row = int(np.searchsorted(A.indptr, position, side="right")) - 1
        raise DataError(f"{name} holds NaN or infinity, first in row {row}, column {A.indices[position]}")
    if not A.has_canonical_format or not A.data.all():
        A.sum_duplicates()
        A.eliminate_zeros()
    index = np.int32 if max(A.nnz, *A.shape) < 2**31 else np.int64
    parts = A.data, A.indices.astype(index, copy=False), A.indptr.astype(index, copy=False)
    return scipy.sparse.csr_array(tuple(map(np.ascontiguousarray, parts)), shape=A.shape)


def checked_sparse(name: str, A: Any) -> Any:
    """A sparse matrix of SciPy's own class on the same arrays, all of whose indices lie within its shape.

    SciPy reads and writes wherever an index points, so this comes before every conversion and product. What
    is remembered of the order of indices is forgotten, as it may be wrong. Lists become CSR, dicts COO.
    """
    try:
        shape = tuple(operator.index(size) for size in A.shape)
        if len(shape) not in (1, 2) or min(shape) < 0:
            raise ArgumentError(f"{name} must have 2 dimensions, got shape {shape}")
        form, arrays = _parts(A, shape)
        if arrays[0].dtype.kind not in "fiub":
            raise ArgumentError(f"{name} must hold real numbers, got {arrays[0].dtype}")
        return form(arrays, shape=shape)
    except MastError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"{name} is a damaged sparse matrix: {error}") from error


def _parts(A: Any, shape: tuple[int, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The class of a sparse matrix and the arrays it is made of, checked; the first holds the values."""
    import scipy.sparse

    kind = A.format
    if kind == "lil":
        kind, parts = "csr", _compressed(*_flattened(A.rows, A.data), shape)
    elif kind in ("csr", "bsr"):
        parts = _compressed(A.data, A.indices, A.indptr, shape, blocks=kind == "bsr")
    elif kind == "csc":
        parts = _compressed(A.data, A.indices, A.indptr, shape[::-1])
    elif kind == "dok":
        keys = np.array(list(A.keys()) or np.zeros((0, len(shape)), dtype=np.int64))
        coordinates = keys.reshape(len(keys), -1).T
        kind, parts = "coo", _by_coordinates(np.array(list(A.values())), tuple(coordinates), shape)
    elif kind == "coo":
        parts = _by_coordinates(A.data, A.coords, shape)
    elif kind == "dia":
        parts = _diagonals(A.data, A.offsets, shape)
    else:
        raise ValueError(f"unknown format {kind!r}")
    form = f"{kind}_matrix" if isinstance(A, scipy.sparse.spmatrix) else f"{kind}_array"
    return getattr(scipy.sparse, form), parts


def _compressed(
    values: Any, indices: Any, indptr: Any, shape: tuple[int, ...], blocks: bool = False
) -> tuple[Any, ...]:
    """(data, indices, indptr) of CSR, of BSR with its `blocks`, and of CSC if the shape is turned round."""
    data, starts = np.asarray(values), _integers("indptr", indptr)
    rows, columns = (1, *shape)[-2:]
    if data.ndim != (3 if blocks else 1):
        raise ValueError(f"the data have the shape {data.shape}")
    if blocks:
        height, width = data.shape[1:]
        if not (height and width) or rows % height or columns % width:
            raise ValueError(f"blocks of shape {(height, width)} do not tile the shape {shape}")
        rows, columns = rows // height, columns // width
    if starts.size != rows + 1:
        raise ValueError(f"indptr has {starts.size} entries, expected {rows + 1}")
    if starts[0] != 0:
        raise ValueError(f"indptr starts with {starts[0]}, not with 0")
    if (starts[1:] < starts[:-1]).any():
        raise ValueError("indptr decreases")
    if len(indices) != len(data) or starts[-1] > len(data):
        raise ValueError(f"{len(data)} values, {len(indices)} indices, and indptr ends with {starts[-1]}")
    count = int(starts[-1])  # there may be spare room behind
    return data[:count], _integers("indices", indices[:count], columns), starts


def _by_coordinates(values: Any, coordinates: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """(data, coordinates) of COO."""
    data = np.asarray(values)
    if len(coordinates) != len(shape):
        raise ValueError(f"{len(coordinates)} coordinates for {len(shape)} dimensions")
    coords = tuple(_integers("coordinates", *axis) for axis in zip(coordinates, shape, strict=True))
    if any(axis.shape != data.shape for axis in coords):
        raise ValueError(f"values of shape {data.shape}, and {[axis.size for axis in coords]} coordinates")
    return data, coords


def _diagonals(values: Any, offsets: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """(data, offsets) of DIA, without diagonals that lie outside."""
    data, where = np.asarray(values), _integers("offsets", offsets)
    if data.ndim != 2 or len(data) != where.size:
        raise ValueError(f"data of shape {data.shape} for {where.size} diagonals")
    inside = (where > -shape[0]) & (where < shape[1])
    return (data, where) if inside.all() else (data[inside], where[inside])


def _flattened(rows: Any, values: Any) -> tuple[Any, Any, Any]:
    """(data, indices, indptr) of lists, one per row."""
    lengths = [len(row) for row in rows]
    if lengths != [len(row) for row in values]:
        raise ValueError("the lists of indices and of values differ in length")
    data, indices = (np.array(list(itertools.chain.from_iterable(lists))) for lists in (values, rows))
    return data, indices, np.cumsum([0, *lengths])


def _integers(what: str, values: Any, size: int | None = None) -> NDArray[Any]:
    """A vector of integers, which lie in 0 .. size - 1 if a size is given."""
    array = np.asarray(values)
    if not array.size:
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"{what} must be a vector of integers, got {array.dtype} of shape {array.shape}")
    if size is not None and array.size and (array.min() < 0 or array.max() >= size):
        wild = array.min() if array.min() < 0 else array.max()
        raise ValueError(f"{what} must lie in 0 .. {size - 1}, found {wild}")
    return array


def memory_limit() -> int:
    """How many bytes this process may use: those of the machine, of its container, or of its own limit."""
    limits = [1 << 62]
    with contextlib.suppress(AttributeError, ValueError, OSError):  # not on Windows
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        limits += [n for n in resource.getrlimit(resource.RLIMIT_AS) if n != resource.RLIM_INFINITY]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(ValueError, OSError):  # "max" is no number
            limits.append(int(Path("/sys/fs/cgroup", name).read_text()))
    return min(limits)


def refuse_too_large(what: str, numbers: float) -> None:
    """An error, before anything is allocated, if this many `numbers` cannot be held in memory."""
    if numbers > LARGE and 8 * numbers > memory_limit():
        needed, there = 8 * numbers / 2**30, memory_limit() / 2**30
        raise ArgumentError(f"{what} would take {needed:,.1f} GiB of memory; there are {there:,.1f} GiB")


def refuse_too_wide(features: int, where: str = "", outputs: int = 1) -> None:
    """The same for a model of this many `features`: weights, a gradient, what methods keep."""
    refuse_too_large(f"{where}a model of {features:,} features", 12.0 * features * outputs)


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Slices of the rows of a table: what is made of one at a time takes little memory."""
    step = max(1, BLOCK // max(columns, 1))
    return (slice(start, start + step) for start in range(0, rows, step))


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """The array, made read-only, so that what is shared cannot be changed by accident."""
    array.setflags(write=False)
    return array
