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

Solver = Callable[[Array, Array, float], tuple[Array, Array]]  # (x, gradient, accuracy) -> step, diagonal


def newton(f: Objective, x0: Array, max_steps: int = 200) -> Array:
    """The point with the smallest gradient that Newton's method reaches from x0.

    Gradients are measured in units of the root of the Hessian's diagonal, so that columns of very
    different scales count alike.
    """
    solver = _solver(f)
    x = x0.copy()
    value, g = f.value_and_gradient(x)
    first, start, units, diagonal = abs(value), 0.0, np.ones(f.dim), np.ones(f.dim)
    stalled, patience = 0, 2 if f.dim <= LARGEST_DIMENSION else 1
    for _ in range(max_steps):
        if not g.any():
            return x
        step, diagonal = solver(x, g, 1.0 if start == 0.0 else _size(g, diagonal) / start)
        size = _size(g, diagonal)
        if start == 0.0:
            units = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))  # of lengths: the curvature at x0
        start = max(start, size)
        if size <= 1e-18 * start:
            break
        # near the minimum the value cannot tell points apart any more: only the gradient counts
        near = float(g @ step) <= NEAR * abs(value)
        moved = _search(f, x, value, g, step, near, diagonal)
        if moved is None:
            break
        x_new, value_new, g_new = moved
        size_new = _size(g_new, diagonal)
        stalled = stalled + 1 if near and size_new >= 0.5 * size else 0
        if near and size_new >= size:
            break
        x, value, g = x_new, value_new, g_new
        if stalled == patience:
            break
    _certify(f, solver, x, value, g, first, units)
    return _polish(f, solver, x, g)


def _polish(f: Objective, solver: Solver, x: Array, g: Array) -> Array:
    """A few more steps, as long as the plain norm of the gradient shrinks: the last digits."""
    size = float(np.linalg.norm(g))
    for _ in range(4):
        x_new = x - solver(x, g, 1e-4)[0]
        g = f.gradient(x_new)
        size_new = float(np.linalg.norm(g))
        if not size_new < size:
            break
        x, size = x_new, size_new
    return x


def _size(g: Array, diagonal: Array) -> float:
    """The norm of a gradient, each entry in units of the root of its own curvature."""
    return float(np.sqrt(np.sum(g * g / np.where(diagonal > 0, diagonal, 1.0))))


def _solver(f: Objective) -> Solver:
    if f.dim <= LARGEST_DIMENSION:
        return lambda x, g, accuracy: _direct(f.hessian(x), g)

    def solve(x: Array, g: Array, accuracy: float) -> tuple[Array, Array]:
        product, diagonal = f.curvature(x)
        return conjugate_gradients(product, diagonal, g, min(0.1, max(accuracy**0.5, 1e-4))), diagonal

    return solve


def _direct(H: Array, g: Array) -> tuple[Array, Array]:
    return solve(H, g), np.diag(H).copy()


def solve(H: Array, g: Array) -> Array:
    """A solution of H p = g for a semidefinite H: scaled to a unit diagonal, then by Cholesky.

    If the scaled H is singular, the shortest solution in the scaled variables.
    """
    scale = scaling(H)
    M, right = H * scale * scale[:, None], (g.T * scale).T
    try:
        factor = scipy.linalg.cho_factor(M, lower=True, check_finite=False)
        pivots = np.diag(factor[0])
        if pivots.min() > 1e-7 * pivots.max():  # else a flat direction may hide in the rounding
            y = scipy.linalg.cho_solve(factor, right, check_finite=False)
            return np.asarray((y.T * scale).T)
    except np.linalg.LinAlgError:
        pass
    eigenvalues, Q = scipy.linalg.eigh(M)
    large = eigenvalues > H.shape[0] * 4e-16 * max(np.abs(eigenvalues).max(initial=0.0), 1e-300)
    inverse = np.where(large, 1 / np.where(large, eigenvalues, 1.0), 0.0)
    y = Q @ (inverse * (Q.T @ right).T).T
    result: Array = (y.T * scale).T
    return result


def scaling(H: Array) -> Array:
    """What brings the diagonal of a semidefinite matrix to 1, where it is not 0."""
    diagonal = np.diag(H)
    return np.asarray(1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0)))


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
    f: Objective, x: Array, value: float, g: Array, step: Array, near: bool, diagonal: Array
) -> tuple[Array, float, Array] | None:
    """The first of x - step, x - step/2, ... that decreases the value enough, or else the gradient."""
    slope = float(g @ step)
    size = _size(g, diagonal)
    t = 1.0
    for _ in range(3 if near else 60):
        x_new = x - t * step
        value_new, g_new = f.value_and_gradient(x_new)
        level = value_new <= value + NEAR * abs(value)  # then a smaller gradient is progress too
        enough = value_new <= value - 1e-4 * t * slope or (
            level and _size(g_new, diagonal) < (1 - 0.1 * t) * size
        )
        if enough:
            return x_new, value_new, g_new
        t /= 2
    return None


def _certify(
    f: Objective, solver: Solver, x: Array, value: float, g: Array, first: float, units: Array
) -> None:
    """Raise unless one more step would gain no more than rounding hides, and would be short."""
    step, diagonal = solver(x, g, 1e-4)
    hidden = 1e-11 * max(abs(value), first, 1e-300)
    downhill = g / np.where(diagonal > 0, diagonal, 1.0)  # also where the Hessian is flat, and a step is 0
    gain = max(float(g @ step), value - f.value(x - downhill))
    if not (np.isfinite(value) and gain <= hidden):
        raise ConvergenceError(
            f"no minimiser found: the gradient norm stopped at {float(np.linalg.norm(g)):.3g}; "
            "the objective may be unbounded below, not convex, or not smooth"
        )
    if f.strong_convexity > 0:
        return
    if float(np.linalg.norm(units * step)) > 1e-3 * max(float(np.linalg.norm(units * x)), 1e-3):
        raise UnboundedError("the infimum is approached only at infinity: there is no minimiser")
