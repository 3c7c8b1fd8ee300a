"""f_D of a linear model in closed form: what its forms share, and that where one of K blocks survives.

A pair is a row and a block of columns that survive together. If of K blocks block k survives, the margin of
row i is ``base_i + K a_ik'u_k``, where a_ik are the row's entries in the block and ``base_i`` is what the row
has without any block. Only pairs that hold a non-zero need a margin each; all others of a row share its base.
Pairs that are equal in base and entries are merged, which on categorical data leaves few of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mast.errors import ConvergenceError, UnboundedError
from mast.objectives.base import Objective
from mast.objectives.design import Blocks, Pairs, PairSlope, kernels, sums_of
from mast.objectives.logistic import SATURATED, SEPARABLE, rank
from mast.objectives.losses import Penalty, weighted_sum
from mast.objectives.newton import LARGEST_DIMENSION, newton, solve
from mast.support.checks import Array, Indices

if TYPE_CHECKING:
    from mast.objectives.linear import LinearModel
    from mast.sketches import Sketch

DENSE_SHARE = 0.25  #: dense data with fewer non-zeros than this are treated as sparse
BATCHED = 24  #: systems up to this size are solved many at a time
LARGEST_BORDER = 64  #: more coordinates that always survive are not eliminated by a bordered system


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


class PairCurvature(NamedTuple):
    """The second derivatives of the loss part of a `PairForm` at a point."""

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
        self.offsets = model.margins_at(shift)  #: the margin of each row at the shift

    @cached_property
    def border(self) -> Array:
        """The columns of the free coordinates, each row times its sign."""
        return self.model.design.dense_columns(self.blocks.free) * self.model.signs[:, None]

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
    def _pair_curvature(self, x: Array) -> PairCurvature:
        """The curvature at x."""

    @abstractmethod
    def _fill_blocks(self, H: Array, curvature: PairCurvature) -> None:
        """Write the part of the Hessian in the blocks' columns."""

    def _free_part(self, curvature: PairCurvature) -> tuple[Array, Array]:
        """The Hessian's part with free coordinates: columns of blocks by free ones, and free by free."""
        border, context = self.border, self.pairs.context
        cross = np.empty((self.blocks.order.size, border.shape[1]))
        for j in range(border.shape[1]):
            cross[:, j] = self.pairs.backward(curvature.pairs * border[context, j])
        return cross, border.T @ (curvature.totals[:, None] * border)

    def _loss_hessian(self, curvature: PairCurvature) -> Array:
        """The loss part of the Hessian as one matrix."""
        order, free = self.blocks.order, self.blocks.free
        H = np.zeros((self.dim, self.dim))
        self._fill_blocks(H, curvature)
        if free.size:
            cross, H[np.ix_(free, free)] = self._free_part(curvature)
            H[np.ix_(order, free)] = cross
            H[np.ix_(free, order)] = cross.T
        return H

    def hessian(self, x: ArrayLike) -> Array:
        """The Hessian of f_D at x, dense."""
        x = self._point(x)
        H = self._loss_hessian(self._pair_curvature(x))
        H[np.diag_indices(self.dim)] += self.penalty.curvature(x)
        return H

    def curvature(self, x: ArrayLike) -> tuple[Callable[[Array], Array], Array]:
        """The Hessian as a product with vectors, and its diagonal."""
        x = self._point(x)
        curvature, penalty = self._pair_curvature(x), self.penalty.curvature(x)
        order, free, context = self.blocks.order, self.blocks.free, self.pairs.context
        diagonal = penalty.copy()
        # exact for pairs of one column each, and else near enough to precondition with
        diagonal[order] += self.pairs.column_squares(curvature.pairs)
        diagonal[free] += curvature.totals @ self.border**2

        def product(p: Array) -> Array:
            out = penalty * p
            along = self.pairs.forward(p[order])
            pulled_pairs = curvature.pairs * along if curvature.within is None else curvature.within @ along
            if free.size:
                in_rows = self.border @ p[free]
                pulled_rows = sums_of(curvature.pairs * along, context, curvature.totals.size)
                out[free] += (curvature.totals * in_rows + pulled_rows) @ self.border
                pulled_pairs += curvature.pairs * in_rows[context]
            out[order] += self.pairs.backward(pulled_pairs)
            return out

        return product, diagonal


