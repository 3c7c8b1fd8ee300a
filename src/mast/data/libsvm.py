"""LIBSVM text to arrays: runs the compiled parser and rounds the numbers it left over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mast.data import faults
from mast.data.faults import Fault


@dataclass(frozen=True)
class Rows:
    """The rows of a file in compressed form: row i holds ``indptr[i]:indptr[i + 1]`` of the pairs."""

    labels: NDArray[np.float64]
    indptr: NDArray[np.signedinteger]
    indices: NDArray[np.signedinteger]
    data: NDArray[np.float64]
    lines: NDArray[np.int64]
    width: int


def parse(text: bytes, n_features: int | None = None, zero_based: bool = False) -> Rows | Fault:
    r"""Read all rows, or say the first fault.

    >>> rows = parse(b"+1 2:.5 3:25e-2\n-1 1:2\n")
    >>> rows.labels, rows.data, rows.width
    (array([ 1., -1.]), array([0.5 , 0.25, 2.  ]), 3)
    """
    from mast.data import kernels  # Numba is slow to import: only for parsing

    buffer = np.frombuffer(text, dtype=np.uint8)
    lines, colons = kernels.count(buffer)
    labels = np.empty(lines)
    indptr = np.empty(lines + 1, dtype=np.int64)
    row_lines = np.empty(lines, dtype=np.int64)
    indices = np.empty(colons, dtype=np.int32)
    data = np.empty(colons)
    # Room for the worst case; pages that are never touched cost nothing.
    hard_starts = np.empty(lines + colons, dtype=np.int64)
    hard_slots = np.empty(lines + colons, dtype=np.int64)

    first = 0 if zero_based else 1
    limit = faults.MAX_INDEX - 1 + first if n_features is None else n_features - 1 + first
    code, line, start, rows, values, hard, width = kernels.parse(
        buffer, first, limit, labels, indptr, indices, data, row_lines, hard_starts, hard_slots
    )
    hard_starts, hard_slots = hard_starts[:hard], hard_slots[:hard]
    numbers = _round(buffer, hard_starts)
    infinite = np.flatnonzero(~np.isfinite(numbers))
    if infinite.size:  # stands before the fault the parser stopped at, if it did
        return _overflow(text, int(hard_starts[infinite[0]]), int(hard_slots[infinite[0]]))
    if code != faults.OK:
        return Fault(int(code), int(line), int(start))
    is_label = hard_slots < 0
    labels[-1 - hard_slots[is_label]] = numbers[is_label]
    data[hard_slots[~is_label]] = numbers[~is_label]

    # SciPy wants one integer type for both, and liblinear wants int32.
    integer = np.dtype(np.int32 if values <= faults.MAX_INDEX else np.int64)
    return Rows(
        labels=labels[:rows].copy(),
        indptr=indptr[: rows + 1].astype(integer),
        indices=indices[:values].astype(integer),
        data=data[:values].copy() if values < colons else data,
        lines=row_lines[:rows].copy(),
        width=int(width),
    )


def _round(buffer: NDArray[np.uint8], starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Convert the numbers at these bytes, correctly rounded (NumPy uses Python's own conversion)."""
    from mast.data import kernels

    if not starts.size:
        return np.empty(0)
    scratch = np.empty(kernels.gather(buffer, starts, np.empty(0, dtype=np.uint8)), dtype=np.uint8)
    kernels.gather(buffer, starts, scratch)
    numbers = np.fromstring(scratch.tobytes(), sep=" ")
    if numbers.size != starts.size:
        raise AssertionError(f"{starts.size} numbers were located and {numbers.size} converted")
    return numbers


def _overflow(text: bytes, start: int, slot: int) -> Fault:
    if slot >= 0:  # a value: the fault is reported at its index
        start = text.rindex(b":", 0, start)
        while text[start - 1 : start].isdigit():
            start -= 1
    return Fault(faults.OVERFLOW, text.count(b"\n", 0, start) + 1, start)
