"""A draw for each row of a batch, and for each part of one: gradients against one pass per row."""

from __future__ import annotations

import copy
import pickle

import pytest

import mast
from mast.nn.row_draws import row_key

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from torch import nn  # noqa: E402

half = mast.nn.Neurons(mast.RandK(0.5))


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def cnn():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 2)
    ).double()


CASES = [(mlp, (7, 5)), (cnn, (5, 1, 8, 8)), (mlp, (3, 4, 5))]


def gradients(model):
    return nn.utils.parameters_to_vector([p.grad for p in model.parameters()])


@pytest.mark.parametrize(("make", "shape"), CASES)
def test_each_row_has_the_submodel_of_its_key(make, shape):
    model = make()
    sk = mast.nn.sparsify(model, half, seed=3, draws="row")
    x = torch.randn(shape, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        out = model(x)
        for i, row in enumerate(x):
            small = sk.submodel(row_key(sk.key, i)).train()
            torch.testing.assert_close(out[i : i + 1], small(row[None]), rtol=1e-10, atol=1e-11)
        optimizer.zero_grad()
        out.square().mean().backward()
        optimizer.step()
    assert sk.step == 2


@pytest.mark.parametrize(("make", "shape"), CASES)
def test_rows_are_parts_of_one_row(make, shape):
    by_row, by_part = make(), make()
    mast.nn.sparsify(by_row, half, seed=3, draws="row")
    estimator = mast.nn.Average(mast.nn.sparsify(by_part, half, seed=3), draws=shape[0], split=True)
    x = torch.randn(shape, dtype=torch.float64)
    loss = by_row(x).square().mean()
    loss.backward()
    torch.testing.assert_close(
        estimator.backward(lambda part: by_part(part).square().mean(), x), loss.detach()
    )
    torch.testing.assert_close(gradients(by_row), gradients(by_part), rtol=1e-10, atol=1e-12)


def test_parts_of_unequal_length_are_weighed_by_their_rows():
    model = mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(1.0))  # nothing is dropped: the gradient is the plain one
    x, y = torch.randn(7, 5, dtype=torch.float64), torch.randn(7, 2, dtype=torch.float64)
    mse = nn.functional.mse_loss
    mast.nn.Average(sk, draws=3, split=True).backward(lambda a, b: mse(model(a), b), x, y)
    plain = mlp()
    mse(plain(x), y).backward()
    torch.testing.assert_close(gradients(model), gradients(plain), rtol=1e-10, atol=1e-12)


def test_the_whole_model_the_explicit_form_and_copies_are_as_ever():
    model, x = mlp(), torch.randn(4, 5, dtype=torch.float64)
    plain = copy.deepcopy(model)
    sk = mast.nn.sparsify(model, half, draws="row")
    with sk.sample(0):
        one_draw = model(x)
    assert torch.equal(one_draw, sk_of_batch(x))
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model.eval()):
        assert torch.equal(copied(x), plain(x))
    model.train()
    assert not torch.equal(model(x), plain(x))
    sk.remove()
    assert torch.equal(model(x), plain(x))
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def sk_of_batch(x):
    """One draw for all rows, in the explicit form."""
    model = mlp()
    with mast.nn.sparsify(model, half).sample(0):
        return model(x)


def test_passes_of_one_step_may_have_other_numbers_of_rows():
    model, x = mlp(), torch.randn(4, 5, dtype=torch.float64)
    sk = mast.nn.sparsify(model, half, draws="row")
    assert torch.equal(model(x)[:2], model(x[:2]))  # a row has the draw of its number
    before = model(x)
    sk.sketch = mast.nn.Neurons(mast.RandK(0.25))
    assert not torch.equal(model(x), before)
    with pytest.raises(mast.MastError, match="one submodel per step"):
        mast.nn.RowOptimizer(sk, torch.optim.SGD, lr=0.1)
    plain = mast.nn.sparsify(mlp(), mast.nn.Neurons(mast.RandK(0.25)))
    with pytest.raises(mast.MastError, match="another sketch"):
        plain.load_state_dict(sk.state_dict())


class Functional(nn.Module):
    """Uses a weight without calling its layer."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 8), nn.Linear(8, 2)

    def forward(self, x):
        return nn.functional.linear(self.a(x).relu(), self.b.weight, self.b.bias)


class Recurrent(nn.Module):
    """Its hidden units are taken by the recurrent layer itself."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.LSTM(5, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x):
        return self.b(self.a(x)[0])


class Folded(nn.Module):
    """Has more rows inside than outside, from one layer on."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 8), nn.Linear(8, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.c(self.b(self.a(x).relu()).relu().flatten(0, 1))


def test_what_cannot_have_a_draw_per_row_is_refused():
    x = torch.randn(3, 4, 5)
    sparsify = mast.nn.sparsify
    for call, message in (
        (lambda: sparsify(mlp(), mast.Bernoulli(0.5), draws="row"), "sketches of units"),
        (lambda: sparsify(mlp(), half, draws="column"), "draws"),
        (lambda: sparsify(Recurrent(), half, example=x, draws="row"), "LSTM"),
        (lambda: _train(Functional(), x), "is not called"),
        (lambda: _train(Folded(), x), "rows in one forward pass"),
        (lambda: mast.nn.Average(sparsify(mlp(), half), 2, split=True).backward(lambda: 0), "after the"),
    ):  # fmt: skip
        with pytest.raises(mast.MastError, match=message):
            call()


def test_a_refused_model_stays_as_it_was():
    for model, sketch, more in (
        (mlp(), mast.Bernoulli(0.5), {}),
        (Recurrent(), half, {"example": torch.randn(4, 3, 5)}),
    ):
        with pytest.raises(mast.MastError, match='draws="row"'):
            mast.nn.sparsify(model, sketch, draws="row", **more)
        assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
        mast.nn.sparsify(model, mast.Bernoulli(0.5)).remove()


def _train(model, x):
    mast.nn.sparsify(model, half, example=x, draws="row")
    model(x)
