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
from mast.errors import ArgumentError, NotDiagonalError
from mast.nn.tensors.scaling import Memory, compiled, numbers, replace_entries, sparsify_into
from mast.nn.tensors.torch_words import torch_mask, torch_normal
from mast.nn.tensors.weights import Weight
from mast.randomness import Key, Purpose
from mast.sketches import Constants, DiagonalDraw, Draw, Sampled, Sketch
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
        if not c.unbiased:
            return c
        return Constants(max(c.L_D, 1.0), max(c.mu_D, 1.0), max(c.L_max, 1.0), c.estimated)

    def state(self) -> dict[str, Tensor]:
        """What a resumed run needs besides the key: nothing, unless the weights of earlier steps count."""
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from such a state."""
        if tensors:
            raise ArgumentError(f"{self.sketch!r} chooses nothing that lasts, the state has {min(tensors)!r}")


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
        from mast.sketches.kernels import draw_mask

        mask = self._masks[number].like(x, torch.bool)
        if self._last is None or self._last[0] is not key:
            self._last = (key, key.words(Purpose.MASK))
        words = self._last[1].copy()
        words[5] = self.weights[number].index  # as in key_of
        old, new, flags = numbers(x), numbers(y), numbers(mask)
        t, c = np.uint64(entry.threshold), old.dtype.type(entry.scale)
        base = None if v is None else numbers(v)
        _in_parts(lambda a, b: draw_mask(words, t, c, old, base, new, flags, a, b), old.size)
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
        one, precision = isinstance(scales, float), precision_of(like)
        rounded = float(precision(scales)) if one else scales.astype(precision)
        return Entries(self.weights[number].shape, positions, rounded)

    def _by_weight(self, key: Key) -> list[tuple[Any, Any]]:
        """The draw, cut at the borders of weights, in no more bytes than are needed: it stays for a step."""
        draw = self.sketch.sample(self.dim, key)
        assert isinstance(draw, DiagonalDraw)
        cuts = np.searchsorted(draw.indices, self.borders)
        parts: list[tuple[Any, Any]] = []
        for border, end, a, b in zip(self.borders, self.borders[1:], cuts, cuts[1:], strict=False):
            positions = np.empty(b - a, dtype=np.int32 if end - border < 1 << 31 else np.int64)
            np.subtract(draw.indices[a:b], border, out=positions, casting="unsafe")
            scales = draw.scales[a:b]
            one = scales.size and scales.strides == (0,)  # equal scales, in one place
            parts.append((positions, float(scales[0]) if one else scales.copy()))
        return parts

    def share(self, number: int) -> float:
        """The share of the whole vector that is kept."""
        return self.sketch.share(self.dim)


class Listed(Drawing):
    """A list of n draws: each is made as the sketch of the list makes it, when it is needed."""

    sketch: Sampled

    def __init__(self, weights: Sequence[Weight], sketch: Sampled, inner: Drawing) -> None:
        super().__init__(weights, sketch)
        self.inner = inner
        self._last: tuple[Key, Key] | None = None  # a key, and that of its member
        self._means: dict[int, Array] = {}

    def kept(self, number: int, key: Key, like: Tensor) -> Kept:
        """What the member keeps; corrected, each entry is divided by its mean over the list."""
        w = self.weights[number]
        if self.sketch.balanced:
            return entries_of(w, self.sketch.member(w.count, self.sketch.member_of(key), w.index), like)
        kept = self.inner.kept(number, self._member(key), like)
        if not self.sketch.corrected:
            return kept
        places = kept.positions
        scales = np.asarray(kept.each_scale(), dtype=np.float64) / self._mean(number)[places]
        return Entries(kept.shape, places, scales.astype(precision_of(like)))

    def write(
        self, number: int, key: Key, x: Tensor, v: Tensor | None, y: Tensor, before: Kept | None
    ) -> Kept:
        """As fast as the sketch itself, unless it is corrected or balanced."""
        if self.sketch.corrected or self.sketch.balanced:
            return super().write(number, key, x, v, y, before)
        return self.inner.write(number, self._member(key), x, v, y, before)

    def _member(self, key: Key) -> Key:
        if self._last is None or self._last[0] != key:
            self._last = (key, self.sketch.member_seed(self.sketch.member_of(key)))
        return self._last[1]

    def _mean(self, number: int) -> Array:
        """The mean over the list of each entry's scale."""
        if number not in self._means:
            mean, like = np.zeros(self.weights[number].count), torch.empty(0, dtype=torch.float64)
            for i in range(self.sketch.n):
                kept = self.inner.kept(number, self.sketch.member_seed(i), like)
                mean[kept.positions] += kept.each_scale()
            self._means[number] = mean / self.sketch.n
        return self._means[number]

    def share(self, number: int) -> float:
        """The share that the sketch keeps: that of the list is near."""
        return self.inner.share(number)


def drawing_of(sketch: Sketch, weights: Sequence[Weight]) -> Drawing:
    """The way this sketch is drawn over these weights."""
    if not isinstance(sketch, Sketch):
        raise ArgumentError(
            f"the second argument must be a sketch such as mast.Bernoulli(0.7), got {sketch!r}"
        )
    if not sketch.diagonal:
        raise NotDiagonalError(
            f"{sketch!r} is not diagonal: S'g would mix the gradients of all parameters, which are never "
            "together in one place during a backward pass. Networks take diagonal sketches"
        )
    if isinstance(sketch, Sampled):
        inner = drawing_of(sketch.sketch, weights)
        if sketch.balanced and any(w.keep is not None for w in weights):
            raise ArgumentError(
                "a balanced list keeps all weights equally often: keep= is for lists without it"
            )
        return Whole(weights, sketch) if isinstance(inner, Whole) else Listed(weights, sketch, inner)
    if hasattr(sketch, "drawing"):  # what is kept follows from the weights themselves
        own: Drawing = sketch.drawing(weights)
        return own
    excepted = [w for w in weights if w.keep is not None]
    each = [sketch if w.keep is None else sketch.with_keep(w.keep) for w in weights]
    if excepted and (sketch.entry() is None or None in each):
        raise ArgumentError(
            f"keep gives {excepted[0].name!r} a keep probability of its own ({excepted[0].keep!s:.9}), which "
            f"only Bernoulli sketches can have, not {sketch!r}; keep = 1 leaves a parameter out"
        )
    if not sketch.per_layer and sketch.entry() is None:
        return Whole(weights, sketch)
    one_by_one = sketch.per_layer or any(isinstance(w.keep, np.ndarray) for w in weights)
    return (PerWeight if one_by_one else Alike)(weights, sketch, [own or sketch for own in each])


def entries_of(w: Weight, draw: Draw, like: Tensor) -> Entries:
    """What a diagonal draw keeps of a weight."""
    assert isinstance(draw, DiagonalDraw)
    return Entries(w.shape, draw.indices, draw.scales.astype(precision_of(like)))


def precision_of(like: Tensor) -> type:
    """The type of the scales of a weight."""
    return np.float64 if like.dtype == torch.float64 else np.float32


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
