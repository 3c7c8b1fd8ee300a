"""Gathering, placing and adding at kept coordinates: the compiled passes have the bits of NumPy's."""

import numpy as np
import pytest

import mast
from mast import randomness
from mast.errors import ArgumentError
from mast.randomness import Key
from mast.sketches.draws import DiagonalDraw, FullDraw, GridDraw, MaskDraw, ModelDraw, base

D = 60_000


@pytest.fixture(params=["numpy", "compiled"])
def way(request, monkeypatch):
    """Both forms at every size."""
    monkeypatch.setattr(base, "MANY", 0 if request.param == "compiled" else D + 1)


@pytest.mark.parametrize("keep", [0.001, 0.4, 1.0])
def test_bits(way, keep):
    draw = mast.Bernoulli(keep).sample(D, Key(3))
    indices, scales = draw.indices, draw.scales
    x, shift = randomness.normal(Key(1), 0, D), randomness.normal(Key(2), 0, D)
    assert (draw.gather(x) == x[indices]).all()
    narrow = np.empty(indices.size, dtype=np.float32)
    assert draw.gather(x, narrow) is narrow
    assert (narrow == x[indices].astype(np.float32)).all()
    assert (draw.gather_scaled(x) == scales * x[indices]).all()
    y = shift + draw.apply(x - shift)
    assert (draw.sparsified(x, shift) == y).all()
    z, expected = x.copy(), x.copy()
    expected[indices] += 0.3 * shift[indices]
    draw.add(z, shift[indices], 0.3)
    assert (z == expected).all()
    draw.place(z, shift[indices])
    expected[indices] = shift[indices]
    assert (z == expected).all()
    draw.copy(z, x)
    assert (z == x).all()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_precision_is_that_of_the_vector(way, kind):
    """Answers may travel in another precision than x has."""
    indices = np.arange(0, D, 3)
    entries = DiagonalDraw([D], indices, 1.0)
    x = randomness.normal(Key(1), 0, D).astype(kind)
    for other in (np.float32, np.float64):
        values = randomness.normal(Key(2), 0, indices.size).astype(other)
        ours, expected = x.copy(), x.copy()
        entries.add(ours, values, 0.1)
        expected[indices] += kind(0.1) * values.astype(kind)
        assert ours.dtype == kind
        assert (ours == expected).all()


def test_one_scale_for_all(way):
    indices = np.arange(0, D, 3)
    one, each = DiagonalDraw([D], indices, 3.0), DiagonalDraw([D], indices, np.full(indices.size, 3.0))
    x, v = randomness.normal(Key(1), 0, D), randomness.normal(Key(2), 0, D)
    assert (one.gather_scaled(x) == each.gather_scaled(x)).all()
    assert (one.sparsified(x, v) == each.sparsified(x, v)).all()


@pytest.mark.parametrize(
    "form", [DiagonalDraw([6], np.array([1, 4]), 2.0), FullDraw([6]), GridDraw([6], {0: np.array([1])})]
)
def test_copies_are_of_equal_shapes(way, form):
    for x, source in (
        (np.zeros(6), np.ones((1, 6))),
        (np.zeros((6, 1)), np.ones(6)),
        (np.zeros(6), np.ones(7)),
    ):
        with pytest.raises(ArgumentError, match="is not that of shape"):
            form.copy(x, source)
        assert not x.any()


def test_empty_draws(way):
    nothing = DiagonalDraw([3], np.empty(0, dtype=np.int64), np.empty(0))
    x = np.arange(3.0)
    assert nothing.gather(x).size == 0
    nothing.add(x, np.empty(0), 2.0)
    assert x.tolist() == [0, 1, 2]


SHAPE = (6, 5, 3)
ROWS, COLUMNS, INNER = np.array([0, 2, 5]), np.array([1, 4]), np.array([0, 2])
FORMS = {
    "everything": FullDraw(SHAPE, 2.0),
    "scales": FullDraw(SHAPE, 1 + np.arange(90) / 64),
    "mask": MaskDraw(SHAPE, np.arange(90) % 3 == 0, 3.0),
    "entries": DiagonalDraw(SHAPE, np.array([0, 7, 31, 89]), np.array([2.0, 3.0, 4.0, 5.0])),
    "rows": GridDraw(SHAPE, {0: ROWS}, {0: np.array([2.0, 3.0, 4.0])}),
    "columns": GridDraw(SHAPE, {1: COLUMNS}, {1: np.array([2.0, 3.0])}),
    "both": GridDraw(SHAPE, {0: ROWS, 1: COLUMNS}, {1: np.array([2.0, 3.0])}),
    "inner": GridDraw(SHAPE, {0: ROWS, 2: INNER}, {2: np.array([2.0, 3.0])}),
    "nothing_cut": GridDraw(SHAPE, {}),
}


