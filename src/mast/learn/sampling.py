"""f_D as an average over sampled draws, each row of data with draws of its own.

Where f_D has no exact form it is replaced by the mean of the losses of several copies of the
data, with the sketch of each (copy, row) drawn independently. The penalty's expectation stays
exact. Against one sample of draws for all rows at once, the error is smaller by the square
root of the number of rows. A row's draws are keyed by its content, so the order of rows does
not matter, and a row that stands there twice counts as one of twice the weight.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray

from mast.arrays import Array
from mast.errors import ArgumentError
from mast.objectives import LinearModel, Objective
from mast.objectives.design import Design
from mast.problem import Problem
from mast.randomness import Key
from mast.sketches import DiagonalDraw, Sketch

COPIES = 32  #: copies of the data, if there is room
PLENTY = 4096  #: draws that are made in all, if there is room, also where rows are few
ENTRIES = 20_000_000  #: entries of all copies together
DRAWS = 512  #: different draws in a copy
SCALES = 20_000_000  #: entries of the draws of a copy
DRAWN = 200_000_000  #: entries of all draws


class SampledAverage(Objective):
    """mean over copies c and rows i of loss(a_i'v + (S_ci a_i)'(x - v)), plus the penalty's expectation."""

    convex = True

    def __init__(self, problem: Problem, design: Design) -> None:
        model = problem.objective
        assert isinstance(model, LinearModel)
        self.dim, self.model, self.shift = problem.dim, model, problem.shift
        self.design, self.copies = design, design.n // model.terms
        self.labels = np.tile(model.labels, self.copies)
        self.rates = np.tile(model.rates, self.copies) / self.copies
        self.offsets = np.tile(model.design.times(problem.shift), self.copies)
        penalty = model.penalty.sketched(problem.sketch, problem.shift)
        assert penalty is not None
        self.penalty = penalty
        self.signs = model.loss.signs(self.labels)

    def _margins(self, x: Array) -> Array:
        return self.model.loss.margins(self.offsets + self.design.times(x - self.shift), self.labels)

    def value_and_gradient(self, x: ArrayLike) -> tuple[float, Array]:
        """The value and the gradient of the average."""
        x = self._point(x)
        values, slopes = self.model.loss.value_and_slope(self._margins(x))
        slopes = self.rates * slopes if self.signs is None else self.rates * self.signs * slopes
        value = float(self.rates @ values) + self.penalty.value(x)
        return value, self.design.transpose_times(slopes) + self.penalty.gradient(x)

    def hessian(self, x: ArrayLike) -> Array:
        """Its Hessian, dense."""
        x = self._point(x)
        H = self.design.gram(self._bends(x))
        H[np.diag_indices(self.dim)] += self.penalty.curvature(x)
        return H

    def curvature(self, x: ArrayLike) -> tuple[Callable[[Array], Array], Array]:
        """Its Hessian as a product with vectors, and its diagonal."""
        x = self._point(x)
        bends, ridge = self._bends(x), self.penalty.curvature(x)

        def product(p: Array) -> Array:
            return self.design.transpose_times(bends * self.design.times(p)) + ridge * p

        return product, self.design.column_squares(bends) + ridge

    def _bends(self, x: Array) -> Array:
        return self.rates * self.model.loss.curvature(self._margins(x))


def sketched_copies(matrix: Any, sketch: Sketch, seed: int) -> Design:
    """Copies of the data, one below the other, each row times a draw of its own."""
    if not sketch.diagonal:
        raise ArgumentError(f"{sketch!r} is not diagonal: only averages over its support are possible")
    design = Design(matrix)
    keys, which = np.unique(_row_keys(design.csr, design.d), return_inverse=True)
    entries = design.csr.nnz if design.sparse else design.n * design.d
    room = min(ENTRIES // max(entries, 1), DRAWN // (keys.size * design.d))
    copies = max(1, min(max(COPIES, PLENTY // keys.size), room))
    A = design.matrix
    rows = np.repeat(which, np.diff(A.indptr)) if design.sparse else None
    parts = []
    for copy in range(copies):
        scales = np.stack([_diagonal(sketch, design.d, Key(seed, copy, index=key)) for key in keys.tolist()])
        if rows is None:
            parts.append(A * scales[which])
        else:
            data = A.data * scales[rows, A.indices]
            parts.append(scipy.sparse.csr_array((data, A.indices, A.indptr), shape=A.shape))
    return Design(np.vstack(parts) if rows is None else scipy.sparse.vstack(parts, format="csr"))


def _row_keys(A: Any, d: int) -> NDArray[np.int64]:
    """A number for each row that depends on its content only; no more of them than draws fit in memory."""
    starts = A.indptr.tolist()
    indices, data = A.indices.astype(np.int64), A.data
    sums = [zlib.crc32(data[a:b].tobytes(), zlib.crc32(indices[a:b].tobytes())) for a, b in pairwise(starts)]
    keys = np.array(sums, dtype=np.int64)
    room = max(1, min(DRAWS, SCALES // d))
    return keys if np.unique(keys).size <= room else keys % room


def _diagonal(sketch: Sketch, d: int, key: Key) -> Array:
    draw = sketch.sample(d, key)
    assert isinstance(draw, DiagonalDraw)
    return draw.diagonal()
