"""Training a sparsified model equals training with S written out, whatever the model, sketch and loop."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import mast
from processor import skip_without_bfloat16

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from torch import nn  # noqa: E402

SKETCHES = {
    "bernoulli": lambda d: mast.Bernoulli(0.6),
    "unscaled": lambda d: mast.UnscaledBernoulli(0.6),
    "gaussian": lambda d: mast.Gaussian(0.4),
    "identity": lambda d: mast.Identity(),
    "rand_k": lambda d: mast.RandK(0.4),
    "perm_k": lambda d: mast.PermK(3),
    "perm_k_redrawn": lambda d: mast.PermK(3, redraw=True),
    "keep_each": lambda d: mast.Bernoulli(np.linspace(0.3, 1.0, d)),
    "grouped": lambda d: mast.Grouped(mast.RandK(0.5), np.arange(d) // 3),
    "mixture": lambda d: mast.Mixture([mast.Bernoulli(0.5), mast.PermK(2)], [0.3, 0.7]),
}
MODELS = ["mlp", "cnn", "lstm", "attention", "tied", "transformer", "lists", "checkpointed", "reentrant"]
OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}


def sketched_dim(model):
    return sum(p.numel() for p in model.parameters() if p.ndim >= 2)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_every_model(models, reference, loss_on, same, name, optimizer):
    model, inputs = getattr(models, name)()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.6), seed=3)
    ref = reference(sk, model, OPTIMIZERS[optimizer])
    opt = OPTIMIZERS[optimizer](model.parameters())
    for step, x in enumerate(inputs):
        value = loss_on(x)(model)
        value.backward()
        opt.step()
        opt.zero_grad()
        reached = ref.step(step, [loss_on(x)])[0].item()
        assert value.item() == reached
        same(model, ref.x)
    assert sk.step == len(inputs)


def test_a_model_as_shift(models):
    """A model stands for its parameters; what is no shift is refused."""
    (model, inputs), (base, _) = models.mlp(), models.mlp()
    for p in model.parameters():
        p.data.add_(0.25)
    one = mast.nn.sparsify(copy.deepcopy(model), mast.Bernoulli(0.5), shift=base)
    two = mast.nn.sparsify(copy.deepcopy(model), mast.Bernoulli(0.5), shift=base.state_dict())
    assert one.shift.keys() == two.shift.keys()
    assert torch.equal(one.model(inputs[0]), two.model(inputs[0]))
    base[0].weight.data.zero_()  # the shift is a copy
    assert torch.equal(one.shift["0.weight"], two.shift["0.weight"])
    for wrong, text in ((3, "got int"), (torch.ones(2), "got Tensor"), ("base", "got 'base'")):
        with pytest.raises(mast.MastError, match=f"shift is None, .init., a model, or a mapping.*{text}"):
            mast.nn.sparsify(model, mast.Bernoulli(0.5), shift=wrong)
    with pytest.raises(mast.MastError, match=r"no tensor for the sketched parameter '0\.weight'"):
        mast.nn.sparsify(model, mast.Bernoulli(0.5), shift=torch.nn.Linear(2, 2))


@pytest.mark.parametrize("shift", [None, "init", "given"])
@pytest.mark.parametrize("sketch", SKETCHES)
def test_every_sketch(models, reference, loss_on, same, sketch, shift):
    model, inputs = models.mlp()
    v = {name: torch.randn_like(p) for name, p in model.named_parameters()} if shift == "given" else shift
    sk = mast.nn.sparsify(model, SKETCHES[sketch](sketched_dim(model)), shift=v, seed=5, node=2)
    ref = reference(sk, model, OPTIMIZERS["momentum"])
    opt = OPTIMIZERS["momentum"](model.parameters())
    for step, x in enumerate(inputs):
        loss_on(x)(model).backward()
        opt.step()
        opt.zero_grad()
        ref.step(step, [loss_on(x)])
        same(model, ref.x)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("sketch", ["bernoulli", "gaussian", "perm_k"])
def test_other_number_types(models, sketch, dtype):
    model, _ = models.mlp()
    dtype = getattr(torch, dtype)
    model.to(dtype)
    sk = mast.nn.sparsify(model, SKETCHES[sketch](0), seed=1)
    before = {w.name: w.parameter.detach().clone() for w in sk.weights}
    with sk.sample(0):
        y = {w.name: w.parameter.detach().clone() for w in sk.weights}
    c = {w.name: c for w, c in zip(sk.weights, _wide_diagonals(sk), strict=True)}
    for name, x in before.items():
        # The product is formed in at least single precision and rounded once.
        wide = torch.promote_types(dtype, torch.float32)
        assert torch.equal(y[name], (c[name].to(wide) * x.to(wide)).to(dtype))


def _wide_diagonals(sk):
    from mast.nn.tensors.weights import name_index

    start = 0
    for w in sk.weights:
        if isinstance(sk.sketch, mast.PermK):
            c = sk.sketch.draw(sk.dim, sk.seed).diagonal()[start : start + w.count]
            start += w.count
        else:
            c = sk.sketch.draw(w.count, sk.seed, index=name_index(w.name)).diagonal()
        yield torch.from_numpy(c).view(w.shape)


def test_own_keep_probabilities(models, reference, loss_on, same):
    model, inputs = models.mlp()
    sk = mast.nn.sparsify(
        model, mast.Bernoulli(0.6), keep={"*": 0.8, "2.*": 0.3, "*.bias": 1.0, "4.weight": 1}
    )
    assert [(w.name, w.keep) for w in sk.weights] == [("0.weight", 0.8), ("2.weight", 0.3)]
    ref = reference(sk, model, OPTIMIZERS["momentum"])
    opt = OPTIMIZERS["momentum"](model.parameters())
    for step, x in enumerate(inputs):
        loss_on(x)(model).backward()
        opt.step()
        opt.zero_grad()
        ref.step(step, [loss_on(x)])
    same(model, ref.x)


@pytest.mark.parametrize("name", ["mlp", "cnn", "tied", "checkpointed", "reentrant"])
def test_gradient_accumulation(models, reference, loss_on, same, name):
    """All forward passes of one optimizer step see one draw, and gradients add up."""
    model, inputs = getattr(models, name)()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.6), seed=3)
    ref = reference(sk, model, OPTIMIZERS["momentum"])
    opt = OPTIMIZERS["momentum"](model.parameters())
    for step in range(2):
        parts = inputs[2 * step : 2 * step + 2]
        for x in parts:
            loss_on(x, 0.5)(model).backward()
        opt.step()
        opt.zero_grad()
        ref.step(step, [loss_on(x, 0.5) for x in parts])
    same(model, ref.x)
    assert sk.step == 2


def test_two_forwards_and_one_backward(models, reference, loss_on, same):
    model, inputs = models.cnn()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.6))
    ref = reference(sk, model, OPTIMIZERS["adamw"])
    opt = OPTIMIZERS["adamw"](model.parameters())
    for step in range(2):
        both = lambda m, s=step: loss_on(inputs[2 * s])(m) + loss_on(inputs[2 * s + 1])(m)  # noqa: E731
        opt.zero_grad()
        both(model).backward()
        opt.step()
        ref.step(step, [both])
    same(model, ref.x)


def test_two_backwards_through_one_graph(models, loss_on):
    model, inputs = models.mlp()
    mast.nn.sparsify(model, mast.Bernoulli(0.6))
    loss_on(inputs[0])(model).backward()
    once = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    value = loss_on(inputs[0])(model)
    value.backward(retain_graph=True)
    value.backward()
    for p, g in zip(model.parameters(), once, strict=True):
        assert torch.equal(p.grad, 2 * g)


def test_an_eval_pass_between_forward_and_backward_changes_nothing(models, reference, loss_on, same):
    model, inputs = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.6))
    ref = reference(sk, model, OPTIMIZERS["momentum"])
    opt = OPTIMIZERS["momentum"](model.parameters())
    for step, x in enumerate(inputs):
        value = loss_on(x)(model)
        model.eval()
        dense = model(x)
        assert torch.equal(dense, copy.deepcopy(ref.x).eval()(x))
        model.train()
        opt.zero_grad()
        value.backward()
        opt.step()
        ref.step(step, [loss_on(x)])
    same(model, ref.x)


def test_dense_and_sparsified_losses_in_one_backward(models, reference, loss_on):
    """A graph knows by itself whether it went through S."""
    model, inputs = (part.double() for part in models.cnn())
    for m in model.modules():
        m.momentum = 0.0  # keep the statistics, which the dense pass reads
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.6))
    ref = reference(sk, model, OPTIMIZERS["momentum"])
    plain = copy.deepcopy(model).eval()
    sparse = loss_on(inputs[0])(model)
    model.eval()
    (sparse + loss_on(inputs[1])(model)).backward()
    ref.gradient(0, [loss_on(inputs[0])])
    loss_on(inputs[1])(plain).backward()
    for p, q, r in zip(model.parameters(), ref.x.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad + r.grad, rtol=0, atol=1e-13)


def test_closures_share_the_draw_of_their_step(models, reference, loss_on, same):
    """LBFGS evaluates its closure many times in one step, at different x: one draw, and it moves x."""
    model, inputs = models.mlp()
    make = lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=5, line_search_fn="strong_wolfe")  # noqa: E731
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.6))
    ref = reference(sk, model, make)
    opt = make(model.parameters())
    calls = 0
    for step, x in enumerate(inputs):

        def closure(x=x):
            nonlocal calls
            calls += 1
            opt.zero_grad()
            value = loss_on(x)(model)
            value.backward()
            return value

        def plain(x=x, step=step):
            ref.optimizer.zero_grad()
            return ref.gradient(step, [loss_on(x)])[0]

        opt.step(closure)
        ref.optimizer.step(plain)
        assert sk.step == step + 1
        same(model, ref.x)
    assert calls > len(inputs)


def test_a_scaler_that_skips_a_step_keeps_the_draw(models, loss_on):
    model, inputs = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.6))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    x0 = copy.deepcopy(model.state_dict())
    scaler.scale(loss_on(inputs[0])(model) * float("inf")).backward()
    scaler.step(opt)
    scaler.update()
    assert sk.step == 0
    assert all(torch.equal(model.state_dict()[name], x0[name]) for name in x0)
    opt.zero_grad()
    scaler.scale(loss_on(inputs[0])(model)).backward()
    scaler.step(opt)
    assert sk.step == 1


def parts(model):
    """Two optimizers that share the parameters of a model."""
    first = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
    return first, torch.optim.AdamW(model[2:].parameters(), lr=0.01)


def test_several_optimizers_of_one_model_share_the_draw_of_a_step(models, reference, loss_on, same):
    """Muon for some weights and AdamW for the others: one draw per iteration, as with one optimizer."""
    model, inputs = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.6))
    ref = reference(sk, model, OPTIMIZERS["momentum"])
    mine, theirs = parts(model), parts(ref.x)
    stranger = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    for step, x in enumerate(inputs):
        loss_on(x)(model).backward()
        ref.gradient(step, [loss_on(x)])
        for optimizer in (*mine, *theirs, stranger):
            optimizer.step()
            optimizer.zero_grad()
            assert sk.step == step + 1
        same(model, ref.x)


def test_an_optimizer_that_steps_less_often_joins_the_others(models, loss_on):
    model, inputs = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.6))
    often, seldom = parts(model)
    for step in range(6):
        loss_on(inputs[step % 4])(model).backward()
        order = [often, seldom] if step % 4 == 1 else [seldom, often] if step % 4 == 3 else [often]
        for optimizer in order:
            optimizer.step()
        assert sk.step == step + 1


def test_a_forward_pass_between_two_optimizers_has_a_draw_of_its_own(models, loss_on):
    """As with losses that take turns: each optimizer's step follows its own forward pass."""
    model, inputs = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.6))
    for turn in range(3):
        for number, optimizer in enumerate(parts(model)):
            loss_on(inputs[0])(model).backward()
            optimizer.step()
            assert sk.step == 2 * turn + number + 1


