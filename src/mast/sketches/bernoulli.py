"""Bernoulli: each coordinate survives on its own with probability keep. On weights this is DropConnect.

A mask compares 32 random bits with a threshold t, so it keeps with probability exactly
t / 2^32. That number, at most 2^-33 away from the keep that was asked for, is the one
that scales the survivors and that enters all constants: E[S] = I holds exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mast import randomness
from mast.arrays import Array, frozen, vector
from mast.errors import ArgumentError
from mast.randomness import Key
from mast.sketches.base import Sketch, percent
from mast.sketches.draws import DiagonalDraw, Draw
from mast.sketches.laws import DrawKind, Entry, Law


class Bernoulli(Sketch):
    """Coordinate i becomes c_i x_i with c_i = 1/keep_i with probability keep_i, else 0.

    `keep` is one number for all coordinates or one per coordinate. The attribute `keep`
    holds the probability that is really used, a multiple of 2^-32.

    >>> import mast
    >>> mast.Bernoulli(0.5).constants(10)
    Constants(L_D=2.0, mu_D=2.0, L_max=4.0)
    >>> mast.Bernoulli(0.5).draw(6, seed=1).diagonal()
    array([0., 2., 2., 2., 0., 2.])
    """

    def __init__(self, keep: ArrayLike) -> None:
        if np.ndim(keep) == 0:
            share = float(vector("keep", np.atleast_1d(keep))[0])
            self.thresholds: int | NDArray[np.uint64] = randomness.threshold(share)
            self.keep: float | Array = self.thresholds / 2**32
        else:
            shares = vector("keep", keep)
            if shares.size == 0:
                raise ArgumentError("keep has no entries: give one number, or one per coordinate")
            self.thresholds = _thresholds(shares)
            self.keep = frozen(self.thresholds / 2**32)

    def sample(self, d: int, key: Key) -> Draw:
        """The mask of `key`, and the scales of the survivors."""
        self.check(d)
        indices = np.flatnonzero(randomness.bernoulli(key, self.thresholds, 0, d))
        return DiagonalDraw(d, indices, self._scales(d)[indices])

    def _scales(self, d: int) -> Array:
        """What a survivor is multiplied with, per coordinate."""
        return np.broadcast_to(1 / np.asarray(self.keep), (d,))

    def _keep(self, d: int) -> Array:
        return np.broadcast_to(np.asarray(self.keep), (self.check(d),))

    def support_size(self, d: int) -> int:
        """Two for each coordinate that may be dropped."""
        return 1 << int((self._keep(d) < 1).sum())

    def outcomes(self, d: int) -> Iterator[tuple[float, Draw]]:
        """All masks of the coordinates that may be dropped."""
        keep, scales = self._keep(d), self._scales(d)
        free = np.flatnonzero(keep < 1)
        mask = np.ones(d, dtype=bool)
        for number in range(1 << free.size):
            mask[free] = number >> np.arange(free.size) & 1
            indices = np.flatnonzero(mask)
            yield float(np.where(mask, keep, 1 - keep).prod()), DiagonalDraw(d, indices, scales[indices])

    def law(self, d: int) -> Law:
        """Each coordinate by itself."""
        return Law(self.check(d), d, self.keep, 1 / np.asarray(self.keep), kind=DrawKind.MASK)

    def entry(self) -> Entry | None:
        """One coordinate, if all have the same probability."""
        if isinstance(self.thresholds, np.ndarray):
            return None
        return Entry(self.thresholds, float(self._scales(1)[0]))

    def with_keep(self, keep: ArrayLike) -> Sketch:
        """The same kind with these keep probabilities."""
        return type(self)(keep)

    def _at(self, density: float) -> Sketch:
        return type(self)(density)

    def check(self, d: int) -> int:
        """The dimension d, or an error if there are more or fewer probabilities."""
        d = super().check(d)
        if isinstance(self.keep, np.ndarray) and self.keep.size != d:
            raise ArgumentError(f"keep has {self.keep.size} entries, but the dimension is {d}")
        return d

    def label(self) -> str:
        """The keep probability."""
        if isinstance(self.keep, np.ndarray):
            average = percent(float(self.keep.mean()))
            return f"{type(self).__name__}(one keep per coordinate): keeps {average} on average"
        return f"{type(self).__name__}({self.keep:.6g}): keeps {percent(self.keep)}"


class UnscaledBernoulli(Bernoulli):
    """The original dropout: survivors are not rescaled, so E[S] = keep, and no theory applies.

    Its masks are those of `Bernoulli` with the same key.

    >>> import mast
    >>> mast.UnscaledBernoulli(0.5).draw(6, seed=1).diagonal()
    array([0., 1., 1., 1., 0., 1.])
    """

    unbiased = False

    def _scales(self, d: int) -> Array:
        return np.broadcast_to(1.0, (d,))

    def law(self, d: int) -> Law:
        """Each coordinate by itself, times 1."""
        return replace(super().law(d), scales=1.0, unbiased=False)


def _thresholds(shares: Array) -> NDArray[np.uint64]:
    """`randomness.threshold` of each; the first bad one is named."""
    rounded = np.rint(shares * 2.0**32)
    bad = np.flatnonzero(~((shares > 0) & (shares <= 1) & (rounded > 0)))
    if bad.size:
        try:
            randomness.threshold(float(shares[bad[0]]))
        except ArgumentError as error:
            raise ArgumentError(f"{error} (coordinate {bad[0]})") from None
    return rounded.astype(np.uint64)
