"""One of a given list: Matrices, of matrices whose mean is I, and Mixture, of sketches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mast import randomness
from mast.errors import ArgumentError
from mast.randomness import Key, Purpose
from mast.sketches.base import Sketch, percent
from mast.sketches.draws import DiagonalDraw, Draw, MatrixDraw
from mast.support.checks import Array, check_list, frozen, numbers, vector


class Matrices(Sketch):
    """S is matrices[i] with probability weights[i] (uniform if no weights are given).

    >>> import mast
    >>> swap = [[0.0, 1.0], [1.0, 0.0]]
    >>> mast.Matrices([[[2, 0], [0, 2]], [[0, 0], [0, 0]]]).constants(2)
    Constants(L_D=2.0, mu_D=2.0, L_max=4.0)
    >>> mast.Matrices([swap, [[2.0, -1.0], [-1.0, 2.0]]]).draw(2, seed=0).apply([1.0, 0.0])
    array([0., 1.])
    """

    def __init__(self, matrices: Sequence[ArrayLike], weights: ArrayLike | None = None) -> None:
        stack = [
            numbers(f"matrix {i}", matrix, 2) for i, matrix in enumerate(check_list("matrices", matrices))
        ]
        if not stack:
            raise ArgumentError("Matrices needs at least one matrix")
        self.dim = self.fixed_dim = stack[0].shape[0]
        for i, matrix in enumerate(stack):
            if matrix.shape != (self.dim, self.dim):
                raise ArgumentError(f"matrix {i} has shape {matrix.shape}, expected {(self.dim, self.dim)}")
        self.matrices: Array = frozen(np.stack(stack))
        self.weights = probabilities("weights", weights, len(stack))
        self._uniform = weights is None
        off = np.abs(np.tensordot(self.weights, self.matrices, 1) - np.eye(self.dim)).max()
        rounding = 1e-9 + 1e-14 * len(stack) * float(np.abs(self.matrices).max())
        if off > rounding:
            raise ArgumentError(f"the mean of the matrices must be I, but an entry is off by {off:.3g}")
        self.diagonal = all(np.count_nonzero(m - np.diag(np.diag(m))) == 0 for m in self.matrices)

    def sample(self, d: int, key: Key) -> Draw:
        """One of the matrices."""
        self.check(d)
        if self._uniform:
            return self._one(randomness.below(key, Purpose.CHOICE, len(self.matrices)))
        return self._one(randomness.choice(key, Purpose.CHOICE, np.cumsum(self.weights)))

    def _one(self, i: int) -> Draw:
        if not self.diagonal:
            return MatrixDraw(self.matrices[i])
        c = np.diag(self.matrices[i])
        indices = np.flatnonzero(c)
        return DiagonalDraw(self.dim, indices, c[indices])

    def expected_square(self, d: int) -> Array:
        """The mean of S'S."""
        self.check(d)
        square = np.einsum("n,nki,nkj->ij", self.weights, self.matrices, self.matrices, optimize=True)
        return np.diag(square).copy() if self.diagonal else np.asarray(square)

    def sandwich(self, H: Array) -> Array:
        """The mean of S'HS."""
        self.check(H.shape[0])
        S = self.matrices
        return np.asarray(np.einsum("n,nki,kl,nlj->ij", self.weights, S, H, S, optimize=True))

    def support_size(self, d: int) -> int:
        """As many as there are matrices."""
        self.check(d)
        return len(self.matrices)

    def outcomes(self, d: int) -> Iterator[tuple[float, Draw]]:
        """The matrices."""
        return ((weight, self._one(i)) for i, weight in enumerate(self.weights.tolist()))

    def arguments(self) -> dict[str, Any]:
        """The matrices, and their weights if there are any: without them the choice is made otherwise."""
        return {"matrices": self.matrices} | ({} if self._uniform else {"weights": self.weights})

    def label(self) -> str:
        """How many matrices of which size."""
        share = float(np.mean([np.diag(m) != 0 for m in self.matrices]))
        kept = f": keeps {percent(share)}" if self.diagonal else ""
        return f"Matrices({len(self.matrices)} of size {self.dim} x {self.dim}){kept}"


class Mixture(Sketch):
    """Sketch i with probability weights[i] (uniform if no weights are given).

    First the sketch is drawn, then its S: one training run for several densities. Each component draws
    with a seed of its own, derived from the draw's, so that components, also nested ones, are independent
    of each other and of the choice.

    >>> import mast
    >>> mast.Mixture([mast.Bernoulli(0.5), mast.Bernoulli(0.25)], [0.5, 0.5]).constants(3)
    Constants(L_D=3.0, mu_D=3.0, L_max=16.0)
    """

    def __init__(self, sketches: Sequence[Sketch], weights: ArrayLike | None = None) -> None:
        self.sketches: list[Sketch] = check_list("sketches", sketches)
        if not self.sketches or not all(isinstance(s, Sketch) for s in self.sketches):
            raise ArgumentError("Mixture takes a list of at least one sketch")
        self.weights = probabilities("weights", weights, len(self.sketches))
        self.stride = math.lcm(*(sketch.stride for sketch in self.sketches))
        parts = [sketch for _, sketch in self.components()]
        self.diagonal = all(sketch.diagonal for sketch in parts)
        self.unbiased = all(sketch.unbiased for sketch in parts)
        self.independent = all(sketch.independent for sketch in parts)

    def components(self) -> list[tuple[float, Sketch]]:
        """The components that have a positive weight."""
        return [(w, s) for w, s in zip(self.weights.tolist(), self.sketches, strict=True) if w > 0]

    def sample(self, d: int, key: Key) -> Draw:
        """The draw of the component that `key` chooses."""
        self.check(d)
        i = self._component(key)
        return self.sketches[i].sample(d, key.child(i))

    def sample_layer(self, d: int, key: Key, layer: int) -> Draw:
        """One component for all layers."""
        i = self._component(key)
        return self.sketches[i].sample_layer(d, key.child(i), layer)

    def _component(self, key: Key) -> int:
        return randomness.choice(key, Purpose.CHOICE, np.cumsum(self.weights))

    def support_size(self, d: int) -> int | None:
        """The sum of the components' sizes."""
        sizes = [sketch.support_size(d) for _, sketch in self.components()]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def outcomes(self, d: int) -> Iterator[tuple[float, Draw]] | None:
        """Those of all components."""
        parts = [(weight, sketch.outcomes(d)) for weight, sketch in self.components()]
        if any(outcomes is None for _, outcomes in parts):
            return None
        return ((weight * p, draw) for weight, outcomes in parts for p, draw in outcomes or ())

    def check(self, d: int) -> int:
        """The dimension d, or an error if a component cannot be drawn in it."""
        for sketch in self.sketches:
            d = sketch.check(d)
        return d

    def label(self) -> str:
        """The components with their weights."""
        parts = ", ".join(f"{w:.4g} x {sketch.label()}" for w, sketch in self.components())
        return f"Mixture({parts})"


def probabilities(name: str, weights: ArrayLike | None, n: int) -> Array:
    """Checked probabilities that sum to 1, n of them; uniform if None."""
    if weights is None:
        return frozen(np.full(n, 1 / n))
    w = vector(name, weights, n)
    if (w < 0).any():
        raise ArgumentError(f"{name} must not be negative, got {w.min()}")
    if abs(w.sum() - 1) > 1e-9:
        raise ArgumentError(f"{name} must sum to 1, got {w.sum():.12g}")
    return frozen(w / w.sum())