def test_steps_without_a_forward_pass_between_them(models):
    """Gradients that come from elsewhere: the same optimizer again is the next step."""
    model, _ = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.6))
    first, rest = parts(model)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    for optimizer, expected in ((first, 1), (rest, 1), (first, 2), (rest, 2), (rest, 3), (first, 3)):
        optimizer.step()
        assert sk.step == expected


def test_several_optimizers_in_the_explicit_form_and_with_a_scaler(models, loss_on):
    model, inputs = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.6))
    optimizers = parts(model)
    for step in range(3):
        with sk.sample(step):
            loss_on(inputs[0])(model).backward()
        for optimizer in optimizers:
            optimizer.step()
        assert sk.step == step + 1
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for expected, factor in ((3, float("inf")), (4, 1.0)):
        scaler.scale(loss_on(inputs[0])(model) * factor).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
        assert sk.step == expected


def test_optimizers_that_step_inside_the_backward_pass(models, loss_on):
    """One optimizer per parameter, each stepping as soon as its gradient is there."""
    model, inputs = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.6))
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for number, x in enumerate(inputs):
        loss_on(x)(model).backward()
        assert sk.step == number + 1


def test_a_loop_without_an_optimizer_advances_by_hand(models, reference, loss_on, same):
    model, inputs = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.6))
    ref = reference(sk, model, lambda p: torch.optim.SGD(p, lr=0.25))
    for step, x in enumerate(inputs):
        loss_on(x)(model).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.25 * p.grad
                p.grad = None
        sk.advance()
        ref.step(step, [loss_on(x)])
    same(model, ref.x)


