"""f_D of a linear model in closed form: what its forms share, and the pairs that two of them are sums over.

A pair is a row and a block of columns that survive together. If of K blocks block k survives, the margin of
row i is ``base_i + K a_ik'u_k``, where a_ik are the row's entries in the block and ``base_i`` is what the row
has without any block. Only pairs that hold a non-zero need a margin each; all others of a row share its base.
Pairs that are equal in base and entries are merged, which on categorical data leaves few of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mast.objectives.base import Objective
from mast.objectives.design import Design, csr_arrays, kernels, weighted_gram
from mast.objectives.losses import Penalty
from mast.objectives.newton import newton
from mast.support.checks import Array, Indices

if TYPE_CHECKING:
    from mast.objectives.linear import LinearModel
    from mast.sketches import Sketch

#: makes weighted slopes of margins, given which pairs they belong to
Pull = Callable[[Array, slice], Array]

CHUNK = 1 << 15  #: pairs that are worked on at a time, so that they stay in the cache
DENSE_SHARE = 0.25  #: dense data with fewer non-zeros than this are treated as sparse
MERGED_ENOUGH = 0.8  #: merging pays if it leaves at most this share of the pairs


class Blocks:
    """The columns, block by block: blocks that hold a column, the smaller ones first.

    Columns with the label -1 belong to no block.
    """

    def __init__(self, labels: Indices) -> None:
        names, numbers, sizes = np.unique(labels[labels >= 0], return_inverse=True, return_counts=True)
        rank = np.empty(names.size, dtype=np.int64)
        by_size = np.argsort(sizes, kind="stable")
        rank[by_size] = np.arange(names.size)
        self.labels = np.full(labels.size, -1, dtype=np.int64)  # renumbered
        self.labels[labels >= 0] = rank[numbers]
        self.free = np.flatnonzero(labels < 0)
        self.order = np.argsort(self.labels, kind="stable")[self.free.size :]
        self.sizes = sizes[by_size]
        self.start = np.concatenate([[0], np.cumsum(self.sizes)])
        self.count = int(names.size)


class BlockRun(NamedTuple):
    """The pairs and columns of successive blocks (in their order), with their part of B and its transpose."""

    pairs: slice
    columns: slice
    B: Any
    T: Any


class Pairs:
    """B: one row per pair and one column per coordinate, in the blocks' order, as an operator."""

    blocks: Blocks
    context: Indices  #: of each pair: the number of its row, or of the set of equal rows it belongs to
    parts: list[BlockRun]

    def sweep(self, u: Array, pull: Pull) -> Array:
        """B' applied to what `pull` makes of B u, some blocks at a time: neither is ever whole."""
        out = np.empty(self.blocks.order.size)
        for pairs, columns, B, T in self.parts:
            out[columns] = T @ pull(B @ u[columns], pairs)
        return out

    def forward(self, u: Array) -> Array:
        """B u."""
        out = np.empty(self.context.size)
        for pairs, columns, B, _ in self.parts:
            out[pairs] = B @ u[columns]
        return out

    def backward(self, r: Array) -> Array:
        """B'r."""
        out = np.empty(self.blocks.order.size)
        for pairs, columns, _, T in self.parts:
            out[columns] = T @ r[pairs]
        return out

    def column_squares(self, weights: Array) -> Array:
        """The diagonal of B' diag(weights) B."""
        out = np.empty(self.blocks.order.size)
        for pairs, columns, _, T in self.parts:
            out[columns] = T**2 @ weights[pairs]
        return out


