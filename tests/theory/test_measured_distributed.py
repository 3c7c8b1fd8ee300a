"""Distributed DSGD under every coupling and participation: the measured error never exceeds the bound."""

from itertools import combinations, product

import numpy as np
import pytest

from mast import theory
from theory import quadratic_moments as exact
from theory.instances import (
    Instance,
    Measured,
    bernoulli,
    check_regimes,
    flips,
    not_diagonal,
    perm_k,
    quadratic,
    rand_k,
    uniform,
)

T = 60


class Cluster(Measured):
    """Instances with a common shift, and the joint law of their draws: (probability, indices, weights)."""

    def __init__(self, nodes, joint):
        self.nodes = nodes
        M = len(nodes)
        H, c, q = [], [], []
        for chance, draws, weight in joint:
            weight = np.full(M, 1 / M) if weight is None else weight
            H.append(sum(w * node.gradients.H[k] for w, node, k in zip(weight, nodes, draws, strict=True)))
            c.append(sum(w * node.gradients.c[k] for w, node, k in zip(weight, nodes, draws, strict=True)))
            q.append(chance)
        self.gradients = exact.Gradients(np.array(H), np.array(c), np.array(q))
        assert np.isclose(self.gradients.q.sum(), 1)
        self.H_D, self.c_D = exact.mean_gradient(self.gradients)
        np.testing.assert_allclose(self.H_D, np.mean([node.H_D for node in nodes], axis=0), atol=1e-12)
        self.solution = np.linalg.solve(self.H_D, self.c_D)
        self.f_D_inf = self.f_D(self.solution)
        self.constants = {
            name: [getattr(node, name) for node in nodes] for name in ("L_f", "mu_f", "L_D", "mu_D", "L_max")
        }
        self.constants["gap"] = max(0.0, self.f_D_inf - np.mean([node.f_inf for node in nodes]))

    def f_D(self, x):
        return np.mean([node.f_D(x) for node in self.nodes])

    def check(self, share=1.0, seed=0, **options):
        x0 = self.solution + 2 * np.random.default_rng(seed).standard_normal(len(self.solution))

        def promise(regime):
            return theory.distributed(regime, **self.constants, **options)

        check_regimes(self, self.gradients, promise, share, x0, T)


def nodes_with(sketches, seed, d=2):
    rng = np.random.default_rng(seed)
    v = rng.standard_normal(d)
    made = []
    for k, (S, q) in enumerate(sketches):
        H = quadratic(d, rng) * rng.choice([0.1, 1.0, 5.0])
        made.append(Instance(str(k), H, 3 * rng.standard_normal(d), S, q, v))
    return made


def sketches_for(seed, M):
    rng = np.random.default_rng(100 + seed)
    offers = [rand_k(2, 1), bernoulli([0.4, 0.9]), uniform([np.eye(2)]), flips(2), not_diagonal(2, 3, rng)]
    return [offers[k] for k in rng.integers(0, len(offers), M)]


def independent(nodes):
    return [
        (np.prod([node.q[k] for node, k in zip(nodes, draws, strict=True)]), draws, None)
        for draws in product(*[range(len(node.q)) for node in nodes])
    ]


@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("coupling", ["any", "independent"])
@pytest.mark.parametrize("M", [1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_independent_draws(seed, M, coupling, share):
    nodes = nodes_with(sketches_for(seed, M), seed)
    Cluster(nodes, independent(nodes)).check(share, seed, nodes=coupling)


@pytest.mark.parametrize("M", [1, 2, 4])
@pytest.mark.parametrize("seed", range(6))
def test_shared_draws(seed, M):
    """All nodes use the same draw: allowed by "any"."""
    sketch = [rand_k(2, 1), flips(2), not_diagonal(2, 4, np.random.default_rng(seed))][seed % 3]
    nodes = nodes_with([sketch] * M, seed)
    joint = [(q, [k] * M, None) for k, q in enumerate(sketch[1])]
    Cluster(nodes, joint).check(1.0, seed, nodes="any")


@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("M", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_disjoint_draws(seed, M, share):
    """Perm-3 over M <= 3 nodes: each step deals the blocks out, no block twice."""
    blocks = [[0], [1], [2]] if seed % 2 else [[0, 1], [2], [3]]
    nodes = nodes_with([perm_k(blocks)] * M, seed, d=sum(map(len, blocks)))
    deals = [(draws) for draws in product(range(3), repeat=M) if len(set(draws)) == M]
    Cluster(nodes, [(1 / len(deals), draws, None) for draws in deals]).check(share, seed, nodes="disjoint")


@pytest.mark.parametrize("coupling", ["any", "independent"])
@pytest.mark.parametrize("q", [[0.3, 0.8], [0.02, 0.02]])
@pytest.mark.parametrize("seed", range(4))
def test_participation_with_probabilities(seed, coupling, q):
    nodes, q = nodes_with(sketches_for(seed, 2), seed), np.array(q)
    joint = [
        (chance * np.prod(np.where(here, q, 1 - q)), draws, np.array(here) / q / 2)
        for chance, draws, _ in independent(nodes)
        for here in product([0, 1], repeat=2)
    ]
    Cluster(nodes, joint).check(1.0, seed, nodes=coupling, participation=q)


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("coupling", ["any", "independent", "disjoint"])
@pytest.mark.parametrize("seed", range(4))
def test_participation_of_m_nodes(seed, coupling, m):
    M = 3
    if coupling == "disjoint":
        nodes = nodes_with([perm_k([[0], [1], [2]])] * M, seed, d=3)
        deals = [draws for draws in product(range(3), repeat=M) if len(set(draws)) == M]
        draws_law = [(1 / len(deals), draws, None) for draws in deals]
    else:
        nodes = nodes_with(sketches_for(seed, M), seed)
        draws_law = independent(nodes)
    chosen = list(combinations(range(M), m))
    joint = [
        (chance / len(chosen), draws, np.isin(np.arange(M), here) / m)
        for chance, draws, _ in draws_law
        for here in chosen
    ]
    Cluster(nodes, joint).check(1.0, seed, nodes=coupling, participants=m)
