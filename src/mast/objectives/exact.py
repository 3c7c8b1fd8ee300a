"""SketchedLinear: f_D of a linear model in closed form, and PairForm, what two of these forms share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mast.objectives.base import Objective
from mast.objectives.newton import newton
from mast.objectives.pairs import Blocks, Pairs, sums_of
from mast.objectives.penalties import Penalty
from mast.support.arrays import Array

if TYPE_CHECKING:
    from mast.objectives.linear import LinearModel
    from mast.sketches import Sketch


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
        self.offsets = model.offsets(shift)  #: the margin of each row at the shift
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
