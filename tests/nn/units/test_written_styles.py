"""Ways of writing a forward pass that are easy to get wrong: in place, with gates, sizes, activations."""

from __future__ import annotations

import pytest

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from mast.randomness import Key  # noqa: E402


class Block(nn.Module):
    """One ReLU module that writes in place, used inside of the branch and behind the addition."""

    def __init__(self, width):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class PreActivated(nn.Module):
    """In-place activations behind norms, as functions; the sign of the trunk shows in the output."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 6, 3, padding=1)
        self.norm1, self.conv1 = nn.BatchNorm2d(6), nn.Conv2d(6, 9, 3, padding=1)
        self.norm2, self.conv2 = nn.BatchNorm2d(9), nn.Conv2d(9, 6, 3, padding=1)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = self.stem(x)
        h = self.conv1(F.relu(self.norm1(x), inplace=True))
        h = self.conv2(self.norm2(h).relu_())
        return self.head((x + h).mean([2, 3]))


class WrittenTrunk(nn.Module):
    """The branch begins with an operation that changes the trunk itself."""

    def __init__(self, how):
        super().__init__()
        self.stem, self.conv, self.head = nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 3)
        self.relu, self.how = nn.ReLU(inplace=True), how

    def forward(self, x):
        x = self.stem(x)
        h = {
            "module": lambda: self.relu(x),
            "function": lambda: F.relu(x, True),
            "method": lambda: x.contiguous().tanh_(),
        }[self.how]()
        return self.head((x + self.conv(h)).mean([2, 3]))


class ScaledParameter(nn.Module):
    """Branches times and over plain numbers."""

    def __init__(self):
        super().__init__()
        self.stem, self.f, self.g, self.head = (
            nn.Linear(2, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        )  # fmt: skip

    def forward(self, x):
        x = self.stem(x)
        x = x + 0.1 * torch.relu(self.f(x))
        return self.head(x + self.g(torch.relu(x)) / 2)


class Gated(nn.Module):
    """One unit that acts on many: a scalar gate, and a map over positions."""

    def __init__(self):
        super().__init__()
        self.conv, self.map = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 1, 1)
        self.hidden, self.gate, self.head = nn.Linear(8, 6), nn.Linear(8, 1), nn.Linear(6, 3)

    def forward(self, x):
        x = F.relu(self.conv(x))
        x = (x * torch.sigmoid(self.map(x))).mean((-2, -1))
        return self.head(torch.sigmoid(self.gate(x)) * torch.tanh(self.hidden(x)))


class Measured(nn.Module):
    """Flattening by products of sizes, and variances with the correction by place."""

    def __init__(self, how):
        super().__init__()
        self.conv, self.how = nn.Conv2d(2, 4, 3), how
        self.hidden, self.head = nn.Linear(4 if how == "var" else 16, 6), nn.Linear(6, 3)

    def forward(self, x):
        x = F.relu(self.conv(x))
        b, c, h, w = x.shape
        if self.how == "var":
            x = x.var((2, 3), True)
        elif self.how == "front":
            x = x.view(-1, x.size(1) * x.size(2) * x.size(3))
        else:
            x = x.reshape(b, c * h * w)
        return self.head(torch.relu(self.hidden(x)))


class SharedZeros(nn.Module):
    """Two layers take the same zeros, so that they have to have as many units (T5 does it with heads)."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.width = nn.Linear(2, 8), nn.Linear(2, 8), 8
        self.from_a, self.from_b = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x):
        zeros = torch.zeros(1, self.width, dtype=x.dtype)
        return self.from_a(torch.relu(self.a(x) + zeros)) + self.from_b(torch.relu(self.b(x) + zeros))


class Halved(nn.Module):
    """GLUs: over channels, by place, and over the last dimension; the gate is the second half of a layer."""

    def __init__(self):
        super().__init__()
        self.conv, self.hidden, self.head = nn.Conv2d(2, 8, 3), nn.Linear(4, 12), nn.Linear(6, 3)

    def forward(self, x):
        x = F.glu(self.conv(x), 1).mean((2, 3))
        return self.head(F.glu(self.hidden(x)))


def flattened_twice():
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 8), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))


def blocks():
    return nn.Sequential(
        nn.Conv2d(2, 6, 3), Block(6), Block(6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)
    )


IMAGES, ROWS = (3, 2, 4, 4), (5, 2)
MODELS = {
    "blocks": (blocks, IMAGES),
    "pre-activated": (PreActivated, IMAGES),
    **{
        f"written {how}": (lambda how=how: WrittenTrunk(how), IMAGES)
        for how in ("module", "function", "method")
    },
    "scaled": (ScaledParameter, ROWS),
    "gated": (Gated, IMAGES),
    **{f"measured {how}": (lambda how=how: Measured(how), IMAGES) for how in ("unpacked", "front", "var")},
    "flattened twice": (flattened_twice, IMAGES),
    "shared zeros": (SharedZeros, ROWS),
    "halved": (Halved, IMAGES),
}
SPACES = {
    "gated": {"conv.weight": 8, "hidden.weight": 6},
    "measured unpacked": {"conv.weight": 4, "hidden.weight": 6},
    "measured front": {"conv.weight": 4, "hidden.weight": 6},
    "measured var": {"conv.weight": 4, "hidden.weight": 6},
    "flattened twice": {"1.weight": 8},
    "shared zeros": {"a.weight": 8, "b.weight": 8},
    "halved": {"conv.weight": 4, "hidden.weight": 6},
}


