"""More ways to draw: a share or window of each layer, a member of a list, probabilities entry by entry."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mast.nn.tensors.drawing import Drawing, Whole
from mast.nn.tensors.weights import Weight
from mast.randomness import Key
from mast.sketches import DiagonalDraw, Sampled, Sketch
from mast.sketches.kept import Entries, Kept


class PerLayer(Whole):
    """Each weight is a vector of its own, drawn with one key for all: `Nested` and `Rolling`."""

    def __init__(self, weights: Sequence[Weight], sketch: Sketch) -> None:
        super().__init__(weights, sketch)
        self.counts = [w.count for w in weights]
        for count in self.counts:
            sketch.check(count)

    def kept(self, number: int, key: Key, like: Tensor) -> Entries:
        """The draw in the dimension of this weight."""
        draw = self.sketch.sample(self.counts[number], key)
        assert isinstance(draw, DiagonalDraw)
        return Entries(self.shapes[number], draw.indices, draw.scales.astype(_precision(like)))

    def share(self, number: int) -> float:
        """The share of this weight that is kept."""
        return self.sketch.share(self.counts[number])


class Listed(Drawing):
    """A list of n draws: each is made as the sketch of the list makes it, when it is needed."""

    def __init__(self, sketch: Sampled, inner: Drawing, weights: Sequence[Weight]) -> None:
        self.sketch, self.inner = sketch, inner
        self.counts = [w.count for w in weights]
        self.shapes, self.indices = [w.shape for w in weights], [w.index for w in weights]
        self._last: tuple[Key, Key] | None = None  # a key, and that of its member
        self._means: dict[int, np.ndarray[tuple[int], np.dtype[np.float64]]] = {}

    def kept(self, number: int, key: Key, like: Tensor) -> Kept:
        """What the member keeps; corrected, each entry is divided by its mean over the list."""
        if self.sketch.balanced:
            return self._balanced(number, self.sketch.member_of(key), like)
        kept = self.inner.kept(number, self._member(key), like)
        if not self.sketch.corrected:
            return kept
        places = kept.positions
        scales = np.asarray(kept.each_scale(), dtype=np.float64) / self._mean(number)[places]
        return Entries(kept.shape, places, scales.astype(_precision(like)))

    def write(
        self, number: int, key: Key, x: Tensor, v: Tensor | None, y: Tensor, before: Kept | None
    ) -> Kept:
        """As fast as the sketch itself, unless it is corrected or balanced."""
        if self.sketch.corrected or self.sketch.balanced:
            return super().write(number, key, x, v, y, before)
        return self.inner.write(number, self._member(key), x, v, y, before)

    def _balanced(self, number: int, member: int, like: Tensor) -> Entries:
        """A draw of a balanced list, over this weight."""
        draw = self.sketch.member(self.counts[number], member, self.indices[number])
        return Entries(self.shapes[number], draw.indices, draw.scales.astype(_precision(like)))

    def _member(self, key: Key) -> Key:
        if self._last is None or self._last[0] != key:
            self._last = (key, self.sketch.member_seed(self.sketch.member_of(key)))
        return self._last[1]

    def _mean(self, number: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """The mean over the list of each entry's scale."""
        if number not in self._means:
            mean, like = np.zeros(self.counts[number]), torch.empty(0, dtype=torch.float64)
            for i in range(self.sketch.n):
                kept = self.inner.kept(number, self.sketch.member_seed(i), like)
                mean[kept.positions] += kept.each_scale()
            self._means[number] = mean / self.sketch.n
        return self._means[number]

    def share(self, number: int) -> float:
        """The share that the sketch keeps: that of the list is near."""
        return self.inner.share(number)

    def sketch_of(self, number: int) -> Sketch:
        """The list."""
        return self.sketch


class PerEntry(Drawing):
    """Every entry of a weight has a keep probability of its own."""

    def __init__(self, weights: Sequence[Weight], sketches: Sequence[Sketch]) -> None:
        self.sketches = list(sketches)
        self.shapes = [w.shape for w in weights]
        self.indices = [w.index for w in weights]
        for w, sketch in zip(weights, sketches, strict=True):
            sketch.check(w.count)

    def kept(self, number: int, key: Key, like: Tensor) -> Entries:
        """The draw of this weight, with a key that knows its name, as of Bernoulli sketches of one number."""
        key = Key(key.seed, key.step, key.node, self.indices[number])
        draw = self.sketches[number].sample(self.shapes[number].numel(), key)
        assert isinstance(draw, DiagonalDraw)
        return Entries(self.shapes[number], draw.indices, draw.scales.astype(_precision(like)))

    def share(self, number: int) -> float:
        """The mean of its probabilities."""
        return self.sketches[number].share(self.shapes[number].numel())

    def sketch_of(self, number: int) -> Sketch:
        """The sketch of this weight alone."""
        return self.sketches[number]


def _precision(like: Tensor) -> type:
    return np.float64 if like.dtype == torch.float64 else np.float32
