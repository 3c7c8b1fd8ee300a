"""The passes of `mast.sketches.kept`, compiled: loops that NumPy would need temporary vectors for."""

from __future__ import annotations

from typing import Any

from numba import njit


@njit(cache=True, nogil=True)
def gather(x: Any, positions: Any, out: Any) -> None:
    """out = x[positions]."""
    for k in range(positions.size):
        out[k] = x[positions[k]]


@njit(cache=True, nogil=True)
def add(x: Any, positions: Any, values: Any, factor: Any) -> None:
    """x[positions] += factor * values; no position occurs twice."""
    for k in range(positions.size):
        x[positions[k]] += factor * values[k]


@njit(cache=True, nogil=True)
def place(x: Any, positions: Any, values: Any) -> None:
    """x[positions] = values."""
    for k in range(positions.size):
        x[positions[k]] = values[k]


@njit(cache=True, nogil=True)
def copy(x: Any, positions: Any, source: Any) -> None:
    """x[positions] = source[positions]."""
    for k in range(positions.size):
        x[positions[k]] = source[positions[k]]


@njit(cache=True, nogil=True)
def scaled(x: Any, positions: Any, scales: Any, out: Any) -> None:
    """out = scales * x[positions]."""
    for k in range(positions.size):
        out[k] = scales[k] * x[positions[k]]


@njit(cache=True, nogil=True)
def sparsify(y: Any, positions: Any, scales: Any, x: Any) -> None:
    """y[positions] += scales * (x - y)[positions]."""
    for k in range(positions.size):
        i = positions[k]
        y[i] = y[i] + scales[k] * (x[i] - y[i])
