"""Newton's method up to a tolerance, from any start: what `fit` runs."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from mast.arrays import Array
from mast.learn.models import Softmax
from mast.objectives import Objective
from mast.objectives.newton import OneBlock, newton_steps

DENSE = 2000  #: up to this dimension steps come from a dense Hessian, beyond it from conjugate gradients
DENSE_WORK = 2e7  #: of a dense Hessian with a block for each two classes
ROUNDING = 1e-7  #: a relative error that rounding of values explains: no further step can be checked

Watch = Callable[[str], None] | None  #: who is told of each iteration, if anybody


@dataclass(frozen=True)
class Solution:
    """Where a solver stopped."""

    x: Array
    iterations: int
    converged: bool


def newton_to(
    f: Objective, x0: Array, tol: float, max_iter: int, scale: float, watch: Watch = None
) -> Solution:
    """Newton steps until one of them is small.

    A step p is small if ``sqrt(g'p / scale) <= tol`` with g the gradient: g'p is twice the decrease
    that is left, so this has no unit, whatever the units of the data. It is still taken, and
    Newton's method about doubles the digits that are right.
    """
    x = x0.copy()
    steps = newton_steps(OneBlock(f, DENSE if _dense(f) else 0, scaled=False), x, patience=sys.maxsize)
    for iteration, reached in enumerate(islice(steps, max_iter), start=1):
        x, promised = reached.x, float(reached.promised[0])
        error = math.sqrt(max(promised, 0.0) / scale) if scale > 0 else 0.0
        if watch is not None:
            watch(f"iteration {iteration}: loss {float(reached.values[0]):.6g}, error before it {error:.2g}")
        if not reached.moved.any():  # rounding, or a direction that leads nowhere
            return Solution(x, iteration, math.isfinite(promised) and error <= max(tol, ROUNDING))
        if error <= tol:
            return Solution(x, iteration, True)
    return Solution(x, max_iter, False)


def _dense(f: Objective) -> bool:
    """Whether a dense Hessian is worth its work."""
    return not isinstance(f, Softmax) or f.dim**2 * f.terms / 2 <= DENSE_WORK
