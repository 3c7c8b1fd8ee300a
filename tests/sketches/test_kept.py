"""Gathering, placing and adding at kept coordinates: the compiled passes have the bits of NumPy's."""

import numpy as np
import pytest

import mast
from mast import randomness
from mast.randomness import Key
from mast.sketches import kept

D = 60_000


@pytest.fixture(params=["numpy", "compiled"])
def way(request, monkeypatch):
    """Both forms at every size."""
    monkeypatch.setattr(kept, "MANY", 0 if request.param == "compiled" else D + 1)


@pytest.mark.parametrize("keep", [0.001, 0.4, 1.0])
def test_bits(way, keep):
    draw = mast.Bernoulli(keep).sample(D, Key(3))
    indices, scales = draw.indices, draw.scales
    x, shift = randomness.normal(Key(1), 0, D), randomness.normal(Key(2), 0, D)
    assert (kept.gather(x, indices) == x[indices]).all()
    narrow = np.empty(indices.size, dtype=np.float32)
    assert kept.gather(x, indices, narrow) is narrow
    assert (narrow == x[indices].astype(np.float32)).all()
    assert (kept.scaled(x, indices, scales) == scales * x[indices]).all()
    y = shift + draw.apply(x - shift)
    assert (kept.sparsified(x, indices, scales, shift) == y).all()
    z, expected = x.copy(), x.copy()
    expected[indices] += 0.3 * shift[indices]
    kept.add(z, indices, shift[indices], 0.3)
    assert (z == expected).all()
    kept.place(z, indices, shift[indices])
    expected[indices] = shift[indices]
    assert (z == expected).all()
    kept.copy(z, indices, x)
    assert (z == x).all()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_precision_is_that_of_the_vector(way, kind):
    """Answers may travel in another precision than x has."""
    indices = np.arange(0, D, 3)
    x = randomness.normal(Key(1), 0, D).astype(kind)
    for other in (np.float32, np.float64):
        values = randomness.normal(Key(2), 0, indices.size).astype(other)
        ours, expected = x.copy(), x.copy()
        kept.add(ours, indices, values, 0.1)
        expected[indices] += kind(0.1) * values.astype(kind)
        assert ours.dtype == kind
        assert (ours == expected).all()


def test_empty_draws(way):
    nothing = np.empty(0, dtype=np.int64)
    x = np.arange(3.0)
    assert kept.gather(x, nothing).size == 0
    kept.add(x, nothing, np.empty(0), 2.0)
    assert x.tolist() == [0, 1, 2]
