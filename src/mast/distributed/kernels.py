"""The server's optimizers, compiled: one pass each, without temporary vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def momentum(x: Any, h: Any, m: Any, beta: Any, rate: Any) -> None:
    """m = beta m + h, x -= rate m, in one pass."""
    for i in range(x.size):
        m[i] = beta * m[i] + h[i]
        x[i] -= rate * m[i]


@njit(cache=True, nogil=True)
def adam(x: Any, h: Any, m: Any, s: Any, numbers: Any) -> None:
    """The moments m and s of h, and x -= rate m / (sqrt(s) / root + epsilon), in one pass.

    `rest` is 1 - beta; the rate has the bias correction of m, `root` that of s.
    """
    beta1, rest1, beta2, rest2, root, epsilon, rate = numbers
    for i in range(x.size):
        m[i] = beta1 * m[i] + rest1 * h[i]
        s[i] = beta2 * s[i] + rest2 * (h[i] * h[i])
        x[i] -= rate * (m[i] / (np.sqrt(s[i]) / root + epsilon))
