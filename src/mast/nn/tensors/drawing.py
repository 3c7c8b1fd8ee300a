"""How a key becomes the diagonal of S over each weight of a model.

Bernoulli and Gaussian sketches treat every weight by itself: parameter `name` has the draw with the
key ``(seed, step, node, index=name_index(name))``. All others see the sketched weights as one vector,
in the order of `named_parameters`, and have one draw with the key ``(seed, step, node)``.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mast import randomness
from mast.arrays import Array
from mast.nn.tensors.scaling import Memory, compiled, numbers, replace_entries, sparsify_into
from mast.nn.tensors.torch_words import torch_mask, torch_normal
from mast.nn.tensors.weights import Weight
from mast.randomness import Key, Purpose
from mast.sketches import Constants, DiagonalDraw, Draw, Sketch
from mast.sketches.kept import Entries, Everything, Kept, Mask

_WORTH_A_THREAD = 1 << 19  # coordinates


class Drawing(ABC):
    """Says what a key keeps of each weight. `number` says which weight."""

    #: on the CPU too, make random words with torch instead of the compiled kernel
    torch_only = False

    def __init__(self, weights: Sequence[Weight], sketch: Sketch) -> None:
        self.weights, self.sketch = weights, sketch
        self.dim = sum(w.count for w in weights)

    @abstractmethod
    def kept(self, number: int, key: Key, like: Tensor) -> Kept:
        """What is kept of a weight that is on the device, and of the type, of `like`."""

    def write(
        self, number: int, key: Key, x: Tensor, v: Tensor | None, y: Tensor, before: Kept | None
    ) -> Kept:
        """Put v + S(x - v) into y, which holds that of the draw `before`; None: it holds anything."""
        kept = self.kept(number, key, x)
        plain = self.torch_only or not compiled(x, v, y)
        if isinstance(before, Entries) and isinstance(kept, Entries) and not plain:
            replace_entries(before, kept, x, v, y)
        else:
            sparsify_into(kept, x, v, y)
        return kept

    def share(self, number: int) -> float:
        """The expected share of the weight that is kept."""
        return self.sketch.share(self.weights[number].count)

    def constants(self) -> Constants:
        """Of S over all sketched weights. Where a list drops a weight always, that is not trained."""
        c = self.sketch.constants(self.dim)
        return Constants(max(c.L_D, 1.0), max(c.mu_D, 1.0), max(c.L_max, 1.0), c.estimated)

    def state(self) -> dict[str, Tensor]:
        """What a resumed run needs besides the key: nothing, unless the weights of earlier steps count."""
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from such a state."""
        assert not tensors


class PerWeight(Drawing):
    """Each weight is a vector of its own.

    Its key knows its name, unless the sketch draws one share, or window, for all layers.
    """

    def __init__(self, weights: Sequence[Weight], sketch: Sketch, sketches: Sequence[Sketch]) -> None:
        super().__init__(weights, sketch)
        self.sketches = sketches
        for w, own in zip(weights, sketches, strict=True):
            own.check(w.count)

    def kept(self, number: int, key: Key, like: Tensor) -> Kept:
        """The draw in the dimension of this weight."""
        draw = self.sketches[number].sample(self.weights[number].count, self.key_of(number, key))
        return entries_of(self.weights[number], draw, like)

    def key_of(self, number: int, key: Key) -> Key:
        """The key of this weight's draw."""
        if self.sketch.per_layer:
            return key
        return Key(key.seed, key.step, key.node, self.weights[number].index)

    def share(self, number: int) -> float:
        """The share that its own sketch keeps."""
        return self.sketches[number].share(self.weights[number].count)

    def constants(self) -> Constants:
        """The worst of all weights."""
        pairs = zip(self.sketches, self.weights, strict=True)
        return Constants.of_parts([sketch.constants(w.count) for sketch, w in pairs])


class Alike(PerWeight):
    """Each weight by itself, and all its coordinates are alike: a mask, or normal scales."""

    def __init__(self, weights: Sequence[Weight], sketch: Sketch, sketches: Sequence[Sketch]) -> None:
        super().__init__(weights, sketch, sketches)
        self.entries = [entry for own in sketches if (entry := own.entry()) is not None]
        self._masks = [Memory() for _ in weights]
        self._last: tuple[Key, np.ndarray[Any, np.dtype[np.uint32]]] | None = None  # a key and its words

    def kept(self, number: int, key: Key, like: Tensor) -> Kept:
        """A mask, or normal scales."""
        key, entry, w = self.key_of(number, key), self.entries[number], self.weights[number]
        on_cpu = like.device.type == "cpu" and not self.torch_only
        if not entry.sigma:
            if on_cpu:
                mask = torch.from_numpy(randomness.bernoulli(key, entry.threshold, 0, w.count))
            else:
                mask = torch_mask(key, entry.threshold, w.count, like.device)
            return Mask(w.shape, mask, entry.scale)
        if on_cpu:
            noise = torch.from_numpy(randomness.normal(key, 0, w.count))
        else:
            noise = torch_normal(key, w.count, like.device)
        scales = (1 + entry.sigma * noise).to(torch.promote_types(like.dtype, torch.float32))
        return Everything(w.shape, scales)

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
        words[5] = self.weights[number].index  # as in key_of
        old, new, flags = numbers(x), numbers(y), numbers(mask)
        t, c = np.uint64(entry.threshold), old.dtype.type(entry.scale)
        base = None if v is None else numbers(v)
        _in_parts(lambda a, b: mask_kernels.draw(words, t, c, old, base, new, flags, a, b), old.size)
        return Mask(x.shape, mask, entry.scale)


class Whole(Drawing):
    """All weights are one vector and have one draw; its cost is that of what it keeps."""

    def __init__(self, weights: Sequence[Weight], sketch: Sketch) -> None:
        super().__init__(weights, sketch)
        self.borders = np.cumsum([0] + [w.count for w in weights])
        sketch.check(self.dim)
        self._last: tuple[Key, list[tuple[Any, Any]]] | None = None  # positions, scales by weight

    def kept(self, number: int, key: Key, like: Tensor) -> Entries:
        """The part of the draw that falls on this weight."""
        if self._last is None or self._last[0] != key:
            self._last = (key, self._by_weight(key))
        positions, scales = self._last[1][number]
        precision = precision_of(like)
        one = isinstance(scales, float)
        return Entries(
            self.weights[number].shape,
            positions,
            float(precision(scales)) if one else scales.astype(precision),
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

    def share(self, number: int) -> float:
        """The share of the whole vector that is kept."""
        return self.sketch.share(self.dim)


def entries_of(w: Weight, draw: Draw, like: Tensor) -> Entries:
    """What a diagonal draw keeps of a weight."""
    assert isinstance(draw, DiagonalDraw)
    return Entries(w.shape, draw.indices, draw.scales.astype(precision_of(like)))


def precision_of(like: Tensor) -> type:
    """The type of the scales of a weight."""
    return np.float64 if like.dtype == torch.float64 else np.float32


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
