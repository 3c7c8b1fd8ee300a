"""Gaussian: every coordinate is multiplied by its own N(1, sigma²). Nothing is dropped.

S'S is unbounded, so L_max is infinite and no stochastic step size is guaranteed.
"""

from __future__ import annotations

from mast import randomness
from mast.checks import positive
from mast.errors import ArgumentError
from mast.randomness import Key
from mast.sketches.base import Sketch, everything
from mast.sketches.draws import DiagonalDraw, Draw
from mast.sketches.laws import Entry, Law


class Gaussian(Sketch):
    """Multiply by N(1, sigma²), independently for each coordinate.

    >>> import mast
    >>> mast.Gaussian(0.5).constants(10)
    Constants(L_D=1.25, mu_D=1.25, L_max=inf)
    """

    def __init__(self, sigma: float) -> None:
        self.sigma = positive("sigma", sigma)

    def sample(self, d: int, key: Key) -> Draw:
        """The scales of `key`."""
        return DiagonalDraw(d, everything(d), 1 + self.sigma * randomness.normal(key, 0, d))

    def law(self, d: int) -> Law:
        """Independent coordinates that all survive, with noise."""
        return Law(d, d, keep=1.0, scales=1.0, noise=self.sigma**2)

    def entry(self) -> Entry:
        """One coordinate."""
        return Entry(1 << 32, 1.0, self.sigma)

    def _at(self, density: float) -> Sketch:
        raise ArgumentError(f"{self!r} drops nothing, so it has no densities")

    def label(self) -> str:
        """What it multiplies with."""
        return f"Gaussian({self.sigma:.6g}): keeps 100 %, scales by N(1, {self.sigma**2:.6g})"
