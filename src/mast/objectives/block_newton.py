"""Newton's method on all blocks of a separable f_D at once, each with its own step length.

A sweep makes one pass over the data and solves one small system a block. Without free
coordinates the blocks are problems of their own; with them a bordered system is solved by
elimination and all move together. Five to eight sweeps reach machine precision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mast.arrays import Array
from mast.errors import ConvergenceError, UnboundedError
from mast.objectives.design import _kernels
from mast.objectives.newton import LARGEST_DIMENSION, NEAR, solve

if TYPE_CHECKING:
    from mast.objectives.separable import Separable

Flags = NDArray[np.bool_]

BATCHED = 24  #: systems up to this size are solved many at a time


def block_newton(f: Separable, max_sweeps: int = 200) -> Array:
    """The minimiser of f, from its shift."""
    parts = _Parts(f)
    x = f.shift.copy()
    values, g = parts.evaluate(x)
    norms = parts.norms(g)
    start = norms.copy()
    active = norms > 0
    last = np.zeros(norms.size)
    for _ in range(max_sweeps):
        if not active.any():
            break
        step = _newton_step(f, x, g, parts.bends(x)) * parts.per_coordinate(active.astype(float))
        last = np.where(active, parts.norms(step), last)
        # near the minimum values cannot tell points apart any more: only the gradient counts
        near = parts.dots(g, step) <= NEAR * np.abs(values)
        x_new, values_new, g_new, found = _search(parts, x, values, g, step, active, near)
        norms_new = parts.norms(g_new)
        better = found & ((norms_new < norms) | ~near)
        stalled = near & (norms_new >= 0.5 * norms)
        take = parts.per_coordinate(better.astype(float)) > 0
        x, g = np.where(take, x_new, x), np.where(take, g_new, g)
        values, norms = np.where(better, values_new, values), np.where(better, norms_new, norms)
        active &= better & ~stalled & (norms > 1e-18 * start)
    _certify(f, parts, x, norms, start, last)
    return x


class _Parts:
    """The parts that choose their step lengths on their own: the blocks, or all together if any are free."""

    def __init__(self, f: Separable) -> None:
        self.f = f
        self.whole = f.blocks.free.size > 0
        self.count = 1 if self.whole else f.blocks.count
        self.sizes = f.blocks.sizes
        self._bends = np.empty(f.pairs.weights.size)
        self._bent = f.shift  # where they belong

    def bends(self, x: Array) -> tuple[Array, Array]:
        """The curvatures at x: left over from the last evaluation, if that was there."""
        if not np.array_equal(x, self._bent):
            return self.f.bends(x)
        f = self.f
        return self._bends, f.shared * f.model.loss.curvature(f._bases(x))

    def evaluate(self, x: Array) -> tuple[Array, Array]:
        """The value of each part, and the gradient."""
        f = self.f
        pair_values, gradient, rest = f.evaluate(x, self._bends)
        self._bent = x
        penalties = f.penalty.parts(x)
        if self.whole:
            return np.array([pair_values.sum() + rest + penalties.sum()]), gradient
        return _sums(pair_values, f.pairs.start) + _sums(penalties[f.blocks.order], f.blocks.start), gradient

    def dots(self, a: Array, b: Array) -> Array:
        """The inner product of the parts of two vectors."""
        product = a * b
        if self.whole:
            return np.array([product.sum()])
        return _sums(product[self.f.blocks.order], self.f.blocks.start)

    def norms(self, a: Array) -> Array:
        """The length of each part of a vector."""
        return np.sqrt(self.dots(a, a))

    def per_coordinate(self, a: Array) -> Array:
        """A number for each part, as one for each of its coordinates."""
        if self.whole:
            return np.full(self.f.dim, a[0])
        out = np.empty(self.f.dim)
        out[self.f.blocks.order] = np.repeat(a, self.sizes)
        return out


def _sums(values: Array, starts: Array) -> Array:
    out = np.empty(starts.size - 1)
    _kernels().segment_sums(values, starts, out)
    return out


def _search(
    parts: _Parts, x: Array, values: Array, g: Array, step: Array, active: Flags, near: Flags
) -> tuple[Array, Array, Array, Flags]:
    """Halve the step of each part until its value decreases enough, or else its gradient."""
    slopes, norms = parts.dots(g, step), parts.norms(g)
    tries = 3 if near.all() else 60
    t = np.ones(parts.count)
    for _ in range(tries):
        x_new = x - parts.per_coordinate(t) * step
        values_new, g_new = parts.evaluate(x_new)
        level = values_new <= values + NEAR * np.abs(values)  # then a smaller gradient is progress too
        enough = values_new <= values - 1e-4 * t * slopes
        enough |= (level & (parts.norms(g_new) < (1 - 0.1 * t) * norms)) | ~active
        if enough.all():
            break
        t = np.where(enough, t, t / 2)
    return x_new, values_new, g_new, enough


def _newton_step(f: Separable, x: Array, g: Array, bends: tuple[Array, Array]) -> Array:
    """The Newton step: block by block, with free coordinates eliminated last."""
    blocks = f.blocks
    pair_bends, base_bends = bends
    own = f.penalty.curvature(x)
    flat = f.pairs.grams(pair_bends)
    right = g[blocks.order][:, None]
    if blocks.free.size:
        cross, corner = f.corner(pair_bends, base_bends)
        corner = corner + np.diag(own[blocks.free])
        right = np.hstack([right, cross])
    solved = _solve_blocks(f, flat, own[blocks.order], right)
    step = np.empty(f.dim)
    if blocks.free.size:
        rest = solve(corner - cross.T @ solved[:, 1:], g[blocks.free] - cross.T @ solved[:, 0])
        step[blocks.free] = rest
        step[blocks.order] = solved[:, 0] - solved[:, 1:] @ rest
    else:
        step[blocks.order] = solved[:, 0]
    return step


def _solve_blocks(f: Separable, flat: Array, own: Array, right: Array) -> Array:
    """Solve every block's system; blocks of one size stand together, so that many go at a time."""
    out = np.empty_like(right)
    begin = column = 0
    for size, times in zip(*np.unique(f.blocks.sizes, return_counts=True), strict=True):
        size, times = int(size), int(times)
        H = flat[begin : begin + times * size * size].reshape(times, size, size)
        span = slice(column, column + times * size)
        diagonal = np.einsum("kii->ki", H)
        diagonal += own[span].reshape(times, size)
        rhs = right[span].reshape(times, size, -1)
        if size == 1:
            flat_direction = diagonal[:, :, None] <= 0
            result = np.where(flat_direction, 0.0, rhs / np.where(flat_direction, 1.0, diagonal[:, :, None]))
        elif size <= BATCHED and f.strong_convexity > 0:
            result = np.linalg.solve(H, rhs)
        else:
            result = np.stack([solve(H[k], rhs[k]) for k in range(times)])
        out[span] = result.reshape(times * size, -1)
        begin += times * size * size
        column += times * size
    return out


def _certify(f: Separable, parts: _Parts, x: Array, norms: Array, start: Array, last: Array) -> None:
    """Raise unless every part's gradient is as small as rounding explains and its steps came to rest."""
    reach = np.maximum(parts.norms(x), 1.0)
    if (norms > 1e-9 * np.maximum(start, f.smoothness * reach)).any():
        raise ConvergenceError(
            f"no minimiser of f_D found: a block's gradient norm stopped at {norms.max():.3g} "
            f"(it began at {start.max():.3g})"
        )
    if f.strong_convexity > 0:
        return
    from mast.objectives.logistic import SATURATED, SEPARABLE, rank

    if (last > 1e-3 * reach).any():
        raise UnboundedError(SEPARABLE)
    bases = f._bases(x)
    held, base_held = f.margins(x, bases) <= SATURATED, bases <= SATURATED
    if f.dim > LARGEST_DIMENSION or (held.all() and base_held.all()):
        return
    ones, base_ones = np.ones(held.size), (f.shared > 0).astype(float)
    if rank(f.assemble(held.astype(float), base_held * base_ones)) < rank(f.assemble(ones, base_ones)):
        raise UnboundedError(SEPARABLE)
