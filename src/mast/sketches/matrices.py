"""Matrices: one of finitely many given matrices, whose mean must be I."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mast import randomness
from mast.arrays import Array, frozen, numbers, vector
from mast.checks import listed
from mast.errors import ArgumentError
from mast.randomness import Key, Purpose
from mast.sketches.base import Sketch
from mast.sketches.draws import DiagonalDraw, Draw, MatrixDraw


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
        stack = [numbers(f"matrix {i}", matrix, 2) for i, matrix in enumerate(listed("matrices", matrices))]
        if not stack:
            raise ArgumentError("Matrices needs at least one matrix")
        self.dim = stack[0].shape[0]
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
        result: Array = np.diag(square).copy() if self.diagonal else square
        return result

    def sandwich(self, H: Array) -> Array:
        """The mean of S'HS."""
        self.check(H.shape[0])
        S = self.matrices
        result: Array = np.einsum("n,nki,kl,nlj->ij", self.weights, S, H, S, optimize=True)
        return result

    def support_size(self, d: int) -> int:
        """As many as there are matrices."""
        self.check(d)
        return len(self.matrices)

    def outcomes(self, d: int) -> Iterator[tuple[float, Draw]]:
        """The matrices."""
        for i, weight in enumerate(self.weights):
            yield float(weight), self._one(i)

    def arguments(self) -> dict[str, Any]:
        """The matrices, and their weights if there are any: without them the choice is made otherwise."""
        return {"matrices": self.matrices} | ({} if self._uniform else {"weights": self.weights})

    def check(self, d: int) -> int:
        """The dimension d, or an error if the matrices have another."""
        if super().check(d) != self.dim:
            raise ArgumentError(f"the matrices are {self.dim} x {self.dim}, but the dimension is {d}")
        return d

    def label(self) -> str:
        """How many matrices of which size."""
        kept = (
            ""
            if not self.diagonal
            else f": keeps {100 * np.mean([np.diag(m) != 0 for m in self.matrices]):.4g} %"
        )
        return f"Matrices({len(self.matrices)} of size {self.dim} x {self.dim}){kept}"


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
