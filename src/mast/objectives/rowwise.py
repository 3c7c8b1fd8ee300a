"""Rowwise: f_D of a linear model by enumerating, row by row, what the sketch may do to the row.

The loss of a row depends on the fate of its own non-zeros only. A row with m of them (or
m groups) has 2^m cases, whatever the dimension. The margins of all cases come from m
doublings, and the gradient and Hessian from folding the cases back up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from mast.arrays import Array, Indices
from mast.objectives.design import _kernels
from mast.objectives.exact import SketchedLinear, signed
from mast.objectives.losses import weighted_sum
from mast.objectives.pairs import Blocks, SparsePairs
from mast.objectives.penalties import Penalty
from mast.objectives.separable import _columns

if TYPE_CHECKING:
    from mast.objectives.linear import LinearModel
    from mast.sketches import Sketch
    from mast.sketches.laws import LocalLaw

LARGEST_ROW = 16  #: rows with more units than this are not enumerated
LARGEST_TOTAL = 1 << 31  #: nor are data with more cases than this
CHUNK = 1 << 15  #: cases that are worked on at a time, so that they stay in the cache


class Rowwise(SketchedLinear):
    """sum_i rate_i E[loss(base_i + sum_j c_j t_ij)] + penalty, the mean taken over all cases."""

    def __init__(
        self,
        model: LinearModel,
        sketch: Sketch,
        shift: Array,
        penalty: Penalty,
        law: LocalLaw,
        pairs: RowPairs,
    ) -> None:
        super().__init__(model, sketch, shift, penalty)
        self.pairs = pairs
        signs = signed(model)
        self.offsets = model.loss.offsets(model.labels)
        if shift.any():
            self.offsets = self.offsets + signs * model.design.times(shift)
        self.free = pairs.blocks.free
        self.border = _columns(model, self.free) * signs[:, None]
        self._keep = None if law.keep is None else law.keep[pairs.units]
        self._tables = {} if law.patterns is None else {m: law.patterns(m)[_bits(m)] for m in pairs.lengths}

    @property
    def work(self) -> int:
        """The number of cases."""
        return int((1 << self.pairs.row_lengths).sum())

    def _cases(self, x: Array) -> Iterator[tuple[Indices, int, Array, Array]]:
        """Chunks of rows of one length: (rows, length, margins, weights) of all their cases."""
        kernels, pairs, rates = _kernels(), self.pairs, self.model.rates
        u = x - self.shift
        t = pairs.B @ u[pairs.blocks.order]
        bases = self.offsets + self.border @ u[self.free] if self.free.size else self.offsets
        for m, rows in pairs.chunks:
            margins, weights = np.empty(rows.size << m), np.empty(rows.size << m)
            kernels.subset_sums(pairs.start, t, bases, rows, m, margins)
            if self._keep is None:
                kernels.pattern_weights(self._tables[m], rates, rows, m, weights)
            else:
                kernels.independent_weights(pairs.start, self._keep, rates, rows, m, weights)
            yield rows, m, margins, weights

    # ---- value and derivatives ---------------------------------------------------------------

    def value(self, x: ArrayLike) -> float:
        """f_D(x)."""
        x = self._point(x)
        parts = [weighted_sum(w, self.model.loss.value(m)) for _, _, m, w in self._cases(x)]
        return float(np.sum(parts)) + self.penalty.value(x)

    def gradient(self, x: ArrayLike) -> Array:
        """The gradient of f_D at x."""
        return self._evaluate(self._point(x), values=False)[1]

    def value_and_gradient(self, x: ArrayLike) -> tuple[float, Array]:
        """Both."""
        return self._evaluate(self._point(x), values=True)

    def _evaluate(self, x: Array, values: bool) -> tuple[float, Array]:
        kernels, loss, pairs = _kernels(), self.model.loss, self.pairs
        slopes, totals = np.empty(pairs.units.size), np.empty(self.model.terms)
        parts = [0.0]
        for rows, m, margins, weights in self._cases(x):
            if values:
                own, work = loss.value_and_slope(margins)
                parts.append(weighted_sum(weights, own))
            else:
                work = loss.slope(margins)
            work *= weights
            kernels.fold(pairs.start, rows, m, work, slopes, totals)
        gradient = self.penalty.gradient(x).copy()
        gradient[pairs.blocks.order] += pairs.transposed @ slopes
        if self.free.size:
            gradient[self.free] += totals @ self.border
        return float(np.sum(parts)) + (self.penalty.value(x) if values else 0.0), gradient

    def _bends(self, x: Array) -> tuple[Array, Array]:
        """For each row the curvatures summed over the cases that hold each two units, and over all cases."""
        kernels, pairs = _kernels(), self.pairs
        squares, totals = np.zeros(int(pairs.square_start[-1])), np.empty(self.model.terms)
        for rows, m, margins, weights in self._cases(x):
            work = self.model.loss.curvature(margins)
            work *= weights
            kernels.fold_pairs(pairs.start, pairs.square_start, rows, m, work, squares, totals)
        return squares, totals

    def hessian(self, x: ArrayLike) -> Array:
        """The Hessian of f_D at x, dense."""
        x = self._point(x)
        squares, totals = self._bends(x)
        pairs, order, free = self.pairs, self.pairs.blocks.order, self.free
        inner = np.zeros((order.size, order.size))
        B = pairs.B
        _kernels().row_hessian(pairs.start, pairs.square_start, squares, B.indptr, B.indices, B.data, inner)
        H = np.zeros((self.dim, self.dim))
        H[np.ix_(order, order)] = inner
        if free.size:
            own = squares[pairs.diagonal]
            cross = pairs.transposed @ (own[:, None] * self.border[pairs.rows])
            H[np.ix_(order, free)] = cross
            H[np.ix_(free, order)] = cross.T
            H[np.ix_(free, free)] = self.border.T @ (totals[:, None] * self.border)
        H[np.diag_indices(self.dim)] += self.penalty.curvature(x)
        return H

    def curvature(self, x: ArrayLike) -> tuple[Callable[[Array], Array], Array]:
        """The Hessian as a product with vectors, and its diagonal."""
        x = self._point(x)
        squares, totals = self._bends(x)
        pairs, order, free = self.pairs, self.pairs.blocks.order, self.free
        penalty, own = self.penalty.curvature(x), squares[pairs.diagonal]
        diagonal = penalty.copy()
        # exact for units of one coordinate, and else near enough to precondition with
        diagonal[order] += (pairs.transposed * pairs.transposed) @ own
        diagonal[free] += totals @ self.border**2

        def product(p: Array) -> Array:
            out, r = penalty * p, np.zeros(own.size)
            _kernels().row_products(pairs.start, pairs.square_start, squares, pairs.B @ p[order], r)
            if free.size:
                moved = self.border @ p[free]
                pulled = totals * moved + np.bincount(
                    pairs.rows, weights=own * (pairs.B @ p[order]), minlength=totals.size
                )
                out[free] += pulled @ self.border
                r += own * moved[pairs.rows]
            out[order] += pairs.transposed @ r
            return out

        return product, diagonal


class RowPairs:
    """The (row, unit) pairs of the data, row by row."""

    def __init__(self, model: LinearModel, law: LocalLaw) -> None:
        self.blocks = Blocks(law.labels)
        scaled = signed(model)
        pairs = SparsePairs(
            model.design.csr, scaled, self.blocks, np.arange(model.terms), np.zeros(model.terms)
        )
        by_row = np.argsort(pairs.context, kind="stable")
        self.rows = pairs.context[by_row]
        unit = np.repeat(np.arange(self.blocks.count), np.diff(pairs.start))[by_row]
        #: the law's own number of each pair's unit
        self.units = law.labels[self.blocks.order[self.blocks.start[unit]]]
        self.B: Any = pairs.B[by_row]
        self.B.data *= np.repeat(law.scales[self.units], np.diff(self.B.indptr))
        lengths = np.bincount(self.rows, minlength=model.terms)
        self.start = np.concatenate([[0], np.cumsum(lengths)])
        self.square_start = np.concatenate([[0], np.cumsum(lengths**2)])
        self.row_lengths = lengths
        self.lengths = sorted(set(lengths.tolist()))

    @property
    def small_enough(self) -> bool:
        """Whether all cases of all rows can be enumerated."""
        return self.lengths[-1] <= LARGEST_ROW and int((1 << self.row_lengths).sum()) <= LARGEST_TOTAL

    @cached_property
    def transposed(self) -> Any:
        """B' as CSR."""
        return self.B.T.tocsr()

    @cached_property
    def diagonal(self) -> Indices:
        """Where, in the rows' m x m matrices, each unit meets itself."""
        offset = np.arange(self.rows.size) - self.start[self.rows]
        return np.asarray(self.square_start[self.rows] + offset * (self.row_lengths[self.rows] + 1))

    @cached_property
    def chunks(self) -> list[tuple[int, Indices]]:
        """Rows of one length, as many as make up a chunk."""
        out: list[tuple[int, Indices]] = []
        for m in self.lengths:
            rows = np.flatnonzero(self.row_lengths == m)
            step = max(1, CHUNK >> m)
            out += [(m, rows[i : i + step]) for i in range(0, rows.size, step)]
        return out


def _bits(m: int) -> Indices:
    """How many bits each mask of m bits has set."""
    counts = np.zeros(1, dtype=np.int64)
    for _ in range(m):
        counts = np.concatenate([counts, counts + 1])
    return counts
