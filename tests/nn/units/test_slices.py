"""Forward passes on slices: the plain loop of a nested network computes with the kept units alone."""

from __future__ import annotations

import copy
import threading

import pytest

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

SKETCHES = {
    "unscaled": mast.Nested([0.25, 0.5, 1.0], scaled=False),
    "scaled": mast.Nested([0.25, 0.5, 1.0]),
    "windows": mast.Rolling(0.5),
}


def loss_of(out):
    out = getattr(out, "logits", out)
    return (out - torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)).square().mean()


def gradients(model):
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def compare(sk, model, call, steps=6):
    """The plain loop against the explicit form, where whole weights are masked."""
    sizes = set()
    for step in range(steps):
        with sk.sample(step):
            loss = loss_of(call())
            loss.backward()
        expected = gradients(model)
        mine = loss_of(call())
        mine.backward()
        assert mine.item() == pytest.approx(loss.item(), rel=1e-9)
        found = gradients(model)
        assert found.keys() == expected.keys()
        for name, g in found.items():
            assert g.layout == expected[name].layout
            g, other = g.to_dense(), expected[name].to_dense()
            torch.testing.assert_close(g, other, rtol=0, atol=1e-12, msg=f"gradient of {name}")
        sizes.add(sum(kept.count for kept in sk.draw().values()))
        sk.advance()
    return sizes


def sees_slices(sk):
    return sk.calls.slices.of(sk.draw()) is not None


@pytest.mark.parametrize("kind", SKETCHES)
def test_gradients_are_those_of_masks(zoo, unit_model, kind):
    model, x = zoo.make(unit_model)
    before = {name: copy.copy(vars(m)) for name, m in model.named_modules()}
    sk = mast.nn.sparsify(model, mast.nn.Neurons(SKETCHES[kind]), example=x)
    sizes = compare(sk, model, lambda: model(x))
    assert len(sizes) == 1 if kind == "windows" else len(sizes) > 1
    for name, module in model.named_modules():  # all numbers are as they were
        assert {k: v for k, v in vars(module).items() if type(v) is int} == {
            k: v for k, v in before[name].items() if type(v) is int
        }


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.rnn = kind(5, 8, batch_first=True, **options)
        self.head = nn.Linear(16 if options else 8, 3)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class Words(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.words, self.a, self.b = nn.Embedding(11, 8, sparse=sparse), nn.Linear(8, 12), nn.Linear(12, 3)

    def forward(self, x):
        return self.b(self.a(self.words(x.long())).relu()).mean(1)


class Fused(nn.Module):
    """Queries, keys and values in one weight: three ranges of rows."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = (t.view(rows, length, -1, 2).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(attended.transpose(1, 2).reshape(rows, length, -1))


class Joined(nn.Module):
    """A norm over two groups of channels: its statistics are no view where both are cut."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1), nn.Conv2d(12, 3, 1)
        self.norm = nn.BatchNorm2d(12)

    def forward(self, x):
        a = self.a(x).relu()
        return self.c(self.norm(torch.cat([a, self.b(a)], 1)).relu()).mean((2, 3))


def channels_last():
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.AvgPool2d(4)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4, 3)).to(memory_format=torch.channels_last)


WRITTEN = {
    "lstm": (lambda: Recurrent(nn.LSTM), (4, 6, 5)),
    "gru of two directions": (lambda: Recurrent(nn.GRU, num_layers=2, bidirectional=True), (4, 6, 5)),
    "words": (lambda: Words(False), (4, 3)),
    "sparse gradients": (lambda: Words(True), (4, 3)),
    "fused": (Fused, (2, 3, 8)),
    "joined": (Joined, (2, 3, 4, 4)),
    "channels last": (channels_last, (2, 3, 8, 8)),
}


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", WRITTEN)
def test_other_modules_and_layouts(name, scaled):
    torch.manual_seed(0)
    make, shape = WRITTEN[name]
    model, x = make().double(), torch.rand(shape, dtype=torch.float64) * 10
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.Nested([0.25, 0.5, 1.0], scaled=scaled)), example=x)
    assert len(compare(sk, model, lambda: model(x))) > 1
    with sk.member(1):
        assert sees_slices(sk) == (name != "joined")


def seen_widths(model, layer, call):
    """The width of a layer's output during the call."""
    widths = []
    with layer.register_forward_hook(lambda m, args, out: widths.append(out.shape[1])):
        call()
    return widths


def test_a_call_computes_with_the_kept_units_only(zoo):
    model, x = zoo.make("resnet")
    sk = mast.nn.elastic(model, [0.25, 0.5, 1.0], [x])
    first = model.blocks[0].first
    for number, width in enumerate((2, 4, 8)):
        with sk.member(number):
            assert seen_widths(model, first, lambda: model(x)) == [width]
            model.eval()
            assert seen_widths(model, first, lambda: model(x)) == [width]
            model.train()
    assert (first.out_channels, first.weight.shape[0]) == (8, 8)
    model.eval()
    assert seen_widths(model, first, lambda: model(x)) == [8]


