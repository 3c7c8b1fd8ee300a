"""How a key becomes the diagonal of S over each weight of a model.

Bernoulli and Gaussian sketches treat every weight by itself: parameter `name` has the draw with the
key ``(seed, step, node, index=name_index(name))``. All others see the sketched weights as one vector,
in the order of `named_parameters`, and have one draw with the key ``(seed, step, node)``.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mast import randomness
from mast.arrays import Array
from mast.nn.tensors.scaling import Memory, compiled, numbers, scales_of, sparsify_into
from mast.nn.tensors.weights import Weight
from mast.randomness import Key, Purpose
from mast.randomness.kernels import stream_words
from mast.sketches import DiagonalDraw, Sketch
from mast.sketches.kept import Entries, Everything, Kept, Mask

_WORTH_A_THREAD = 1 << 19  # coordinates
_LOW = 0xFFFFFFFF
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_SLICE = 1 << 22  # blocks at a time: the int64 intermediates of more would dwarf the weights


class Drawing(ABC):
    """Says what a key keeps of each weight. `number` says which weight."""

    #: on the CPU too, make random words with torch instead of the compiled kernel
    torch_only = False

    @abstractmethod
    def kept(self, number: int, key: Key, like: Tensor) -> Kept:
        """What is kept of a weight that is on the device, and of the type, of `like`."""

    def write(
        self, number: int, key: Key, x: Tensor, v: Tensor | None, y: Tensor, before: Kept | None
    ) -> Kept:
        """Put v + S(x - v) into y, which holds that of the draw `before`; None: it holds anything."""
        kept = self.kept(number, key, x)
        sparsify_into(kept, x, v, y)
        return kept

    @abstractmethod
    def share(self, number: int) -> float:
        """The expected share of the weight that is kept."""

    @abstractmethod
    def sketch_of(self, number: int) -> Sketch:
        """The sketch that this weight is under."""


class PerWeight(Drawing):
    """Each weight has a sketch and a draw of its own."""

    def __init__(self, weights: Sequence[Weight], sketches: Sequence[Sketch]) -> None:
        self.indices = [w.index for w in weights]
        self.shapes = [w.shape for w in weights]
        self.counts = [w.count for w in weights]
        self.sketches = list(sketches)
        self.entries = [entry for entry in (sketch.entry() for sketch in sketches) if entry is not None]
        self._masks = [Memory() for _ in weights]
        self._last: tuple[Key, np.ndarray[Any, np.dtype[np.uint32]]] | None = None  # a key and its words

    def kept(self, number: int, key: Key, like: Tensor) -> Kept:
        """A mask, or normal scales."""
        key, entry = self._key(number, key), self.entries[number]
        shape, count = self.shapes[number], self.counts[number]
        on_cpu = like.device.type == "cpu" and not self.torch_only
        if not entry.sigma:
            if on_cpu:
                mask = torch.from_numpy(randomness.bernoulli(key, entry.threshold, 0, count))
            else:
                mask = torch_mask(key, entry.threshold, count, like.device)
            return Mask(shape, mask, entry.scale)
        noise = (
            torch.from_numpy(randomness.normal(key, 0, count))
            if on_cpu
            else torch_normal(key, count, like.device)
        )
        scales = (1 + entry.sigma * noise).to(torch.promote_types(like.dtype, torch.float32))
        return Everything(shape, scales)

    def write(
        self, number: int, key: Key, x: Tensor, v: Tensor | None, y: Tensor, before: Kept | None
    ) -> Kept:
        """A mask on the CPU: words, mask and product in one pass."""
        entry = self.entries[number]
        if self.torch_only or entry.sigma or not compiled(x, v, y):
            return super().write(number, key, x, v, y, before)
        from mast.sketches import mask_kernels

        mask = self._masks[number].like(x, torch.bool)
        if self._last is None or self._last[0] is not key:
            self._last = (key, key.words(Purpose.MASK))
        words = self._last[1].copy()
        words[5] = self.indices[number]  # as in _key
        old, new, flags = numbers(x), numbers(y), numbers(mask)
        t, c = np.uint64(entry.threshold), old.dtype.type(entry.scale)
        base = None if v is None else numbers(v)
        _in_parts(lambda a, b: mask_kernels.draw(words, t, c, old, base, new, flags, a, b), old.size)
        return Mask(x.shape, mask, entry.scale)

    def share(self, number: int) -> float:
        """The keep probability."""
        return self.entries[number].keep

    def sketch_of(self, number: int) -> Sketch:
        """The sketch of this weight alone."""
        return self.sketches[number]

    def _key(self, number: int, key: Key) -> Key:
        return Key(key.seed, key.step, key.node, self.indices[number])


class Whole(Drawing):
    """All weights are one vector and have one draw; its cost is that of what it keeps."""

    def __init__(self, weights: Sequence[Weight], sketch: Sketch) -> None:
        self.sketch = sketch
        self.shapes = [w.shape for w in weights]
        self.borders = np.cumsum([0] + [w.count for w in weights])
        self.dim = int(self.borders[-1])
        self.sketch.check(self.dim)
        self._last: tuple[Key, list[tuple[Any, Any]]] | None = None  # positions, scales by weight

    def kept(self, number: int, key: Key, like: Tensor) -> Entries:
        """The part of the draw that falls on this weight."""
        if self._last is None or self._last[0] != key:
            self._last = (key, self._by_weight(key))
        positions, scales = self._last[1][number]
        precision = np.float64 if like.dtype == torch.float64 else np.float32
        one = isinstance(scales, float)
        return Entries(
            self.shapes[number], positions, float(precision(scales)) if one else scales.astype(precision)
        )

    def _by_weight(self, key: Key) -> list[tuple[Any, Any]]:
        """The draw, cut at the borders of weights, in no more bytes than are needed: it stays for a step."""
        draw = self.sketch.sample(self.dim, key)
        assert isinstance(draw, DiagonalDraw)
        cuts = np.searchsorted(draw.indices, self.borders)
        parts: list[tuple[Any, Any]] = []
        for border, end, a, b in zip(self.borders, self.borders[1:], cuts, cuts[1:], strict=False):
            positions = np.empty(b - a, dtype=np.int32 if end - border < 1 << 31 else np.int64)
            np.subtract(draw.indices[a:b], border, out=positions, casting="unsafe")
            parts.append((positions, _one_or_each(draw.scales[a:b])))
        return parts

    def write(
        self, number: int, key: Key, x: Tensor, v: Tensor | None, y: Tensor, before: Kept | None
    ) -> Kept:
        """Undo the last draw where it had kept something, then write what this one keeps."""
        if self.torch_only or not isinstance(before, Entries) or not compiled(x, v, y):
            return super().write(number, key, x, v, y, before)
        from mast.sketches.kept import kernels as kept_kernels

        kept = self.kept(number, key, x)
        old, new, base = numbers(x), numbers(y), None if v is None else numbers(v)
        kept_kernels.copy(new, before.indices, base)
        kept_kernels.sparsify(new, kept.indices, scales_of(kept, old.dtype), old, base)
        return kept

    def share(self, number: int) -> float:
        """The share of the whole vector that is kept."""
        return self.sketch.share(self.dim)

    def sketch_of(self, number: int) -> Sketch:
        """The sketch of all weights together."""
        return self.sketch


def _one_or_each(scales: Array) -> float | Array:
    """One number for scales that are equal and lie in one place."""
    return float(scales[0]) if scales.size and scales.strides == (0,) else scales.copy()


def _in_parts(work: Callable[[int, int], None], count: int) -> None:
    """The work on 0 .. count-1, shared among as many threads as torch uses; the result is the same."""
    threads = min(torch.get_num_threads(), count // _WORTH_A_THREAD)
    if threads <= 1:
        work(0, count)
        return
    size = -(-count // threads) + 3 & ~3
    list(_pool(threads).map(lambda a: work(a, min(a + size, count)), range(0, count, size)))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="mast-mask")


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


# ---- random words in plain torch, for parameters that are not on the CPU ---------------------------
#
# Philox4x32-10 of `mast.randomness` in int64 arithmetic: products wrap modulo 2^64, as they should, and a
# mask of 32 bits after each shift makes the sign irrelevant. Nothing is copied to the CPU; only the six words
# of a key travel, as Python numbers.


def blocks(stream: tuple[int, int, int, int], first: int, last: int, device: torch.device) -> Tensor:
    """Blocks first .. last-1 of a stream, one per row, as int64.

    >>> blocks((0, 0, 0, 0), 0, 1, torch.device("cpu"))[0].tolist() == [
    ...     0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    True
    """
    j = torch.arange(first, last, dtype=torch.int64, device=device)
    c0, c1 = j & _LOW, j >> 32
    c2, c3 = torch.full_like(j, stream[2]), torch.full_like(j, stream[3])
    k0, k1 = stream[0], stream[1]
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c2 = ((p1 >> 32) & _LOW) ^ c1 ^ k0, ((p0 >> 32) & _LOW) ^ c3 ^ k1
        c1, c3 = p1 & _LOW, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return torch.stack((c0, c1, c2, c3), dim=1)


def torch_mask(key: Key, threshold: int, count: int, device: torch.device) -> Tensor:
    """Coordinates 0 .. count-1 of a Bernoulli mask, as bool.

    >>> torch_mask(Key(seed=7, step=3), 2**31, 4, torch.device("cpu"))
    tensor([ True,  True, False, False])
    """
    stream = _stream(key, Purpose.MASK)
    last = -(-count // 4)
    parts = [
        blocks(stream, first, min(first + _SLICE, last), device).flatten() < threshold
        for first in range(0, last, _SLICE)
    ]
    return torch.cat(parts)[:count]


def torch_normal(key: Key, count: int, device: torch.device) -> Tensor:
    """Standard normal numbers 0 .. count-1 in float64: the CPU's up to the rounding of log and cos."""
    stream = _stream(key, Purpose.NORMAL)
    last = -(-count // 2)
    parts = []
    for first in range(0, last, _SLICE):
        w = blocks(stream, first, min(first + _SLICE, last), device)
        radius = (-2 * (((w[:, 0] << 21 ^ w[:, 1] >> 11) + 1).double() * 2.0**-53).log()).sqrt()
        angle = 2 * math.pi * ((w[:, 2] << 21 ^ w[:, 3] >> 11).double() * 2.0**-53)
        parts.append(torch.stack((radius * angle.cos(), radius * angle.sin()), dim=1).flatten())
    return torch.cat(parts)[:count]


def _stream(key: Key, purpose: Purpose) -> tuple[int, int, int, int]:
    s0, s1, s2, s3 = stream_words(key.words(purpose)).tolist()
    return s0, s1, s2, s3
