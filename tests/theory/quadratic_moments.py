"""The exact E[x] and E[xx'] of every method on a quadratic, to measure a guarantee against without sampling.

For f(x) = x'Hx/2 - b'x each sketched gradient is affine, grad f_S(x) = H_S x - c_S, so a step is a random
linear map of the state with a 1 appended, z = (x, 1), or (x, w, h, 1) where a method remembers more. If the
map is M_k with probability q_k, then E[zz'] becomes sum_k q_k M_k E[zz'] M_k': the mean and the second
moment, exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from mast.theory.plans import Array


class Gradients(NamedTuple):
    """grad f_i(x) = H[i] x - c[i], i with probability q[i]."""

    H: Array
    c: Array
    q: Array


class Step(NamedTuple):
    """The random linear map of one step: maps[k] with probability q[k]."""

    maps: Array
    q: Array


def sketched_gradients(
    H: Any, b: Any, sketches: Sequence[Any], shift: Any = None, probabilities: Any = None
) -> Gradients:
    """The sketched gradients of x'Hx/2 - b'x for a finite list of matrices S.

    >>> sketched_gradients([[2.]], [1.], [[[2.]], [[0.]]]).H.ravel()
    array([8., 0.])
    """
    H, b = np.asarray(H, float), np.asarray(b, float)
    S = np.asarray(sketches, float)
    v = np.zeros(len(b)) if shift is None else np.asarray(shift, float)
    curvature = np.einsum("nji,jk,nkl->nil", S, H, S)
    linear = np.einsum("nji,j->ni", S, b - H @ v) + curvature @ v
    q = np.full(len(S), 1 / len(S)) if probabilities is None else np.asarray(probabilities, float)
    return Gradients(curvature, linear, q)


def mean_gradient(g: Gradients) -> tuple[Array, Array]:
    """H_D and c_D, with grad f_D(x) = H_D x - c_D."""
    return np.einsum("n,nij->ij", g.q, g.H), g.q @ g.c


def minimizer(g: Gradients) -> Array:
    """x_D*, where grad f_D vanishes (the least one where there are many)."""
    H, c = mean_gradient(g)
    return np.asarray(np.linalg.lstsq(H, c, rcond=None)[0], float)


def propagate(step: Step, z0: Any, T: int) -> Iterator[Array]:
    """E[zz'] for t = 0, ..., T, from the start z0, or from a random start with the second moment z0."""
    z0 = np.asarray(z0, float)
    second = np.outer(z0, z0) if z0.ndim == 1 else z0
    n = len(second)
    operator = np.einsum("k,kij,klm->iljm", step.q, step.maps, step.maps).reshape(n * n, n * n)
    yield second
    for _ in range(T):
        second = (operator @ second.ravel()).reshape(n, n)
        yield second


def dsgd_step(g: Gradients, step_size: float) -> Step:
    """DSGD: x <- x - step_size (H_i x - c_i), state (x, 1). Also distributed DSGD, i over the joint draws."""
    d = g.c.shape[1]
    maps = [
        _stack([_affine(d, 1, {0: np.eye(d) - step_size * H}, step_size * c)])
        for H, c in zip(g.H, g.c, strict=True)
    ]
    return Step(np.stack(maps), g.q)


def l_svrdsg_step(g: Gradients, step_size: float, p: float, b: int, batch: str) -> Step:
    """L-SVRDSG, state (x, w, hhat, 1); `g` uniform. A fresh batch makes hhat anew at each step."""
    N, d = g.c.shape
    identity = np.eye(d)
    maps: list[Array] = []
    q: list[float] = []
    batches = list(combinations(range(N), b))
    for i in range(N):
        for chosen in batches:
            Hb, cb = g.H[list(chosen)].mean(axis=0), g.c[list(chosen)].mean(axis=0)
            for coin, chance in ((1, p), (0, 1 - p)):
                x_blocks = {0: identity - step_size * g.H[i], 1: step_size * g.H[i]}
                if batch == "fresh":
                    x_blocks[1] = step_size * (g.H[i] - Hb)
                    x = _affine(d, 3, x_blocks, step_size * cb)
                    h = _affine(d, 3, {2: identity})
                else:
                    x = _affine(d, 3, {**x_blocks, 2: -step_size * identity})
                    h = _affine(d, 3, {0: Hb}, -cb) if coin else _affine(d, 3, {2: identity})
                maps.append(_stack([x, _affine(d, 3, {0 if coin else 1: identity}), h]))
                q.append(chance / (N * len(batches)))
    return Step(np.stack(maps), np.array(q))


def s_page_step(g: Gradients, step_size: float, p: float, b: int, b_small: int) -> Step:
    """S-PAGE, state (x, h, 1); `g` uniform."""
    N, d = g.c.shape
    identity = np.eye(d)
    maps: list[Array] = []
    q: list[float] = []
    x = _affine(d, 2, {0: identity, 1: -step_size * identity})
    for refresh, size, chance in ((True, b, p), (False, b_small, 1 - p)):
        batches = list(combinations(range(N), size))
        for chosen in batches:
            H, c = g.H[list(chosen)].mean(axis=0), g.c[list(chosen)].mean(axis=0)
            anew = _affine(d, 2, {0: H, 1: -step_size * H}, -c)
            updated = _affine(d, 2, {1: identity - step_size * H})
            maps.append(_stack([x, anew if refresh else updated]))
            q.append(chance / len(batches))
    return Step(np.stack(maps), np.array(q))


def batch_start(g: Gradients, x0: Any, b: int, copies: int) -> Array:
    """E[zz'] at the start: `copies` times x0, the mean gradient over a random batch of size b, and 1."""
    x0, starts = np.asarray(x0, float), []
    for chosen in combinations(range(len(g.c)), b):
        h = g.H[list(chosen)].mean(axis=0) @ x0 - g.c[list(chosen)].mean(axis=0)
        starts.append(np.concatenate([*[x0] * copies, h, [1.0]]))
    z = np.array(starts)
    result: Array = z.T @ z / len(z)
    return result


def expect_square(second: Array, linear: Array, constant: Array, block: int = 0) -> float:
    """E|linear y - constant|² for the block y of the state with second moment `second`."""
    d = linear.shape[1]
    form = np.zeros((len(constant), len(second)))
    form[:, block * d : (block + 1) * d] = linear
    form[:, -1] = -constant
    return float(np.einsum("ij,jk,ik->", form, second, form))


def _affine(d: int, blocks: int, parts: dict[int, Array], constant: Array | None = None) -> Array:
    """The rows of one block of the next state: a matrix for each block it depends on, and a constant."""
    rows = np.zeros((d, blocks * d + 1))
    for block, matrix in parts.items():
        rows[:, block * d : (block + 1) * d] = matrix
    if constant is not None:
        rows[:, -1] = constant
    return rows


def _stack(blocks: list[Array]) -> Array:
    """All blocks above the row that keeps the 1."""
    last = np.zeros((1, blocks[0].shape[1]))
    last[0, -1] = 1.0
    return np.vstack([*blocks, last])
