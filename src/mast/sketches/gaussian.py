"""Gaussian: every coordinate is multiplied by its own N(1, sigma²). Nothing is dropped.

S'S is unbounded, so L_max is infinite and no stochastic step size is guaranteed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from mast import randomness
from mast.arrays import Array
from mast.checks import positive
from mast.randomness import Key
from mast.sketches.base import Constants, DiagonalDraw, Draw, Sketch, everything
from mast.sketches.laws import MomentForm


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

    def _constants(self, d: int) -> Constants:
        square = 1 + self.sigma**2
        return Constants(square, square, math.inf)

    def expected_square(self, d: int) -> Array:
        """1 + sigma² everywhere."""
        return np.full(self._check(d), 1 + self.sigma**2)

    def second_moment(self, d: int) -> Array:
        """Independent coordinates of mean 1."""
        return np.ones((self._check(d), d)) + self.sigma**2 * np.eye(d)

    def moment_form(self, d: int) -> MomentForm:
        """Ones, and sigma² more on the diagonal."""
        return MomentForm(1.0, np.ones(self._check(d)), everything(d), np.full(d, self.sigma**2))

    def support_size(self, d: int) -> None:
        """Infinite."""
        return

    def _support(self, d: int) -> Iterator[tuple[float, Draw]]:
        return iter(())

    def _label(self) -> str:
        return f"Gaussian({self.sigma:.6g}): keeps 100 %, scales by N(1, {self.sigma**2:.6g})"
