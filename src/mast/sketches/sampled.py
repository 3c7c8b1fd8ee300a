"""Sampled: a finite support of N draws of another sketch, made once. Its mean is only nearly I.

Variance reduction works on it where the sketch's own support is too large to list. The
constants are those of the sample; `mean(d)` says how far it is from I.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mast import randomness
from mast.arrays import Array
from mast.checks import whole
from mast.errors import ArgumentError, NotDiagonalError
from mast.randomness import Key, Purpose
from mast.sketches.base import Constants, DiagonalDraw, Draw, Sketch


class Sampled(Sketch):
    """One of N draws of `sketch`, each with probability 1/N.

    >>> import numpy as np, mast
    >>> sample = mast.sketches.Sampled(mast.Bernoulli(0.5), 200, seed=1)
    >>> bool(np.abs(sample.mean(4) - 1).max() < 0.25), len(sample.support(4))
    (True, 200)
    """

    def __init__(self, sketch: Sketch, N: int, seed: int = 0) -> None:
        if not sketch.diagonal:
            raise NotDiagonalError(f"a sample is taken of diagonal sketches, {sketch!r} is not one")
        self.sketch = sketch
        self.N = whole("N", N)
        if self.N < 1:
            raise ArgumentError(f"a sample has at least one draw, got N = {N}")
        self.seed = Key(seed).seed
        self._made: tuple[int, list[DiagonalDraw]] = (0, [])

    unbiased = False

    def draws(self, d: int) -> list[DiagonalDraw]:
        """The N draws."""
        if self._made[0] != d:
            made = [self.sketch.sample(d, Key(self.seed, index=i)) for i in range(self.N)]
            self._made = (d, [draw for draw in made if isinstance(draw, DiagonalDraw)])
        return self._made[1]

    def sample(self, d: int, key: Key) -> Draw:
        """One of the N draws."""
        return self.draws(self._check(d))[randomness.below(key, Purpose.CHOICE, self.N)]

    def constants(self, d: int) -> Constants:
        """Those of the sample: the statements about finite supports use these."""
        return self._constants(self._check(d))

    def _constants(self, d: int) -> Constants:
        square = self.expected_square(d)
        L_max = max(float(np.max(draw.scales**2, initial=0.0)) for draw in self.draws(d))
        return Constants(float(square.max()), float(square.min()), L_max)

    def mean(self, d: int) -> Array:
        """The mean of the N diagonals."""
        return self._mean_of(d, lambda scales: scales)

    def expected_square(self, d: int) -> Array:
        """The mean of the N squared diagonals."""
        return self._mean_of(d, np.square)

    def _mean_of(self, d: int, of: object) -> Array:
        total = np.zeros(self._check(d))
        for draw in self.draws(d):
            total[draw.indices] += of(draw.scales)  # type: ignore[operator]
        return total / self.N

    def second_moment(self, d: int) -> Array:
        """The mean of c c' over the sample."""
        C = np.stack([draw.diagonal() for draw in self.draws(self._check(d))])
        moment: Array = C.T @ C / self.N
        return moment

    def support_size(self, d: int) -> int:
        """N."""
        return self.N

    def _support(self, d: int) -> Iterator[tuple[float, Draw]]:
        for draw in self.draws(d):
            yield 1 / self.N, draw

    def _check(self, d: int) -> int:
        return self.sketch._check(d)

    def _label(self) -> str:
        return f"Sampled({self.N} draws) of {self.sketch._label()}"
