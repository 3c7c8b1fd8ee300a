"""Sweeps over the non-zeros of a sparse matrix, compiled. `reference` says the same readably."""

from __future__ import annotations

from typing import Any

from numba import njit


@njit(cache=True)
def gram(indptr: Any, indices: Any, data: Any, weights: Any, out: Any) -> None:
    """Add the lower triangle of A' diag(weights) A to `out`; columns ascend within rows."""
    for i in range(indptr.size - 1):
        w = weights[i]
        if w == 0.0:
            continue
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            scaled = w * data[p]
            for q in range(indptr[i], p + 1):
                out[j, indices[q]] += scaled * data[q]
