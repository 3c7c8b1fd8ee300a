"""Identity: S = I always. Sparsified training with it is plain training."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mast.randomness import Key
from mast.sketches.base import Sketch, everything
from mast.sketches.draws import DiagonalDraw, Draw
from mast.sketches.laws import DrawKind, Entry, Law


class Identity(Sketch):
    """Keep everything.

    >>> import mast
    >>> mast.Identity().constants(3)
    Constants(L_D=1.0, mu_D=1.0, L_max=1.0)
    """

    def sample(self, d: int, key: Key) -> Draw:
        """I."""
        return DiagonalDraw(d, everything(d), np.ones(d))

    def outcomes(self, d: int) -> Iterator[tuple[float, Draw]]:
        """I alone."""
        yield 1.0, self.sample(d, Key())

    def law(self, d: int) -> Law:
        """One unit that holds everything."""
        return Law.subsets(d, 1, {1: 1}, labels=lambda: np.zeros(d, dtype=np.int64), kind=DrawKind.ALL)

    def entry(self) -> Entry:
        """One coordinate."""
        return Entry(1 << 32, 1.0)

    def _at(self, density: float) -> Sketch:
        from mast.sketches.bernoulli import Bernoulli

        return Bernoulli(density)

    def label(self) -> str:
        """That it keeps everything."""
        return "Identity(): keeps 100 %"
