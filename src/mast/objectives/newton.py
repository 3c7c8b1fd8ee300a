"""Newton's method with a line search, down to the accuracy that float64 gives.

For convex objectives of moderate dimension. It stops when the gradient no longer gets
smaller, and complains if that happens before the gradient is as small as rounding allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg

from mast.arrays import Array
from mast.errors import ConvergenceError, UnboundedError

if TYPE_CHECKING:
    from mast.objectives.base import Objective

LARGEST_DIMENSION = 4000  #: above it a dense Hessian is not a reasonable tool


def newton(f: Objective, x0: Array, max_steps: int = 200) -> Array:
    """A minimiser of the convex f, from x0.

    While the value can tell points apart, steps are shortened until it falls enough. When
    the predicted decrease drowns in rounding, full steps follow as long as the gradient shrinks.
    """
    if f.dim > LARGEST_DIMENSION:
        raise ConvergenceError(
            f"Newton with a dense Hessian is for up to {LARGEST_DIMENSION} dimensions, not {f.dim}"
        )
    x = x0.copy()
    value, g = f.value_and_gradient(x)
    start = float(np.linalg.norm(g))
    for _ in range(max_steps):
        step = _solve(f.hessian(x), g)
        predicted = float(g @ step) / 2
        if not predicted > 1e-13 * max(abs(value), 1e-300):
            return _polish(f, x, g, start)
        moved = _search(f, x, value, g, step)
        if moved is None:
            return _polish(f, x, g, start)
        x, value, g = moved
    raise ConvergenceError(_message(float(np.linalg.norm(g)), start))


def _polish(f: Objective, x: Array, g: Array, start: float) -> Array:
    """Full Newton steps until the gradient stops shrinking; then a look at whether this is a minimum."""
    size = float(np.linalg.norm(g))
    length = 0.0
    H = f.hessian(x)
    for _ in range(20):
        step = _solve(H, g)
        length = float(np.linalg.norm(step))
        g_new = f.gradient(x - step)
        size_new = float(np.linalg.norm(g_new))
        if not size_new < size:
            break
        x, g, size, H = x - step, g_new, size_new, f.hessian(x - step)
    reach = max(float(np.linalg.norm(x)), 1.0)
    rounding = 1e-9 * max(float(np.abs(H).max(initial=0.0)) * reach, start)
    if not size <= rounding:
        raise ConvergenceError(_message(size, start))
    if not length <= 1e-5 * reach:
        raise UnboundedError("the infimum is approached only at infinity: there is no minimiser")
    return x


def _message(size: float, start: float) -> str:
    return (
        f"no minimiser found: the gradient norm stopped at {size:.3g} (it began at {start:.3g}); "
        "the objective may be unbounded below, not convex, or not smooth"
    )


def _solve(H: Array, g: Array) -> Array:
    """The Newton step: by Cholesky, or the shortest least-squares solution if H is singular."""
    try:
        step: Array = scipy.linalg.cho_solve(
            scipy.linalg.cho_factor(H, check_finite=False), g, check_finite=False
        )
        if np.isfinite(step).all() and np.linalg.norm(H @ step - g) <= 1e-6 * np.linalg.norm(g):
            return step
    except np.linalg.LinAlgError:
        pass
    eigenvalues, Q = scipy.linalg.eigh(H)
    large = eigenvalues > 1e-12 * max(np.abs(eigenvalues).max(initial=0.0), 1e-300)
    inverse = np.where(large, 1 / np.where(large, eigenvalues, 1.0), 0.0)
    result: Array = Q @ (inverse * (Q.T @ g))
    return result


def _search(f: Objective, x: Array, value: float, g: Array, step: Array) -> tuple[Array, float, Array] | None:
    """The first of x - step, x - step/2, ... that decreases the value enough."""
    slope = float(g @ step)
    t = 1.0
    for _ in range(60):
        x_new = x - t * step
        value_new, g_new = f.value_and_gradient(x_new)
        if np.isfinite(value_new) and value_new <= value - 1e-4 * t * slope:
            return x_new, value_new, g_new
        t /= 2
    return None
