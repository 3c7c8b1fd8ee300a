"""Identity: S = I always. Sparsified training with it is plain training."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mast.arrays import Array, Indices
from mast.randomness import Key
from mast.sketches.base import Constants, DiagonalDraw, Draw, Sketch, everything
from mast.sketches.units import Kind, Units, units_of


class Identity(Sketch):
    """Keep everything.

    >>> import mast
    >>> mast.Identity().constants(3)
    Constants(L_D=1.0, mu_D=1.0, L_max=1.0)
    """

    def sample(self, d: int, key: Key) -> Draw:
        """I."""
        return DiagonalDraw(d, everything(d), np.ones(d))

    def _constants(self, d: int) -> Constants:
        return Constants(1.0, 1.0, 1.0)

    def expected_square(self, d: int) -> Array:
        """Ones."""
        return np.ones(self._check(d))

    def second_moment(self, d: int) -> Array:
        """All ones."""
        return np.ones((self._check(d), d))

    def support_size(self, d: int) -> int:
        """One."""
        return 1

    def _support(self, d: int) -> Iterator[tuple[float, Draw]]:
        yield 1.0, self.sample(d, Key())

    def separable(self, d: int) -> tuple[Indices, int]:
        """One block that holds everything."""
        return np.zeros(d, dtype=np.int64), 1

    def units(self, d: int) -> Units:
        """One unit that holds everything."""
        return units_of(Kind.ALL, np.zeros(d, dtype=np.int64), 1, np.ones(1), 1)

    def _label(self) -> str:
        return "Identity(): keeps 100 %"
