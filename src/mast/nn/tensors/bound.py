"""A sketch and the model that it acts on: how a key becomes the diagonal of S over each weight.

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
from mast.errors import ArgumentError, NotDiagonalError
from mast.nn.tensors.sparsified import Memory, compiled, numbers, replace_entries, sparsify_into
from mast.nn.tensors.torch_words import torch_mask, torch_normal
from mast.nn.tensors.weights import Weight
from mast.randomness import Key, Purpose
from mast.sketches import Bernoulli, Constants, Sampled, Sketch
from mast.sketches.draws import DiagonalDraw, Draw, FullDraw, MaskDraw
from mast.sketches.independent import Entry, entry_of
from mast.sketches.lists import same_for_layers
from mast.support.checks import Array

_WORTH_A_THREAD = 1 << 19  # coordinates


class BoundSketch(ABC):
    """Says what a key keeps of each weight of a model. `number` says which weight."""

    sketch: Any
    #: on the CPU too, make random words with torch instead of the compiled kernel
    torch_only = False

    @abstractmethod
    def kept(self, number: int, key: Key, like: Tensor) -> Draw:
        """What is kept of a weight that is on the device, and of the type, of `like`."""

    @abstractmethod
    def share(self, number: int) -> float:
        """The expected share of the weight that is kept."""

    @abstractmethod
    def constants(self) -> Constants:
        """Of S over all sketched weights."""

    def write(
        self, number: int, key: Key, x: Tensor, v: Tensor | None, y: Tensor, before: Draw | None
    ) -> Draw:
        """Put v + S(x - v) into y, which holds that of the draw `before`; None: it holds anything."""
        kept = self.kept(number, key, x)
        plain = self.torch_only or not compiled(x, v, y)
        if isinstance(before, DiagonalDraw) and isinstance(kept, DiagonalDraw) and not plain:
            replace_entries(before, kept, x, v, y)
        else:
            sparsify_into(kept, x, v, y)
        return kept

    def observer(self, number: int) -> Callable[[Tensor], None] | None:
        """What wants to see the gradients of a weight before they are multiplied by S'; None: nothing."""
        return None

    def state(self) -> dict[str, Tensor]:
        """What a resumed run needs besides the key: nothing, unless the weights of earlier steps count."""
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from such a state."""
        if tensors:
            raise ArgumentError(f"{self.sketch!r} chooses nothing that lasts, the state has {min(tensors)!r}")


class BoundWeights(BoundSketch):
    """A sketch over single weights, in one of three ways. Made by `bind`.

    - `joint`: all weights are one vector and have one draw, whose cost is that of what it keeps.
    - A list of draws (`members`): each is made as the list's sketch makes it, when it is needed.
    - Otherwise each weight is a vector of its own. Its key knows its name, unless the sketch draws one share,
      or window, for all layers. Where all coordinates have one law (`entries`), the draw is a mask, or has
      normal scales.
    """

    def __init__(self, weights: Sequence[Weight], sketch: Sketch) -> None:
        self.weights, self.sketch = weights, sketch
        self.borders = np.cumsum([0] + [w.count for w in weights])
        self.dim = int(self.borders[-1])
        self.joint = not same_for_layers(sketch) and entry_of(sketch) is None
        self.members: BoundWeights | None = None
        if isinstance(sketch, Sampled):
            members = BoundWeights(weights, sketch.sketch)
            self.joint, self.members = members.joint, None if members.joint else members
        self.sketches = [] if self.members is not None else [_with_keep(sketch, w) for w in weights]
        self.entries: list[Entry | None] = [None] * len(weights)
        if self.joint:
            sketch.check(self.dim)
        elif self.members is None:
            for number, (w, own) in enumerate(zip(weights, self.sketches, strict=True)):
                own.check(w.count)
                self.entries[number] = None if same_for_layers(sketch) else entry_of(own)
        self._masks = [Memory() for _ in weights]
        self._words: tuple[Key, np.ndarray[Any, np.dtype[np.uint32]]] | None = None  # a key and its words
        self._vector: tuple[Key, list[tuple[Any, Any]]] | None = None  # positions, scales by weight
        self._last: tuple[Key, Key] | None = None  # a key, and that of its member
        self._means: dict[int, Array] = {}  # of the members, by weight

    def kept(self, number: int, key: Key, like: Tensor) -> Draw:
        """The draw over this weight, or what falls on it of one over all."""
        if self.joint:
            return self._of_vector(number, key, like)
        if self.members is not None:
            return self._of_list(self.members, number, self.sketch.member_of(key), like)
        w, entry, key = self.weights[number], self.entries[number], self.key_of(number, key)
        if entry is None:
            return entries_of(w, self.sketches[number].sample(w.count, key), like)
        on_cpu = like.device.type == "cpu" and not self.torch_only
        if not entry.sigma:
            if on_cpu:
                mask = torch.from_numpy(randomness.bernoulli(key, entry.threshold, 0, w.count))
            else:
                mask = torch_mask(key, entry.threshold, w.count, like.device)
            return MaskDraw(w.shape, mask, entry.scale)
        if on_cpu:
            noise = torch.from_numpy(randomness.normal(key, 0, w.count))
        else:
            noise = torch_normal(key, w.count, like.device)
        scales = (1 + entry.sigma * noise).to(torch.promote_types(like.dtype, torch.float32))
        return FullDraw(w.shape, scales)

    def key_of(self, number: int, key: Key) -> Key:
        """The key of this weight's draw, if it has one of its own."""
        if same_for_layers(self.sketch):
            return key
        return Key(key.seed, key.step, key.node, self.weights[number].index)

    def write(
        self, number: int, key: Key, x: Tensor, v: Tensor | None, y: Tensor, before: Draw | None
    ) -> Draw:
        """A mask on the CPU: words, mask and product in one pass. A plain list is as fast as its sketch."""
        if self.members is not None and not (self.sketch.corrected or self.sketch.balanced):
            return self.members.write(number, self._member_key(key), x, v, y, before)
        entry = self.entries[number]
        if entry is None or entry.sigma or self.torch_only or not compiled(x, v, y):
            return super().write(number, key, x, v, y, before)
        from mast.sketches.draws.kernels import draw_mask

        mask = self._masks[number].like(x, torch.bool)
        if self._words is None or self._words[0] is not key:
            self._words = (key, key.words(Purpose.MASK))
        words = self._words[1].copy()
        words[5] = self.weights[number].index  # as in key_of
        old, new, flags = numbers(x), numbers(y), numbers(mask)
        t, c = np.uint64(entry.threshold), old.dtype.type(entry.scale)
        base = None if v is None else numbers(v)
        _in_parts(lambda a, b: draw_mask(words, t, c, old, base, new, flags, a, b), old.size)
        return MaskDraw(x.shape, mask, entry.scale)

    def share(self, number: int) -> float:
        """The expected share of the weight that is kept; that of a list is near that of its sketch."""
        if self.joint:
            return float(self.sketch.share(self.dim))
        if self.members is not None:
            return self.members.share(number)
        return self.sketches[number].share(self.weights[number].count)

    def constants(self) -> Constants:
        """Of S over all sketched weights. Where a list drops a weight always, that is not trained."""
        if self.members is not None:
            numbers = range(len(self.weights))
            return Constants.of_parts([self._constants_of_list(self.members, number) for number in numbers])
        if not self.joint:
            pairs = zip(self.sketches, self.weights, strict=True)
            return Constants.of_parts([sketch.constants(w.count) for sketch, w in pairs])
        c: Constants = self.sketch.constants(self.dim)
        if not c.unbiased:
            return c
        return Constants(max(c.L_D, 1.0), max(c.mu_D, 1.0), max(c.L_max, 1.0), c.estimated)

    # ---- one vector --------------------------------------------------------------------------

    def _of_vector(self, number: int, key: Key, like: Tensor) -> DiagonalDraw:
        """The part of the draw over all weights that falls on this one."""
        if self._vector is None or self._vector[0] != key:
            self._vector = (key, self._by_weight(key))
        positions, scales = self._vector[1][number]
        one, precision = isinstance(scales, float), precision_of(like)
        rounded = float(precision(scales)) if one else scales.astype(precision)
        return DiagonalDraw(self.weights[number].shape, positions, rounded)

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

    # ---- lists -------------------------------------------------------------------------------

    def _of_list(self, members: BoundWeights, number: int, member: int, like: Tensor) -> Draw:
        """What the member keeps; corrected, each entry is divided by its mean over the list."""
        w = self.weights[number]
        if self.sketch.balanced:
            return entries_of(w, self.sketch.member(w.count, member, w.index), like)
        kept = members.kept(number, self.sketch.member_seed(member), like)
        if not self.sketch.corrected:
            return kept
        places = kept.positions
        scales = np.asarray(kept.each_scale(), dtype=np.float64) / self._mean(members, number)[places]
        return DiagonalDraw(kept.shape, places, scales.astype(precision_of(like)))

    def _constants_of_list(self, members: BoundWeights, number: int) -> Constants:
        """Of the list over one weight, whose draws are its own."""
        n, count, like = self.sketch.n, self.weights[number].count, torch.empty(0, dtype=torch.float64)
        mean, square, largest = np.zeros(count), np.zeros(count), 0.0
        for i in range(n):
            kept = self._of_list(members, number, i, like)
            scales = np.asarray(kept.each_scale(), dtype=np.float64)
            mean[kept.positions] += scales / n
            square[kept.positions] += scales**2 / n
            largest = max(largest, float(np.max(scales**2, initial=0.0)))
        unbiased = bool(np.abs(mean - 1).max() <= 1e-9)
        return Constants(float(square.max()), float(square.min()), largest, unbiased=unbiased)

    def _member_key(self, key: Key) -> Key:
        if self._last is None or self._last[0] != key:
            self._last = (key, self.sketch.member_seed(self.sketch.member_of(key)))
        return self._last[1]

    def _mean(self, members: BoundWeights, number: int) -> Array:
        """The mean over the list of each entry's scale."""
        if number not in self._means:
            mean, like = np.zeros(self.weights[number].count), torch.empty(0, dtype=torch.float64)
            for i in range(self.sketch.n):
                kept = members.kept(number, self.sketch.member_seed(i), like)
                mean[kept.positions] += kept.each_scale()
            self._means[number] = mean / self.sketch.n
        return self._means[number]


