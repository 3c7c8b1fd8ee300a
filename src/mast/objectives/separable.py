"""Separable: f_D of a linear model where one of K blocks survives. One sweep forward, one back.

This is Perm-K with a fixed partition, Rand-1, their grouped forms, and no sketch at all
(K = 1). f_D then splits into one small problem per block. Coordinates that always survive
(label -1, such as an intercept) tie the blocks together: the Hessian is an arrow.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mast.arrays import Array, Indices
from mast.errors import ConvergenceError, UnboundedError
from mast.objectives.design import kernels
from mast.objectives.exact import Bend, PairForm
from mast.objectives.losses import weighted_sum
from mast.objectives.newton import LARGEST_DIMENSION, MAX_STEPS, BlockSum, NewtonStep, newton_steps, solve
from mast.objectives.pairs import Blocks, DensePairs, Pull, SparsePairs, make_pairs, sums_of
from mast.objectives.penalties import Penalty

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
        super().__init__(model, sketch, shift, penalty)
        self.blocks = Blocks(labels)
        offsets = model.offsets(shift)
        border = model.design.dense_columns(self.blocks.free) * model.signs[:, None]
        context, first = _contexts(offsets, border)
        self.offsets, self.border = offsets[first], border[first]
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
        values, gradient, rest = self.evaluate(x)
        return float(values.sum()) + rest + self.penalty.value(x), gradient

    def evaluate(self, x: Array, bends: Array | None = None) -> tuple[Array, Array, float]:
        """The weighted loss of each pair, the gradient, and the loss of all rows at their base.

        If `bends` is given, it receives the weighted curvature of each pair, good to a few digits.
        """
        loss, bases, weights = self.model.loss, self._bases(x), self.pairs.weights
        base_values, base_slopes = loss.value_and_slope(bases)
        values = np.empty(weights.size)

        def slope(m: Array, span: slice) -> Array:
            losses, slopes = loss.value_and_slope(m)
            np.multiply(losses, weights[span], out=values[span])
            if bends is not None:
                np.multiply(loss.bend(slopes), weights[span], out=bends[span])
            return slopes

        return values, self._sweep(x, bases, base_slopes, slope), weighted_sum(self.shared, base_values)

    def _bend(self, x: Array, pair_bends: Array | None = None) -> Bend:
        loss, bases = self.model.loss, self._bases(x)
        if pair_bends is None:
            pair_bends = loss.curvature(self.margins(x, bases))
            pair_bends *= self.pairs.weights
        return self._bend_from(pair_bends, self.shared * loss.curvature(bases))

    def _bend_from(self, pair_bends: Array, base_bends: Array) -> Bend:
        """The curvature, from the weighted one of the loss of each pair and of each context at its base."""
        context, tied = self.pairs.context, self.blocks.free.size > 0

        def product(in_pairs: Array, in_rows: Array) -> tuple[Array, Array]:
            if tied:
                in_pairs += in_rows[context]
            in_pairs *= pair_bends
            if tied:
                in_rows = base_bends * in_rows + sums_of(in_pairs, context, in_rows.size)
            return in_pairs, in_rows

        def fill(H: Array) -> None:
            flat, begin = self.pairs.grams(pair_bends), 0
            for k, size in enumerate(self.blocks.sizes.tolist()):
                columns = self.blocks.order[self.blocks.start[k] : self.blocks.start[k] + size]
                H[np.ix_(columns, columns)] = flat[begin : begin + size * size].reshape(size, size)
                begin += size * size

        totals = base_bends + sums_of(pair_bends, context, base_bends.size) if tied else base_bends
        return Bend(pair_bends, totals, product, fill)

    def _solve(self) -> Array:
        largest = int(self.blocks.sizes.max(initial=0))
        if largest > LARGEST_DIMENSION or self.blocks.free.size > LARGEST_BORDER:
            return super()._solve()
        parts = SeparableBlocks(self)
        last = np.zeros(parts.count)
        for reached in islice(newton_steps(parts, self.shift.copy(), patience=1), MAX_STEPS):
            last = np.where(reached.tried, np.sqrt(parts.dots(reached.step, reached.step)), last)
        self._certify(parts, reached, last)
        return reached.x

    def _certify(self, parts: SeparableBlocks, reached: NewtonStep, last: Array) -> None:
        """Raise unless every part's gradient is as small as rounding explains and its steps came to rest."""
        x, sizes, largest = reached.x, reached.sizes, reached.largest
        reach = np.maximum(np.sqrt(parts.dots(x, x)), 1.0)
        if (sizes > 1e-9 * np.maximum(largest, self.smoothness * reach)).any():
            raise ConvergenceError(
                f"no minimiser of f_D found: a block's gradient norm stopped at {sizes.max():.3g} "
                f"(it began at {largest.max():.3g})"
            )
        if self.strong_convexity > 0:
            return
        from mast.objectives.logistic import SATURATED, SEPARABLE, rank

        if (last > 1e-3 * reach).any():
            raise UnboundedError(SEPARABLE)
        bases = self._bases(x)
        held, base_held = self.margins(x, bases) <= SATURATED, bases <= SATURATED
        if self.dim > LARGEST_DIMENSION or (held.all() and base_held.all()):
            return
        ones, base_ones = np.ones(held.size), (self.shared > 0).astype(float)
        undecided = self._bend_from(held.astype(float), base_held * base_ones)
        if rank(self._assemble(undecided)) < rank(self._assemble(self._bend_from(ones, base_ones))):
            raise UnboundedError(SEPARABLE)


