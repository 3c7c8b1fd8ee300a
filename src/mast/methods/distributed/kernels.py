"""The server's optimizers, compiled: one pass each, without temporary vectors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit


class AdamNumbers(NamedTuple):
    """The numbers of one step of Adam, all of them in the precision of x."""

    beta1: Any
    beta2: Any
    rest1: Any  # 1 - beta1
    rest2: Any  # 1 - beta2
    root: Any  # of the bias correction of s
    epsilon: Any
    rate: Any  # the step size, with the bias correction of m


@njit(cache=True, nogil=True)
def momentum(x: Any, h: Any, m: Any, beta: Any, rate: Any) -> None:
    """m = beta m + h, x -= rate m, in one pass."""
    for i in range(x.size):
        m[i] = beta * m[i] + h[i]
        x[i] -= rate * m[i]


@njit(cache=True, nogil=True)
def adam(x: Any, h: Any, m: Any, s: Any, by: Any) -> None:
    """The moments m and s of h, and x -= rate m / (sqrt(s) / root + epsilon), in one pass."""
    for i in range(x.size):
        m[i] = by.beta1 * m[i] + by.rest1 * h[i]
        s[i] = by.beta2 * s[i] + by.rest2 * (h[i] * h[i])
        x[i] -= by.rate * (m[i] / (np.sqrt(s[i]) / by.root + by.epsilon))