def test_parts_called_by_themselves_are_sparsified_too(models, reference, same):
    model, inputs = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.6))
    ref = reference(sk, model, OPTIMIZERS["momentum"])
    opt = OPTIMIZERS["momentum"](model.parameters())
    parts = lambda m: m[4](m[1:4](m[0](inputs[0]))).square().sum()  # noqa: E731
    forward = lambda m: m.forward(inputs[0]).square().sum()  # noqa: E731
    for step, loss in enumerate((parts, forward)):
        loss(model).backward()
        opt.step()
        opt.zero_grad()
        ref.step(step, [loss])
    same(model, ref.x)


@pytest.mark.parametrize(
    ("name", "part"), [("mlp", "linear"), ("cnn", "conv"), ("lstm", "lstm"), ("attention", "attention")]
)
def test_bfloat16_autocast(models, reference, loss_on, same, name, part):
    """Autocast remembers what it has cast: the dense passes in the same region must not leave x behind."""
    skip_without_bfloat16(part)
    model, inputs = getattr(models, name)()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.6))
    ref = reference(sk, model, OPTIMIZERS["momentum"])
    opt = OPTIMIZERS["momentum"](model.parameters())
    for step, x in enumerate(inputs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model.eval()
            model(x)
            model.train()
            value = loss_on(x)(model)
            model.eval()
            model(x)
            model.train()
            value.backward()
        opt.step()
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            ref.gradient(step, [loss_on(x)])
        ref.optimizer.step()
        ref.optimizer.zero_grad()
        same(model, ref.x)


def test_checkpointing_of_the_whole_model(models, reference, same):
    from torch.utils.checkpoint import checkpoint

    model, inputs = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.6))
    ref = reference(sk, model, OPTIMIZERS["momentum"])
    opt = OPTIMIZERS["momentum"](model.parameters())
    for step, (x, reentrant) in enumerate(zip(inputs, (True, False, True, False), strict=True)):
        checkpoint(model, x.requires_grad_(), use_reentrant=reentrant).square().sum().backward()
        opt.step()
        opt.zero_grad()
        ref.step(step, [lambda m, x=x: m(x).square().sum()])
    same(model, ref.x)


