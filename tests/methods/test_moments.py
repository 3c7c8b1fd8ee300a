"""Mean and covariance of every method on a quadratic, against the exact recursion, for every sketch.

On a quadratic one step of a method is an affine map z <- B z + a of its stacked state, chosen at
random. Over a finite support the maps can be listed, so E[z] and E[z z'] are known exactly.
"""

import math

import numpy as np
import pytest

import mast
from mast.methods import make
from sketches.samples import FINITE, SKETCHES, D

T = 5
RUNS = 1500
RNG = np.random.default_rng(3)
A = RNG.standard_normal((2 * D, D))
F = mast.Quadratic(A.T @ A / (2 * D) + 0.2 * np.eye(D), RNG.standard_normal(D))
V = RNG.standard_normal(D)
X0 = RNG.standard_normal(D)
I = np.eye(D)
O = np.zeros((D, D))


def size_for(sketch):
    """Small enough that no rare draw dominates the moments: then five standard errors mean what they say."""
    L_max = max(np.linalg.norm(draw.matrix(), 2) ** 2 for _, draw in sketch.support(D))
    return min(0.05, 1 / (F.smoothness * L_max))


def runs(method, problem, step_size, options, count=RUNS):
    """The last points of many short runs, one a seed."""
    last = np.empty((count, problem.dim))
    bound = make(method, options).bind(problem, 0)
    for seed in range(count):
        bound.seed = seed
        if method == "distributed":
            bound.prepare()  # its server knows the seed
        state = bound.start(X0)
        bound.advance(state, 0, np.full(T, step_size))
        last[seed] = state.x
    return last


def moments(maps, z0, steps=T):
    """E[z] and E[z z'] after some steps; maps are (probability, B, a)."""
    assert math.fsum(p for p, _, _ in maps) == pytest.approx(1)
    first, second = z0.copy(), np.outer(z0, z0)
    for _ in range(steps):
        new_first, new_second = np.zeros_like(first), np.zeros_like(second)
        for p, B, a in maps:
            mean = B @ first
            new_first += p * (mean + a)
            new_second += p * (B @ second @ B.T + np.outer(mean, a) + np.outer(a, mean) + np.outer(a, a))
        first, second = new_first, new_second
    return first, second


def agree(sample, first, second):
    """Within five standard errors, entry by entry."""
    n = len(sample)
    error = sample.std(axis=0) / math.sqrt(n)
    assert (np.abs(sample.mean(axis=0) - first) <= 5 * error + 1e-10).all()
    if second is None:
        return
    products = sample[:, :, None] * sample[:, None, :]
    error = products.std(axis=0) / math.sqrt(n)
    assert (np.abs(products.mean(axis=0) - second) <= 5 * error + 1e-10).all()


def gradient_map(S):
    """grad f_S(x) = B x + a."""
    H = S.T @ F.H @ S
    return H, S.T @ F.gradient(V) - H @ V


def steps_of(name, sketch, g):
    """The affine maps of one step of a memoryless method."""
    for p, draw in sketch.support(D):
        S = draw.matrix()
        if name == "dsgd":
            H, a = gradient_map(S)
            yield p, I - g * H, -g * a
        elif name == "dcgd":
            yield p, I - g * S @ F.H, g * S @ F.b
        elif name == "gdci":
            yield p, S @ (I - g * F.H), V - S @ V + g * S @ F.b
        elif name == "ist_naive":
            H, a = gradient_map((S != 0).astype(float))
            yield p, I - g * H, -g * a


@pytest.mark.parametrize("name", [name for name, sketch in FINITE.items() if sketch.independent])
def test_dsgd(name):
    problem, g = mast.Problem(F, FINITE[name], V), size_for(FINITE[name])
    agree(runs("dsgd", problem, g, {}), *moments(list(steps_of("dsgd", FINITE[name], g)), X0))


@pytest.mark.parametrize("name", [name for name in SKETCHES if name not in FINITE])
def test_dsgd_with_an_infinite_support(name):
    """The mean alone: it follows gradient descent on f_D."""
    problem, g = mast.Problem(F, SKETCHES[name], V), 0.05
    x = X0.copy()
    for _ in range(T):
        x = x - g * problem.gradient(x)
    agree(runs("dsgd", problem, g, {}), x, None)


