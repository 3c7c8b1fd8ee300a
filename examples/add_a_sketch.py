"""How to add a sketch: a window of k neighbouring coordinates is kept, wherever it begins.

    python examples/add_a_sketch.py

Inside MAST this class would be a file in src/mast/sketches and a line in tests/sketches/samples.py.
"""

from collections.abc import Iterator

import numpy as np

import mast
from mast import randomness
from mast.randomness import Key, Purpose
from mast.sketches import DiagonalDraw


class Window(mast.Sketch):
    """Keep k neighbours of the d coordinates (after the last comes the first) and scale them by d/k."""

    def __init__(self, k: int) -> None:
        self.k = k  # an attribute with the name of the argument: files and checkpoints know the sketch by it

    def sample(self, d: int, key: Key) -> DiagonalDraw:  # a function of the key, and of nothing else
        return self._window(d, randomness.below(key, Purpose.CHOICE, d))

    def outcomes(self, d: int) -> Iterator[tuple[float, DiagonalDraw]]:  # not needed; makes all numbers exact
        return ((1 / d, self._window(d, first)) for first in range(d))

    def _window(self, d: int, first: int) -> DiagonalDraw:
        indices = np.sort((first + np.arange(self.k)) % d)
        return DiagonalDraw(d, indices, np.full(self.k, d / self.k))


if __name__ == "__main__":
    print(Window(2).constants(4), "keeps", Window(2).share(4))
    f = mast.Quadratic(np.diag([4.0, 3.0, 2.0, 1.0]) + 0.1, np.ones(4))
    problem = mast.Problem(f, Window(2))
    result = mast.minimize(problem, "l_svrdsg", steps=3000)  # the step size is the theory's
    print(result)
    print("distance to the minimiser of f_D:", np.linalg.norm(result.x - problem.minimizer()))
