"""Rolling: a window of K coordinates that moves on by one at each step (FedRolex)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mast import randomness
from mast.arrays import Array
from mast.randomness import Key, Purpose
from mast.sketches.base import percent
from mast.sketches.draws import Constants, DiagonalDraw, Draw
from mast.sketches.laws import Atoms
from mast.sketches.rand_k import Counted


class Rolling(Counted):
    """Keep K neighbouring coordinates, times d/K. An int k is a count, a float k a share of d.

    The window starts at ``offset + step``, modulo d; the offset is uniform, made of seed, node and index.
    In d steps every coordinate has been kept equally often. In a network every layer has its window, which
    moves modulo the layer's own size.

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

    def constants(self, d: int) -> Constants:
        """Those of one draw."""
        scale = d / self.count(d)
        return Constants(scale, scale, scale**2)

    def expected_square(self, d: int) -> Array:
        """E[c_i²] = d/K."""
        return np.full(d, d / self.count(d))

    def _second_moment(self, d: int) -> Array:
        """(d/K²) (max(0, K - e) + max(0, K - d + e)) for coordinates at a distance e: windows with both."""
        k, e = self.count(d), np.abs(np.subtract.outer(np.arange(d), np.arange(d)))
        together = np.where(e == 0, k, np.maximum(0, k - e) + np.maximum(0, k - d + e))
        return np.asarray(d / k**2 * together)

    def marginals(self, d: int) -> Atoms:
        """d/K with probability K/d."""
        share = self.count(d) / d
        atoms = [(np.full(d, share), np.full(d, 1 / share))]
        return [*atoms, (np.full(d, 1 - share), np.zeros(d))] if share < 1 else atoms

    def share(self, d: int) -> float:
        """K/d."""
        return self.count(d) / d

    def label(self) -> str:
        """How many coordinates, or which share of them."""
        if isinstance(self.k, float):
            return f"Rolling({self.k!r}): keeps {percent(self.k)}, a window that moves with the step"
        return f"Rolling({self.k}): keeps {self.k} neighbouring coordinate{'s' * (self.k > 1)}"