@pytest.mark.parametrize("method", ["dcgd", "gdci", "ist_naive"])
@pytest.mark.parametrize("name", ["rand-4", "perm-4, uneven", "bernoulli"])
def test_baselines(method, name):
    problem, g = mast.Problem(F, FINITE[name], V), size_for(FINITE[name])
    agree(runs(method, problem, g, {}), *moments(list(steps_of(method, FINITE[name], g)), X0))


def uniform(sketch):
    return sketch.support_size(D) <= 20 and np.ptp([p for p, _ in sketch.support(D)]) < 1e-12


UNIFORM = [name for name, sketch in FINITE.items() if sketch.unbiased and uniform(sketch)]


@pytest.mark.parametrize("p", [0.3, 1.0])
@pytest.mark.parametrize("name", UNIFORM)
def test_l_svrdsg(name, p):
    """The state is (x, w); hhat is the full mean at w."""
    problem, g = mast.Problem(F, FINITE[name], V), size_for(FINITE[name])
    support = problem.sketch.support(D)
    H_D = sum(q * gradient_map(draw.matrix())[0] for q, draw in support)
    a_D = sum(q * gradient_map(draw.matrix())[1] for q, draw in support)
    maps = []
    for q, draw in support:
        H = gradient_map(draw.matrix())[0]
        step = np.block([[I - g * H, g * (H - H_D)]])
        maps.append((q * p, np.vstack([step, np.block([[I, O]])]), np.concatenate([-g * a_D, np.zeros(D)])))
        if p < 1:
            stay = np.vstack([step, np.block([[O, I]])])
            maps.append((q * (1 - p), stay, np.concatenate([-g * a_D, np.zeros(D)])))
    first, second = moments(maps, np.concatenate([X0, X0]))
    agree(runs("l_svrdsg", problem, g, {"p": p}), first[:D], second[:D, :D])


@pytest.mark.parametrize("batch", ["fresh", "kept"])
def test_l_svrdsg_with_a_small_batch(batch):
    """The state is (x, w, hhat), hhat over a batch of one of three blocks."""
    sketch, p, g = mast.PermK(3, seed=1), 0.4, 0.02
    problem = mast.Problem(F, sketch, V)
    G = [gradient_map(draw.matrix()) for _, draw in sketch.support(D)]
    maps = []
    for H, _ in G:
        for H_b, a_b in G:
            for refresh, probability in ((True, p), (False, 1 - p)):
                if batch == "fresh":  # hhat = H_b w + a_b at this step
                    x_row = [I - g * H, g * H - g * H_b, O]
                    a = np.concatenate([-g * a_b, np.zeros(2 * D)])
                    h_row = [O, O, O]
                else:
                    x_row = [I - g * H, g * H, -g * I]
                    h_row = [H_b, O, O] if refresh else [O, O, I]
                    a = np.concatenate([np.zeros(2 * D), a_b if refresh else np.zeros(D)])
                w_row = [I, O, O] if refresh else [O, I, O]
                maps.append((probability / 9, np.block([x_row, w_row, h_row]), a))
    # the first hhat is a batch of its own: average over it
    first, second = np.zeros(3 * D), np.zeros((3 * D, 3 * D))
    for H_b, a_b in G:
        one, two = moments(maps, np.concatenate([X0, X0, H_b @ X0 + a_b]))
        first, second = first + one / 3, second + two / 3
    agree(runs("l_svrdsg", problem, g, {"p": p, "b": 1, "batch": batch}), first[:D], second[:D, :D])


@pytest.mark.parametrize("name", UNIFORM)
def test_s_page(name):
    """The state is (x, h); the small batch is one sketch."""
    problem, g, p = mast.Problem(F, FINITE[name], V), size_for(FINITE[name]), 0.4
    support = problem.sketch.support(D)
    H_D = sum(q * gradient_map(draw.matrix())[0] for q, draw in support)
    a_D = sum(q * gradient_map(draw.matrix())[1] for q, draw in support)
    maps = [(p, np.block([[I, -g * I], [H_D, -g * H_D]]), np.concatenate([np.zeros(D), a_D]))]
    for q, draw in support:
        H = gradient_map(draw.matrix())[0]
        maps.append(((1 - p) * q, np.block([[I, -g * I], [O, I - g * H]]), np.zeros(2 * D)))
    first, second = moments(maps, np.concatenate([X0, H_D @ X0 + a_D]))
    agree(runs("s_page", problem, g, {"p": p, "b_small": 1}), first[:D], second[:D, :D])


