"""Newton's method up to a tolerance, from any start: what `fit` runs where f_D has an exact form."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from itertools import islice

from mast.arrays import Array
from mast.objectives import Objective
from mast.objectives.newton import OneBlock, newton_steps

DENSE = 2000  #: up to this dimension steps come from a dense Hessian, beyond it from conjugate gradients
ROUNDING = 1e-7  #: a relative error that rounding of values explains: no further step can be checked


@dataclass(frozen=True)
class Solution:
    """Where a solver stopped."""

    x: Array
    iterations: int
    converged: bool


def newton_to(f: Objective, x0: Array, tol: float, max_iter: int, scale: float) -> Solution:
    """Newton steps until one of them is small.

    A step p is small if ``sqrt(g'p / scale) <= tol`` with g the gradient: g'p is twice the decrease
    that is left, so this has no unit, whatever the units of the data. It is still taken, and
    Newton's method about doubles the digits that are right.
    """
    x = x0.copy()
    steps = newton_steps(OneBlock(f, DENSE, scaled=False), x, patience=sys.maxsize)
    for iteration, reached in enumerate(islice(steps, max_iter), start=1):
        x, promised = reached.x, float(reached.promised[0])
        error = math.sqrt(max(promised, 0.0) / scale) if scale > 0 else 0.0
        if not reached.moved.any():  # rounding, or a direction that leads nowhere
            return Solution(x, iteration, math.isfinite(promised) and error <= max(tol, ROUNDING))
        if error <= tol:
            return Solution(x, iteration, True)
    return Solution(x, max_iter, False)
