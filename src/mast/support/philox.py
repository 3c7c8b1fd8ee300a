"""Philox4x32-10 and what is drawn with it, compiled. `tests/randomness/reference.py` says the same readably.

Small functions marked forceinline are the building blocks that other rooms' kernels use too; LLVM inlines
them, which compiles three times as fast as if Numba did (inline="always") and runs as fast.
`derive` a stream from a key, then ask for its words by address.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, uint32, uint64

_M0 = np.uint64(0xD2511F53)
_M1 = np.uint64(0xCD9E8D57)
_W0 = np.uint32(0x9E3779B9)
_W1 = np.uint32(0xBB67AE85)
_32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


@njit(forceinline=True)
def philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    """Four words from a counter of four words and a key of two."""
    for _ in range(10):
        p0 = _M0 * uint64(c0)
        p1 = _M1 * uint64(c2)
        c0 = uint32(uint32(p1 >> _32) ^ c1 ^ k0)
        c2 = uint32(uint32(p0 >> _32) ^ c3 ^ k1)
        c1 = uint32(p1)
        c3 = uint32(p0)
        k0 = uint32(k0 + _W0)
        k1 = uint32(k1 + _W1)
    return c0, c1, c2, c3


#: the same for loops over many blocks: inlined by Numba itself, which compiles longer and vectorises better
wide_philox: Any = njit(inline="always")(philox.py_func)


@njit(forceinline=True)
def derive(key: Any) -> Any:
    """Stage 1: the stream of a key's six words."""
    return philox(key[2], key[3], key[4], key[5], key[0], key[1])


@njit(forceinline=True)
def block(stream: Any, j: Any) -> Any:
    """Stage 2: block j of a stream."""
    return philox(uint32(uint64(j)), uint32(uint64(j) >> _32), stream[2], stream[3], stream[0], stream[1])


@njit(forceinline=True)
def word(stream: Any, i: Any) -> Any:
    """Word i of a stream."""
    w0, w1, w2, w3 = block(stream, i >> 2)
    r = i & 3
    return w0 if r == 0 else (w1 if r == 1 else (w2 if r == 2 else w3))


@njit(forceinline=True)
def below(stream: Any, address: Any, salt: Any, n: Any) -> Any:
    """A uniform integer in 0 .. n-1, n < 2^32: multiply-shift, rejecting what would be unfair."""
    bound = uint64(n)
    unfair = ((uint64(1) << _32) - bound) % bound
    attempt = uint64(0)
    result = uint64(0)
    done = False
    while not done:
        high = uint64(salt) + (attempt << uint64(16))
        w = block(stream, uint64(address) | high << _32)
        for r in range(4):
            product = uint64(w[r]) * bound
            if (product & _LOW) >= unfair:
                result = product >> _32
                done = True
                break
        attempt += uint64(1)
    return np.int64(result)


@njit(forceinline=True)
def _below(w: Any, threshold: Any) -> Any:
    """Whether a word is below the threshold; the word itself where that is None."""
    return w if threshold is None else uint64(w) < threshold


@njit(inline="always")
def aligned_words(stream: Any, threshold: Any, start: Any, out: Any) -> None:
    """Words start .. of a stream, or which of them are below the threshold; start is a multiple of 4.

    It is inlined by Numba itself, which makes several blocks at once.
    """
    s0, s1, s2, s3 = stream
    blocks = out.size >> 2
    for j in range(blocks):
        c = uint64((start >> 2) + j)
        w0, w1, w2, w3 = wide_philox(uint32(c), uint32(c >> _32), s2, s3, s0, s1)
        out[4 * j] = _below(w0, threshold)
        out[4 * j + 1] = _below(w1, threshold)
        out[4 * j + 2] = _below(w2, threshold)
        out[4 * j + 3] = _below(w3, threshold)
    for i in range(4 * blocks, out.size):
        out[i] = _below(word(stream, start + i), threshold)


@njit(cache=True)
def words(key: Any, threshold: Any, start: int, out: Any) -> None:
    """Words start .. of the stream of `key`; with a threshold, which of them are below it."""
    stream = derive(key)
    first = min(out.size, -start & 3)  # up to the first whole block
    for i in range(first):
        out[i] = _below(word(stream, start + i), threshold)
    aligned_words(stream, threshold, start + first, out[first:])


