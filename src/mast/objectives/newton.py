"""Newton's method with a line search, down to the accuracy that float64 gives.

It serves convex functions that are sums over blocks of variables: each block has a step length of its
own, and a plain objective is the case of one block. A step comes from a dense Hessian in moderate
dimension, and from conjugate gradients beyond it if the objective has products with its Hessian
(`curvature`). Steps end when gradients no longer get smaller. `newton` then complains if that happened
before the gradient was as small as rounding allows, or if the steps did not get smaller: then there is
no minimiser.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from mast.arrays import Array
from mast.errors import ConvergenceError, UnboundedError

if TYPE_CHECKING:
    from mast.objectives.base import Objective

Flags = NDArray[np.bool_]

LARGEST_DIMENSION = 4000  #: above it a dense Hessian is not a reasonable tool
MAX_STEPS = 200
#: a promised decrease below this share of the value drowns in its rounding
NEAR = 1e-12


class BlockSum(ABC):
    """A sum of functions of disjoint blocks of variables, as Newton's method sees it."""

    @abstractmethod
    def evaluate(self, x: Array) -> tuple[Array, Array]:
        """The value of each block, and the gradient."""

    @abstractmethod
    def step(self, x: Array, gradient: Array, left: float) -> Array:
        """The Newton step; `left` is the share of the first gradient that is left, for inexact solvers."""

    @abstractmethod
    def dots(self, a: Array, b: Array) -> Array:
        """The inner product of two vectors within each block."""

    @abstractmethod
    def spread(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """One number per block as one per coordinate, or as something that broadcasts to that."""

    def sizes(self, gradient: Array) -> Array:
        """The norm of each block's gradient."""
        return np.sqrt(self.dots(gradient, gradient))


class NewtonStep(NamedTuple):
    """What one step of Newton's method tried, and where it led."""

    x: Array
    values: Array  #: of each block, at x
    gradient: Array
    sizes: Array  #: of each block's gradient
    largest: Array  #: the largest of these so far
    step: Array  #: in full length, before the line search
    promised: Array  #: twice the decrease of each block that the step promised
    tried: Flags  #: blocks that had a step to try
    moved: Flags  #: blocks that took it, or a part of it


def newton_steps(f: BlockSum, x: Array, patience: int) -> Iterator[NewtonStep]:
    """Steps from x until no block gets better; a block rests after `patience` steps that hardly helped."""
    values, gradient = f.evaluate(x)
    largest = np.zeros(values.size)
    active, stalled, left = np.ones(values.size, dtype=bool), np.zeros(values.size, dtype=int), 1.0
    while active.any():
        step = np.asarray(f.step(x, gradient, left) * f.spread(active))
        promised, sizes = f.dots(gradient, step), f.sizes(gradient)
        largest = np.maximum(largest, sizes)
        active = active & (sizes > 1e-18 * largest) & np.isfinite(promised)
        if not active.any():
            yield NewtonStep(x, values, gradient, sizes, largest, step, promised, active, active)
            return
        # near the minimum values cannot tell points apart any more: only the gradient counts
        near = promised <= NEAR * np.abs(values)
        x_new, values_new, gradient_new, enough = _search(
            f, x, values, sizes, step, promised, active, 3 if near.all() else 60
        )
        sizes_new = f.sizes(gradient_new)
        better = enough & ((sizes_new < sizes) | ~near)
        stalled = np.where(near & (sizes_new >= 0.5 * sizes), stalled + 1, 0)
        taken = f.spread(better)
        x, gradient = np.where(taken, x_new, x), np.where(taken, gradient_new, gradient)
        values, sizes = np.where(better, values_new, values), np.where(better, sizes_new, sizes)
        yield NewtonStep(x, values, gradient, sizes, largest, step, promised, active, better)
        left = float(sizes.max() / largest.max())
        active = active & better & (stalled < patience)


def _search(
    f: BlockSum,
    x: Array,
    values: Array,
    sizes: Array,
    step: Array,
    promised: Array,
    active: Flags,
    tries: int,
) -> tuple[Array, Array, Array, Flags]:
    """Halve the step of each block until its value decreases enough, or else its gradient."""
    t = np.ones(values.size)
    for _ in range(tries):
        x_new = np.asarray(x - f.spread(t) * step)
        values_new, gradient_new = f.evaluate(x_new)
        level = values_new <= values + NEAR * np.abs(values)  # then a smaller gradient is progress too
        enough = values_new <= values - 1e-4 * t * promised
        enough |= (level & (f.sizes(gradient_new) < (1 - 0.1 * t) * sizes)) | ~active
        if enough.all():
            break
        t = np.where(enough, t, t / 2)
    return x_new, values_new, gradient_new, enough


class OneBlock(BlockSum):
    """Any objective: all of its variables take one step length.

    Gradients are measured in units of the root of the Hessian's diagonal where `scaled`, so that
    columns of very different scales count alike.
    """

    def __init__(self, f: Objective, dense: int, scaled: bool = True) -> None:
        self.f = f
        self.dense = f.dim <= dense
        self.scaled = scaled
        self.diagonal = np.ones(f.dim)  #: of the Hessian at the last step, 1 where it is not positive

    def evaluate(self, x: Array) -> tuple[Array, Array]:
        """The value, as a vector of one entry, and the gradient."""
        value, gradient = self.f.value_and_gradient(x)
        return np.array([value]), gradient

    def step(self, x: Array, gradient: Array, left: float) -> Array:
        """From the dense Hessian, or from products with it: the more exactly, the less is left."""
        if self.dense:
            H = self.f.hessian(x)
            step, diagonal = solve(H, gradient), np.diag(H)
        else:
            product, diagonal = self.f.curvature(x)
            step = conjugate_gradients(product, diagonal, gradient, min(0.1, max(left**0.5, 1e-4)))
        self.diagonal = np.where(diagonal > 0, diagonal, 1.0)
        return step

    def dots(self, a: Array, b: Array) -> Array:
        """The inner product."""
        return np.array([a @ b])

    def spread(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """One number broadcasts by itself."""
        return numbers

    def sizes(self, gradient: Array) -> Array:
        """The norm, each entry in units of the root of its curvature where `scaled`."""
        if not self.scaled:
            return super().sizes(gradient)
        return np.sqrt(np.sum(gradient * gradient / self.diagonal, keepdims=True))


def newton(f: Objective, x0: Array) -> Array:
    """The point with the smallest gradient that Newton's method reaches from x0."""
    block = OneBlock(f, LARGEST_DIMENSION)
    steps = islice(newton_steps(block, x0.copy(), patience=2 if block.dense else 1), MAX_STEPS)
    reached = next(steps)
    units = np.sqrt(block.diagonal)  # of lengths: the curvature at x0
    for reached in steps:  # noqa: B007
        pass
    x, value, g = reached.x, float(reached.values[0]), reached.gradient
    step = block.step(x, g, 1e-4)
    hidden = 1e-11 * max(abs(value), abs(f.value(x0)), 1e-300)
    # one more step must gain no more than rounding hides, also where the Hessian is flat and a step is 0
    gain = max(float(g @ step), value - f.value(x - g / block.diagonal))
    if not (np.isfinite(value) and gain <= hidden):
        raise ConvergenceError(
            f"no minimiser found: the gradient norm stopped at {float(np.linalg.norm(g)):.3g}; "
            "the objective may be unbounded below, not convex, or not smooth"
        )
    far = float(np.linalg.norm(units * step)) > 1e-3 * max(float(np.linalg.norm(units * x)), 1e-3)
    if far and not f.strong_convexity > 0:
        raise UnboundedError("the infimum is approached only at infinity: there is no minimiser")
    return _polish(block, x, g, step)


def _polish(block: OneBlock, x: Array, g: Array, step: Array) -> Array:
    """A few more steps, as long as the plain norm of the gradient shrinks: the last digits."""
    size = float(np.linalg.norm(g))
    for _ in range(4):
        x_new = x - step
        g = block.f.gradient(x_new)
        size_new = float(np.linalg.norm(g))
        if not size_new < size:
            break
        x, size = x_new, size_new
        step = block.step(x, g, 1e-4)
    return x


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
