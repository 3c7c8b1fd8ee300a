"""Keyed randomness: every random number is a pure function of a key and an address.

There is no generator and no state. A `Key` says which draw is meant (seed, step, node,
index), a `Purpose` says what for, and Philox4x32-10 (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", 2011) turns the two and a coordinate into 32 random bits.
So a run resumes bit for bit, a node rebuilds its own sketch from four integers, and any
slice of a mask can be made without the rest of it.

The layout is a file format (checkpoints and peers rely on it), version `LAYOUT`:

====================  =====================================================================
stage 1, the stream   Philox key      ``(seed mod 2^32, seed >> 32)``
                      Philox counter  ``(step mod 2^32, step >> 32 | purpose << 16, node, index)``
                      its four output words are the stream ``(s0, s1, s2, s3)``
stage 2, the words    Philox key      ``(s0, s1)``
                      Philox counter  ``(j mod 2^32, j >> 32, s2, s3)`` gives block j of four words
word i of a stream    word ``i mod 4`` of block ``i // 4``
mask of coordinate i  kept where word i < t, so with probability exactly ``t / 2^32``
uniform number i      ``(word 2i << 21 ^ word 2i+1 >> 11) / 2^53``
normal i              Box-Muller of block ``i // 2``: radius from words 0 and 1, angle from 2 and 3
integer below n       multiply-shift with rejection (Lemire 2019), exactly uniform; address a and
                      salt s try the words of the blocks ``a + 2^32 (s + 2^16 attempt)``
permutation, n small  n <= `EXACT_SHUFFLE`: Fisher-Yates, step i swaps i with ``i + below(n - i)``
permutation, n large  a Feistel network of `ROUNDS` rounds on ``[a] x [b]``, a = ceil(sqrt n),
                      b = ceil(n / a), cycle walking back into ``[n]``
====================  =====================================================================

`mast.support.philox` computes this fast, `tests/randomness/reference.py` readably, and a test compares
the two bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from mast.errors import ArgumentError
from mast.support.checks import check_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

LAYOUT = 1  #: version of the layout above; raise it when any bit changes
EXACT_SHUFFLE = 1 << 16  #: up to this size a permutation is an exact shuffle, above it a Feistel network
ROUNDS = 8  #: of the Feistel network
LARGEST_PERMUTATION = 1 << 60


class Purpose(IntEnum):
    """What a random number is for: two purposes of one key share nothing."""

    MASK = 1  # which coordinates a Bernoulli sketch keeps
    NORMAL = 2  # Gaussian scales
    SUBSET = 3  # the subset Rand-K keeps
    PARTITION = 4  # the partition of Perm-K
    BLOCK = 5  # which node gets which block of the partition
    CHOICE = 6  # one element of a finite list: a matrix, a component
    CHILD = 7  # the seeds of a key's children
    ESTIMATE = 8  # the samples of a Monte Carlo estimate
    BATCH = 9  # which terms of a finite sum
    COIN = 10  # refresh or not, in variance reduction
    PARTICIPATION = 11  # which nodes take part in a round
    START = 12  # a random starting point
    SUPPORT = 13  # a finite support sampled from a sketch
    SPLIT = 14  # training and test rows


_BITS = {"seed": 64, "step": 48, "node": 32, "index": 32}


@dataclass(frozen=True, slots=True)
class Key:
    """The name of one draw: four whole numbers, and nothing else, decide it.

    >>> Key(seed=7, step=3)
    Key(seed=7, step=3, node=0, index=0)
    >>> bernoulli(Key(seed=7, step=3), threshold(0.5), 0, 8)
    array([ True,  True, False, False,  True, False, False, False])
    """

    seed: int = 0
    step: int = 0
    node: int = 0
    index: int = 0

    def __post_init__(self) -> None:
        for name, bits in _BITS.items():
            value = getattr(self, name)
            if type(value) is int and value >> bits == 0:
                continue  # as always but for users' own numbers: keys are made at every step
            value = check_int(name, value)
            if not 0 <= value < 1 << bits:
                raise ArgumentError(f"{name} must lie in 0 .. 2^{bits} - 1, got {value}")
            object.__setattr__(self, name, value)

    def words(self, purpose: Purpose) -> NDArray[np.uint32]:
        """The six words that stage 1 reads: two of Philox's key, four of its counter."""
        seed, step = self.seed, self.step
        return np.array(
            [seed & _LOW, seed >> 32, step & _LOW, step >> 32 | purpose << 16, self.node, self.index],
            dtype=np.uint32,
        )

    def child(self, number: int, purpose: Purpose = Purpose.CHILD) -> Key:
        """A key like this one with a seed of its own, for the parts of a composed sketch."""
        derived = Key(self.seed, index=number)
        low, high = words(derived, purpose, 0, 2).tolist()
        return Key(low | high << 32, self.step, self.node, self.index)