class Separable(PairForm):
    """sum_p w_p loss(base + B_p u) + sum_c w_c loss(base_c) + penalty, with u = x - v.

    p runs over the (row, block) pairs and c over the contexts: the rows, equal ones merged.

    This is Perm-K with a fixed partition, Rand-1, their grouped forms, and no sketch at all (K = 1). f_D then
    splits into one small problem per block. Coordinates that always survive (label -1, such as an intercept)
    tie the blocks together: the Hessian is an arrow.
    """

    def __init__(
        self, model: LinearModel, sketch: Sketch, shift: Array, penalty: Penalty, labels: Indices, K: int
    ) -> None:
        super().__init__(model, sketch, shift, penalty, Blocks(labels))
        context, first = _contexts(self.offsets, self.border)
        self.offsets, self.border = self.offsets[first], self.border[first]
        A = model.design.matrix
        if model.design.sparse or np.count_nonzero(A) < DENSE_SHARE * A.size:
            A = model.design.csr
        self.pairs = Pairs(A, K * model.signs, self.blocks, context, model.rates / K)
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

    def _sweep(self, x: Array, bases: Array, base_slopes: Array, slope: PairSlope) -> Array:
        """The gradient, one sweep forward and one back; `slope` sees the margins of some pairs at a time."""
        pairs, plain, free = self.pairs, self._plain, self.blocks.free.size > 0
        totals = self.shared * base_slopes

        def weighted(m: Array, span: slice) -> Array:
            if not plain:
                m += bases[pairs.context[span]]
            slopes = slope(m, span)
            slopes *= pairs.weights[span]
            if free:
                kernels().grouped_sums(slopes, pairs.context[span], totals)
            return slopes

        return self._gathered(x, pairs.sweep((x - self.shift)[self.blocks.order], weighted), totals)

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

    def _pair_curvature(self, x: Array) -> PairCurvature:
        loss, bases = self.model.loss, self._bases(x)
        in_pairs = loss.curvature(self.margins(x, bases))
        in_pairs *= self.pairs.weights
        return self._curvature_from(in_pairs, self.shared * loss.curvature(bases))

    def _curvature_from(self, in_pairs: Array, at_bases: Array) -> PairCurvature:
        """The curvature, from the weighted one of the loss of each pair and of each context at its base."""
        if self.blocks.free.size:
            at_bases = at_bases + sums_of(in_pairs, self.pairs.context, at_bases.size)
        return PairCurvature(in_pairs, at_bases)

    def _fill_blocks(self, H: Array, curvature: PairCurvature) -> None:
        flat, begin = self.pairs.grams(curvature.pairs), 0
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
            undecided = self._loss_hessian(self._curvature_from(held.astype(float), base_held * used))
            if rank(undecided) < rank(self._loss_hessian(self._curvature_from(np.ones(held.size), used))):
                raise UnboundedError(SEPARABLE)
        return x

    def _newton_step(self, x: Array, gradient: Array, left: float) -> tuple[Array, Array]:
        """One small system per block; free coordinates are eliminated last."""
        order, free = self.blocks.order, self.blocks.free
        curvature, penalty = self._pair_curvature(x), self.penalty.curvature(x)
        cross, corner = self._free_part(curvature)
        corner += np.diag(penalty[free])
        step, diagonal = np.empty(self.dim), np.empty(self.dim)
        right = np.column_stack([gradient[order], cross])
        solved, diagonal[order] = self._solve_blocks(self.pairs.grams(curvature.pairs), penalty[order], right)
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
