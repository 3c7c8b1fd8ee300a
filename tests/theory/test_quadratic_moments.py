"""The exact recursions agree with the algorithms run over every possible history."""

from itertools import combinations, product

import numpy as np
import pytest

from theory import quadratic_moments as exact
from theory.instances import make, not_diagonal

INSTANCE = make("three", 2, lambda rng: not_diagonal(2, 3, rng), 0)
G = INSTANCE.gradients
X0 = np.array([1.0, -2.0])
STEPS = 2


def gradient(i, x):
    """S'(H(v + S(x - v)) - b), written out."""
    S, v = INSTANCE.S[i], INSTANCE.v
    return S.T @ (INSTANCE.H @ (v + S @ (x - v)) - INSTANCE.b)


def batch_mean(batch, x):
    return np.mean([gradient(i, x) for i in batch], axis=0)


def last(step, z0, T=STEPS):
    *_, second = exact.propagate(step, z0, T)
    return second[:2, :2]


def test_sketched_gradient():
    for i in range(3):
        np.testing.assert_allclose(G.H[i] @ X0 - G.c[i], gradient(i, X0), rtol=1e-12)


def test_dsgd():
    total = np.zeros((2, 2))
    for draws in product(range(3), repeat=STEPS):
        x = X0
        for i in draws:
            x = x - 0.1 * gradient(i, x)
        total += np.outer(x, x) / 3**STEPS
    np.testing.assert_allclose(last(exact.dsgd_step(G, 0.1), [*X0, 1]), total, rtol=1e-12)


@pytest.mark.parametrize("batch", ["fresh", "kept"])
def test_l_svrdsg(batch):
    g, p, b, T = 0.1, 0.3, 2, 3
    batches = list(combinations(range(3), b))
    total = np.zeros((2, 2))

    def walk(t, x, w, h, weight):
        nonlocal total
        if t == T:
            total += weight * np.outer(x, x)
            return
        for i, chosen, coin in product(range(3), batches, (True, False)):
            share = weight / 9 * (p if coin else 1 - p)
            hhat = batch_mean(chosen, w) if batch == "fresh" else h
            step = gradient(i, x) - gradient(i, w) + hhat
            new_h = batch_mean(chosen, x) if coin else h
            walk(t + 1, x - g * step, x if coin else w, new_h, share)

    for first in batches:
        walk(0, X0, X0, batch_mean(first, X0), 1 / 3)
    second = last(exact.l_svrdsg_step(G, g, p, b, batch), exact.batch_start(G, X0, b, 2), T)
    np.testing.assert_allclose(second, total, rtol=1e-11)


def test_s_page():
    g, p, b, b_small, T = 0.1, 0.3, 2, 1, 3
    large, small = list(combinations(range(3), b)), list(combinations(range(3), b_small))
    total = np.zeros((2, 2))

    def walk(t, x, h, weight):
        nonlocal total
        if t == T:
            total += weight * np.outer(x, x)
            return
        y = x - g * h
        for chosen in large:
            walk(t + 1, y, batch_mean(chosen, y), weight * p / 3)
        for chosen in small:
            walk(t + 1, y, h + batch_mean(chosen, y) - batch_mean(chosen, x), weight * (1 - p) / 3)

    for first in large:
        walk(0, X0, batch_mean(first, X0), 1 / 3)
    second = last(exact.s_page_step(G, g, p, b, b_small), exact.batch_start(G, X0, b, 1), T)
    np.testing.assert_allclose(second, total, rtol=1e-11)