_LOW = 0xFFFFFFFF


def threshold(keep: float) -> int:
    """The t with t / 2^32 nearest to `keep`: a mask with it keeps with probability exactly t / 2^32.

    >>> threshold(0.5) == 2**31, threshold(1.0) == 2**32
    (True, True)
    """
    if not 0 < keep <= 1:
        raise ArgumentError(f"keep is a probability in (0, 1], got {keep!r}")
    t = round(keep * 2**32)
    if t == 0:
        raise ArgumentError(f"keep = {keep!r} is below the finest probability there is, 2^-32")
    return t


def words(key: Key, purpose: Purpose, start: int, stop: int) -> NDArray[np.uint32]:
    """Words start .. stop-1 of the stream of `key` and `purpose`."""
    out = np.empty(stop - start, dtype=np.uint32)
    _philox().words(key.words(purpose), None, start, out)
    return out


def bernoulli(key: Key, thresholds: int | NDArray[np.uint64], start: int, stop: int) -> NDArray[np.bool_]:
    """Coordinates start .. stop-1 of a mask; one threshold for all, or one per coordinate."""
    out = np.empty(stop - start, dtype=np.bool_)
    stream = key.words(Purpose.MASK)
    if isinstance(thresholds, np.ndarray):
        _philox().mask_each(stream, thresholds, start, out)
    else:
        _philox().words(stream, np.uint64(thresholds), start, out)
    return out


def normal(key: Key, start: int, stop: int) -> NDArray[np.float64]:
    """Standard normal numbers start .. stop-1."""
    out = np.empty(stop - start)
    _philox().normals(key.words(Purpose.NORMAL), start, out)
    return out


def below(key: Key, purpose: Purpose, n: int, address: int = 0) -> int:
    """A whole number uniform on 0 .. n-1, for n up to 2^32 - 1."""
    return int(_philox().below_key(key.words(purpose), address, n))


def uniform(key: Key, purpose: Purpose, address: int = 0) -> float:
    """A number uniform on [0, 1), a multiple of 2^-53."""
    high, low = (int(w) for w in words(key, purpose, 2 * address, 2 * address + 2))
    return (high << 21 ^ low >> 11) * 2.0**-53


def uniforms(key: Key, purpose: Purpose, nodes: int) -> NDArray[np.float64]:
    """`uniform` for the nodes 0 .. nodes-1 of a key."""
    out = np.empty(nodes)
    _philox().uniforms(key.words(purpose), out)
    return out


def choice(key: Key, purpose: Purpose, cumulative: NDArray[np.float64]) -> int:
    """An index drawn with the probabilities whose running sum is `cumulative`."""
    position = int(np.searchsorted(cumulative, uniform(key, purpose) * cumulative[-1], side="right"))
    return min(position, len(cumulative) - 1)


def permutation(
    key: Key, purpose: Purpose, n: int, start: int = 0, stop: int | None = None
) -> NDArray[np.int64]:
    """Elements start .. stop-1 of a uniform permutation of 0 .. n-1.

    For n above `EXACT_SHUFFLE` the time and memory are those of the part, not of n.

    >>> permutation(Key(seed=1), Purpose.SUBSET, 10**15, 0, 2)
    array([738364685660812, 784670774712261])
    """
    stop = n if stop is None else stop
    if not 0 <= start <= stop <= n:
        raise ArgumentError(f"positions {start} .. {stop} do not lie in a permutation of {n}")
    if n > LARGEST_PERMUTATION:
        raise ArgumentError(f"permutations are of at most 2^60 elements, got {n}")
    out = np.empty(stop - start, dtype=np.int64)
    if n <= EXACT_SHUFFLE:
        _philox().shuffle(key.words(purpose), n, start, out)
    else:
        a, b = feistel_sides(n)
        _philox().feistel(key.words(purpose), n, a, b, ROUNDS, start, out)
    return out


def permuted(key: Key, purpose: Purpose, n: int, position: int) -> int:
    """The element of `permutation(key, purpose, n)` at one position, without making the others."""
    if n > EXACT_SHUFFLE:
        return int(permutation(key, purpose, n, position, position + 1)[0])
    return int(_philox().shuffled(key.words(purpose), n, position))


def feistel_sides(n: int) -> tuple[int, int]:
    """The rectangle a x b, just large enough for n, on which the Feistel network works."""
    a = math.isqrt(n - 1) + 1
    return a, -(-n // a)


def _philox() -> ModuleType:
    """The compiled half of this module, imported when first needed: Numba takes a while to load."""
    from mast.support import philox

    return philox
