"""Newton's method up to a tolerance, from any start: what `fit` runs where f_D has an exact form."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mast.arrays import Array
from mast.objectives import Objective
from mast.objectives.newton import conjugate_gradients, solve

DENSE = 2000  #: up to this dimension steps come from a dense Hessian, beyond it from conjugate gradients
ROUNDING = 1e-7  #: a relative error that rounding of values explains: no further step can be checked


@dataclass(frozen=True)
class Solution:
    """Where a solver stopped."""

    x: Array
    iterations: int
    converged: bool


def newton_to(
    f: Objective,
    x0: Array,
    tol: float,
    max_iter: int,
    scale: float,
    report: Callable[[int], None] = lambda done: None,
) -> Solution:
    """Newton steps until one of them is small.

    A step p is small if ``sqrt(g'p / scale) <= tol`` with g the gradient: g'p is twice the decrease
    that is left, so this has no unit, whatever the units of the data. It is still taken, and
    Newton's method about doubles the digits that are right.
    """
    x = x0.copy()
    value, g = f.value_and_gradient(x)
    start = float(np.linalg.norm(g))
    for iteration in range(1, max_iter + 1):
        step = _direction(f, x, g, start)
        promised = float(g @ step)
        error = math.sqrt(max(promised, 0.0) / scale) if scale > 0 else 0.0
        if not math.isfinite(promised):
            return Solution(x, iteration, False)
        moved = _search(f, x, value, g, step, promised, error)
        if moved is None:  # rounding, or a direction that leads nowhere
            return Solution(x, iteration, error <= max(tol, ROUNDING))
        x, value, g = moved
        report(iteration)
        if error <= tol:
            return Solution(x, iteration, True)
    return Solution(x, max_iter, False)


def _direction(f: Objective, x: Array, g: Array, start: float) -> Array:
    if f.dim <= DENSE:
        return solve(f.hessian(x), g)
    product, diagonal = f.curvature(x)
    left = float(np.linalg.norm(g)) / start if start > 0 else 0.0
    return conjugate_gradients(product, diagonal, g, min(0.1, max(math.sqrt(left), 1e-4)))


def _search(
    f: Objective, x: Array, value: float, g: Array, step: Array, promised: float, error: float
) -> tuple[Array, float, Array] | None:
    """The first of x - step, x - step/2, ... with enough decrease; near the end, with a smaller gradient."""
    if promised <= 0.0:
        return None
    size, t = float(np.linalg.norm(g)), 1.0
    for _ in range(40):
        there = x - t * step
        value_new, g_new = f.value_and_gradient(there)
        if value_new <= value - 1e-4 * t * promised:
            return there, value_new, g_new
        level = value_new <= value + 1e-12 * abs(value)
        if error <= 1e-4 and level and float(np.linalg.norm(g_new)) < size:
            return there, value_new, g_new
        t /= 2
    return None
