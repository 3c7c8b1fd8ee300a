"""Newton's method with a line search, down to the accuracy that float64 gives.

A step comes from a dense Hessian in moderate dimension, and from conjugate gradients beyond it if the
objective has products with its Hessian (`curvature`); an objective that knows a shorter way brings its own
solver. Steps end when gradients no longer get smaller. `newton` then complains if that happened before the
gradient was as small as rounding allows, or if the steps did not get smaller: then there is no minimiser.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.linalg

from mast.errors import ConvergenceError, UnboundedError
from mast.support.checks import Array

if TYPE_CHECKING:
    from mast.objectives.base import Objective

LARGEST_DIMENSION = 4000  #: above it a dense Hessian is not a reasonable tool
MAX_STEPS = 200
#: a promised decrease below this share of the value drowns in its rounding
NEAR = 1e-12

#: makes the Newton step at x and the diagonal of the Hessian there, given x, the gradient, and the share
#: of the first gradient that is left: the less, the more exactly
Solver = Callable[[Array, Array, float], tuple[Array, Array]]


class NewtonStep(NamedTuple):
    """Where one step of Newton's method led."""

    x: Array
    value: float
    gradient: Array
    before: float  #: the value before the step
    diagonal: Array  #: of the Hessian, before the step
    promised: float  #: twice the decrease that the full step promised
    moved: bool  #: whether it was taken, or a part of it


def newton_steps(
    f: Objective, x: Array, solver: Solver, patience: int, scaled: bool = True
) -> Iterator[NewtonStep]:
    """Steps from x until they no longer help, or hardly did so `patience` times in a row.

    Gradients are measured in units of the root of the Hessian's diagonal where `scaled`, so that
    columns of very different scales count alike.
    """
    value, gradient = f.value_and_gradient(x)
    largest, stalled, left = 0.0, 0, 1.0
    while stalled < patience:
        step, diagonal = solver(x, gradient, left)
        before = value
        units = _positive(diagonal) if scaled else np.ones(1)
        promised, size = float(gradient @ step), _size(gradient, units)
        largest = max(largest, size)
        if not (size > 1e-18 * largest and math.isfinite(promised)):
            yield NewtonStep(x, value, gradient, before, diagonal, promised, moved=False)
            return
        # near the minimum values cannot tell points apart any more: only the gradient counts
        near = promised <= NEAR * abs(value)
        t = 1.0
        for _ in range(3 if near else 60):  # halve the step until the value decreases, or else the gradient
            x_new = x - t * step
            value_new, gradient_new = f.value_and_gradient(x_new)
            size_new = _size(gradient_new, units)
            level = value_new <= value + NEAR * abs(value)  # then a smaller gradient is progress too
            enough = value_new <= value - 1e-4 * t * promised or (level and size_new < (1 - 0.1 * t) * size)
            if enough:
                break
            t /= 2
        stalled = stalled + 1 if near and size_new >= 0.5 * size else 0
        moved = enough and (size_new < size or not near)
        if moved:
            x, value, gradient, size = x_new, value_new, gradient_new, size_new
        yield NewtonStep(x, value, gradient, before, diagonal, promised, moved)
        if not moved:
            return
        left = size / largest


def hessian_solver(f: Objective, dense: int) -> Solver:
    """Steps from the Hessian of f as a matrix up to `dense` variables, beyond from products with it."""

    def solver(x: Array, gradient: Array, left: float) -> tuple[Array, Array]:
        if f.dim <= dense:
            H = f.hessian(x)
            return solve(H, gradient), np.diag(H)
        product, diagonal = f.curvature(x)
        accuracy = min(0.1, max(left**0.5, 1e-4))
        return conjugate_gradients(product, diagonal, gradient, accuracy), diagonal

    return solver


def newton(f: Objective, x0: Array, solver: Solver | None = None) -> Array:
    """The point with the smallest gradient that Newton's method reaches from x0."""
    patience = 2 if solver is None and f.dim <= LARGEST_DIMENSION else 1
    solver = solver or hessian_solver(f, LARGEST_DIMENSION)
    steps = islice(newton_steps(f, x0.copy(), solver, patience), MAX_STEPS)
    reached = first = next(steps)
    units = np.sqrt(_positive(first.diagonal))  # of lengths: the curvature at x0
    for reached in steps:  # noqa: B007
        pass
    x, value, g = reached.x, reached.value, reached.gradient
    step, diagonal = solver(x, g, 1e-4)
    hidden = 1e-11 * max(abs(value), abs(first.before), 1e-300)
    # one more step must gain no more than rounding hides, also where the Hessian is flat and a step is 0
    gain = max(float(g @ step), value - f.value(x - g / _positive(diagonal)))
    if not (math.isfinite(value) and gain <= hidden):
        raise ConvergenceError(
            f"no minimiser found: the gradient norm stopped at {float(np.linalg.norm(g)):.3g}; "
            "the objective may be unbounded below, not convex, or not smooth"
        )
    far = float(np.linalg.norm(units * step)) > 1e-3 * max(float(np.linalg.norm(units * x)), 1e-3)
    if far and not f.strong_convexity > 0:
        raise UnboundedError("the infimum is approached only at infinity: there is no minimiser")
    size = float(np.linalg.norm(g))
    for _ in range(4):  # as long as the plain norm of the gradient shrinks: the last digits
        x_new = x - step
        g = f.gradient(x_new)
        size_new = float(np.linalg.norm(g))
        if not size_new < size:
            break
        x, size = x_new, size_new
        step, _ = solver(x, g, 1e-4)
    return x


def _positive(diagonal: Array) -> Array:
    """The diagonal of a Hessian, with 1 where it is flat."""
    return np.where(diagonal > 0, diagonal, 1.0)


def _size(gradient: Array, units: Array) -> float:
    return math.sqrt(float(np.sum(gradient * gradient / units)))


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
    product: Callable[[Array], Array],
    diagonal: Array,
    g: Array,
    accuracy: float,
    max_steps: int = 5000,
    precondition: Callable[[Array], Array] | None = None,
) -> Array:
    """An approximate solution of H p = g, preconditioned with H's diagonal unless something else is given."""
    if precondition is None:
        scale = np.where(diagonal > 0, 1 / np.where(diagonal > 0, diagonal, 1.0), 0.0)
        precondition = scale.__mul__
    p = np.zeros_like(g)
    r = g.copy()
    z = precondition(r)
    q = z.copy()
    rz = _dot(r, z)
    goal = accuracy**2 * rz
    for _ in range(max_steps):
        if rz <= goal or rz == 0.0:
            break
        Hq = product(q)
        curvature = _dot(q, Hq)
        if curvature <= 0.0:
            break
        alpha = rz / curvature
        p += alpha * q
        r -= alpha * Hq
        z = precondition(r)
        rz, before = _dot(r, z), rz
        q = z + (rz / before) * q
    return p if p.any() else z


def _dot(a: Array, b: Array) -> float:
    """The inner product without BLAS, whose threads wait for each other on a busy machine."""
    return float(np.einsum("i,i->", a, b))
