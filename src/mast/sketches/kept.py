"""A vector at the coordinates that a draw keeps: gathered, replaced, added to.

NumPy needs a temporary vector or two for each of these, and fresh memory costs more than the work. So
where many coordinates are kept, each is one compiled pass with the same bits.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mast.arrays import Array, Indices

MANY = 1 << 14  #: coordinates from which on the compiled form is used


def gather(x: NDArray[Any], indices: Indices, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """x[indices], into `out` if it is given, which may be of another precision.

    >>> gather(np.array([1.0, 2.0, 4.0]), np.array([0, 2]))
    array([1., 4.])
    """
    if indices.size < MANY:
        if out is None:
            return x[indices]
        out[...] = x[indices]
        return out
    if out is None:
        out = np.empty(indices.size, dtype=x.dtype)
    _kernels().gather(x, indices, out)
    return out


def add(x: NDArray[Any], indices: Indices, values: NDArray[Any], factor: float) -> None:
    """x[indices] += factor * values, in the precision of x; no index occurs twice."""
    values = values.astype(x.dtype, copy=False)
    if indices.size < MANY:
        x[indices] += factor * values
    else:
        _kernels().add(x, indices, values, x.dtype.type(factor))


def place(x: NDArray[Any], indices: Indices, values: NDArray[Any]) -> None:
    """x[indices] = values."""
    if indices.size < MANY:
        x[indices] = values
    else:
        _kernels().place(x, indices, values)


def copy(x: NDArray[Any], indices: Indices, source: NDArray[Any]) -> None:
    """x[indices] = source[indices]."""
    if indices.size < MANY:
        x[indices] = source[indices]
    else:
        _kernels().copy(x, indices, source)


def scaled(gradient: Array, indices: Indices, scales: Array) -> Array:
    """scales * gradient[indices]: S' applied to a gradient."""
    if indices.size < MANY:
        return scales * gradient[indices]
    out = np.empty(indices.size)
    _kernels().scaled(gradient, indices, scales, out)
    return out


def sparsified(x: Array, indices: Indices, scales: Array, shift: Array) -> Array:
    """The vector v + S(x - v).

    >>> sparsified(np.array([3.0, 5.0]), np.array([1]), np.array([2.0]), np.array([1.0, 1.0]))
    array([1., 9.])
    """
    y = shift.copy()
    if indices.size < MANY:
        v = y[indices]
        y[indices] = v + scales * (x[indices] - v)
    else:
        _kernels().sparsify(y, indices, scales, x)
    return y


def _kernels() -> ModuleType:
    """The compiled half, imported when first needed."""
    from mast.sketches import kept_kernels

    return kept_kernels
