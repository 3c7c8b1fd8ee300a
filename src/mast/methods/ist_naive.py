"""Naive independent subnetwork training, a baseline: submodels are not rescaled, so it is biased."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mast.errors import NotDiagonalError
from mast.methods.base import Method, State
from mast.sketches import DiagonalDraw, Draw


@dataclass
class ISTNaive(Method):
    """x <- x - (g/M) sum_i P_i grad f_i(v + P_i(x - v)), P_i the projection onto what S_i keeps.

    Node i uses the draw with node=i, so that Perm-K nodes train disjoint parts.
    """

    name: ClassVar[str] = "ist_naive"

    def step(self, state: State, t: int, step_size: float) -> None:
        """Every node takes a gradient of its unscaled submodel."""
        x, M = state.x.copy(), len(self.problem.problems)
        for i, problem in enumerate(self.problem.problems):
            P = unscaled(problem.sketch.sample(problem.dim, self.key(t, node=i)))
            P.add(state.x, problem.sketched_gradient(x, P), -step_size / M)
            state.gradients += problem.objective.terms


def unscaled(draw: Draw) -> DiagonalDraw:
    """The projection onto the coordinates that a draw keeps."""
    if not isinstance(draw, DiagonalDraw):
        raise NotDiagonalError("ist_naive cuts submodels out: it needs a diagonal sketch")
    return draw.with_scales(np.ones(draw.count))
