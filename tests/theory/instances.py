"""Quadratics and finite sketches with all their constants, made by NumPy alone, to measure guarantees on."""

from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from theory import quadratic_moments as exact


class Measured:
    """What is measured of the second moment of a state: how far it is from the minimiser of f_D."""

    def distance(self, second):
        return exact.expect_square(second, np.eye(len(self.solution)), self.solution)

    def excess(self, second):
        root = np.linalg.cholesky(self.H_D + 1e-15 * np.eye(len(self.solution))).T
        return exact.expect_square(second, root, root @ self.solution) / 2

    def gradient_sq(self, second):
        return exact.expect_square(second, self.H_D, self.c_D)


@dataclass
class Instance(Measured):
    """f(x) = x'Hx/2 - b'x under a finite sketch, with shift v."""

    name: str
    H: np.ndarray
    b: np.ndarray
    S: np.ndarray
    q: np.ndarray
    v: np.ndarray

    def __post_init__(self):
        assert np.allclose(np.einsum("n,nij->ij", self.q, self.S), np.eye(len(self.b)))
        self.gradients = exact.sketched_gradients(self.H, self.b, self.S, self.v, self.q)
        eigenvalues = np.linalg.eigvalsh(self.H)
        self.L_f, self.mu_f = eigenvalues[-1], eigenvalues[0]
        squares = np.einsum("nji,njk->nik", self.S, self.S)
        moments = np.linalg.eigvalsh(np.einsum("n,nij->ij", self.q, squares))
        self.L_D, self.mu_D = moments[-1], moments[0]
        self.L_max = max(np.linalg.eigvalsh(square)[-1] for square in squares)
        self.H_D, self.c_D = exact.mean_gradient(self.gradients)
        self.solution = exact.minimizer(self.gradients)
        self.f_inf = self.f(np.linalg.lstsq(self.H, self.b, rcond=None)[0])
        self.f_D_inf = self.f_D(self.solution)
        self.gap = max(0.0, self.f_D_inf - self.f_inf)
        f_S_inf = [
            self.f_S(S, np.linalg.lstsq(H, c, rcond=None)[0])
            for S, H, c in zip(self.S, self.gradients.H, self.gradients.c, strict=True)
        ]
        self.sharp_gap = max(0.0, self.f_D_inf - float(self.q @ f_S_inf))
        self.constants = {
            name: getattr(self, name) for name in ("L_f", "mu_f", "L_D", "mu_D", "L_max", "gap")
        }

    def f(self, x):
        return x @ self.H @ x / 2 - self.b @ x

    def f_S(self, S, x):
        return self.f(self.v + S @ (x - self.v))

    def f_D(self, x):
        return sum(q * self.f_S(S, x) for q, S in zip(self.q, self.S, strict=True))


def uniform(S):
    S = np.asarray(S, float)
    return S, np.full(len(S), 1 / len(S))


def bernoulli(keep):
    S, q = [], []
    for kept in product([0, 1], repeat=len(keep)):
        S.append(np.diag(np.array(kept) / keep))
        q.append(np.prod(np.where(kept, keep, 1 - np.array(keep))))
    return np.array(S), np.array(q)


def rand_k(d, K):
    return uniform(
        [np.diag([d / K if j in kept else 0.0 for j in range(d)]) for kept in combinations(range(d), K)]
    )


def perm_k(blocks):
    d, K = sum(map(len, blocks)), len(blocks)
    return uniform([np.diag([float(K) if j in block else 0.0 for j in range(d)]) for block in blocks])


def not_diagonal(d, N, rng, size=0.8):
    """N dense matrices with mean I."""
    parts = size * rng.standard_normal((N, d, d))
    return uniform(np.eye(d) + parts - parts.mean(axis=0))


def flips(d):
    """2, 2, 2, -2 times I: the mean is I and every S'HS is 4H, so the variance of grad f_S is constant."""
    return uniform([s * np.eye(d) for s in (2, 2, 2, -2)])


