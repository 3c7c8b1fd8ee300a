"""Mixture: first draw which sketch, then draw its S. One training run for several densities."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from mast import randomness
from mast.arrays import Array
from mast.checks import listed
from mast.errors import ArgumentError
from mast.randomness import Key, Purpose
from mast.sketches.base import Constants, Draw, Sketch
from mast.sketches.laws import Atoms
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
        self.diagonal = all(s.diagonal for _, s in self._components())

    def _components(self) -> list[tuple[float, Sketch]]:
        return [(w, s) for w, s in zip(self.weights.tolist(), self.sketches, strict=True) if w > 0]

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        """If all components are."""
        return all(s.unbiased for _, s in self._components())

    def sample(self, d: int, key: Key) -> Draw:
        """The draw of the component that `key` chooses."""
        self._check(d)
        i = randomness.choice(key, Purpose.CHOICE, np.cumsum(self.weights))
        return self.sketches[i].sample(d, key.child(i))

    def mean(self, d: int) -> Array:
        """The weighted mean of the components' means."""
        return np.asarray(sum(w * s.mean(d) for w, s in self._components()))

    def _constants(self, d: int) -> Constants:
        square = self.expected_square(d)
        eigenvalues = square if self.diagonal else np.linalg.eigvalsh(square)
        L_max = max(s._constants(d).L_max for _, s in self._components())
        return Constants(float(eigenvalues.max()), float(eigenvalues.min()), L_max)

    def expected_square(self, d: int) -> Array:
        """The weighted mean of the components' E[S'S]."""
        self._check(d)
        squares = [(w, s.expected_square(d)) for w, s in self._components()]
        if not self.diagonal:
            squares = [(w, np.diag(square) if square.ndim == 1 else square) for w, square in squares]
        return np.asarray(sum(w * square for w, square in squares))

    def second_moment(self, d: int) -> Array:
        """The weighted mean of the components'."""
        self._check(d)
        return np.asarray(sum(w * s.second_moment(d) for w, s in self._components()))

    def sandwich(self, H: Array) -> Array:
        """The weighted mean of the components'."""
        self._check(H.shape[0])
        return np.asarray(sum(w * s.sandwich(H) for w, s in self._components()))

    def support_size(self, d: int) -> int | None:
        """The sum of the components' sizes."""
        total = 0
        for _, s in self._components():
            size = s.support_size(d)
            if size is None:
                return None
            total += size
        return total

    def _support(self, d: int) -> Iterator[tuple[float, Draw]]:
        for w, s in self._components():
            for probability, draw in s._support(d):
                yield w * probability, draw

    def components(self) -> list[tuple[float, Sketch]]:
        """The components that have a positive weight."""
        return self._components()

    def marginals(self, d: int) -> Atoms | None:
        """All values of all components."""
        self._check(d)
        atoms: Atoms = []
        for w, s in self._components():
            inner = s.marginals(d)
            if inner is None:
                return None
            atoms += [(w * p, c) for p, c in inner]
        return atoms

    @property
    def stride(self) -> int:
        """A common multiple of the components'."""
        return math.lcm(*(s.stride for s in self.sketches))

    def _check(self, d: int) -> int:
        d = super()._check(d)
        for s in self.sketches:
            s._check(d)
        return d

    def _label(self) -> str:
        parts = ", ".join(f"{w:.4g} x {s._label()}" for w, s in self._components())
        return f"Mixture({parts})"
