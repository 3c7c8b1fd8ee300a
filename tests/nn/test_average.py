"""The mean over several draws against its formula, written out with the reference's gradients."""

from __future__ import annotations

import copy

import pytest

import mast
from mast.randomness import Key

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from torch import nn  # noqa: E402

half = mast.nn.Neurons(mast.RandK(0.5))
sgd = lambda p: torch.optim.SGD(p, lr=0.05)  # noqa: E731


class Plain:
    """Gradients of f_S, the long way, and a model to apply updates to."""

    def __init__(self, reference, diagonal, sk, model):
        self.ref = reference(sk, model, sgd)
        self.diagonal = diagonal
        self.sk = sk

    def gradient(self, key, loss):
        """grad f_S as one vector."""
        ref = copy.copy(self.ref)
        ref.x = copy.deepcopy(self.ref.x)
        ref.gradient(None, [loss], self.diagonal(self.sk, key.step, seed=key.seed, node=key.node))
        return nn.utils.parameters_to_vector([p.grad for p in ref.x.parameters()])

    @property
    def x(self):
        return nn.utils.parameters_to_vector(self.ref.x.parameters()).detach().clone()

    def move(self, h):
        nn.utils.vector_to_parameters(self.x - 0.05 * h, self.ref.x.parameters())


def agree(model, plain):
    ours = nn.utils.parameters_to_vector(model.parameters())
    torch.testing.assert_close(ours, plain.x, rtol=1e-9, atol=1e-10)  # double precision, other order of sums


def both_forms(models, sketch, reference, diagonal, loss_on, shift="init"):
    model, inputs = models.mlp()
    model.double()
    sk = mast.nn.sparsify(model, sketch, shift=shift, seed=5)
    plain = Plain(reference, diagonal, sk, model)
    return model, sk, plain, loss_on(inputs[0].double()), sgd(model.parameters())


def test_average_is_the_mean_over_independent_draws(models, reference, diagonal, loss_on):
    model, sk, plain, loss, opt = both_forms(models, mast.Bernoulli(0.6), reference, diagonal, loss_on)
    estimator = mast.nn.Average(sk, draws=3)
    keys = []
    for step in range(4):
        own = [estimator.key(j) for j in range(3)]
        keys += own
        assert own[0] == Key(5, step, 0)  # the draw of plain training
        estimator.backward(lambda: loss(model))
        opt.step()
        opt.zero_grad()
        plain.move(torch.stack([plain.gradient(key, loss) for key in own]).mean(0))
    agree(model, plain)
    assert len(set(keys)) == 12
    assert sk.step == 4


def test_average_of_one_is_plain_training(models, loss_on, same):
    model, inputs = models.cnn()
    twin = copy.deepcopy(model)
    sk, other = (mast.nn.sparsify(m, mast.RandK(0.3), seed=5) for m in (model, twin))
    opts = [sgd(m.parameters()) for m in (model, twin)]
    estimator = mast.nn.Average(sk, draws=1)
    for x in inputs:
        value = estimator.backward(lambda x=x: loss_on(x)(model))
        expected = loss_on(x)(twin)
        expected.backward()
        assert value == expected.detach()
        for opt in opts:
            opt.step()
            opt.zero_grad()
    same(model, twin)
    assert other.step == sk.step


def test_gradients_join_those_that_are_there(models, loss_on):
    model, inputs = models.mlp()
    estimator = mast.nn.Average(mast.nn.sparsify(model, mast.PermK(3)), 1)
    estimator.backward(lambda: loss_on(inputs[0])(model))
    once = [p.grad.clone() for p in model.parameters()]
    estimator.backward(lambda: loss_on(inputs[0])(model))
    assert all(torch.equal(p.grad, 2 * g) for p, g in zip(model.parameters(), once, strict=True))


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def cnn():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 2)
    ).double()


@pytest.mark.parametrize(("make", "shape"), [(mlp, (7, 5)), (cnn, (5, 1, 8, 8)), (mlp, (3, 4, 5))])
def test_each_part_has_the_submodel_of_its_key(make, shape):
    model, x, outputs = make(), torch.randn(shape, dtype=torch.float64), []
    sk = mast.nn.sparsify(model, half, seed=3, example=x)
    estimator = mast.nn.Average(sk, draws=shape[0], split=True)

    def loss(part):
        outputs.append(model(part))
        return outputs[-1].square().mean()

    mean = estimator.backward(loss, x)
    torch.testing.assert_close(mean, torch.cat(outputs).square().mean())
    for i, row in enumerate(x):
        small = sk.submodel(estimator.key(i)).train()
        torch.testing.assert_close(outputs[i], small(row[None]), rtol=1e-10, atol=1e-11)


def test_parts_of_unequal_length_are_weighed_by_their_rows():
    model, plain = mlp(), mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(1.0))  # nothing is dropped: the gradient is the plain one
    x, y = torch.randn(7, 5, dtype=torch.float64), torch.randn(7, 2, dtype=torch.float64)
    mse = nn.functional.mse_loss
    mast.nn.Average(sk, draws=3, split=True).backward(lambda a, b: mse(model(a), b), x, y)
    mse(plain(x), y).backward()
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-10, atol=1e-12)


def test_bad_arguments(models):
    model, _ = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    for call, message in (
        (lambda: mast.nn.Average(model, 2), "what sparsify"),
        (lambda: mast.nn.Average(sk, 0), "draws"),
        (lambda: mast.nn.Average(sk, 2, split=True).backward(lambda: 0), "after the"),
        (lambda: mast.nn.Average(sk, 1).backward(lambda: 3.0), "closure must return"),
    ):
        with pytest.raises(mast.MastError, match=message):
            call()
