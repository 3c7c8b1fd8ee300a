"""Newton's method with a line search, down to the accuracy that float64 gives.

For convex objectives: with a dense Hessian in moderate dimension, with conjugate gradients
beyond it if the objective has products with its Hessian (`curvature`). It stops when the
gradient no longer gets smaller, and complains if that happens before the gradient is as
small as rounding allows, or if the steps do not get smaller: then there is no minimiser.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg

from mast.arrays import Array
from mast.errors import ConvergenceError, UnboundedError

if TYPE_CHECKING:
    from mast.objectives.base import Objective

LARGEST_DIMENSION = 4000  #: above it a dense Hessian is not a reasonable tool
#: a promised decrease below this share of the value drowns in its rounding
NEAR = 1e-12

Solver = Callable[[Array, Array, float], tuple[Array, float]]  # (x, gradient, accuracy) -> step, curvature


def newton(f: Objective, x0: Array, max_steps: int = 200) -> Array:
    """The point with the smallest gradient that Newton's method reaches from x0."""
    solver = _solver(f)
    x = x0.copy()
    value, g = f.value_and_gradient(x)
    size = start = float(np.linalg.norm(g))
    curvature = last = 0.0
    stalled, patience = 0, 2 if f.dim <= LARGEST_DIMENSION else 1
    for _ in range(max_steps):
        if size <= 1e-18 * start or stalled == patience:
            break
        step, bend = solver(x, g, size / start)
        curvature = max(curvature, bend)
        last = float(np.linalg.norm(step))
        # near the minimum the value cannot tell points apart any more: only the gradient counts
        near = float(g @ step) <= NEAR * abs(value)
        moved = _search(f, x, value, g, step, near)
        if moved is None:
            break
        x_new, value, g_new = moved
        size_new = float(np.linalg.norm(g_new))
        stalled = stalled + 1 if near and size_new >= 0.5 * size else 0
        if size_new < size or not near:
            x, g, size = x_new, g_new, size_new
        else:
            break
    _certify(x, value, size, start, curvature, last)
    return x


def _solver(f: Objective) -> Solver:
    if f.dim <= LARGEST_DIMENSION:
        return lambda x, g, accuracy: _direct(f.hessian(x), g)

    def solve(x: Array, g: Array, accuracy: float) -> tuple[Array, float]:
        product, diagonal = f.curvature(x)
        step = conjugate_gradients(product, diagonal, g, min(0.1, max(accuracy**0.5, 1e-4)))
        return step, float(np.abs(diagonal).max(initial=0.0))

    return solve


def _direct(H: Array, g: Array) -> tuple[Array, float]:
    return solve(H, g), float(np.abs(H).max(initial=0.0))


def solve(H: Array, g: Array) -> Array:
    """The Newton step: by Cholesky, or the shortest least-squares solution if H is singular."""
    try:
        factor = scipy.linalg.cho_factor(H, lower=True, check_finite=False)
        pivots = np.diag(factor[0])
        if pivots.min() > 1e-7 * pivots.max():  # else a flat direction may hide in the rounding
            return np.asarray(scipy.linalg.cho_solve(factor, g, check_finite=False))
    except np.linalg.LinAlgError:
        pass
    eigenvalues, Q = scipy.linalg.eigh(H)
    large = eigenvalues > H.shape[0] * 4e-16 * max(np.abs(eigenvalues).max(initial=0.0), 1e-300)
    inverse = np.where(large, 1 / np.where(large, eigenvalues, 1.0), 0.0)
    result: Array = Q @ (inverse * (Q.T @ g).T).T
    return result


def conjugate_gradients(
    product: Callable[[Array], Array], diagonal: Array, g: Array, accuracy: float, max_steps: int = 5000
) -> Array:
    """An approximate solution of H p = g, preconditioned with H's diagonal."""
    scale = np.where(diagonal > 0, 1 / np.where(diagonal > 0, diagonal, 1.0), 0.0)
    p = np.zeros_like(g)
    r = g.copy()
    z = scale * r
    q = z.copy()
    rz = _dot(r, z)
    goal = accuracy**2 * rz
    for _ in range(max_steps):
        if rz <= goal or rz == 0.0:
            break
        Hq = product(q)
        bend = _dot(q, Hq)
        if bend <= 0.0:
            break
        alpha = rz / bend
        p += alpha * q
        r -= alpha * Hq
        z = scale * r
        rz, before = _dot(r, z), rz
        q = z + (rz / before) * q
    return p if p.any() else z


def _dot(a: Array, b: Array) -> float:
    """The inner product without BLAS, whose threads wait for each other on a busy machine."""
    return float(np.einsum("i,i->", a, b))


def _search(
    f: Objective, x: Array, value: float, g: Array, step: Array, near: bool
) -> tuple[Array, float, Array] | None:
    """The first of x - step, x - step/2, ... that decreases the value enough, or else the gradient."""
    slope = float(g @ step)
    size = float(np.linalg.norm(g))
    t = 1.0
    for _ in range(3 if near else 60):
        x_new = x - t * step
        value_new, g_new = f.value_and_gradient(x_new)
        level = value_new <= value + NEAR * abs(value)  # then a smaller gradient is progress too
        enough = value_new <= value - 1e-4 * t * slope or (
            level and float(np.linalg.norm(g_new)) < (1 - 0.1 * t) * size
        )
        if enough:
            return x_new, value_new, g_new
        t /= 2
    return None


def _certify(x: Array, value: float, size: float, start: float, curvature: float, last: float) -> None:
    """Raise unless the gradient is as small as the rounding of its parts explains."""
    reach = max(float(np.linalg.norm(x)), 1.0)
    rounding = 1e-9 * max(curvature * reach, start, abs(value) * 1e-3)
    if size <= rounding and np.isfinite(value):
        if reach > 1e12 or last > 1e-3 * reach:
            raise UnboundedError("the infimum is approached only at infinity: there is no minimiser")
        return
    raise ConvergenceError(
        f"no minimiser found: the gradient norm stopped at {size:.3g} (it began at {start:.3g}); "
        "the objective may be unbounded below, not convex, or not smooth"
    )
