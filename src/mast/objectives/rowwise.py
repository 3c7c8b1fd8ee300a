"""Rowwise: f_D of a linear model by enumerating, row by row, what the sketch may do to the row.

The loss of a row depends on which of its non-zeros are kept only. A row with m of them (or
m groups) has 2^m cases, whatever the dimension. The margins of all cases come from m
doublings, and the gradient and Hessian from folding the cases back up.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from mast.objectives.design import BlockRun, Blocks, Pairs, kernels
from mast.objectives.exact import PairCurvature, PairForm
from mast.objectives.losses import Penalty, weighted_sum
from mast.sketches import IndependentLaw, SubsetLaw
from mast.support.checks import Array, Indices

if TYPE_CHECKING:
    from mast.objectives.linear import LinearModel
    from mast.sketches import Law, Sketch

LARGEST_ROW = 16  #: rows with more units than this are not enumerated
LARGEST_TOTAL = 1 << 31  #: nor are data with more cases than this
CHUNK = 1 << 15  #: cases that are worked on at a time, so that they stay in the cache

#: some rows, the number of units that each of them has, and where the units of every row begin
Cases = tuple[Indices, int, Indices]


class Rowwise(PairForm):
    """sum_i rate_i E[loss(base_i + sum_j c_j t_ij)] + penalty, the mean taken over all cases.

    Pairs are a row and a unit that it has a non-zero in, row by row.
    """

    def __init__(self, model: LinearModel, sketch: Sketch, shift: Array, penalty: Penalty, law: Law) -> None:
        labels = _random_units(law)
        super().__init__(model, sketch, shift, penalty, Blocks(labels))
        blocks, rows = self.blocks, np.arange(model.terms)
        self.law = law
        self.pairs = pairs = Pairs(model.design.csr, model.signs, blocks, rows, model.rates)
        by_row = np.argsort(pairs.context, kind="stable")
        unit = np.repeat(np.arange(blocks.count), np.diff(pairs.start))[by_row]
        #: the law's number of each pair's unit
        self.units = labels[blocks.order[blocks.start[unit]]]
        pairs.context, B = pairs.context[by_row], pairs.B[by_row]
        B.data *= np.repeat(law.per_unit(law.scales)[self.units], np.diff(B.indptr))
        pairs.B, pairs.parts = B, [BlockRun(slice(None), slice(None), B, B.T.tocsr())]
        self.row_lengths = np.bincount(pairs.context, minlength=model.terms)
        self.lengths = sorted(set(self.row_lengths.tolist()))
        self.start = np.concatenate([[0], np.cumsum(self.row_lengths)])
        self.square_start = np.concatenate([[0], np.cumsum(self.row_lengths**2)])

    @property
    def work(self) -> int:
        """The number of cases."""
        return int((1 << self.row_lengths).sum())

    @property
    def small_enough(self) -> bool:
        """Whether all cases of all rows can be enumerated."""
        return self.lengths[-1] <= LARGEST_ROW and self.work <= LARGEST_TOTAL

    @cached_property
    def _keep(self) -> Array | None:
        """The probability of each pair's unit; None where units are not independent."""
        return None if isinstance(self.law, SubsetLaw) else self.law.per_unit(self.law.keep)[self.units]

    @cached_property
    def _tables(self) -> dict[int, Array]:
        """The probability of each case of m units, where units are not independent."""
        law = self.law
        return {m: law.patterns(m)[_bits(m)] for m in self.lengths} if isinstance(law, SubsetLaw) else {}

    @cached_property
    def _chunks(self) -> list[Cases]:
        """Rows of one length, as many as make up a chunk."""
        out: list[Cases] = []
        for m in self.lengths:
            rows = np.flatnonzero(self.row_lengths == m)
            step = max(1, CHUNK >> m)
            out += [(rows[i : i + step], m, self.start) for i in range(0, rows.size, step)]
        return out

    @cached_property
    def _together(self) -> Indices:
        """For each pair, the pairs of its row: the columns of a matrix with one block per row."""
        m = self.row_lengths[self.pairs.context]
        first = np.cumsum(m) - m
        return np.asarray(np.repeat(self.start[self.pairs.context] - first, m) + np.arange(int(m.sum())))

    def _cases(self, x: Array) -> Iterator[tuple[Cases, Array, Array]]:
        """Chunks of rows of one length, with the margins and the weights of all their cases."""
        rates, t, bases = self.model.rates, self._forward(x), self._bases(x)
        for cases in self._chunks:
            rows, m, _ = cases
            margins = np.empty(rows.size << m)
            kernels().subset_sums(cases, t, bases, margins)
            if self._keep is None:
                weights = np.outer(rates[rows], self._tables[m]).ravel()
            else:
                weights = np.empty(rows.size << m)
                kernels().independent_weights(cases, self._keep, rates, weights)
            yield cases, margins, weights

    def value(self, x: ArrayLike) -> float:
        """f_D(x)."""
        x = self._point(x)
        parts = [weighted_sum(w, self.model.loss.value(m)) for _, m, w in self._cases(x)]
        return float(np.sum(parts)) + self.penalty.value(x)

    def gradient(self, x: ArrayLike) -> Array:
        """The gradient of f_D at x."""
        return self._evaluate(self._point(x), values=False)[1]

    def value_and_gradient(self, x: ArrayLike) -> tuple[float, Array]:
        """The value and the gradient."""
        return self._evaluate(self._point(x), values=True)

    def _evaluate(self, x: Array, values: bool) -> tuple[float, Array]:
        loss = self.model.loss
        slopes, totals = np.empty(self.units.size), np.empty(self.model.terms)
        parts = [0.0]
        for cases, margins, weights in self._cases(x):
            if values:
                losses, work = loss.value_and_slope(margins)
                parts.append(weighted_sum(weights, losses))
            else:
                work = loss.slope(margins)
            work *= weights
            kernels().fold(cases, work, slopes, totals)
        gradient = self._gathered(x, self.pairs.backward(slopes), totals)
        return float(np.sum(parts)) + (self.penalty.value(x) if values else 0.0), gradient

    def _pair_curvature(self, x: Array) -> PairCurvature:
        """Curvatures summed over the cases that hold each two units of a row, and over all its cases."""
        import scipy.sparse

        squares, totals = np.zeros(int(self.square_start[-1])), np.empty(self.model.terms)
        for cases, margins, weights in self._cases(x):
            work = self.model.loss.curvature(margins)
            work *= weights
            kernels().fold_pairs(cases, self.square_start, work, squares, totals)
        context = self.pairs.context
        starts = np.concatenate([[0], np.cumsum(self.row_lengths[context])])
        within = scipy.sparse.csr_array((squares, self._together, starts), shape=(context.size, context.size))
        return PairCurvature(within.diagonal(), totals, within)

    def _fill_blocks(self, H: Array, curvature: PairCurvature) -> None:
        order, B = self.blocks.order, self.pairs.B
        H[np.ix_(order, order)] = (B.T @ (curvature.within @ B)).toarray()


def _random_units(law: Law) -> Indices:
    """The unit of each coordinate; -1 for one that surely is kept, times 1."""
    if not isinstance(law, IndependentLaw):
        return law.unit_of
    always = (law.per_unit(law.keep) == 1) & (law.per_unit(law.scales) == 1)
    return np.where(np.append(always, True)[law.unit_of], -1, law.unit_of)


def _bits(m: int) -> Indices:
    """How many bits each mask of m bits has set."""
    counts = np.zeros(1, dtype=np.int64)
    for _ in range(m):
        counts = np.concatenate([counts, counts + 1])
    return counts
