"""Checked arrays: what users pass becomes float64, finite, of the right shape, or an error that says why."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mast.errors import ArgumentError, MastError

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


def numbers(name: str, value: ArrayLike, ndim: int, *, finite: bool = True) -> Array:
    """`value` as a float64 array of `ndim` dimensions."""
    try:
        if np.iscomplexobj(value):
            raise TypeError
        array = np.asarray(_dense(value), dtype=np.float64)
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


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """The array, made read-only, so that what is shared cannot be changed by accident."""
    array.setflags(write=False)
    return array


def _dense(value: Any) -> Any:
    return value.toarray() if hasattr(value, "toarray") else value