def bind(sketch: Sketch, weights: Sequence[Weight]) -> BoundWeights:
    """The sketch over these weights."""
    if not isinstance(sketch, Sketch):
        raise ArgumentError(
            f"the second argument must be a sketch such as mast.Bernoulli(0.7), got {sketch!r}"
        )
    if not sketch.diagonal:
        raise NotDiagonalError(
            f"{sketch!r} is not diagonal: S'g would mix the gradients of all parameters, which are never "
            "together in one place during a backward pass. Networks take diagonal sketches"
        )
    bound = BoundWeights(weights, sketch)
    if isinstance(sketch, Sampled) and sketch.balanced and any(w.keep is not None for w in weights):
        raise ArgumentError("a balanced list keeps all weights equally often: keep= is for lists without it")
    return bound


def _with_keep(sketch: Sketch, w: Weight) -> Sketch:
    """The sketch of one weight, which may have a keep probability of its own."""
    if w.keep is None:
        return sketch
    if not isinstance(sketch, Bernoulli) or entry_of(sketch) is None:
        share = "one for each entry" if isinstance(w.keep, np.ndarray) else f"{w.keep:.6g}"
        raise ArgumentError(
            f"keep gives {w.name!r} a keep probability of its own ({share}), which "
            f"only Bernoulli sketches can have, not {sketch!r}; keep = 1 leaves a parameter out"
        )
    return type(sketch)(w.keep)


def entries_of(w: Weight, draw: Draw, like: Tensor) -> DiagonalDraw:
    """What a diagonal draw keeps of a weight."""
    assert isinstance(draw, DiagonalDraw)
    return DiagonalDraw(w.shape, draw.indices, draw.scales.astype(precision_of(like)))


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
