"""The variance of sampling without replacement, which batches of terms and of sketches share."""

from __future__ import annotations

from mast.theory.arguments import whole


def zeta(N: int, b: int) -> float:
    """zeta(N, b) = (N - b)/(max(1, N - 1) b): the variance of a mean of b out of N, over that of one.

    1 for a single draw, 0 for all of them.

    >>> zeta(10, 1), zeta(10, 10), zeta(1, 1), zeta(5, 2)
    (1.0, 0.0, 0.0, 0.375)
    """
    N = whole("N", N, 1)
    b = whole("b", b, 1, N)
    return (N - b) / (max(1, N - 1) * b)
