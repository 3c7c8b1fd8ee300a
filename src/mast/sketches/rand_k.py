"""Rand-K: a uniform subset of exactly K coordinates survives. Training with a fixed budget of weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from mast import randomness
from mast.arrays import Array, Indices
from mast.checks import whole
from mast.errors import ArgumentError
from mast.randomness import Key, Purpose
from mast.sketches.base import Constants, DiagonalDraw, Draw, Sketch, everything, percent
from mast.sketches.units import Kind, Units, units_of


class RandK(Sketch):
    """Keep K coordinates, uniformly, times d/K. An int k is a count, a float k a share of d.

    >>> import mast
    >>> mast.RandK(2).constants(10)
    Constants(L_D=5.0, mu_D=5.0, L_max=25.0)
    >>> mast.RandK(0.25).draw(8, seed=3).diagonal()
    array([0., 0., 4., 0., 4., 0., 0., 0.])

    The cost of a draw is that of what it keeps, also in very large dimensions:

    >>> mast.RandK(3).draw(10**12).indices
    array([ 36621755825, 133582402317, 367840726896])
    """

    def __init__(self, k: int | float) -> None:
        if isinstance(k, float | np.floating):
            if not 0 < k <= 1:
                raise ArgumentError(f"RandK with a float k keeps that share of d, in (0, 1]; got {k!r}")
            self.k: int | float = float(k)
        else:
            self.k = whole("RandK's k", k)
            if self.k < 1:
                raise ArgumentError(f"RandK keeps at least one coordinate, got k = {k}")

    def count(self, d: int) -> int:
        """How many coordinates survive in dimension d; a share is rounded, to at least one."""
        d = self._check(d)
        return max(1, math.floor(self.k * d + 0.5)) if isinstance(self.k, float) else self.k

    def sample(self, d: int, key: Key) -> Draw:
        """The subset of `key`."""
        k = self.count(d)
        indices = np.sort(randomness.permutation(key, Purpose.SUBSET, d, 0, k))
        return DiagonalDraw(d, indices, np.full(k, d / k))

    def _constants(self, d: int) -> Constants:
        scale = d / self.count(d)
        return Constants(scale, scale, scale**2)

    def expected_square(self, d: int) -> Array:
        """d/K everywhere."""
        return np.full(d, d / self.count(d))

    def second_moment(self, d: int) -> Array:
        """Two different coordinates survive together with probability K(K-1)/(d(d-1))."""
        k = self.count(d)
        moment = np.full((d, d), d * (k - 1) / (k * (d - 1)) if d > 1 else 1.0)
        np.fill_diagonal(moment, d / k)
        return moment

    def support_size(self, d: int) -> int:
        """All K-subsets."""
        return math.comb(d, self.count(d))

    def _support(self, d: int) -> Iterator[tuple[float, Draw]]:
        k = self.count(d)
        probability = 1 / math.comb(d, k)
        for kept in combinations(range(d), k):
            yield probability, DiagonalDraw(d, np.array(kept, dtype=np.int64), np.full(k, d / k))

    def separable(self, d: int) -> tuple[Indices, int] | None:
        """Rand-1 keeps one of d blocks of one coordinate."""
        return (everything(d), d) if self.count(d) == 1 else None

    def units(self, d: int) -> Units | None:
        """The coordinates."""
        return None if d > randomness.EXACT_SHUFFLE else self.structure(d)

    def structure(self, d: int) -> Units:
        """The coordinates."""
        k = self.count(d)
        return units_of(Kind.SUBSET, everything(d), d, np.full(d, d / k), k)

    def _check(self, d: int) -> int:
        d = super()._check(d)
        if not isinstance(self.k, float) and self.k > d:
            raise ArgumentError(f"RandK({self.k}) cannot keep {self.k} of d = {d} coordinates")
        return d

    def _label(self) -> str:
        if isinstance(self.k, float):
            return f"RandK({self.k!r}): keeps {percent(self.k)}"
        return f"RandK({self.k}): keeps {self.k} coordinate{'s' * (self.k > 1)}"
