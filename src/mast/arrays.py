"""Checked arrays: what users pass becomes float64, finite, of the right shape, or an error that says why."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mast.errors import ArgumentError, DataError, MastError

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

LARGE = 10**7  #: numbers that fit into any memory
LARGEST_ENTRY = 1e150  #: of data: the square of a larger number overflows


def numbers(name: str, value: ArrayLike, ndim: int, *, finite: bool = True) -> Array:
    """`value` as a float64 array of `ndim` dimensions."""
    try:
        if np.iscomplexobj(value):
            raise TypeError
        dense: Any = value.toarray() if hasattr(value, "toarray") else value
        array = np.asarray(dense, dtype=np.float64)
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

    A = scipy.sparse.csr_array(sound(name, A), dtype=np.float64, copy=True)
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


def sound(name: str, A: Any) -> Any:
    """A sparse matrix whose index arrays fit its shape, by rows or by columns; others are refused.

    To read a matrix whose indices point elsewhere would be to read memory that is not its own.
    """
    if A.ndim != 2:
        raise ArgumentError(f"{name} must have 2 dimensions, got shape {A.shape}")
    if A.dtype.kind not in "fiub":
        raise ArgumentError(f"{name} must hold real numbers, got {A.dtype}")
    try:
        if A.format == "coo":
            A = type(A)((A.data, (A.row, A.col)), shape=A.shape)  # this looks at every index
        if A.format in ("csr", "csc", "bsr"):
            # made anew: what it remembers of its order may be wrong, and checking trims its arrays
            A = type(A)((A.data, A.indices, A.indptr), shape=A.shape)
        else:
            A = A.tocsr()
        A.check_format(full_check=True)
    except (ValueError, IndexError, TypeError) as error:
        raise DataError(f"{name} is a damaged sparse matrix: {error}") from error
    return A


def memory() -> int:
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
    """An error, before anything is allocated, if so many numbers cannot be held in memory."""
    if numbers > LARGE and 8 * numbers > memory():
        needed, there = 8 * numbers / 2**30, memory() / 2**30
        raise ArgumentError(f"{what} would take {needed:,.1f} GiB of memory; there are {there:,.1f} GiB")


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """The array, made read-only, so that what is shared cannot be changed by accident."""
    array.setflags(write=False)
    return array