def made(name):
    torch.manual_seed(len(name))
    build, shape = MODELS[name]
    model = build().double()
    with torch.no_grad():
        for t in (*model.parameters(), *model.buffers()):
            if t.is_floating_point() and t.ndim == 1:
                t.add_(0.3 * torch.rand_like(t))
    return model, torch.randn(shape, dtype=torch.float64)


def agree(sk, model, inputs, step):
    """Outputs in eval mode, and losses and gradients in training mode, of the small and the masked model."""
    key = Key(sk.seed, step, sk.node)
    small = sk.submodel(key)
    model.eval()
    with sk.sample(step), torch.no_grad():
        expected = model(inputs)
    torch.testing.assert_close(small(inputs), expected, rtol=0, atol=1e-12)
    model.train()
    model.zero_grad()
    before = {name: b.clone() for name, b in model.named_buffers()}
    with sk.sample(step):
        model(inputs).square().sum().backward()
    small.train()(inputs).square().sum().backward()
    cut = sk.unit_map.cut(sk.draw(key))
    found = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    cut.place(found, cut.gradient(small))
    for name, p in model.named_parameters():
        mine = torch.zeros_like(p) if p.grad is None else p.grad
        torch.testing.assert_close(found[name], mine, rtol=1e-10, atol=1e-10)
    for name, b in model.named_buffers():
        b.copy_(before[name])
    return small


@pytest.mark.parametrize("name", MODELS)
def test_units(name):
    model, inputs = made(name)
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.Bernoulli(0.5)), seed=3, example=inputs)
    if name in SPACES:
        assert {s.name: s.units for s in sk.unit_map.groups} == SPACES[name]
    for step in range(3):
        agree(sk, model, inputs, step)


@pytest.mark.filterwarnings("ignore:.*could not be taken out of the submodel")
@pytest.mark.parametrize("name", [n for n in MODELS if n[:3] in ("blo", "pre", "wri", "sca")])
def test_branches(name):
    model, inputs = made(name)
    sk = mast.nn.sparsify(model, mast.nn.Layers(mast.Bernoulli(0.5)), seed=3)
    whole, sizes = sum(p.numel() for p in model.parameters()), set()
    for step in range(6):
        small = agree(sk, model, inputs, step)
        sizes.add(sum(p.numel() for p in small.parameters()))
    assert min(sizes) < whole


class Activated(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, activation, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.layer(x))


@pytest.mark.parametrize(
    ("activation", "units"),
    [
        (F.silu, True),
        (lambda x: x * torch.sigmoid(1.7 * x), True),
        (nn.Tanh(), True),
        (lambda x: F.softmax(x, -1), False),
        (lambda x: x - x.mean(-1, keepdim=True), False),
        (lambda x: x if x.sum() > 0 else -x, False),
        (nn.Softmax(-1), False),
    ],
)
def test_activations_of_encoder_layers(activation, units):
    """Hidden units behind an activation that mixes them, or may, are all kept."""
    torch.manual_seed(0)
    model = Activated(activation).double()
    inputs = torch.randn(2, 4, 8, dtype=torch.float64)
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)), seed=1)
    assert ("layer.linear1.weight" in {s.name for s in sk.unit_map.groups}) == units
    agree(sk, model, inputs, 0)


def test_tensors_of_whole_numbers_are_not_cut():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(8, 6), nn.Linear(6, 2)
            self.register_buffer("mask", torch.arange(8) % 3 > 0)

        def forward(self, x):
            return self.c(torch.relu(self.b(torch.relu(self.a(x)) * self.mask)))

    model = Masked().double()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)))
    assert [s.name for s in sk.unit_map.groups] == ["b.weight"]
    assert "values that stay" in sk.unit_map.excluded["a.weight"]
    agree(sk, model, torch.randn(3, 4, dtype=torch.float64), 0)


def test_units_that_a_buffer_takes_are_not_cut():
    class Projected(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(6, 5), nn.Linear(5, 2)
            self.register_buffer("projection", torch.randn(8, 6), persistent=False)
            self.register_buffer("gains", torch.rand(5), persistent=False)

        def forward(self, x):
            return self.c(self.gains * torch.relu(self.b(torch.relu(self.a(x)) @ self.projection)))

    model = Projected().double()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)), where=lambda name, p: p.dim() > 1)
    assert [s.name for s in sk.unit_map.groups] == ["b.weight", "projection"]  # what it makes is cut
    assert "the buffer projection" in sk.unit_map.excluded["a.weight"]
    agree(sk, model, torch.randn(3, 4, dtype=torch.float64), 0)


def test_keep_names_any_weight_that_makes_the_units():
    def groups(keep):
        model, _ = made("blocks")
        return {
            s.name
            for s in mast.nn.sparsify(model, mast.nn.Neurons(mast.Bernoulli(0.5)), keep=keep).unit_map.groups
        }

    inner = {"1.conv1.weight", "2.conv1.weight"}
    assert groups(None) == {"0.weight", *inner}
    assert groups({"1.conv2.weight": 1}) == inner  # it makes the trunk, with the stem
    assert groups({"*.bn2.*": 1}) == {"0.weight", *inner}  # norms and biases are no such weights
    assert groups({"1.conv2.weight": 1, "0.*": 0.5}) == {
        "0.weight",
        *inner,
    }  # the units' own name counts more


def test_submodels_follow_the_model_as_it_is_now():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)))
    model.double()
    model[0].requires_grad_(False)
    small = sk.submodel(3)
    assert {t.dtype for t in small.state_dict().values() if t.is_floating_point()} == {torch.float64}
    assert [p.requires_grad for p in small.parameters()] == [False, False, True, True, True, True]
    with sk.sample(0), pytest.raises(mast.MastError, match="inside"):
        sk.submodel(3)  # of weights that are sparsified already
