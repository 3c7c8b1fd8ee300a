"""Bernoulli: each coordinate survives on its own with probability keep. On weights this is DropConnect.

A mask compares 32 random bits with a threshold t, so it keeps with probability exactly
t / 2^32. That number, at most 2^-33 away from the keep that was asked for, is the one
that scales the survivors and that enters all constants: E[S] = I holds exactly.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mast import randomness
from mast.arrays import Array, frozen, vector
from mast.errors import ArgumentError, BiasedSketchError
from mast.randomness import Key
from mast.sketches.base import Constants, DiagonalDraw, Draw, Sketch, everything, percent
from mast.sketches.units import Kind, Units, units_of


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
        self._check(d)
        indices = np.flatnonzero(randomness.bernoulli(key, self.thresholds, 0, d))
        return DiagonalDraw(d, indices, self._scales(d)[indices])

    def _scales(self, d: int) -> Array:
        """What a survivor is multiplied with, per coordinate."""
        return np.broadcast_to(1 / np.asarray(self.keep), (d,))

    def _keep(self, d: int) -> Array:
        return np.broadcast_to(np.asarray(self.keep), (self._check(d),))

    def _constants(self, d: int) -> Constants:
        least, most = float(np.min(self.keep)), float(np.max(self.keep))
        return Constants(1 / least, 1 / most, 1 / least**2)

    def expected_square(self, d: int) -> Array:
        """E[c_i²]: keep times the squared scale."""
        keep = self._keep(d)
        return keep * self._scales(d) ** 2

    def second_moment(self, d: int) -> Array:
        """Coordinates are independent: a product of means, but for the diagonal."""
        mean = self.mean(d)
        moment = np.outer(mean, mean)
        np.fill_diagonal(moment, self.expected_square(d))
        return moment

    def support_size(self, d: int) -> int:
        """Two for each coordinate that may be dropped."""
        return 1 << int((self._keep(d) < 1).sum())

    def _support(self, d: int) -> Iterator[tuple[float, Draw]]:
        keep, scales = self._keep(d), self._scales(d)
        free = np.flatnonzero(keep < 1)
        mask = np.ones(d, dtype=bool)
        for number in range(1 << free.size):
            mask[free] = number >> np.arange(free.size) & 1
            indices = np.flatnonzero(mask)
            yield float(np.where(mask, keep, 1 - keep).prod()), DiagonalDraw(d, indices, scales[indices])

    def units(self, d: int) -> Units:
        """The coordinates, each with its threshold."""
        thresholds = np.broadcast_to(np.asarray(self.thresholds, dtype=np.uint64), (self._check(d),))
        return units_of(Kind.MASK, everything(d), d, self._scales(d), 0, thresholds)

    def _check(self, d: int) -> int:
        d = super()._check(d)
        if isinstance(self.keep, np.ndarray) and self.keep.size != d:
            raise ArgumentError(f"keep has {self.keep.size} entries, but the dimension is {d}")
        return d

    def _label(self) -> str:
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

    def mean(self, d: int) -> Array:
        """E[c]: the keep probabilities."""
        return self._keep(d).copy()

    def _scales(self, d: int) -> Array:
        return np.broadcast_to(1.0, (d,))

    def _constants(self, d: int) -> Constants:
        raise BiasedSketchError("the original dropout has no constants")


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