class SeparableBlocks(BlockSum):
    """The parts of f_D that choose their step lengths one by one, for Newton's method.

    Without free coordinates these are the blocks, and a step solves one small system per block. With
    them, a bordered system is solved by elimination and all coordinates move together. Five to eight
    steps reach machine precision.
    """

    def __init__(self, f: Separable) -> None:
        self.f = f
        self.whole = f.blocks.free.size > 0
        self.count = 1 if self.whole else f.blocks.count
        self._bends = np.empty(f.pairs.weights.size)
        self._bent = f.shift  # where they belong

    def evaluate(self, x: Array) -> tuple[Array, Array]:
        """The value of each part, and the gradient."""
        f = self.f
        pair_values, gradient, rest = f.evaluate(x, self._bends)
        self._bent = x
        penalties = f.penalty.parts(x)
        if self.whole:
            return np.array([pair_values.sum() + rest + penalties.sum()]), gradient
        values = _sums(pair_values, f.pairs.start) + _sums(penalties[f.blocks.order], f.blocks.start)
        return values, gradient

    def dots(self, a: Array, b: Array) -> Array:
        """The inner product of the parts of two vectors."""
        product = a * b
        if self.whole:
            return np.array([product.sum()])
        return _sums(product[self.f.blocks.order], self.f.blocks.start)

    def spread(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """A number for each part, as one for each of its coordinates."""
        if self.whole:
            return numbers
        out = np.empty(self.f.dim, dtype=numbers.dtype)
        out[self.f.blocks.order] = np.repeat(numbers, self.f.blocks.sizes)
        return out

    def step(self, x: Array, gradient: Array, left: float) -> Array:
        """Block by block, with free coordinates eliminated last."""
        f, order, free = self.f, self.f.blocks.order, self.f.blocks.free
        # the curvatures of the pairs are left over from the last evaluation, if that was here
        bend = f._bend(x, self._bends if np.array_equal(x, self._bent) else None)
        penalty = f.penalty.curvature(x)
        flat = f.pairs.grams(bend.pairs)
        step = np.empty(f.dim)
        if not free.size:
            step[order] = self._solve(flat, penalty[order], gradient[order][:, None])[:, 0]
            return step
        cross, corner = f._corner(bend)
        corner = corner + np.diag(penalty[free])
        solved = self._solve(flat, penalty[order], np.hstack([gradient[order][:, None], cross]))
        rest = solve(corner - cross.T @ solved[:, 1:], gradient[free] - cross.T @ solved[:, 0])
        step[free] = rest
        step[order] = solved[:, 0] - solved[:, 1:] @ rest
        return step

    def _solve(self, flat: Array, penalty: Array, right: Array) -> Array:
        """Solve every block's system; blocks of one size stand together, so that many go at a time."""
        out = np.empty_like(right)
        begin = column = 0
        for size, times in zip(*np.unique(self.f.blocks.sizes, return_counts=True), strict=True):
            size, times = int(size), int(times)
            H = flat[begin : begin + times * size * size].reshape(times, size, size)
            span = slice(column, column + times * size)
            diagonal = np.einsum("kii->ki", H)
            diagonal += penalty[span].reshape(times, size)
            rhs = right[span].reshape(times, size, -1)
            if size == 1:
                flat_direction = diagonal[:, :, None] <= 0
                result = np.where(
                    flat_direction, 0.0, rhs / np.where(flat_direction, 1.0, diagonal[:, :, None])
                )
            elif size <= BATCHED and self.f.strong_convexity > 0:
                result = np.linalg.solve(H, rhs)
            else:
                result = np.stack([solve(H[k], rhs[k]) for k in range(times)])
            out[span] = result.reshape(times * size, -1)
            begin += times * size * size
            column += times * size
        return out


def _sums(values: Array, starts: Indices) -> Array:
    out = np.empty(starts.size - 1)
    kernels().segment_sums(values, starts, out)
    return out


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
