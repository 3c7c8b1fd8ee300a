"""Separable: f_D of a linear model where one of K blocks survives. One sweep forward, one back.

This is Perm-K with a fixed partition, Rand-1, their grouped forms, and no sketch at all
(K = 1). f_D then splits into one small problem per block. Coordinates that always survive
(label -1, such as an intercept) tie the blocks together: the Hessian is an arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from mast.errors import ConvergenceError, UnboundedError
from mast.objectives.design import kernels
from mast.objectives.exact import Bend, Blocks, DensePairs, PairForm, Pull, SparsePairs, make_pairs, sums_of
from mast.objectives.logistic import SATURATED, SEPARABLE, rank
from mast.objectives.losses import Penalty, weighted_sum
from mast.objectives.newton import LARGEST_DIMENSION, newton, solve
from mast.support.checks import Array, Indices

if TYPE_CHECKING:
    from mast.objectives.linear import LinearModel
    from mast.sketches import Sketch

BATCHED = 24  #: systems up to this size are solved many at a time
LARGEST_BORDER = 64  #: more coordinates that always survive are not eliminated by a bordered system


class Separable(PairForm):
    """sum_p w_p loss(base + B_p u) + sum_c w_c loss(base_c) + penalty, with u = x - v.

    p runs over the (row, block) pairs and c over the contexts: the rows, equal ones merged.
    """

    pairs: SparsePairs | DensePairs

    def __init__(
        self, model: LinearModel, sketch: Sketch, shift: Array, penalty: Penalty, labels: Indices, K: int
    ) -> None:
        super().__init__(model, sketch, shift, penalty, Blocks(labels))
        context, first = _contexts(self.offsets, self.border)
        self.offsets, self.border = self.offsets[first], self.border[first]
        self.pairs = make_pairs(model.design, K * model.signs, self.blocks, context, model.rates / K)
        unused = model.rates * (1 - self.pairs.touched / K)  # the blocks that leave a row at its base
        self.shared = sums_of(unused, context, first.size)
        self._plain = not self.blocks.free.size and not self.offsets.any()  # every base is 0

    def margins(self, x: Array, bases: Array) -> Array:
        """The margin of each pair."""
        m = self._forward(x)
        if not self._plain:
            m += bases[self.pairs.context]
        return m

    # ---- value and derivatives ---------------------------------------------------------------

    def gradient(self, x: ArrayLike) -> Array:
        """The gradient of f_D at x."""
        x = self._point(x)
        bases = self._bases(x)
        return self._sweep(x, bases, self.model.loss.slope(bases), lambda m, _: self.model.loss.slope(m))

    def _sweep(self, x: Array, bases: Array, base_slopes: Array, slope: Pull) -> Array:
        """The gradient, one sweep forward and one back; `slope` sees the margins of some pairs at a time."""
        pairs, plain, tied = self.pairs, self._plain, self.blocks.free.size > 0
        pulled = self.shared * base_slopes

        def pull(m: Array, span: slice) -> Array:
            if not plain:
                m += bases[pairs.context[span]]
            slopes = slope(m, span)
            slopes *= pairs.weights[span]
            if tied:
                kernels().grouped_sums(slopes, pairs.context[span], pulled)
            return slopes

        return self._gathered(x, pairs.sweep((x - self.shift)[self.blocks.order], pull), pulled)

    def value(self, x: ArrayLike) -> float:
        """f_D(x)."""
        x = self._point(x)
        loss, bases = self.model.loss, self._bases(x)
        in_pairs = weighted_sum(self.pairs.weights, loss.value(self.margins(x, bases)))
        return in_pairs + weighted_sum(self.shared, loss.value(bases)) + self.penalty.value(x)

    def value_and_gradient(self, x: ArrayLike) -> tuple[float, Array]:
        """The value and the gradient."""
        x = self._point(x)
        loss, bases = self.model.loss, self._bases(x)
        base_values, base_slopes = loss.value_and_slope(bases)
        parts = [weighted_sum(self.shared, base_values), self.penalty.value(x)]

        def slope(m: Array, span: slice) -> Array:
            losses, slopes = loss.value_and_slope(m)
            parts.append(weighted_sum(self.pairs.weights[span], losses))
            return slopes

        gradient = self._sweep(x, bases, base_slopes, slope)
        return float(np.sum(parts)), gradient

    def _bend(self, x: Array) -> Bend:
        loss, bases = self.model.loss, self._bases(x)
        pair_bends = loss.curvature(self.margins(x, bases))
        pair_bends *= self.pairs.weights
        return self._bend_from(pair_bends, self.shared * loss.curvature(bases))

    def _bend_from(self, pair_bends: Array, base_bends: Array) -> Bend:
        """The curvature, from the weighted one of the loss of each pair and of each context at its base."""
        if self.blocks.free.size:
            base_bends = base_bends + sums_of(pair_bends, self.pairs.context, base_bends.size)
        return Bend(pair_bends, base_bends)

    def _fill(self, H: Array, bend: Bend) -> None:
        flat, begin = self.pairs.grams(bend.pairs), 0
        for k, size in enumerate(self.blocks.sizes.tolist()):
            columns = self.blocks.order[self.blocks.start[k] : self.blocks.start[k] + size]
            H[np.ix_(columns, columns)] = flat[begin : begin + size * size].reshape(size, size)
            begin += size * size

    # ---- the minimiser -----------------------------------------------------------------------

    def _solve(self) -> Array:
        largest = int(self.blocks.sizes.max(initial=0))
        if largest > LARGEST_DIMENSION or self.blocks.free.size > LARGEST_BORDER:
            return super()._solve()
        if self.strong_convexity > 0 or not self.model.loss.signed:  # squares have a minimiser in any case
            return newton(self, self.shift, self._newton_step)
        try:
            x = newton(self, self.shift, self._newton_step)
        except (UnboundedError, ConvergenceError):
            raise UnboundedError(SEPARABLE) from None
        bases = self._bases(x)
        held, base_held = self.margins(x, bases) <= SATURATED, bases <= SATURATED
        if self.dim <= LARGEST_DIMENSION and not (held.all() and base_held.all()):
            used = (self.shared > 0).astype(float)
            undecided = self._assemble(self._bend_from(held.astype(float), base_held * used))
            if rank(undecided) < rank(self._assemble(self._bend_from(np.ones(held.size), used))):
                raise UnboundedError(SEPARABLE)
        return x

    def _newton_step(self, x: Array, gradient: Array, left: float) -> tuple[Array, Array]:
        """One small system per block; free coordinates are eliminated last."""
        order, free = self.blocks.order, self.blocks.free
        bend, penalty = self._bend(x), self.penalty.curvature(x)
        cross, corner = self._corner(bend)
        corner += np.diag(penalty[free])
        step, diagonal = np.empty(self.dim), np.empty(self.dim)
        right = np.column_stack([gradient[order], cross])
        solved, diagonal[order] = self._solve_blocks(self.pairs.grams(bend.pairs), penalty[order], right)
        step[order], diagonal[free] = solved[:, 0], np.diag(corner)
        if free.size:
            step[free] = solve(corner - cross.T @ solved[:, 1:], gradient[free] - cross.T @ solved[:, 0])
            step[order] -= solved[:, 1:] @ step[free]
        return step, diagonal

    def _solve_blocks(self, flat: Array, penalty: Array, right: Array) -> tuple[Array, Array]:
        """Solve every block's system, and its diagonal; blocks of one size go many at a time."""
        out, diagonals = np.empty_like(right), penalty.copy()
        begin = column = 0
        for size, times in zip(*np.unique(self.blocks.sizes, return_counts=True), strict=True):
            H = flat[begin : begin + times * size * size].reshape(times, size, size)
            span = slice(column, column + times * size)
            diagonal = np.einsum("kii->ki", H)
            diagonal += penalty[span].reshape(times, size)
            diagonals[span] = diagonal.ravel()
            rhs = right[span].reshape(times, size, -1)
            if size == 1:
                flat_direction = H <= 0
                result = np.where(flat_direction, 0.0, rhs / np.where(flat_direction, 1.0, H))
            elif size <= BATCHED and self.strong_convexity > 0:
                result = np.linalg.solve(H, rhs)
            else:
                result = np.stack([solve(H[k], rhs[k]) for k in range(times)])
            out[span] = result.reshape(times * size, -1)
            begin, column = begin + times * size * size, column + times * size
        return out, diagonals


def _contexts(offsets: Array, border: Array) -> tuple[Indices, Indices]:
    """Rows with equal offset and free entries get one number: that of each row, and a row of each number."""
    n = offsets.size
    if not border.shape[1] and not offsets.any():
        return np.zeros(n, dtype=np.int64), np.zeros(1, dtype=np.int64)
    if border.shape[1]:
        table = np.column_stack([offsets, border])
        _, first, context = np.unique(table, axis=0, return_index=True, return_inverse=True)
    else:
        _, first, context = np.unique(offsets, return_index=True, return_inverse=True)
    if first.size > n // 2:  # hardly any are equal: leave them in the order of rows
        return np.arange(n), np.arange(n)
    return context.ravel().astype(np.int64), first
