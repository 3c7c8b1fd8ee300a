"""Parts of the dependency graph: slices that are coupled, and outputs that are compared."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

torch = pytest.importorskip("torch")

from mast.nn.units.dependencies.examples import largest_difference  # noqa: E402
from mast.nn.units.dependencies.graph import INPUT, DependencyGraph  # noqa: E402


@pytest.mark.parametrize("order", ["rising", "falling", "random"])
@pytest.mark.parametrize("parts", [1, 7])
def test_coupled_slices_have_the_smallest_as_their_root(order, parts):
    generator = torch.Generator().manual_seed(0)
    graph = DependencyGraph({"weight": torch.empty(400)})
    chain = torch.arange(INPUT + 1, graph.count)
    chain = {"rising": chain, "falling": chain.flip(0)}.get(
        order, chain[torch.randperm(400, generator=generator)]
    )
    kept = torch.rand(399, generator=generator) < 0.9
    some, others = chain[:-1][kept], chain[1:][kept]
    for a, b in zip(some.chunk(parts), others.chunk(parts), strict=True):
        graph.couple(a, b)
    edges = coo_array((np.ones(len(some)), (some.numpy(), others.numpy())), shape=(graph.count,) * 2)
    count, groups = connected_components(edges, directed=False)
    smallest = np.array([np.flatnonzero(groups == group)[0] for group in range(count)])
    np.testing.assert_array_equal(graph.roots(torch.arange(graph.count)).numpy(), smallest[groups])


def test_constants_couple_nothing():
    graph = DependencyGraph({"weight": torch.empty(4)})
    graph.couple(torch.tensor([0, 2, 0, 3]), torch.tensor(5))
    assert graph.roots(torch.arange(graph.count)).tolist() == [0, 1, 2, 2, 4, 2]


@pytest.mark.parametrize(
    ("some", "others", "expected"),
    [
        ([1.0, 2.0], [1.0, 4.0], 0.5),
        ([float("nan"), 3.0], [float("nan"), 4.0], 0.25),
        ([float("-inf"), 3.0], [float("-inf"), 4.0], 0.25),
        ([float("inf"), 3.0], [float("-inf"), 3.0], float("inf")),
        ([float("inf"), 3.0], [2.0, 3.0], float("inf")),
        ([float("nan"), 3.0], [2.0, 3.0], float("inf")),
        ([float("nan")], [float("nan")], 0.0),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([], [], 0.0),
        ([1.0], [1.0, 1.0], float("inf")),
    ],
)
def test_differences_are_relative_to_the_largest_finite_entry(some, others, expected):
    assert largest_difference([torch.tensor(some)], [torch.tensor(others)]) == expected
