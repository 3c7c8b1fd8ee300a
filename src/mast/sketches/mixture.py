"""Mixture: first draw which sketch, then draw its S. One training run for several densities."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from mast import randomness
from mast.checks import listed
from mast.errors import ArgumentError
from mast.randomness import Key, Purpose
from mast.sketches.base import Sketch
from mast.sketches.draws import Draw
from mast.sketches.matrices import probabilities


class Mixture(Sketch):
    """Sketch i with probability weights[i] (uniform if no weights are given).

    Each component draws with a seed of its own, derived from the draw's, so that
    components, also nested ones, are independent of each other and of the choice.

    >>> import mast
    >>> mast.Mixture([mast.Bernoulli(0.5), mast.Bernoulli(0.25)], [0.5, 0.5]).constants(3)
    Constants(L_D=3.0, mu_D=3.0, L_max=16.0)
    """

    def __init__(self, sketches: Sequence[Sketch], weights: ArrayLike | None = None) -> None:
        self.sketches: list[Sketch] = listed("sketches", sketches)
        if not self.sketches or not all(isinstance(s, Sketch) for s in self.sketches):
            raise ArgumentError("Mixture takes a list of at least one sketch")
        self.weights = probabilities("weights", weights, len(self.sketches))
        self.diagonal = all(sketch.diagonal for _, sketch in self.components())
        self.unbiased = all(sketch.unbiased for _, sketch in self.components())
        self.independent = all(sketch.independent for _, sketch in self.components())

    def components(self) -> list[tuple[float, Sketch]]:
        """The components that have a positive weight."""
        return [(w, s) for w, s in zip(self.weights.tolist(), self.sketches, strict=True) if w > 0]

    def choose(self, key: Key) -> tuple[Sketch, Key]:
        """The component that `key` chooses, and the key that it draws with."""
        i = randomness.choice(key, Purpose.CHOICE, np.cumsum(self.weights))
        return self.sketches[i].choose(key.child(i))

    def sample(self, d: int, key: Key) -> Draw:
        """The draw of the component that `key` chooses."""
        self.check(d)
        sketch, child = self.choose(key)
        return sketch.sample(d, child)

    def support_size(self, d: int) -> int | None:
        """The sum of the components' sizes."""
        sizes = [sketch.support_size(d) for _, sketch in self.components()]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def outcomes(self, d: int) -> Iterator[tuple[float, Draw]] | None:
        """Those of all components."""
        parts = [(weight, sketch.outcomes(d)) for weight, sketch in self.components()]
        if any(outcomes is None for _, outcomes in parts):
            return None
        return ((weight * p, draw) for weight, outcomes in parts for p, draw in outcomes or ())

    @property
    def stride(self) -> int:
        """A common multiple of the components'."""
        return math.lcm(*(sketch.stride for sketch in self.sketches))

    def check(self, d: int) -> int:
        """The dimension d, or an error if a component cannot be drawn in it."""
        d = super().check(d)
        for sketch in self.sketches:
            sketch.check(d)
        return d

    def label(self) -> str:
        """The components with their weights."""
        parts = ", ".join(f"{w:.4g} x {sketch.label()}" for w, sketch in self.components())
        return f"Mixture({parts})"