class SparsePairs(Pairs):
    """The pairs that hold a non-zero, block by block; entries are times a factor of their row."""

    def __init__(self, A: Any, factors: Array, blocks: Blocks, context: Indices, shares: Array) -> None:
        import scipy.sparse

        self.blocks = blocks
        place = np.zeros(A.shape[1], dtype=A.indices.dtype)
        place[blocks.order] = np.arange(blocks.order.size)
        #: where the pairs of each block begin, and how many blocks each row has entries in
        self.start, self.touched, rows, (indptr, indices, data) = kernels().pairs(
            csr_arrays(A), factors, blocks.labels, place, blocks.count
        )
        self.context = context[rows]
        self.weights = shares[rows]
        shape = (rows.size, blocks.order.size)
        self.B: Any = scipy.sparse.csr_array((data, indices, indptr), shape=shape)
        if rows.size and context.size and int(context.max()) + 1 < context.size:
            self._merge()

    def _merge(self) -> None:
        """Replace equal pairs by one with their joint weight, if there are many."""
        B = self.B
        target, first = np.empty(B.shape[0], dtype=np.int64), np.empty(B.shape[0], dtype=np.int64)
        bits = B.indptr, B.indices, B.data.view(np.uint64)
        count = kernels().equal_rows(bits, self.context, target, first)
        if count > MERGED_ENOUGH * B.shape[0]:
            return
        first = first[:count]
        self.weights = sums_of(self.weights, target, count)
        self.context = self.context[first]
        self.start = np.searchsorted(first, self.start)
        self.B = B[first]

    @cached_property
    def parts(self) -> list[BlockRun]:  # type: ignore[override]
        """Both matrices share arrays, sorted by columns: the rows of B are too short for a loop over each."""
        T = self.B.T.tocsr()
        parts = []
        for first, last in _runs(self.start):
            pairs = slice(int(self.start[first]), int(self.start[last]))
            columns = slice(int(self.blocks.start[first]), int(self.blocks.start[last]))
            mirror = T[columns, pairs]
            parts.append(BlockRun(pairs, columns, mirror.T, mirror))
        return parts

    def grams(self, weights: Array) -> Array:
        """All B_k' diag(weights) B_k, one after the other."""
        sizes = self.blocks.sizes
        starts = np.concatenate([[0], np.cumsum(sizes**2)])
        out = np.zeros(int(starts[-1]))
        begin = self.start, self.blocks.start, starts
        kernels().block_grams(csr_arrays(self.B), weights, begin, out)
        return out


class DensePairs(Pairs):
    """The same for dense data: every (row, block) is a pair, and products are BLAS."""

    def __init__(self, A: Array, factors: Array, blocks: Blocks, context: Indices, shares: Array) -> None:
        n = A.shape[0]
        self.blocks = blocks
        self.touched = np.full(n, blocks.count, dtype=np.int64)
        self.start = n * np.arange(blocks.count + 1)
        self.context = np.tile(context, blocks.count)
        self.weights = np.tile(shares, blocks.count)
        columns = np.asfortranarray(A[:, blocks.order] * factors[:, None])
        self.parts = []
        for k, (first, last) in enumerate(pairwise(blocks.start.tolist())):
            B = columns[:, first:last]
            self.parts.append(BlockRun(slice(k * n, k * n + n), slice(first, last), B, B.T))

    def grams(self, weights: Array) -> Array:
        """All B_k' diag(weights) B_k, one after the other."""
        grams = [weighted_gram(B, weights[pairs]).ravel() for pairs, _, B, _ in self.parts]
        return np.concatenate(grams) if grams else np.empty(0)


def _runs(start: Indices) -> list[tuple[int, int]]:
    """Runs first .. last-1 of blocks with about a chunk of pairs each."""
    runs, first = [], 0
    for last in range(1, start.size):
        if start[last] - start[first] >= CHUNK or last == start.size - 1:
            runs.append((first, last))
            first = last
    return runs


def sums_of(values: Array, groups: Indices, count: int) -> Array:
    """The sum of the values of each group."""
    out = np.zeros(count)
    kernels().grouped_sums(values, groups, out)
    return out


def make_pairs(
    design: Design, factors: Array, blocks: Blocks, context: Indices, shares: Array
) -> SparsePairs | DensePairs:
    """The pairs of a design: factors, contexts and shares are those of its rows."""
    if design.sparse or np.count_nonzero(design.matrix) < DENSE_SHARE * design.matrix.size:
        return SparsePairs(design.csr, factors, blocks, context, shares)
    return DensePairs(design.matrix, factors, blocks, context, shares)


class SketchedLinear(Objective):
    """What the exact forms share: the model, the shift, and the penalty's expectation."""

    def __init__(self, model: LinearModel, sketch: Sketch, shift: Array, penalty: Penalty) -> None:
        self.model = model
        self.dim = model.dim
        self.convex = model.convex
        self.infimum_exact = model.infimum_exact
        self.shift = shift
        self.penalty = penalty
        self._largest_square = float(sketch.expected_square(self.dim).max())

    @property
    def smoothness(self) -> float:
        """The largest E[c_j²] times L_f."""
        return self._largest_square * self.model.smoothness

    @property
    def strong_convexity(self) -> float:
        """The least curvature of the penalty's expectation, where that is a ridge."""
        return self.penalty.strong_convexity

    def infimum(self) -> float:
        """The minimum, or the model's lower bound where that is all there is."""
        return self._minimum[1] if self.convex else self.model.infimum()

    def _solve(self) -> Array:
        return newton(self, self.shift)

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"f_D of {self.model.title}"