def test_checkpoints_that_read_parameters_themselves_are_warned_about(models, reference, same):
    """In the explicit form they are right."""
    from torch.utils.checkpoint import checkpoint

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(5, 5)
            self.weight = nn.Parameter(torch.randn(5, 5))

        def forward(self, x):
            return checkpoint(lambda t: torch.tanh(t @ self.weight), self.first(x), use_reentrant=False)

    model, x = Own(), torch.randn(3, 5)
    with pytest.warns(UserWarning, match="activation checkpointing and owns sketched"):
        sk = mast.nn.sparsify(model, mast.Bernoulli(0.6))
    assert "are not" in " ".join(f.problem for f in mast.nn.validate(model))
    ref = reference(sk, model, OPTIMIZERS["momentum"])
    opt = OPTIMIZERS["momentum"](model.parameters())
    for step in range(2):
        with sk.sample(step):
            model(x).square().sum().backward()
        opt.step()
        opt.zero_grad()
        ref.step(step, [lambda m: m(x).square().sum()])
    same(model, ref.x)


def test_a_recomputation_that_comes_too_late_is_refused(models, loss_on):
    model, inputs = models.checkpointed()
    mast.nn.sparsify(model, mast.Bernoulli(0.6))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    late = loss_on(inputs[0])(model)
    loss_on(inputs[1])(model).backward()
    opt.step()
    with pytest.raises(mast.MastError, match=r"before optimizer\.step"):
        late.backward()


