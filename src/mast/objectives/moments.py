"""Moments: f_D of least squares in very many dimensions, from second moments and without a d x d matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from mast.arrays import Array
from mast.objectives.exact import SketchedLinear
from mast.objectives.pairs import Blocks, SparsePairs
from mast.objectives.penalties import SketchedRidge

if TYPE_CHECKING:
    from mast.objectives.linear import LinearModel
    from mast.sketches import Sketch
    from mast.sketches.laws import MomentForm


class Moments(SketchedLinear):
    """A quadratic in u = x - v whose curvature is that of the data, entry by entry times E[c c'].

    E[c c'] is a multiple of m m' plus extra weight within units, so a product with the Hessian
    is one with the data, and one with the data's (row, unit) pairs.
    """

    penalty: SketchedRidge

    def __init__(
        self, model: LinearModel, sketch: Sketch, shift: Array, penalty: SketchedRidge, form: MomentForm
    ) -> None:
        super().__init__(model, sketch, shift, penalty)
        self.share, self.m = form.share, form.m
        residuals = model.design.times(shift) - model.labels
        self.constant = 0.5 * float(model.rates @ residuals**2)
        pull = model.design.transpose_times(model.rates * residuals)
        self.slope: Array = sketch.mean(self.dim) * pull
        self.blocks = Blocks(form.labels)
        if self.blocks.count == self.dim:  # units of one coordinate: their part is a diagonal
            self.pairs = None
            self.diagonal: Array = form.extra[form.labels] * model.design.column_squares(model.rates)
        else:
            rows = np.arange(model.terms)
            self.pairs = SparsePairs(model.design.csr, np.ones(rows.size), self.blocks, rows, model.rates)
            unit = form.labels[self.blocks.order[self.blocks.start[:-1]]]
            self.pairs.weights *= np.repeat(form.extra[unit], np.diff(self.pairs.start))
            self.diagonal = np.zeros(self.dim)
            self.diagonal[self.blocks.order] = self.pairs.column_squares(self.pairs.weights)

    def _product(self, u: Array) -> Array:
        """The loss part of the Hessian times u."""
        design = self.model.design
        out = self.share * self.m * design.transpose_times(self.model.rates * design.times(self.m * u))
        if self.pairs is None:
            return np.asarray(out + self.diagonal * u)
        order = self.blocks.order
        out[order] += self.pairs.backward(self.pairs.weights * self.pairs.forward(u[order]))
        return np.asarray(out)

    def value_and_gradient(self, x: ArrayLike) -> tuple[float, Array]:
        """f_D(x) and its gradient."""
        x = self._point(x)
        u = x - self.shift
        Hu = self._product(u)
        value = self.constant + float(u @ (self.slope + 0.5 * Hu)) + self.penalty.value(x)
        return value, self.slope + Hu + self.penalty.gradient(x)

    def curvature(self, x: ArrayLike) -> tuple[Callable[[Array], Array], Array]:
        """The Hessian as a product with vectors, and its diagonal."""
        penalty = self.penalty.bend
        squares = self.model.design.column_squares(self.model.rates)
        diagonal = penalty + self.share * self.m**2 * squares + self.diagonal
        return lambda p: self._product(p) + penalty * p, diagonal

    def hessian(self, x: ArrayLike) -> Array:
        """The Hessian, dense: column by column."""
        product, _ = self.curvature(x)
        return np.column_stack([product(e) for e in np.eye(self.dim)])
