"""`drawing_of`: in which way a sketch is drawn over the weights of a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mast.arrays import Array
from mast.errors import ArgumentError, NotDiagonalError
from mast.nn.tensors.drawing import Alike, Drawing, PerWeight, Whole, entries_of, precision_of
from mast.nn.tensors.top_share import TopDrawing, TopShare
from mast.nn.tensors.weights import Weight
from mast.randomness import Key
from mast.sketches import Sampled, Sketch
from mast.sketches.kept import Entries, Kept


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
    if isinstance(sketch, TopShare):
        return TopDrawing(weights, sketch)
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
