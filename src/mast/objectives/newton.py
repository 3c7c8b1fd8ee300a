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
    """The point with the smallest gradient that Newton's method reaches from x0."""
    if f.dim > LARGEST_DIMENSION:
        raise ConvergenceError(
            f"Newton with a dense Hessian is for up to {LARGEST_DIMENSION} dimensions, not {f.dim}"
        )
    x = x0.copy()
    value, g = f.value_and_gradient(x)
    size = start = float(np.linalg.norm(g))
    curvature = 0.0
    stalled = 0
    for _ in range(max_steps):
        if size == 0.0 or stalled == 3:
            break
        H = f.hessian(x)
        curvature = max(curvature, float(np.abs(H).max(initial=0.0)))
        step = _solve(H, g)
        moved = _search(f, x, value, g, step)
        if moved is None:
            break
        x_new, value, g_new = moved
        size_new = float(np.linalg.norm(g_new))
        # near the minimum the value cannot tell points apart any more: only the gradient counts
        stalled = stalled + 1 if size_new >= 0.5 * size else 0
        if size_new < size or size > 1e-6 * max(start, 1e-300):
            x, g, size = x_new, g_new, size_new
        else:
            break
    _certify(f, x, value, size, start, curvature)
    return x


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
    """The first of x - step, x - step/2, ... that decreases the value enough, or else the gradient."""
    slope = float(g @ step)
    size = float(np.linalg.norm(g))
    t = 1.0
    for _ in range(60):
        x_new = x - t * step
        value_new, g_new = f.value_and_gradient(x_new)
        enough = np.isfinite(value_new) and (
            value_new <= value - 1e-4 * t * slope or float(np.linalg.norm(g_new)) < (1 - 0.1 * t) * size
        )
        if enough:
            return x_new, value_new, g_new
        t /= 2
    return None


def _certify(f: Objective, x: Array, value: float, size: float, start: float, curvature: float) -> None:
    """Raise unless the gradient is as small as the rounding of its parts explains."""
    reach = max(float(np.linalg.norm(x)), 1.0)
    rounding = 1e-9 * max(curvature * reach, start, abs(value) * 1e-3)
    if size <= rounding and np.isfinite(value):
        if reach > 1e12:
            raise UnboundedError("the infimum is approached only at infinity: there is no minimiser")
        return
    raise ConvergenceError(
        f"no minimiser found: the gradient norm stopped at {size:.3g} (it began at {start:.3g}); "
        "the objective may be unbounded below, not convex, or not smooth"
    )
