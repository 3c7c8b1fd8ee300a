"""The explicit form: parameters hold y inside the context, and only there."""

from __future__ import annotations

import copy
import pickle

import pytest

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")

MODELS = ["mlp", "cnn", "lstm", "attention", "tied", "transformer", "lists", "checkpointed", "reentrant"]
make = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)  # noqa: E731


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shift", [None, "init"])
def test_training_in_the_context(models, reference, loss_on, same, name, shift):
    model, inputs = getattr(models, name)()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.6), shift=shift, seed=3)
    ref, opt = reference(sk, model, make), make(model.parameters())
    for step, x in enumerate(inputs):
        with sk.sample(7 * step):
            loss_on(x, 0.5)(model).backward()
            loss_on(x, 0.5)(model).backward()
        opt.step()
        opt.zero_grad()
        ref.step(7 * step, [loss_on(x, 0.5)] * 2)
    same(model, ref.x)


@pytest.mark.parametrize(
    "sketch",
    [mast.Bernoulli(0.6), mast.PermK(3), mast.RandK(0.3), mast.Gaussian(0.2), mast.UnscaledBernoulli(0.4)],
)
def test_inside_parameters_hold_y_and_after_it_x(models, diagonal, sketch):
    model, _ = models.mlp()
    sk = mast.nn.sparsify(model, sketch, seed=9)
    x = {name: p.detach().clone() for name, p in model.named_parameters()}
    pointers = [p.data_ptr() for p in model.parameters()]
    for step in (0, 5, 2):
        c = diagonal(sk, step)
        with sk.sample(step):
            for name, p in model.named_parameters():
                assert isinstance(p, torch.nn.Parameter)
                assert torch.equal(p, c[name] * x[name] if name in c else x[name])
        assert all(torch.equal(p, x[name]) for name, p in model.named_parameters())
    assert [p.data_ptr() for p in model.parameters()] == pointers


def test_the_plain_loop_uses_the_draws_of_sample(models, loss_on):
    """Optimizer step n of the plain loop has the gradient of sample(n)."""
    model, inputs = models.cnn()
    sk = mast.nn.sparsify(model, mast.RandK(0.3), seed=9)
    opt = torch.optim.SGD(model.parameters(), lr=0.0)
    for step, x in enumerate(inputs):
        assert sk.step == step
        loss_on(x)(model).backward()
        plain = [p.grad.clone() for p in model.parameters()]
        opt.zero_grad()
        with sk.sample(step):
            loss_on(x)(model).backward()
        assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), plain, strict=True))
        opt.step()
        opt.zero_grad()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_compiled_models_work_inside(models, reference, loss_on, same, name, backend):
    torch._dynamo.reset()
    model, inputs = (part.double() for part in getattr(models, name)())
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.6))
    ref, opt = reference(sk, model, make), make(model.parameters())
    compiled = torch.compile(model, backend=backend)
    for step, x in enumerate(inputs[:3]):
        with sk.sample(step):
            loss_on(x)(compiled).backward()
        opt.step()
        opt.zero_grad()
        ref.step(step, [loss_on(x)])
    same(model, ref.x, atol=1e-13)  # a compiled graph may order its sums differently


def test_eval_mode_inside_uses_y_too(models):
    model, inputs = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    trained = model(inputs[0])
    model.eval()
    with sk.sample(0), torch.no_grad():
        assert torch.equal(model(inputs[0]), trained)


def test_state_dict_inside_is_x(models):
    model, _ = models.cnn()
    x = copy.deepcopy(model.state_dict())
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    with sk.sample(0):
        inside, part = model.state_dict(), model[0].state_dict()
        assert (model[0].weight == 0).any()
    assert all(torch.equal(inside[key], x[key]) for key in x)
    assert torch.equal(part["weight"], x["0.weight"])


@pytest.mark.parametrize("copying", [copy.deepcopy, pickle.dumps])
def test_copies_inside_are_refused(models, copying):
    model, _ = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    with sk.sample(0), pytest.raises(mast.MastError, match=r"sk\.submodel"):
        copying(model)
    copying(model)


def test_an_exception_inside_restores_x(models):
    model, _ = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    x = copy.deepcopy(model.state_dict())
    with pytest.raises(KeyError), sk.sample(0):
        raise KeyError
    assert all(torch.equal(model.state_dict()[key], x[key]) for key in x)
    assert not model._forward_hooks
    assert not model[0]._state_dict_pre_hooks


def test_what_would_be_lost_is_refused(models, loss_on):
    model, inputs = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with sk.sample(0):
        loss_on(inputs[0])(model).backward()
    with pytest.raises(mast.MastError, match="after the context"), sk.sample(0):
        opt.step()
    with pytest.raises(mast.MastError, match="changed inside"), sk.sample(0), torch.no_grad():
        model[0].weight.mul_(2)
    with pytest.raises(mast.MastError, match="inside another"), sk.sample(0), sk.sample(1):
        pass
    with pytest.raises(mast.MastError, match="cannot advance"), sk.sample(0):
        sk.advance()
    with pytest.raises(mast.MastError, match="inside"), sk.sample(0):
        sk.remove()
    with sk.sample(0):
        assert (model[0].weight == 0).any()


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_backward_outside_is_refused(models, loss_on, name):
    model, inputs = getattr(models, name)()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    with sk.sample(0):
        late = loss_on(inputs[0])(model)
    with pytest.raises(mast.MastError, match="must be called inside"):
        late.backward()
    early = loss_on(inputs[0])(model.eval())
    with pytest.raises(RuntimeError, match="modified by an inplace"), sk.sample(0):
        early.backward()


def test_the_memory_of_other_draws_is_not_confused(models, diagonal):
    """A draw over the whole model writes only what it keeps: earlier draws must not shine through."""
    model, _ = models.mlp()
    for shift in (None, "init"):
        sk = mast.nn.sparsify(model, mast.PermK(4), shift=shift)
        with torch.no_grad():
            model[0].weight += 1
        v = 0 if shift is None else sk.shift["0.weight"]
        for step in range(8):
            with sk.sample(step):
                y = model[0].weight.detach().clone()
            expected = v + diagonal(sk, step)["0.weight"] * (model[0].weight - v)
            assert torch.equal(y, expected)
        sk.remove()
