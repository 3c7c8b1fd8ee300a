"""Sketches that treat every coordinate by itself: Identity, Bernoulli (and unscaled), and Gaussian."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mast import randomness
from mast.errors import ArgumentError
from mast.randomness import Key
from mast.sketches.base import Sketch, percent
from mast.sketches.draws import DiagonalDraw, Draw
from mast.sketches.laws import IndependentLaw, Law, SubsetLaw
from mast.support.checks import Array, check_positive, frozen, vector


class Identity(Sketch):
    """Keep everything: S = I always. Sparsified training with it is plain training.

    >>> import mast
    >>> mast.Identity().constants(3)
    Constants(L_D=1.0, mu_D=1.0, L_max=1.0)
    """

    def sample(self, d: int, key: Key) -> Draw:
        """I."""
        return DiagonalDraw(d, np.arange(d), np.ones(d))

    def law(self, d: int) -> Law:
        """One unit that holds everything."""
        return SubsetLaw.of(d, 1, {1: 1}, labels=lambda: np.zeros(d, dtype=np.int64))

    def _at(self, density: float) -> Sketch:
        return Bernoulli(density)

    def label(self) -> str:
        """That it keeps everything."""
        return "Identity(): keeps 100 %"


class Bernoulli(Sketch):
    """Coordinate i becomes c_i x_i with c_i = 1/keep_i with probability keep_i, else 0.

    On weights this is DropConnect. `keep` is one number for all coordinates or one per coordinate. A mask
    compares 32 random bits with a threshold t, so it keeps with probability exactly t / 2^32. The attribute
    `keep` holds that number, at most 2^-33 away from the one that was asked for: it scales the survivors
    and enters all constants, so that E[S] = I holds exactly.

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
            self.fixed_dim = shares.size

    def sample(self, d: int, key: Key) -> Draw:
        """The mask of `key`, and the scales of the survivors."""
        self.check(d)
        indices = np.flatnonzero(randomness.bernoulli(key, self.thresholds, 0, d))
        return DiagonalDraw(d, indices, np.broadcast_to(self.scales(), (d,))[indices])

    def scales(self) -> Array:
        """What a survivor is multiplied with, one for all or one per coordinate."""
        return 1 / np.asarray(self.keep)

    def law(self, d: int) -> Law:
        """Each coordinate by itself."""
        return IndependentLaw(self.check(d), d, self.keep, self.scales(), unbiased=self.unbiased)

    def with_keep(self, keep: ArrayLike) -> Sketch:
        """The same kind with these keep probabilities."""
        return type(self)(keep)

    def _at(self, density: float) -> Sketch:
        return type(self)(density)

    def label(self) -> str:
        """The keep probability."""
        if isinstance(self.keep, np.ndarray):
            average = percent(float(self.keep.mean()))
            return f"{type(self).__name__}(one keep per coordinate): keeps {average} on average"
        return f"{type(self).__name__}({self.keep:.6g}): keeps {percent(self.keep)}"


class UnscaledBernoulli(Bernoulli):
    """The original dropout: survivors are not rescaled, so E[S] is keep, not I.

    DSGD has its step size all the same; what compares f_D with f does not apply.

    Its masks are those of `Bernoulli` with the same key.

    >>> import mast
    >>> mast.UnscaledBernoulli(0.5).draw(6, seed=1).diagonal()
    array([0., 1., 1., 1., 0., 1.])
    """

    unbiased = False

    def scales(self) -> Array:
        """One."""
        return np.ones(())


class Gaussian(Sketch):
    """Multiply by N(1, sigma²), independently for each coordinate. Nothing is dropped.

    S'S is unbounded, so L_max is infinite and no stochastic step size is guaranteed.

    >>> import mast
    >>> mast.Gaussian(0.5).constants(10)
    Constants(L_D=1.25, mu_D=1.25, L_max=inf)
    """

    def __init__(self, sigma: float) -> None:
        self.sigma = check_positive("sigma", sigma)

    def sample(self, d: int, key: Key) -> Draw:
        """The scales of `key`."""
        return DiagonalDraw(d, np.arange(d), 1 + self.sigma * randomness.normal(key, 0, d))

    def law(self, d: int) -> Law:
        """Independent coordinates that all survive, with noise."""
        return IndependentLaw(d, d, keep=1.0, scales=1.0, noise=self.sigma**2)

    def _at(self, density: float) -> Sketch:
        raise ArgumentError(f"{self!r} drops nothing, so it has no densities")

    def label(self) -> str:
        """What it multiplies with."""
        return f"Gaussian({self.sigma:.6g}): keeps 100 %, scales by N(1, {self.sigma**2:.6g})"


class Entry(NamedTuple):
    """One coordinate that is drawn by itself: coordinate i from word, or normal number, i of the key."""

    threshold: int  #: it survives where its word of 32 bits is below this
    scale: float  #: what it is multiplied with then
    sigma: float = 0.0  #: of a normal error of the scale


def entry_of(sketch: Sketch) -> Entry | None:
    """One coordinate of a sketch, if all are alike and drawn by themselves: any piece of S is drawn alone."""
    match sketch:
        case Identity():
            return Entry(1 << 32, 1.0)
        case Gaussian():
            return Entry(1 << 32, 1.0, sketch.sigma)
        case Bernoulli(thresholds=int(threshold)):
            return Entry(threshold, float(sketch.scales()))
    return None


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
