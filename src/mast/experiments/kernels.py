"""How often each coordinate was drawn, compiled: all that Rand-1 runs need to know of their draws."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from mast.sketches.kernels import draw_units


@njit(cache=True)
def times_drawn(kind: int, k: int, thresholds: Any, seed: Any, stops: Any, units: int) -> Any:
    """For each stop (ascending), how often each unit survived in the steps before it."""
    counts = np.zeros((stops.size, units), dtype=np.int64)
    order = np.arange(units)
    kept = np.empty(units, dtype=np.int64)
    running = np.zeros(units, dtype=np.int64)
    for s in range(stops.size):
        for t in range(stops[s - 1] if s else 0, stops[s]):
            count = draw_units(kind, k, thresholds, seed, t, 0, order, kept)
            for m in range(count):
                running[kept[m]] += 1
        counts[s] = running
    return counts