@njit(cache=True)
def mask_each(key: Any, thresholds: Any, start: int, out: Any) -> None:
    """Which coordinates have a word below their own threshold; in pieces that stay in the cache."""
    drawn = np.empty(min(out.size, 4096), dtype=np.uint32)
    for first in range(0, out.size, 4096):
        piece = out[first : first + 4096]
        limits = thresholds[first : first + 4096]
        words(key, None, start + first, drawn[: piece.size])
        for i in range(piece.size):
            piece[i] = uint64(drawn[i]) < limits[i]


@njit(cache=True)
def normals(key: Any, start: int, out: Any) -> None:
    """Standard normals by Box-Muller, two per block."""
    stream = derive(key)
    for j in range(start >> 1, (start + out.size + 1) >> 1):
        w0, w1, w2, w3 = block(stream, j)
        u = ((uint64(w0) << uint64(21) ^ uint64(w1) >> uint64(11)) + uint64(1)) * 2.0**-53  # (0, 1]
        angle = 2 * math.pi * ((uint64(w2) << uint64(21) ^ uint64(w3) >> uint64(11)) * 2.0**-53)
        radius = math.sqrt(-2 * math.log(u))
        i = 2 * j - start
        if i >= 0:
            out[i] = radius * math.cos(angle)
        if i + 1 < out.size:
            out[i + 1] = radius * math.sin(angle)


@njit(cache=True)
def uniforms(key: Any, out: Any) -> None:
    """Uniform number 0 of each of the nodes 0, 1, ..., with the rest of their key in common."""
    for node in range(out.size):
        w0, w1, _, _ = block(philox(key[2], key[3], uint32(node), key[5], key[0], key[1]), 0)
        out[node] = (uint64(w0) << uint64(21) ^ uint64(w1) >> uint64(11)) * 2.0**-53


@njit(cache=True)
def below_key(key: Any, address: int, n: int) -> int:
    """`below` for callers outside of kernels."""
    result: int = below(derive(key), address, 0, n)
    return result


@njit(cache=True)
def shuffle(key: Any, n: int, start: int, out: Any) -> None:
    """Elements start .. of a Fisher-Yates shuffle of 0 .. n-1."""
    stream = derive(key)
    stop = start + out.size
    order = np.arange(n, dtype=np.int32)
    for i in range(stop):
        j = i + below(stream, i, 0, n - i)
        order[i], order[j] = order[j], order[i]
    for i in range(start, stop):
        out[i - start] = order[i]


@njit(forceinline=True)
def shuffled_in(stream: Any, n: Any, position: Any) -> Any:
    """One element of that shuffle, by following its swaps backwards: no array of n is made."""
    place = position + below(stream, position, 0, n - position)
    for i in range(position - 1, -1, -1):
        if place == i + below(stream, i, 0, n - i):
            place = i
    return place


@njit(cache=True)
def shuffled(key: Any, n: int, position: int) -> int:
    """`shuffled_in` for callers outside of kernels."""
    result: int = shuffled_in(derive(key), n, position)
    return result


@njit(forceinline=True)
def feistel_element(
    stream: Any, n: Any, a: Any, b: Any, rounds: Any, position: Any, table: Any = None
) -> Any:
    """One element of a keyed bijection of 0 .. n-1: rounds on [a] x [b], walking back into [n].

    The values of the round functions are computed, or read from a table.
    """
    y = position
    while True:
        left = y // b
        right = y - left * b
        for r in range(rounds):
            if r & 1 == 0:
                left += below(stream, right, r, a) if table is None else table[r, right]
                left -= a if left >= a else 0
            else:
                right += below(stream, left, r, b) if table is None else table[r, left]
                right -= b if right >= b else 0
        y = left * b + right
        if y < n:
            break
    return y


@njit(cache=True)
def feistel(key: Any, n: int, a: int, b: int, rounds: int, start: int, out: Any) -> None:
    """Elements start .. of that bijection.

    A round function takes at most max(a, b) ~ sqrt(n) values, so it is tabulated when the
    part is large, and computed on demand when it is small: the same bits either way.
    """
    stream = derive(key)
    if out.size * 2 <= a + b:
        for i in range(out.size):
            out[i] = feistel_element(stream, n, a, b, rounds, start + i)
        return
    table = np.empty((rounds, max(a, b)), dtype=np.int64)
    for r in range(rounds):
        arguments, values = (b, a) if r & 1 == 0 else (a, b)
        for x in range(arguments):
            table[r, x] = below(stream, x, r, values)
    for i in range(out.size):
        out[i] = feistel_element(stream, n, a, b, rounds, start + i, table)


@njit(cache=True)
def stream_words(key: Any) -> Any:
    """`derive` for callers outside of kernels."""
    return np.array(derive(key), dtype=np.uint32)
