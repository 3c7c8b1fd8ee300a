"""Rand-K: a uniform subset of exactly K coordinates survives. Training with a fixed budget of weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from mast import randomness
from mast.checks import whole
from mast.errors import ArgumentError
from mast.randomness import Key, Purpose
from mast.sketches.base import Sketch, percent
from mast.sketches.draws import DiagonalDraw, Draw, equal_scales
from mast.sketches.laws import DrawKind, Law


class Counted(Sketch):
    """A sketch that keeps K coordinates, times d/K. An int k is a count, a float k a share of d."""

    def __init__(self, k: int | float) -> None:
        kind = type(self).__name__
        if isinstance(k, float | np.floating):
            if not 0 < k <= 1:
                raise ArgumentError(f"{kind} with a float k keeps that share of d, in (0, 1]; got {k!r}")
            self.k: int | float = float(k)
        else:
            self.k = whole(f"{kind}'s k", k, 1)

    def count(self, d: int) -> int:
        """How many coordinates survive in dimension d; a share is rounded, to at least one."""
        d = self.check(d)
        return max(1, self._rounded(self.k * d)) if isinstance(self.k, float) else self.k

    def _rounded(self, number: float) -> int:
        return round(number)

    def _at(self, density: float) -> Sketch:
        return type(self)(density)

    def check(self, d: int) -> int:
        """The dimension d, or an error if it is smaller than K."""
        d = super().check(d)
        if not isinstance(self.k, float) and self.k > d:
            raise ArgumentError(
                f"{type(self).__name__}({self.k}) cannot keep {self.k} of d = {d} coordinates"
            )
        return d


class RandK(Counted):
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

    def _rounded(self, number: float) -> int:
        return math.floor(number + 0.5)  # of two equally near the larger

    def sample(self, d: int, key: Key) -> Draw:
        """The subset of `key`."""
        k = self.count(d)
        indices = randomness.permutation(key, Purpose.SUBSET, d, 0, k)
        indices.sort()
        return DiagonalDraw(d, indices, equal_scales(k, d / k))

    def support_size(self, d: int) -> int:
        """All K-subsets."""
        return math.comb(d, self.count(d))

    def outcomes(self, d: int) -> Iterator[tuple[float, Draw]]:
        """All K-subsets."""
        k = self.count(d)
        probability = 1 / math.comb(d, k)
        for kept in combinations(range(d), k):
            yield probability, DiagonalDraw(d, np.array(kept, dtype=np.int64), np.full(k, d / k))

    def law(self, d: int) -> Law:
        """A subset of K coordinates."""
        kind = None if d > randomness.EXACT_SHUFFLE else DrawKind.SUBSET
        return Law.subsets(d, d, {self.count(d): 1}, kind=kind)

    def label(self) -> str:
        """How many coordinates, or which share of them."""
        if isinstance(self.k, float):
            return f"RandK({self.k!r}): keeps {percent(self.k)}"
        return f"RandK({self.k}): keeps {self.k} coordinate{'s' * (self.k > 1)}"
