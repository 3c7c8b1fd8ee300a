"""The positions of kept weights beside what NumPy says, and beside the draw of a sketch."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import mast  # noqa: E402
from mast import randomness  # noqa: E402
from mast.nn.nodes import capacity_of  # noqa: E402
from mast.nn.nodes.capacities import ROOM, kept_positions  # noqa: E402
from mast.nn.tensors.bound import bind  # noqa: E402
from mast.randomness import Key, Purpose  # noqa: E402


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 9, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("keep", [0.01, 0.25, 0.5, 0.97, 1.0])
@pytest.mark.parametrize("kind", [np.uint32, np.int64])
def test_positions(n, keep, kind):
    threshold = randomness.threshold(keep)
    for seed in range(5):
        key = Key(seed, 7, 3, 11)
        out = np.full(n + ROOM, 12345678, dtype=kind)
        count = kept_positions(key.words(Purpose.MASK), np.uint64(threshold), n, out)
        expected = np.flatnonzero(randomness.bernoulli(key, threshold, 0, n))
        assert out[:count].tolist() == expected.tolist()


def test_parts_are_what_the_drawing_says():
    model = nn.Sequential(nn.Linear(300, 70), nn.Linear(70, 3))
    capacity = capacity_of(model, "bernoulli:.3")
    drawing = bind(mast.Bernoulli(0.3), capacity.weights)
    for seed in range(6):
        part = capacity.part(Key(seed))
        for number, name in enumerate(("0.weight", "1.weight")):
            expected = drawing.kept(number, Key(seed), torch.empty(0))
            assert part.kept[name].positions.tolist() == expected.positions.tolist()
            assert part.kept[name].scales == expected.scales
