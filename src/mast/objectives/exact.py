"""SketchedLinear: f_D of a linear model in closed form, and which form fits which sketch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mast.arrays import Array
from mast.errors import SupportTooLargeError
from mast.objectives.base import Objective
from mast.objectives.combined import Sketched, mean
from mast.objectives.newton import newton
from mast.objectives.pairs import Blocks, Pairs
from mast.objectives.penalties import Penalty

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
    def _title(self) -> str:
        return f"f_D of {self.model._title}"


class Bend(NamedTuple):
    """The curvature of the loss part of a `PairForm` at a point."""

    pairs: Array  #: of each pair with itself
    totals: Array  #: of each row (or of each set of equal rows) with itself
    #: takes a direction, in each pair and in each row, to what the curvature makes of it there
    product: Callable[[Array, Array], tuple[Array, Array]]
    fill: Callable[[Array], None]  #: writes the part in the blocks' columns into a Hessian


class PairForm(SketchedLinear):
    """A form whose margins are sums over pairs: a row, and a block of columns that survive together.

    Pairs depend on x by ``B u[order]``, u = x - v. Free coordinates always survive: they move all pairs
    of a row by the same number, ``border u[free]``. Subclasses set what follows, and say the rest.
    """

    blocks: Blocks
    pairs: Pairs
    offsets: Array  #: the margin of each row at the shift
    border: Array  #: the free columns of the rows

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
        bend.fill(H)
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
        order, free = self.blocks.order, self.blocks.free
        diagonal = penalty.copy()
        # exact for pairs of one column each, and else near enough to precondition with
        diagonal[order] += self.pairs.column_squares(bend.pairs)
        diagonal[free] += bend.totals @ self.border**2

        def product(p: Array) -> Array:
            out = penalty * p
            in_pairs, in_rows = bend.product(self.pairs.forward(p[order]), self.border @ p[free])
            out[order] += self.pairs.backward(in_pairs)
            if free.size:
                out[free] += in_rows @ self.border
            return out

        return product, diagonal


def sketched_linear(model: LinearModel, sketch: Sketch, shift: Array) -> Objective | None:
    """f_D of a linear model for this sketch and shift; None where no exact form is known."""
    parts = sketch.components()
    if parts is not None:
        return _mixed(model, parts, shift)
    if not sketch.diagonal:
        return None
    penalty, law = model.penalty.sketched(sketch, shift), sketch.law(model.dim)
    if penalty is None or law is None:
        return None
    blocks = law.separable()
    if blocks is not None:
        from mast.objectives.separable import Separable

        return Separable(model, sketch, shift, penalty, *blocks)
    if law.noise or law.pairs is not None:
        return None
    from mast.objectives.rowwise import RowPairs, Rowwise

    pairs = RowPairs(model, law)
    return Rowwise(model, sketch, shift, penalty, law, pairs) if pairs.small_enough else None


def _mixed(model: LinearModel, parts: list[tuple[float, Sketch]], shift: Array) -> Objective | None:
    """The mean of the components' f_D, each in the form that fits it."""
    exact = [model.sketched(sketch, shift) or _listed(model, sketch, shift) for _, sketch in parts]
    known = [f for f in exact if f is not None]
    return mean(known, [weight for weight, _ in parts]) if len(known) == len(parts) else None


def _listed(model: LinearModel, sketch: Sketch, shift: Array) -> Objective | None:
    """The mean over a support that is short enough to list."""
    try:
        support = sketch.support(model.dim)
    except SupportTooLargeError:
        return None
    if support is None:
        return None
    return mean([Sketched(model, draw, shift) for _, draw in support], [p for p, _ in support])
