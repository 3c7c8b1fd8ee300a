"""Sketches that keep K coordinates: Rand-K, a uniform subset, and Rolling, a window that moves."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from mast import randomness
from mast.errors import ArgumentError
from mast.randomness import Key, Purpose
from mast.sketches.base import Sketch, percent
from mast.sketches.constants import Constants
from mast.sketches.draws import DiagonalDraw, Draw, equal_scales
from mast.sketches.laws import Law, PairLaw, SubsetLaw
from mast.support.checks import Array, check_int


class Counted(Sketch):
    """A sketch that keeps K coordinates, times d/K. An int k is a count, a float k a share of d."""

    def __init__(self, k: int | float) -> None:
        kind = type(self).__name__
        if isinstance(k, float | np.floating):
            if not 0 < k <= 1:
                raise ArgumentError(f"{kind} with a float k keeps that share of d, in (0, 1]; got {k!r}")
            self.k: int | float = float(k)
        else:
            self.k = check_int(f"{kind}'s k", k, 1)

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

    def law(self, d: int) -> Law:
        """A subset of K coordinates."""
        return SubsetLaw.of(d, d, {self.count(d): 1})

    def label(self) -> str:
        """How many coordinates, or which share of them."""
        if isinstance(self.k, float):
            return f"RandK({self.k!r}): keeps {percent(self.k)}"
        return f"RandK({self.k}): keeps {self.k} coordinate{'s' * (self.k > 1)}"


class Rolling(Counted):
    """Keep K neighbouring coordinates, times d/K: a window that moves on by one at each step (FedRolex).

    An int k is a count, a float k a share of d. The window starts at ``offset + step``, modulo d; the offset
    is uniform, made of seed, node and index. In d steps every coordinate has been kept equally often. In a
    network every layer has its window, which moves modulo the layer's own size.

    The constants describe one draw. Windows of several steps depend on each other, so no statement covers a
    run that uses them one after the other: there is no guarantee and no step size of the theory.

    >>> import mast
    >>> rolling = mast.Rolling(2)
    >>> [rolling.draw(5, step=step).indices.tolist() for step in range(3)]
    [[1, 2], [2, 3], [3, 4]]
    >>> rolling.constants(5)
    Constants(L_D=2.5, mu_D=2.5, L_max=6.25)
    """

    per_layer = True
    independent = False

    def start(self, d: int, key: Key) -> int:
        """Where the window of `key` starts."""
        offset = randomness.below(Key(key.seed, 0, key.node, key.index), Purpose.CHOICE, d)
        return (offset + key.step) % d

    def window(self, d: int, start: int) -> DiagonalDraw:
        """The window that starts there, around the end if need be."""
        k = self.count(d)
        return DiagonalDraw(d, np.sort((start + np.arange(k)) % d), np.full(k, d / k))

    def sample(self, d: int, key: Key) -> Draw:
        """The window of `key`."""
        return self.window(d, self.start(d, key))

    def support_size(self, d: int) -> int:
        """One window for each start."""
        return self.check(d)

    def outcomes(self, d: int) -> Iterator[tuple[float, Draw]]:
        """One window for each start, alike."""
        return ((1 / d, self.window(d, start)) for start in range(self.check(d)))

    def law(self, d: int) -> Law:
        """By themselves, coordinates do what those of Rand-K do."""
        k = self.count(d)
        return PairLaw(d, d, k / d, d / k, pairs=lambda: _windows_with_both(d, k))

    def constants(self, d: int) -> Constants:
        """Those of Rand-K."""
        scale = d / self.count(d)
        return Constants(scale, scale, scale**2)

    def label(self) -> str:
        """How many coordinates, or which share of them."""
        if isinstance(self.k, float):
            return f"Rolling({self.k!r}): keeps {percent(self.k)}, a window that moves with the step"
        return f"Rolling({self.k}): keeps {self.k} neighbouring coordinate{'s' * (self.k > 1)}"


def _windows_with_both(d: int, k: int) -> Array:
    """E[c_i c_j]: (d/K²) (max(0, K - e) + max(0, K - d + e)) for coordinates at a distance e."""
    e = np.abs(np.subtract.outer(np.arange(d), np.arange(d)))
    together = np.where(e == 0, k, np.maximum(0, k - e) + np.maximum(0, k - d + e))
    return np.asarray(d / k**2 * together)
