"""The layout of `mast.randomness` once more, slow and readable: what the kernels must equal.

Philox itself is NumPy on arrays of counters; the rest is plain Python integers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from mast.randomness import EXACT_SHUFFLE, ROUNDS, Key, Purpose, feistel_sides

if TYPE_CHECKING:
    from numpy.typing import NDArray

Words = tuple[int, int, int, int]
_LOW = np.uint64(0xFFFFFFFF)


def philox(counter: NDArray[np.uint32], key: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Philox4x32-10 of counters (..., 4) under keys (..., 2).

    >>> philox(np.zeros(4, np.uint32), np.zeros(2, np.uint32)).tolist() == [
    ...     0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    True
    """
    c = [counter[..., i].astype(np.uint64) for i in range(4)]
    k = [key[..., i].astype(np.uint64) for i in range(2)]
    for _ in range(10):
        p0 = np.uint64(0xD2511F53) * c[0]
        p1 = np.uint64(0xCD9E8D57) * c[2]
        c = [p1 >> np.uint64(32) ^ c[1] ^ k[0], p1 & _LOW, p0 >> np.uint64(32) ^ c[3] ^ k[1], p0 & _LOW]
        k = [k[0] + np.uint64(0x9E3779B9) & _LOW, k[1] + np.uint64(0xBB67AE85) & _LOW]
    return np.stack(c, axis=-1).astype(np.uint32)


def stream(key: Key, purpose: Purpose) -> Words:
    """Stage 1: the four words of the stream."""
    k = key.words(purpose)
    s = philox(k[2:], k[:2]).tolist()
    return s[0], s[1], s[2], s[3]


def blocks(s: Words, numbers: Iterable[int]) -> NDArray[np.uint32]:
    """Stage 2: the blocks with these numbers, one per row."""
    counters = np.array([[j & 0xFFFFFFFF, j >> 32, s[2], s[3]] for j in numbers], dtype=np.uint32)
    return philox(counters, np.array(s[:2], dtype=np.uint32))


def words(key: Key, purpose: Purpose, start: int, stop: int) -> NDArray[np.uint32]:
    """Words start .. stop-1 of a stream."""
    first, last = start // 4, -(-stop // 4)
    flat = (
        blocks(stream(key, purpose), range(first, last)).ravel() if stop > start else np.empty(0, np.uint32)
    )
    return flat[start - 4 * first : stop - 4 * first]


def bernoulli(key: Key, thresholds: int | NDArray[np.uint64], start: int, stop: int) -> NDArray[np.bool_]:
    """The mask: kept where the coordinate's word is below its threshold."""
    kept: NDArray[np.bool_] = words(key, Purpose.MASK, start, stop).astype(np.uint64) < thresholds
    return kept


def normal(key: Key, start: int, stop: int) -> NDArray[np.float64]:
    """Box-Muller; equal to the kernel up to the rounding of log, cos and sin."""
    numbers = np.arange(start, stop)
    w = blocks(stream(key, Purpose.NORMAL), (numbers // 2).tolist()).astype(np.uint64)
    radius = np.sqrt(-2 * np.log(((w[:, 0] << 21 ^ w[:, 1] >> 11) + 1) * 2.0**-53))
    angle = 2 * np.pi * ((w[:, 2] << 21 ^ w[:, 3] >> 11) * 2.0**-53)
    result: NDArray[np.float64] = radius * np.where(numbers % 2 == 0, np.cos(angle), np.sin(angle))
    return result


def below(s: Words, address: int, salt: int, n: int) -> int:
    """A uniform integer in 0 .. n-1: of each word w, (w n) >> 32, unless its low half is unfair."""
    unfair = (2**32 - n) % n
    attempt = 0
    while True:
        block = blocks(s, [address | (salt + (attempt << 16)) << 32])[0]
        for w in block.tolist():
            if (w * n) & 0xFFFFFFFF >= unfair:
                return int(w * n >> 32)
        attempt += 1


def permutation(key: Key, purpose: Purpose, n: int) -> list[int]:
    """The whole permutation of 0 .. n-1."""
    s = stream(key, purpose)
    return shuffle(s, n) if n <= EXACT_SHUFFLE else [feistel(s, n, i) for i in range(n)]


def shuffle(s: Words, n: int) -> list[int]:
    """Fisher-Yates."""
    order = list(range(n))
    for i in range(n):
        j = i + below(s, i, 0, n - i)
        order[i], order[j] = order[j], order[i]
    return order


def feistel(s: Words, n: int, i: int) -> int:
    """Where the keyed bijection of 0 .. n-1 sends i."""
    a, b = feistel_sides(n)
    while True:
        left, right = divmod(i, b)
        for r in range(ROUNDS):
            if r % 2 == 0:
                left = (left + below(s, right, r, a)) % a
            else:
                right = (right + below(s, left, r, b)) % b
        i = left * b + right
        if i < n:
            return i