def test_a_stale_graph_fails_as_it_does_without_sketches(models, loss_on):
    model, inputs = models.mlp()
    mast.nn.sparsify(model, mast.Bernoulli(0.6))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    late = loss_on(inputs[0])(model)
    loss_on(inputs[1])(model).backward()
    opt.step()
    loss_on(inputs[1])(model)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        late.backward()


def test_channels_last(models, reference, loss_on, same):
    model, inputs = (part.double() for part in models.cnn())
    model.to(memory_format=torch.channels_last)
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.6))
    ref = reference(sk, model, OPTIMIZERS["momentum"])
    opt = OPTIMIZERS["momentum"](model.parameters())
    for step, x in enumerate(inputs):
        loss_on(x)(model).backward()
        opt.step()
        opt.zero_grad()
        ref.step(step, [loss_on(x)])
    same(model, ref.x, atol=1e-13)  # a convolution may choose another order of sums for another layout


def test_sparse_gradients_of_embeddings(diagonal):
    model = nn.Embedding(7, 3, sparse=True)
    for sketch in (mast.Bernoulli(0.5), mast.RandK(0.5), mast.Gaussian(0.3)):
        sk = mast.nn.sparsify(model, sketch)
        model.weight.grad = None
        model(torch.tensor([1, 4, 4])).sum().backward()
        assert model.weight.grad.is_sparse
        rows = torch.tensor([0, 1, 0, 0, 2, 0, 0]).view(-1, 1)
        torch.testing.assert_close(model.weight.grad.to_dense(), rows * diagonal(sk, 0)["weight"])
        sk.remove()


def test_gradients_of_gradients(models):
    """Gradient penalties work: S' is differentiated too."""
    x = torch.randn(3, 4, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    for sketch in (mast.Bernoulli(0.5), mast.RandK(0.5), mast.Gaussian(0.3)):
        sk = mast.nn.sparsify(model, sketch, seed=2)
        w = model[0].weight

        def penalty(w=w):
            (g,) = torch.autograd.grad(model(x).sum(), w, create_graph=True)
            return g.square().sum()

        (exact,) = torch.autograd.grad(penalty(), w)
        direction = torch.randn_like(w)
        eps = 1e-6
        with torch.no_grad():
            w += eps * direction
            with torch.enable_grad():
                above = penalty().item()
            w -= 2 * eps * direction
            with torch.enable_grad():
                below = penalty().item()
            w += eps * direction
        # Central differences of step 1e-6 in double precision: about 1e-9 relative.
        assert (above - below) / (2 * eps) == pytest.approx(
            (exact * direction).sum().item(), rel=1e-6, abs=1e-8
        )
        sk.remove()


def test_functional_call_is_sparsified_with_what_it_is_given(models, diagonal):
    model, inputs = models.lstm()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.6))
    given = {name: torch.randn_like(p, requires_grad=True) for name, p in model.named_parameters()}
    torch.func.functional_call(model, given, (inputs[0],)).sum().backward()
    ref = copy.deepcopy(model)
    c = diagonal(sk, 0)
    with torch.no_grad():
        for name, p in ref.named_parameters():
            p.copy_(given[name] * c.get(name, 1.0))
    ref(inputs[0]).sum().backward()
    for name, p in ref.named_parameters():
        torch.testing.assert_close(given[name].grad, p.grad * c.get(name, 1.0))
    assert all(p.grad is None for p in model.parameters())


def test_many_threads_draw_the_same_mask():
    layer = nn.Linear(1024, 2048, bias=False)
    layer.weight.requires_grad_()
    sk = mast.nn.sparsify(layer, mast.Bernoulli(0.5), shift="init")
    with torch.no_grad():
        layer.weight += 1
    with sk.sample(3):
        one = layer.weight.detach().clone()
    torch.set_num_threads(3)
    try:
        with sk.sample(3):
            assert torch.equal(one, layer.weight)
    finally:
        torch.set_num_threads(1)