def test_statistics_of_kept_channels_move_and_others_rest(zoo):
    model, x = zoo.make("resnet")
    sk = mast.nn.elastic(model, [0.25, 0.5, 1.0], [x])
    norm = model.blocks[0].norm1
    before, count = norm.running_mean.clone(), int(norm.num_batches_tracked)
    small = sk.submodel(member=0, calibrate=False).train()
    small(x)
    with sk.member(0):
        model(x)
    torch.testing.assert_close(norm.running_mean[:2], small.blocks[0].norm1.running_mean)
    assert not torch.equal(norm.running_mean[:2], before[:2])
    assert torch.equal(norm.running_mean[2:], before[2:])
    assert int(norm.num_batches_tracked) == count + 1


def test_parts_that_are_called_by_themselves_have_their_full_shapes(zoo):
    model, x = zoo.make("mlp")
    sk = mast.nn.sparsify(model, mast.nn.Neurons(SKETCHES["unscaled"]), example=x)
    with sk.member(0):
        whole = model(x)
        h = x
        for layer in model:
            h = layer(h)
            assert not isinstance(layer, nn.Linear) or h.shape[1] == layer.out_features
        torch.testing.assert_close(h, whole)


def test_an_error_inside_puts_everything_back(zoo):
    model, x = zoo.make("resnet")
    sk = mast.nn.elastic(model, [0.25, 1.0], [x])
    state = copy.deepcopy(model.state_dict())
    repr_before = repr(model)

    def fail(module, args):
        assert module.in_channels == 2  # inside, it is small
        raise RuntimeError("as asked")

    model.eval()
    second = model.blocks[0].second
    with sk.member(0), second.register_forward_pre_hook(fail), pytest.raises(RuntimeError, match="as asked"):
        model(x)
    assert repr(model) == repr_before
    for name, t in model.state_dict().items():
        torch.testing.assert_close(t, state[name], rtol=0, atol=0)
    assert isinstance(second.weight, nn.Parameter)


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant):
        super().__init__()
        self.use_reentrant = use_reentrant
        self.first = nn.Linear(5, 8)
        self.block = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh())
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(checkpoint(self.block, self.first(x), use_reentrant=self.use_reentrant))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # where units are found
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing_repeats_the_slices(use_reentrant):
    torch.manual_seed(0)
    model, x = Checkpointed(use_reentrant).double(), torch.randn(6, 5).double()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(SKETCHES["unscaled"]), example=x)
    assert len(compare(sk, model, lambda: model(x))) > 1
    loss = model(x).square().sum()
    with torch.no_grad():
        model.block[0].weight.mul_(2)
    with pytest.raises(mast.errors.MastError, match=r"before optimizer\.step|modified by an inplace"):
        loss.backward()


class CheckpointedFunction(Checkpointed):
    """Modules whose outputs are cut, and a norm, are called in the checkpoint one by one."""

    def __init__(self, use_reentrant):
        super().__init__(use_reentrant)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x):
        def function(h):
            return h + self.block[2](self.norm(self.block[0](h)).tanh())

        return self.last(checkpoint(function, self.first(x), use_reentrant=self.use_reentrant))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("kind", SKETCHES)
def test_a_checkpointed_function_may_call_any_module(kind, use_reentrant):
    torch.manual_seed(0)
    model, x = CheckpointedFunction(use_reentrant).double(), torch.randn(6, 5).double()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(SKETCHES[kind]), example=x)
    assert {"block.0.weight", "norm.weight"} <= sk.unit_map.segments.keys()
    compare(sk, model, lambda: model(x))


@pytest.mark.parametrize("part", ["first", "block"])
def test_parts_that_are_called_beside_a_checkpoint_do_not_disturb_it(part):
    torch.manual_seed(0)
    model, x = Checkpointed(False).double(), torch.randn(6, 5).double()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(SKETCHES["unscaled"]), example=x)

    def losses():
        yield loss_of(model(x))
        yield loss_of(model.get_submodule(part)(x if part == "first" else x.repeat(1, 2)[:, :8]))

    with sk.member(0):
        for loss in losses():
            loss.backward()
        expected = gradients(model)
        sum(losses()).backward()
        for name, g in gradients(model).items():
            torch.testing.assert_close(g, expected[name])


