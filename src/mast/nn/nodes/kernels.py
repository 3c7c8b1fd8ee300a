"""The positions that a Bernoulli draw keeps, compiled: without the mask and without branches."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, uint64

from mast.support.philox import words

_PIECE = 4096  # coordinates whose mask is made at once, a multiple of 8
ROOM = 8  #: entries that `kept_positions` needs beyond the last position
_BITS = np.arange(256)[:, None] >> np.arange(8) & 1
_COUNT = _BITS.sum(axis=1).astype(np.uint64)  # of the bits of a byte
# the places of a byte's ones, then those of its zeros: eight entries per byte
_PLACES = np.argsort(1 - _BITS, axis=1, kind="stable").astype(np.uint32).reshape(-1)
_PACK = np.uint64(0x0102040810204080)  # times eight bytes of 0 or 1: their bits, in the highest byte


@njit(cache=True, nogil=True)
def kept_positions(key: Any, threshold: Any, n: int, out: Any) -> Any:
    """Fill `out` (of at least n + ROOM entries) with the i < n whose word is below the threshold; how many.

    Like ``np.flatnonzero(randomness.bernoulli(key, threshold, 0, n))``. The mask is made in small pieces,
    several words at once; then the positions of a byte of it are looked up and written together, so that
    there is hardly a branch that the processor could guess wrong.
    """
    kept = np.empty(_PIECE, dtype=np.uint8)
    eights = kept.view(np.uint64)
    count = uint64(0)  # unsigned: indices that might be negative take twice as long
    for first in range(0, n, _PIECE):
        words(key, threshold, first, kept)
        if n - first < _PIECE:
            kept[n - first :] = 0
        for q in range(min(_PIECE, n - first + 7) >> 3):
            byte = (eights[q] * _PACK) >> uint64(56)
            row, base = byte << uint64(3), first + 8 * q
            for r in range(4):
                out[count + uint64(r)] = base + _PLACES[row + uint64(r)]
            if _COUNT[byte] > uint64(4):
                for r in range(4, 8):
                    out[count + uint64(r)] = base + _PLACES[row + uint64(r)]
            count += _COUNT[byte]
    return count