@pytest.mark.parametrize("library", ["numpy", "torch", "strided", "half"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_indexing_and_scaling(way, form, library):
    """All forms and operations against a dense diagonal, for arrays and tensors of any kind."""
    kept = FORMS[form]
    x = randomness.normal(Key(1), 0, 90).reshape(SHAPE)
    if library == "half":
        x = np.round(x * 8) / 8  # exact in half precision
    c = kept.diagonal()
    keeps = c != 0
    assert kept.count == keeps.sum()
    assert (kept.positions == np.flatnonzero(keeps)).all()
    point = x.copy()
    if library != "numpy":
        torch = pytest.importorskip("torch")
        point = torch.from_numpy(x.copy())
        point = point.permute(2, 0, 1).contiguous().permute(1, 2, 0) if library == "strided" else point
        point = point.half() if library == "half" else point
    values = kept.gather(point)
    assert (np.asarray(values).reshape(-1) == x[keeps]).all()
    scaled = (c * x)[keeps].astype(np.asarray(values).dtype)
    product = kept.gather(point)
    kept.scale(product)
    assert (np.asarray(product).reshape(-1) == scaled).all()
    expected = np.where(keeps, x + 0.5 * x, x)
    version = getattr(point, "_version", 0)
    kept.add(point, values, 0.5)
    assert (np.asarray(point) == expected.astype(np.asarray(point).dtype)).all()
    if library != "numpy":
        assert point._version > version
    kept.place(point, values)
    assert (np.asarray(point) == x).all()
    zeros = point * 0
    kept.copy(zeros, point)
    assert (np.asarray(zeros) == np.where(keeps, x, 0)).all()


@pytest.mark.parametrize("form", FORMS)
def test_arrays_that_are_read_may_be_read_only(way, form):
    kept, x = FORMS[form], np.arange(90.0).reshape(SHAPE)
    x.setflags(write=False)
    values = kept.gather(x)
    values.setflags(write=False)
    out = np.zeros(SHAPE)
    kept.place(out, values)
    kept.add(out, values)
    assert (out == np.where(kept.diagonal() != 0, 2 * x, 0)).all()


def test_the_values_of_a_model_lie_one_after_the_other():
    draw = ModelDraw({name: FORMS[name] for name in ("both", "entries", "everything")})
    tensors = {name: randomness.normal(Key(i), 0, 90).reshape(SHAPE) for i, name in enumerate(draw)}
    values = draw.gather(tensors, np.empty(draw.count))
    assert draw.count == 3 * 2 * 3 + 4 + 90
    assert (draw.of(values, "both") == tensors["both"][np.ix_(ROWS, COLUMNS)]).all()
    before = {name: t.copy() for name, t in tensors.items()}
    draw.add(tensors, values, 2.0)
    draw.place(tensors, values)
    assert all((tensors[name] == before[name]).all() for name in draw)
    with pytest.raises(mast.errors.ArgumentError, match="keeps 112 values"):
        draw.check(values[:-1])


@pytest.mark.parametrize("form", ["everything", "mask", "entries", "rows", "columns", "both", "inner"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_what_does_not_fit_is_an_error(way, form, library):
    """Compiled passes do not look where they read: a tensor of another size never reaches them."""
    kept = FORMS[form]
    x, values = np.zeros((1, 5, 3)), np.zeros(kept.count)
    if library == "torch":
        torch = pytest.importorskip("torch")
        x, values = torch.from_numpy(x), torch.from_numpy(values)
    for operation in (
        lambda: kept.gather(x),
        lambda: kept.place(x, values),
        lambda: kept.add(x, values),
    ):
        with pytest.raises((mast.MastError, IndexError)):
            operation()
    whole = x.reshape(-1)[:1].repeat(90).reshape(SHAPE)
    with pytest.raises((IndexError, RuntimeError, ValueError)):
        kept.place(whole, values[:-1])
    with pytest.raises((IndexError, RuntimeError, ValueError)):
        kept.add(whole, values[:-1])