MEMBERS = {
    "blocks": mast.nn.Neurons(mast.PermK(blocks=[range(4), range(4, 8)])),
    "windows": mast.nn.Neurons(mast.Sampled(mast.Rolling(0.5), 4)),
    "nested": mast.nn.Neurons(mast.Nested([0.5, 1.0], scaled=False)),
    "scattered": mast.nn.Neurons(mast.Sampled(mast.RandK(0.5), 4)),
    "weights": mast.Sampled(mast.Bernoulli(0.5), 4),
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("kind", MEMBERS)
def test_a_checkpoint_is_repeated_with_its_own_member_or_refused(kind, use_reentrant, training):
    torch.manual_seed(0)
    model, x = Checkpointed(use_reentrant).double().train(training), torch.randn(6, 5).double()
    model.block = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh()).double()
    plain = copy.deepcopy(model)
    plain.forward = lambda x: plain.last(plain.block(plain.first(x)))
    options = {} if kind == "weights" else {"example": x}
    sk, other = (mast.nn.sparsify(m, MEMBERS[kind], **options) for m in (model, plain))
    for number in range(2):
        with sk.member(number), other.member(number):
            loss_of(model(x)).backward()
            loss_of(plain(x)).backward()
    found = gradients(model)
    for name, g in gradients(plain).items():
        torch.testing.assert_close(found[name], g, msg=name)

    def both(inside):
        loss = 0.0
        for number in range(2):
            with sk.member(number):
                loss = loss + loss_of(model(x))
                if inside == "the last" and number == 1:
                    loss.backward()
        if inside == "none":
            loss.backward()
        with sk.member(inside):
            loss.backward()

    for inside in ("the last", "none", 0, 1):
        with pytest.raises(mast.MastError, match=r"inside the same `with sk\.member"):
            both(inside)


def test_checkpoints_in_a_thread_whose_nodes_have_other_numbers():
    torch.manual_seed(0)
    model, x = Checkpointed(False).double(), torch.randn(6, 5).double()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(SKETCHES["unscaled"]), example=x)
    for _ in range(3):
        loss_of(model(x)).backward()
        sk.advance()
    model.zero_grad()
    loss_of(model(x)).backward()
    expected = gradients(model)
    thread = threading.Thread(target=lambda: loss_of(model(x)).backward())
    thread.start()
    thread.join()
    for name, g in gradients(model).items():
        torch.testing.assert_close(g, expected[name])


def test_a_first_call_under_vmap(zoo):
    model, x = zoo.make("mlp")
    sk = mast.nn.sparsify(model, mast.nn.Neurons(SKETCHES["unscaled"]), example=x)
    with sk.member(0), torch.no_grad():
        torch.testing.assert_close(torch.vmap(model)(x), model(x))


def test_several_members_before_one_backward(zoo):
    model, x = zoo.make("mlp")
    sk = mast.nn.sparsify(model, mast.nn.Neurons(SKETCHES["unscaled"]), example=x)
    total = {}
    for number in range(3):
        with sk.member(number):
            loss_of(model(x)).backward()
        for name, g in gradients(model).items():
            total[name] = total.get(name, 0) + g
    losses = []
    for number in range(3):
        with sk.member(number):
            losses.append(loss_of(model(x)))
    sum(losses).backward()
    for name, g in gradients(model).items():
        torch.testing.assert_close(g, total[name])


def test_a_second_derivative(zoo):
    model, x = zoo.make("gated")
    sk = mast.nn.sparsify(model, mast.nn.Neurons(SKETCHES["scaled"]), example=x)
    while sum(kept.count for kept in sk.draw().values()) == sum(k.dim for k in sk.draw().values()):
        sk.advance()

    def second():
        parameters = list(model.parameters())
        first = torch.autograd.grad(loss_of(model(x)), parameters, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), parameters)

    assert sees_slices(sk)
    sliced = second()
    sk.calls.slices = None
    for mine, theirs in zip(sliced, second(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_functional_call_is_masked(zoo):
    model, x = zoo.make("mlp")
    sk = mast.nn.sparsify(model, mast.nn.Neurons(SKETCHES["unscaled"]), example=x)
    with sk.member(0):
        expected = model(x)
        stand_ins = {name: p.detach().clone() for name, p in model.named_parameters()}
        torch.testing.assert_close(torch.func.functional_call(model, stand_ins, (x,)), expected)


def test_threads_share_a_sliced_call(zoo):
    model, x = zoo.make("mlp")
    sk = mast.nn.sparsify(model, mast.nn.Neurons(SKETCHES["unscaled"]), example=x)
    with sk.member(0):
        expected, found = model(x).detach(), []
        threads = [threading.Thread(target=lambda: found.append(model(x).detach())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 8
    for out in found:
        torch.testing.assert_close(out, expected)
    assert model[0].weight.shape == (model[0].out_features, 4)


def test_loops_without_an_optimizer_are_noticed(zoo):
    model, x = zoo.make("mlp")
    mast.nn.sparsify(model, mast.nn.Neurons(SKETCHES["unscaled"]), example=x)

    def train_by_hand():
        for _ in range(5):
            loss_of(model(x)).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
            model.zero_grad()

    with pytest.warns(UserWarning, match=r"sk\.advance"):
        train_by_hand()