def nodes():
    return [F, mast.Quadratic(2 * F.H, F.b - 1), mast.Quadratic(np.diag(np.arange(1.0, D + 1)), F.b)]


def node_gradient(f, S):
    H = S.T @ f.H @ S
    return H, S.T @ f.gradient(V) - H @ V


@pytest.mark.parametrize("coupling", ["independent", "disjoint"])
@pytest.mark.parametrize("participation", [1.0, [0.5, 1.0, 0.8]])
def test_distributed(coupling, participation):
    """Three nodes with Perm-3 of one partition: all pairs of blocks, or the six bijections."""
    sketch, g = mast.PermK(3, seed=2), 0.05
    problem = mast.Nodes([mast.Problem(f, sketch, V) for f in nodes()])
    blocks = [draw.matrix() for _, draw in sketch.support(D)]
    q = np.broadcast_to(participation, 3)
    maps = []
    choices = [(i, j, k) for i in range(3) for j in range(3) for k in range(3)]
    if coupling == "disjoint":
        choices = [c for c in choices if len(set(c)) == 3]
    for choice in choices:
        for present in np.ndindex(2, 2, 2):
            probability = float(np.prod(np.where(present, q, 1 - q))) / len(choices)
            if probability == 0:
                continue
            B, a = I.copy(), np.zeros(D)
            for f, block, here, share in zip(nodes(), choice, present, q, strict=True):
                H, slope = node_gradient(f, blocks[block])
                B -= g * here / share / 3 * H
                a -= g * here / share / 3 * slope
            maps.append((probability, B, a))
    options = {"coupling": coupling, "participation": participation}
    agree(runs("distributed", problem, g, options), *moments(maps, X0))


def test_distributed_with_some_of_the_nodes():
    sketch, g = mast.PermK(2, seed=2), 0.05
    problem = mast.Nodes([mast.Problem(f, sketch, V) for f in nodes()])
    blocks = [draw.matrix() for _, draw in sketch.support(D)]
    maps = []
    for pair in ((0, 1), (0, 2), (1, 2)):
        for choice in np.ndindex(2, 2):
            B, a = I.copy(), np.zeros(D)
            for i, block in zip(pair, choice, strict=True):
                H, slope = node_gradient(nodes()[i], blocks[block])
                B, a = B - g / 2 * H, a - g / 2 * slope
            maps.append((1 / 12, B, a))
    agree(runs("distributed", problem, g, {"participants": 2}), *moments(maps, X0))


def test_local_steps():
    """Two local steps on the same draw are two gradient steps on f_S; their gradients' sum comes back."""
    sketch, g = mast.RandK(4), 0.05
    problem = mast.Nodes([mast.Problem(F, sketch, V)])
    maps = []
    for p, draw in sketch.support(D):
        H, a = gradient_map(draw.matrix())
        one = I - g * H
        maps.append((p, one @ one, -g * (one @ a) - g * a))
    agree(runs("distributed", problem, g, {"local_steps": 2}), *moments(maps, X0))


def test_exact_methods_are_what_they_say():
    problem = mast.Problem(F, mast.Bernoulli(0.5), V)
    x = X0.copy()
    for _ in range(T):
        x = x - 0.05 * problem.gradient(x)
    np.testing.assert_allclose(runs("gd", problem, 0.05, {}, count=1)[0], x, rtol=1e-12)
    mu = problem.strong_convexity
    beta = (1 - math.sqrt(0.05 * mu)) / (1 + math.sqrt(0.05 * mu))
    x, before = X0.copy(), X0.copy()
    for _ in range(T):
        y = x + beta * (x - before)
        x, before = y - 0.05 * problem.gradient(y), x
    np.testing.assert_allclose(runs("agd", problem, 0.05, {}, count=1)[0], x, rtol=1e-12)
