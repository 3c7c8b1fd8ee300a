"""A sparsified model is in every other respect the model it was."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref

import pytest

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from torch import nn  # noqa: E402


def test_parameters_keys_and_type_stay(models):
    for name in ("mlp", "cnn", "lstm", "attention", "tied"):
        model, inputs = getattr(models, name)()
        kind, keys, parameters = type(model), list(model.state_dict()), list(model.parameters())
        sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
        model(inputs[0]).sum().backward()
        assert type(model) is kind
        assert list(model.state_dict()) == keys
        assert all(p is q for p, q in zip(model.parameters(), parameters, strict=True))
        sk.remove()


def test_eval_mode_uses_x(models):
    for name in ("mlp", "cnn", "lstm", "attention", "tied", "transformer"):
        model, inputs = getattr(models, name)()
        plain = copy.deepcopy(model)
        mast.nn.sparsify(model, mast.Bernoulli(0.5))
        assert torch.equal(model.eval()(inputs[0]), plain.eval()(inputs[0]))


def saved_and_loaded(model):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": saved_and_loaded,
}


@pytest.mark.parametrize(
    ("name", "how"),
    [*((name, "deepcopy") for name in ("mlp", "cnn", "lstm", "tied", "lists", "attention"))]
    + [(name, how) for name in ("mlp", "cnn", "transformer") for how in ("pickle", "torch.save")],
)
def test_copies_are_plain_models(models, name, how):
    model, inputs = getattr(models, name)()
    plain = copy.deepcopy(model)
    mast.nn.sparsify(model, mast.Bernoulli(0.5))
    pending = model(inputs[0]).sum()  # in the middle of a step
    twin = COPIES[how](model)
    pending.backward()
    if name != "cnn":  # whose running statistics have moved
        assert torch.equal(twin.train()(inputs[0]), plain.train()(inputs[0]))
    for key, value in plain.state_dict().items():
        if "running" not in key and "num_batches" not in key:
            assert torch.equal(twin.state_dict()[key], value)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    twin(inputs[0]).sum().backward()
    optimizer.step()


def test_a_pickled_model_needs_no_mast():
    model = nn.LSTM(2, 3)
    mast.nn.sparsify(model, mast.Bernoulli(0.5))
    assert b"mast" not in pickle.dumps(nn.Sequential(model, nn.Linear(3, 2)))


def test_state_dict_in_the_middle_of_a_step_is_x(models):
    model, inputs = models.mlp()
    x = copy.deepcopy(model.state_dict())
    mast.nn.sparsify(model, mast.Bernoulli(0.5))
    pending = model(inputs[0]).sum()
    assert all(torch.equal(model.state_dict()[key], x[key]) for key in x)
    pending.backward()
    assert all(torch.equal(model.state_dict()[key], x[key]) for key in x)


@pytest.mark.parametrize("assign", [False, True])
def test_a_plain_checkpoint_loads(models, reference, loss_on, same, assign):
    model, inputs = models.mlp()
    checkpoint = copy.deepcopy(models.mlp()[0].state_dict())
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    loss_on(inputs[0])(model).backward()  # the draw of the old weights must not survive the loading
    model.zero_grad()
    model.load_state_dict(checkpoint, assign=assign)
    make = lambda p: torch.optim.SGD(p, lr=0.1)  # noqa: E731
    ref, opt = reference(sk, model, make), make(model.parameters())
    for step in range(2):
        loss_on(inputs[step])(model).backward()
        opt.step()
        opt.zero_grad()
        ref.step(step, [loss_on(inputs[step])])
    same(model, ref.x)
    assert sk.step == 2


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_exceptions_leave_the_model_whole(error):
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.fails = True

        def forward(self, x):
            y = self.layer(x)
            if self.fails:
                raise error("inside")
            return y

    model = Failing()
    mast.nn.sparsify(model, mast.Bernoulli(0.5))
    parameters, x = list(model.parameters()), copy.deepcopy(model.state_dict())
    with pytest.raises(error):
        model(torch.ones(1, 3))
    assert all(p is q for p, q in zip(model.parameters(), parameters, strict=True))
    assert all(torch.equal(model.state_dict()[key], x[key]) for key in x)
    model.fails = False
    model(torch.ones(1, 3)).sum().backward()
    assert model.layer.weight.grad is not None


def test_remove_restores_everything(models):
    for name in ("mlp", "cnn", "lstm", "tied", "lists"):
        model, inputs = getattr(models, name)()
        before = {n: set(vars(m)) for n, m in model.named_modules()}
        sk = mast.nn.sparsify(model, mast.Bernoulli(0.5), shift="init")
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        model(inputs[0]).sum().backward()
        opt.step()
        pending = model(inputs[1]).sum()
        sk.remove()
        plain = copy.deepcopy(model)
        assert {n: set(vars(m)) for n, m in model.named_modules()} == before
        assert not model._forward_pre_hooks
        pending.backward()  # what was begun can be finished
        opt.step()
        assert sk.step == 1
        plain.load_state_dict(model.state_dict())
        assert torch.equal(model.train()(inputs[0]), plain.train()(inputs[0]))
        mast.nn.sparsify(model, mast.Bernoulli(0.5)).remove()


def test_the_handle_need_not_be_kept_and_nothing_leaks(models):
    model, inputs = models.mlp()
    mast.nn.sparsify(model, mast.Bernoulli(0.5))
    gc.collect()
    model(inputs[0]).sum().backward()
    assert (model[0].weight.grad == 0).float().mean() > 0.2
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_handle_is_not_copied(models):
    """Training modules keep theirs in an attribute: a copy of such a module is plain and has none."""
    model, _ = models.mlp()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)))
    for how in (copy.deepcopy, pickle.dumps):
        with pytest.raises(mast.MastError, match=r"neither copied nor pickled.*sk\.state_dict\(\)"):
            how({"sk": sk})
    model.sk = sk
    assert copy.deepcopy(model).sk is None
    assert copy.deepcopy(nn.Sequential(model))[0].sk is None
    assert sk.report(lambda net: 1.0, densities=[0.5], draws=1)["mean"][0] == 1  # of copies
    with pytest.raises(mast.MastError, match="neither copied nor pickled"):
        pickle.dumps(model)


def test_modules_keep_their_hooks(models):
    model, inputs = models.mlp()
    seen = []
    handle = model[0].register_forward_hook(lambda m, i, o: seen.append(o.shape))
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    model(inputs[0])
    handle.remove()
    model(inputs[0])
    sk.remove()
    assert len(seen) == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["mlp", "attention"])
def test_torch_compile_is_refused_in_training_and_works_in_eval(models, name, backend):
    torch._dynamo.reset()
    model, inputs = getattr(models, name)()
    mast.nn.sparsify(model, mast.Bernoulli(0.5))
    compiled = torch.compile(model, backend=backend)
    with pytest.raises(mast.MastError, match=r"torch\.compile"):
        compiled(inputs[0])
    model.eval()
    torch.testing.assert_close(compiled(inputs[0]), model(inputs[0]))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo looks at it
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_parts_inside_the_model_work(models, reference, loss_on, same, backend):
    torch._dynamo.reset()
    model, inputs = (part.double() for part in models.mlp())
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    make = lambda p: torch.optim.SGD(p, lr=0.1)  # noqa: E731
    ref, opt = reference(sk, model, make), make(model.parameters())
    model[2] = torch.compile(model[2], backend=backend)
    for step, x in enumerate(inputs):
        loss_on(x)(model).backward()
        opt.step()
        opt.zero_grad()
        ref.step(step, [loss_on(x)])
    model[2] = model[2]._orig_mod
    same(model, ref.x, atol=1e-13)  # a compiled graph may order its sums differently


def test_a_compiled_function_around_the_model_is_refused(models):
    torch._dynamo.reset()
    model, inputs = models.mlp()
    mast.nn.sparsify(model, mast.Bernoulli(0.5))
    step = torch.compile(lambda x: model(x).sum(), backend="eager")
    with pytest.raises(mast.MastError, match=r"torch\.compile"):
        step(inputs[0])


def test_compiling_the_module_in_place_is_noticed(models, loss_on):
    model, inputs = models.mlp()
    mast.nn.sparsify(model, mast.Bernoulli(0.5))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_on(inputs[0])(model).backward()
    model.compile(backend="eager")
    with pytest.raises(mast.MastError, match=r"torch\.compile"):
        model(inputs[0])
    with pytest.raises(mast.MastError, match=r"Module\.compile"):
        opt.step()


def test_a_compiled_model_is_not_sparsified(models):
    model, _ = models.mlp()
    with pytest.raises(mast.MastError, match="compiled"):
        mast.nn.sparsify(torch.compile(model, backend="eager"), mast.Bernoulli(0.5))


def test_exports_of_the_model_in_eval_mode(models):
    model, inputs = models.mlp()
    mast.nn.sparsify(model, mast.Bernoulli(0.5))
    expected = copy.deepcopy(model)(inputs[0])
    model.eval()
    exported = torch.export.export(model, (inputs[0],))
    torch.testing.assert_close(exported.module()(inputs[0]), expected)
    assert set(exported.state_dict) == set(model.state_dict())


def test_averaged_weights(models, loss_on):
    """Weight averaging copies the model and reads its parameters: it must see x."""
    model, inputs = models.mlp()
    mast.nn.sparsify(model, mast.Bernoulli(0.5))
    average = torch.optim.swa_utils.AveragedModel(model)
    total = [torch.zeros_like(p) for p in model.parameters()]
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in inputs:
        value = loss_on(x)(model)
        average.update_parameters(model)  # in the middle of a step
        for t, p in zip(total, model.parameters(), strict=True):
            t += p.detach() / len(inputs)
        value.backward()
        opt.step()
        opt.zero_grad()
    for p, t in zip(average.parameters(), total, strict=True):
        torch.testing.assert_close(p.detach(), t)


def test_moving_to_another_type_and_back(models, reference, loss_on, same):
    model, inputs = models.lstm()  # which rebuilds its list of weights when moved
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5), shift="init")
    model(inputs[0]).sum().backward()
    model.zero_grad()
    model.double()
    make = lambda p: torch.optim.SGD(p, lr=0.1)  # noqa: E731
    ref, opt = reference(sk, model, make), make(model.parameters())
    ref.v = {name: v.double() for name, v in ref.v.items()}
    for step in range(2):
        x = inputs[step].double()
        loss_on(x)(model).backward()
        opt.step()
        opt.zero_grad()
        ref.step(step, [loss_on(x)])
    same(model, ref.x)
