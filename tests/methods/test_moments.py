"""Mean and covariance of every method on a quadratic, against the exact recursion, for every sketch.

On a quadratic one step of a method is an affine map x <- B x + a, chosen at random. Over a finite support the
maps can be listed, so E[x] and E[x x'] are known exactly; `theory.quadratic_moments` has the methods that
remember more than x.
"""

import math

import numpy as np
import pytest

import mast
from mast.methods import make
from sketches.samples import FINITE, SKETCHES, D
from theory import quadratic_moments as exact

T = 5
RUNS = 1500
RNG = np.random.default_rng(3)
A = RNG.standard_normal((2 * D, D))
F = mast.Quadratic(A.T @ A / (2 * D) + 0.2 * np.eye(D), RNG.standard_normal(D))
V = RNG.standard_normal(D)
X0 = RNG.standard_normal(D)
START = np.append(X0, 1.0)
I = np.eye(D)


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


def moments(step, z0, steps=T):
    """E[x] and E[x x'] after some steps."""
    *_, second = exact.propagate(step, z0, steps)
    return second[:D, -1], second[:D, :D]


def affine(maps):
    """A step of a method without memory, of (probability, B, a)."""
    assert math.fsum(p for p, _, _ in maps) == pytest.approx(1)
    last = np.append(np.zeros(D), 1.0)
    return exact.Step(np.array([np.vstack([np.c_[B, a], last]) for _, B, a in maps]), [p for p, _, _ in maps])


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


def gradient_map(S, f=F):
    """grad f_S(x) = B x + a."""
    H = S.T @ f.H @ S
    return H, S.T @ f.gradient(V) - H @ V


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
    agree(runs("dsgd", problem, g, {}), *moments(affine(list(steps_of("dsgd", FINITE[name], g))), START))


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
    agree(runs(method, problem, g, {}), *moments(affine(list(steps_of(method, FINITE[name], g))), START))


def uniform(sketch):
    return sketch.support_size(D) <= 20 and np.ptp([p for p, _ in sketch.support(D)]) < 1e-12


UNIFORM = [name for name, sketch in FINITE.items() if sketch.unbiased and uniform(sketch)]


def gradients(sketch):
    """The sketched gradients over the support, which is uniform."""
    return exact.sketched_gradients(F.H, F.b, [draw.matrix() for _, draw in sketch.support(D)], V)


@pytest.mark.parametrize("p", [0.3, 1.0])
@pytest.mark.parametrize("name", UNIFORM)
def test_l_svrdsg(name, p):
    problem, g = mast.Problem(F, FINITE[name], V), size_for(FINITE[name])
    every = gradients(FINITE[name])
    step = exact.l_svrdsg_step(every, g, p, len(every.q), "fresh")
    start = exact.batch_start(every, X0, len(every.q), 2)
    agree(runs("l_svrdsg", problem, g, {"p": p}), *moments(step, start))


@pytest.mark.parametrize("batch", ["fresh", "kept"])
def test_l_svrdsg_with_a_small_batch(batch):
    """One of three blocks."""
    sketch, p, g = mast.PermK(3, seed=1), 0.4, 0.02
    every = gradients(sketch)
    step = exact.l_svrdsg_step(every, g, p, 1, batch)
    found = runs("l_svrdsg", mast.Problem(F, sketch, V), g, {"p": p, "b": 1, "batch": batch})
    agree(found, *moments(step, exact.batch_start(every, X0, 1, 2)))


@pytest.mark.parametrize("name", UNIFORM)
def test_s_page(name):
    """The small batch is one sketch."""
    problem, g, p = mast.Problem(F, FINITE[name], V), size_for(FINITE[name]), 0.4
    every = gradients(FINITE[name])
    step = exact.s_page_step(every, g, p, len(every.q), 1)
    start = exact.batch_start(every, X0, len(every.q), 1)
    agree(runs("s_page", problem, g, {"p": p, "b_small": 1}), *moments(step, start))


def nodes():
    return [F, mast.Quadratic(2 * F.H, F.b - 1), mast.Quadratic(np.diag(np.arange(1.0, D + 1)), F.b)]


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
                H, slope = gradient_map(blocks[block], f)
                B -= g * here / share / 3 * H
                a -= g * here / share / 3 * slope
            maps.append((probability, B, a))
    options = {"coupling": coupling, "participation": participation}
    agree(runs("distributed", problem, g, options), *moments(affine(maps), START))


def test_distributed_with_some_of_the_nodes():
    sketch, g = mast.PermK(2, seed=2), 0.05
    problem = mast.Nodes([mast.Problem(f, sketch, V) for f in nodes()])
    blocks = [draw.matrix() for _, draw in sketch.support(D)]
    maps = []
    for pair in ((0, 1), (0, 2), (1, 2)):
        for choice in np.ndindex(2, 2):
            B, a = I.copy(), np.zeros(D)
            for i, block in zip(pair, choice, strict=True):
                H, slope = gradient_map(blocks[block], nodes()[i])
                B, a = B - g / 2 * H, a - g / 2 * slope
            maps.append((1 / 12, B, a))
    agree(runs("distributed", problem, g, {"participants": 2}), *moments(affine(maps), START))


def test_local_steps():
    """Two local steps on the same draw are two gradient steps on f_S; their gradients' sum comes back."""
    sketch, g = mast.RandK(4), 0.05
    problem = mast.Nodes([mast.Problem(F, sketch, V)])
    maps = []
    for p, draw in sketch.support(D):
        H, a = gradient_map(draw.matrix())
        one = I - g * H
        maps.append((p, one @ one, -g * (one @ a) - g * a))
    agree(runs("distributed", problem, g, {"local_steps": 2}), *moments(affine(maps), START))


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