class Bend(NamedTuple):
    """The curvature of the loss part of a `PairForm` at a point."""

    pairs: Array  #: of each pair with itself
    totals: Array  #: of each row (or of each set of equal rows) with itself
    within: Any = None  #: of each two pairs, as a sparse matrix; None where different pairs never meet


class PairForm(SketchedLinear):
    """A form whose margins are sums over pairs: a row, and a block of columns that survive together.

    Pairs depend on x by ``B u[order]``, u = x - v. Free coordinates always survive: they move all pairs
    of a row by the same number, ``border u[free]``.
    """

    pairs: Pairs  #: set by subclasses

    def __init__(
        self, model: LinearModel, sketch: Sketch, shift: Array, penalty: Penalty, blocks: Blocks
    ) -> None:
        super().__init__(model, sketch, shift, penalty)
        self.blocks = blocks
        self.offsets = model.at_shift(shift)  #: the margin of each row at the shift
        self.border = model.design.dense_columns(blocks.free) * model.signs[:, None]

    def _bases(self, x: Array) -> Array:
        """The margin of each row without any block."""
        if not self.blocks.free.size:
            return self.offsets
        moved: Array = self.border @ (x - self.shift)[self.blocks.free]
        return self.offsets + moved

    def _forward(self, x: Array) -> Array:
        """What the blocks add to the margin of each pair."""
        return self.pairs.forward((x - self.shift)[self.blocks.order])

    def _gathered(self, x: Array, in_order: Array, totals: Array) -> Array:
        """The gradient, from its loss part in the blocks' columns and the slope of each row."""
        gradient = self.penalty.gradient(x).copy()
        gradient[self.blocks.order] += in_order
        if self.blocks.free.size:
            gradient[self.blocks.free] += totals @ self.border
        return gradient

    @abstractmethod
    def _bend(self, x: Array) -> Bend:
        """The curvature at x."""

    @abstractmethod
    def _fill(self, H: Array, bend: Bend) -> None:
        """Write the part of the Hessian in the blocks' columns."""

    def _corner(self, bend: Bend) -> tuple[Array, Array]:
        """The Hessian's part with free coordinates: columns of blocks by free ones, and free by free."""
        border, context = self.border, self.pairs.context
        cross = np.empty((self.blocks.order.size, border.shape[1]))
        for j in range(border.shape[1]):
            cross[:, j] = self.pairs.backward(bend.pairs * border[context, j])
        return cross, border.T @ (bend.totals[:, None] * border)

    def _assemble(self, bend: Bend) -> Array:
        """The loss part of the Hessian as one matrix."""
        order, free = self.blocks.order, self.blocks.free
        H = np.zeros((self.dim, self.dim))
        self._fill(H, bend)
        if free.size:
            cross, H[np.ix_(free, free)] = self._corner(bend)
            H[np.ix_(order, free)] = cross
            H[np.ix_(free, order)] = cross.T
        return H

    def hessian(self, x: ArrayLike) -> Array:
        """The Hessian of f_D at x, dense."""
        x = self._point(x)
        H = self._assemble(self._bend(x))
        H[np.diag_indices(self.dim)] += self.penalty.curvature(x)
        return H

    def curvature(self, x: ArrayLike) -> tuple[Callable[[Array], Array], Array]:
        """The Hessian as a product with vectors, and its diagonal."""
        x = self._point(x)
        bend, penalty = self._bend(x), self.penalty.curvature(x)
        order, free, context = self.blocks.order, self.blocks.free, self.pairs.context
        diagonal = penalty.copy()
        # exact for pairs of one column each, and else near enough to precondition with
        diagonal[order] += self.pairs.column_squares(bend.pairs)
        diagonal[free] += bend.totals @ self.border**2

        def product(p: Array) -> Array:
            out = penalty * p
            along = self.pairs.forward(p[order])
            bent = bend.pairs * along if bend.within is None else bend.within @ along
            if free.size:
                in_rows = self.border @ p[free]
                pulled = sums_of(bend.pairs * along, context, bend.totals.size)
                out[free] += (bend.totals * in_rows + pulled) @ self.border
                bent += bend.pairs * in_rows[context]
            out[order] += self.pairs.backward(bent)
            return out

        return product, diagonal