def quadratic(d, rng, conditioning=20.0, singular=False):
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    eigenvalues = np.exp(rng.uniform(0, np.log(conditioning), d)) * rng.uniform(0.2, 3)
    if singular:
        eigenvalues[0] = 0.0
    return basis @ np.diag(eigenvalues) @ basis.T


def make(name, d, sketch, seed, *, shift=True, interpolating=False, H=None):
    rng = np.random.default_rng(seed)
    H = quadratic(d, rng) if H is None else H
    v = rng.standard_normal(d) if shift else np.zeros(d)
    b = H @ v if interpolating else 3 * rng.standard_normal(d)
    S, q = sketch if isinstance(sketch, tuple) else sketch(rng)
    return Instance(name, H, b, S, q, v)


def instances():
    """Random ones and the edges: no sketch, gap 0, K = d, one coordinate, non-diagonal S."""
    made = [
        make("identity", 2, uniform([np.eye(2)]), 0),
        make("rand-d", 3, rand_k(3, 3), 1),
        make("gap 0 at the shift", 3, rand_k(3, 1), 2, interpolating=True),
        make("rand-1", 3, rand_k(3, 1), 3),
        make("rand-2 of 3", 3, rand_k(3, 2), 4, shift=False),
        make("one coordinate", 1, uniform([[[1.5]], [[0.5]]]), 5),
        make("steep one coordinate", 1, bernoulli([0.05]), 6),
        make("bernoulli", 2, bernoulli([0.3, 0.8]), 7),
        make("partition", 3, perm_k([[0, 1], [2]]), 8),
        make("flips", 2, flips(2), 9),
    ]
    made += [make(f"not diagonal {k}", 2, lambda rng: not_diagonal(2, 3, rng), 20 + k) for k in range(3)]
    made += [
        make(f"not diagonal, {N} of them", 3, lambda rng, N=N: not_diagonal(3, N, rng, 1.5), 30)
        for N in (2, 4)
    ]
    return made


INSTANCES = instances()
UNIFORM = [instance for instance in INSTANCES if np.allclose(instance.q, instance.q[0])]


def name(instance):
    return instance.name


def start_of(instance, seed=0, far=2.0):
    return instance.solution + far * np.random.default_rng(seed).standard_normal(len(instance.b))


def below(measured, bound):
    """Measured <= bound, up to the rounding of a long recursion."""
    measured, bound = np.asarray(measured), np.asarray(bound)
    worst = np.max(measured - bound * (1 + 1e-9))
    assert worst <= 1e-11 * max(1.0, float(np.max(measured))), f"measured exceeds the bound by {worst}"


def check_regimes(instance, gradients, promise, share, x0, T):
    """Measure `gradients` under each regime's step size; `promise(regime)` is its guarantee."""
    r0sq, delta0 = np.sum((x0 - instance.solution) ** 2), instance.f_D(x0) - instance.f_D_inf
    counts, z0 = np.arange(1, T + 1), np.append(x0, 1.0)

    def path(step_size, steps):
        return exact.propagate(exact.dsgd_step(gradients, step_size), z0, steps)

    g = promise("strongly_convex")
    step = share * g.max_step_size()
    measured = [instance.distance(second) for second in path(step, T)]
    below(measured, g.bound(step, np.arange(T + 1), r0sq=r0sq))

    g = promise("convex")
    step = share * g.max_step_size()
    excess = [instance.excess(second) for second in path(step, T - 1)]
    below(np.cumsum(excess) / counts, g.bound(step, counts, r0sq=r0sq))

    g = promise("nonconvex")
    for steps in (1, 7, T):
        step = share * g.max_step_size(steps)
        squares = [instance.gradient_sq(second) for second in path(step, steps - 1)]
        below(min(squares), g.bound(step, steps, delta0=delta0))
