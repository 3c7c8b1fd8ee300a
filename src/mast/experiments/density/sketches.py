"""Sketches of the accuracy-density curves: what the networks are trained with, and drawn with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from mast import randomness
from mast.arrays import Indices
from mast.randomness import Key, Purpose
from mast.sketches import Bernoulli, DiagonalDraw, Draw, Mixture, RandK, Sketch, UnscaledBernoulli


class NestedDensities(Sketch):
    """One fixed order of the coordinates: a draw picks a density and keeps that share of them from the front.

    So what is kept at 25 % is kept at 50 % too, and at each density there is one subset only. It is
    biased: the first coordinates are kept more often than the last. Survivors are scaled by 1/share.

    >>> nested = NestedDensities([0.25, 0.75])
    >>> nested.at(0.25).draw(4).indices, nested.at(0.75).draw(4).indices
    (array([3]), array([0, 2, 3]))
    """

    unbiased = False

    def __init__(self, densities: Sequence[float], order: int = 0) -> None:
        self.densities, self.order = tuple(densities), order

    def at(self, density: float) -> NestedDensities:
        """Always this density, in the same order."""
        return NestedDensities([density], self.order)

    def sample(self, d: int, key: Key) -> Draw:
        """The front of the order; the density is the same for all parts of a model (all indices of a key)."""
        number = randomness.below(Key(key.seed, key.step, key.node), Purpose.CHOICE, len(self.densities))
        return self._front(d, self.densities[number], key.index)

    def _front(self, d: int, density: float, part: int) -> Draw:
        kept = RandK(float(density)).count(d)
        indices = np.flatnonzero(_ranks(d, self.order, part) < kept)
        return DiagonalDraw(d, indices, np.full(kept, d / kept))

    def outcomes(self, d: int) -> Iterator[tuple[float, Draw]]:
        """One draw for each density, of a model in one part."""
        return ((1 / len(self.densities), self._front(d, density, 0)) for density in self.densities)

    def label(self) -> str:
        """The densities."""
        return f"Nested({', '.join(f'{100 * p:g} %' for p in self.densities)})"


@lru_cache(maxsize=16)
def _ranks(d: int, order: int, part: int) -> Indices:
    """The place of each coordinate in the order."""
    places = randomness.permutation(Key(order, index=part), Purpose.PARTITION, d)
    ranks = np.empty(d, dtype=np.int64)
    ranks[places] = np.arange(d)
    return ranks


def over(structure: str, sketch: Sketch) -> Sketch:
    """The sketch over weights as it is, or over the units of each hidden layer."""
    if structure == "weights":
        return sketch
    from mast.nn import Neurons

    return Neurons(sketch)


def kept(structure: str, density: float, scaled: bool = True) -> Sketch:
    """A random share: each weight by itself, or an exact share of the units of each hidden layer."""
    if structure == "weights":
        return Bernoulli(density) if scaled else UnscaledBernoulli(density)
    return over(structure, RandK(float(density)))


def training_sketch(contender: str, structure: str, densities: Sequence[float], seed: int) -> Sketch:
    """What a MAST contender is trained with: one density, or several, one of them in each step."""
    if contender == "nested":
        return over(structure, NestedDensities(densities, seed))
    parts: list[Sketch] = [Bernoulli(p) if structure == "weights" else RandK(float(p)) for p in densities]
    return over(structure, parts[0] if len(parts) == 1 else Mixture(parts))
