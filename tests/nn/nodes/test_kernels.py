"""The compiled passes beside what NumPy says."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import mast  # noqa: E402
from mast import randomness  # noqa: E402
from mast.nn.drawing import drawing_of  # noqa: E402
from mast.nn.nodes import capacity_of, kernels  # noqa: E402
from mast.randomness import Key, Purpose  # noqa: E402


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 9, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("keep", [0.01, 0.25, 0.5, 0.97, 1.0])
@pytest.mark.parametrize("kind", [np.uint32, np.int64])
def test_positions(n, keep, kind):
    threshold = randomness.threshold(keep)
    for seed in range(5):
        key = Key(seed, 7, 3, 11)
        out = np.full(n + kernels.ROOM, 12345678, dtype=kind)
        count = kernels.kept_positions(key.words(Purpose.MASK), np.uint64(threshold), n, out)
        expected = np.flatnonzero(randomness.bernoulli(key, threshold, 0, n))
        assert out[:count].tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gather_and_add(dtype):
    x = randomness.normal(Key(1), 0, 1000).astype(dtype)
    positions = np.flatnonzero(randomness.bernoulli(Key(2), 1 << 30, 0, 1000)).astype(np.uint32)
    values = randomness.normal(Key(3), 0, positions.size).astype(dtype)
    out = np.empty_like(values)
    kernels.gather(x, positions, out)
    assert (out == x[positions]).all()
    kernels.gather_scaled(x, positions, dtype(0.3), out)
    assert (out == dtype(0.3) * x[positions]).all()
    y = x.copy()
    kernels.place_scaled(y, positions, dtype(0.3), values)
    expected = x.copy()
    expected[positions] = dtype(0.3) * values
    assert (y == expected).all()
    kernels.add(x, positions, values, dtype(0.7))
    expected = y.copy()
    y = expected.copy()
    y[positions] += dtype(0.7) * values
    kernels.add(expected, positions, values, dtype(0.7))
    np.testing.assert_allclose(expected, y, rtol=4 * np.finfo(dtype).eps)


def test_parts_are_what_the_drawing_says():
    model = nn.Sequential(nn.Linear(300, 70), nn.Linear(70, 3))
    capacity = capacity_of(model, "bernoulli:.3")
    drawing = drawing_of(mast.Bernoulli(0.3), capacity.weights)
    for seed in range(6):  # memory is lent again and again
        part = capacity.part(Key(seed))
        for number, name in enumerate(("0.weight", "1.weight")):
            piece = part.pieces[part.names.index(name)]
            drawn = drawing.kept(number, Key(seed), torch.empty(0))
            assert piece.kept.tolist() == np.flatnonzero(drawn.mask.numpy()).tolist()
            assert piece.scale == drawn.scales
        part.release()


def test_released_memory_is_not_that_of_a_living_part():
    model = nn.Sequential(nn.Linear(400, 200), nn.Linear(200, 3))
    capacity = capacity_of(model, "bernoulli:.4")
    first, second = capacity.part(Key(0)), capacity.part(Key(1))
    before = second.pieces[0].kept.tolist()
    first.release()
    third = capacity.part(Key(2))
    assert second.pieces[0].kept.tolist() == before
    assert not np.shares_memory(second.pieces[0].kept, third.pieces[0].kept)
