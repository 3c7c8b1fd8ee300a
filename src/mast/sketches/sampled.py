"""Sampled: a finite support of N draws of another sketch, made once. Its mean is only nearly I.

Variance reduction works on it where the sketch's own support is too large to list. The
constants are those of the sample; `mean(d)` says how far it is from I.
"""

from __future__ import annotations

from collections.abc import Iterator

from mast import randomness
from mast.checks import whole
from mast.errors import NotDiagonalError
from mast.randomness import Key, Purpose
from mast.sketches.base import Sketch
from mast.sketches.draws import Constants, DiagonalDraw, Draw
from mast.sketches.estimates import moments_of


class Sampled(Sketch):
    """One of N draws of `sketch`, each with probability 1/N.

    >>> import numpy as np, mast
    >>> sample = mast.sketches.Sampled(mast.Bernoulli(0.5), 200, seed=1)
    >>> bool(np.abs(sample.mean(4) - 1).max() < 0.25), len(sample.support(4))
    (True, 200)
    """

    unbiased = False

    def __init__(self, sketch: Sketch, N: int, seed: int = 0) -> None:
        if not sketch.diagonal:
            raise NotDiagonalError(f"a sample is taken of diagonal sketches, {sketch!r} is not one")
        self.sketch = sketch
        self.N = whole("N", N, 1)
        self.seed = Key(seed).seed
        self._made: tuple[int, list[DiagonalDraw]] = (0, [])

    def draws(self, d: int) -> list[DiagonalDraw]:
        """The N draws."""
        if self._made[0] != d:
            made = [self.sketch.sample(d, Key(self.seed, index=i)) for i in range(self.N)]
            self._made = (d, [draw for draw in made if isinstance(draw, DiagonalDraw)])
        return self._made[1]

    def sample(self, d: int, key: Key) -> Draw:
        """One of the N draws."""
        return self.draws(self.check(d))[randomness.below(key, Purpose.CHOICE, self.N)]

    def outcomes(self, d: int) -> Iterator[tuple[float, Draw]]:
        """The N draws, alike."""
        return ((1 / self.N, draw) for draw in self.draws(d))

    def support_size(self, d: int) -> int:
        """N."""
        return self.N

    def constants(self, d: int) -> Constants:
        """Those of the sample: the statements about finite supports use these."""
        square, largest = self.expected_square(d), moments_of(self, d).largest
        return Constants(float(square.max()), float(square.min()), largest)

    def check(self, d: int) -> int:
        """The dimension d, or an error if the sketch cannot be drawn in it."""
        return self.sketch.check(d)

    def label(self) -> str:
        """How many draws of what."""
        return f"Sampled({self.N} draws) of {self.sketch.label()}"
