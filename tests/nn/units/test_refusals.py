"""What cannot be cut stays, with the reason; a model in which nothing can be cut is refused."""

from __future__ import annotations

import pytest

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402


class Net(nn.Module):
    """fc1, then any operation, then fc2."""

    def __init__(self, operation, width=8, inside=None):
        super().__init__()
        self.fc1 = nn.Linear(4, width)
        self.fc2 = nn.Linear(inside or width, 2)
        self.operation = operation

    def forward(self, x):
        return self.fc2(self.operation(self.fc1(x)))


class Reshaped(nn.Module):
    """Inside of another module, so that the message has a name to give."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 4)

    def forward(self, x):
        q, k, v = self.qkv(x).reshape(x.shape[0], x.shape[1], 3, 4).unbind(2)
        return self.out(torch.softmax(q @ k.transpose(-2, -1), -1) @ v)


class Direct(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.weight = nn.Linear(4, 8), nn.Parameter(torch.randn(8, 2))

    def forward(self, x):
        return torch.relu(self.inp(x)) @ self.weight


class Literal(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3))
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.body(x).view(-1, 16))


class Depends(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x) if x.sum() > 0 else x


class Holder(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.before, self.part, self.after = nn.Linear(4, 4), part, nn.Linear(4, 2)

    def forward(self, x):
        return self.after(torch.relu(self.part(torch.relu(self.before(x)))))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(4, 8), nn.Softmax(-1), nn.Linear(8, 2)), r"module '1' \(Softmax\)"),
        (Net(lambda x: torch.fft.fft(x).real), "has no rule that says what becomes of units"),
        (Net(lambda x: x / x.size(-1)), "a smaller model differs"),
        (Net(lambda x: x - x.mean(-1, keepdim=True)), "sums or compares them"),
        (Net(lambda x: x.flip(-1)), "no regular order"),
        (Net(lambda x: x[:, :4], inside=4), "a smaller model cannot be run"),
        (Net(lambda x: F.softmax(x, -1)), "softmax"),
        (Net(lambda x: x @ torch.eye(8)), "sums over them"),
        (Literal(), r"addmm\(\) in the module 'head'"),
        (nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 2)), "no shape yet"),
        (nn.Sequential(nn.Linear(4, 8), nn.Bilinear(8, 8, 2)), "could be guessed.*pass example="),
    ],
    ids=lambda value: "" if isinstance(value, nn.Module) else value[:12],
)
def test_nothing_can_be_cut(model, message):
    lazy = isinstance(model, nn.Sequential) and isinstance(model[0], nn.LazyLinear)
    with pytest.raises(mast.MastError, match=message):
        mast.nn.sparsify(model, mast.nn.Neurons(mast.Bernoulli(0.5)))
    assert all(m._compiled_call_impl is None for m in model.modules())  # and nothing was changed
    assert not lazy or isinstance(model[0], nn.LazyLinear)


@pytest.mark.parametrize(
    ("model", "groups", "others"),
    [
        (nn.Sequential(nn.Linear(4, 8), nn.LSTM(8, 4)), {"0.weight": 8}, {"1.weight_ih_l0": "output"}),
        (nn.Sequential(nn.Conv2d(1, 8, 3), nn.PixelShuffle(2), nn.Conv2d(2, 1, 1)), {"0.weight": 2}, {}),
        (Net(lambda x: torch.cat([x, x], -1), inside=16), {"fc1.weight": 8}, {}),
        (Direct(), {"inp.weight": 8}, {"weight": "output"}),
        (
            Holder(Reshaped()),
            {"before.weight": 4, "part.out.weight": 4},
            {"part.qkv.weight": "cannot be run"},
        ),
        (Holder(Depends()), {"part.inner.weight": 4}, {"before.weight": "takes all of them together"}),
    ],
    ids=["lstm", "shuffle", "cat", "direct", "reshaped", "depends"],
)
def test_what_can_be_cut_is_cut(zoo, model, groups, others):
    sk = mast.nn.sparsify(model.double(), mast.nn.Neurons(mast.Bernoulli(0.5)))
    assert {s.name: s.units for s in sk.unit_map.groups} == groups
    assert all(reason in sk.unit_map.excluded[name] for name, reason in others.items())
    x = sk.unit_map.examples[0].args[0]
    small, whole = sk.submodel(1), zoo.masked(sk, mast.randomness.Key(1))
    found, expected = small(x), whole(x)
    found, expected = (found[0], expected[0]) if isinstance(found, tuple) else (found, expected)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_what_keep_leaves_out_is_whole():
    model = Holder(Depends())
    with pytest.raises(mast.MastError, match="no units"):  # all that remains is excluded by the part
        mast.nn.sparsify(model, mast.nn.Neurons(mast.Bernoulli(0.5)), keep={"part.*": 1})
    wide = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5), nn.LSTM(5, 4))
    sk = mast.nn.sparsify(wide, mast.nn.Neurons(mast.RandK(2)), keep={"3.*": 1})
    assert [s.name for s in sk.unit_map.groups] == ["0.weight"]
    assert "left out" in sk.unit_map.excluded["2.weight"]
    assert sk.submodel(0)[0].out_features == 2


def find_groups(model):
    unit_map = mast.nn.find_units(model, mast.nn.Neurons(mast.Identity()))
    return unit_map.groups, unit_map.excluded


class Whole(nn.Module):
    def __init__(self, net, last):
        super().__init__()
        self.net, self.last = net, last

    def forward(self, x):
        return self.last(self.net(x))


def test_the_last_touch_to_an_output_is_fine():
    for last in (
        lambda x: F.log_softmax(x, -1),
        lambda x: x.squeeze(-1),
        lambda x: (x[..., 0], {"all": x}),
        lambda x: x.view(-1, 2),
    ):
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        groups, _ = find_groups(Whole(model, last))
        assert [s.name for s in groups] == ["net.0.weight"]


def test_pinned_with_a_reason():
    def convolutions(middle):
        return nn.Sequential(nn.Conv1d(2, 8, 1), middle, nn.Conv1d(8, 6, 1), nn.Conv1d(6, 1, 1))

    linear = (nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
    for model, reason in (
        (nn.Sequential(*linear), "LayerNorm"),
        (convolutions(nn.GroupNorm(1, 8)), "GroupNorm"),
    ):
        groups, others = find_groups(model)
        assert reason in others["0.weight"]
        assert [s.name for s in groups] == ["2.weight"]
    groups, _ = find_groups(convolutions(nn.Conv1d(8, 8, 1, groups=2)))
    assert [(s.name, s.units) for s in groups] == [("0.weight", 2), ("2.weight", 6)]  # whole groups


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.up, self.down = nn.Linear(6, 9), nn.Linear(9, 6)
        self.output = nn.Linear(6, 11, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, x):
        return self.output(self.down(torch.relu(self.up(self.embedding(x)))))


class Shared(nn.Module):
    """One layer is used twice, on different groups, which so become one; another is tied to its transpose."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 6), nn.Linear(3, 6)
        self.common = nn.Linear(6, 5)
        self.out = nn.Linear(5, 2)

    def forward(self, x):
        return self.out(torch.relu(self.common(torch.relu(self.a(x)))) * self.common(torch.tanh(self.b(x))))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.step, self.out = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        h = self.inp(x)
        for _ in range(3):
            h = torch.tanh(self.step(h))
        return self.out(h)


@pytest.mark.parametrize(("make", "groups"), [
    (Tied, {"up.weight": 9}),
    (Shared, {"a.weight": 6, "common.weight": 5}),
    (Recurrent, {"inp.weight": 6}),
])  # fmt: skip
def test_shared_weights(zoo, make, groups):
    torch.manual_seed(0)
    model = make().double().eval()
    x = torch.arange(5) if make is Tied else torch.randn(4, 3, dtype=torch.float64)
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.Bernoulli(0.5)), example=x)
    assert {s.name: s.units for s in sk.unit_map.groups} == groups
    for seed in range(3):
        small, whole = sk.submodel(seed), zoo.masked(sk, mast.randomness.Key(seed))
        torch.testing.assert_close(small(x), whole(x), rtol=0, atol=1e-12)


def test_a_weight_tied_to_its_other_role_keeps_its_units():
    """Its rows make units, its columns take them, and they are the model's input as well."""

    class Auto(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
            self.second.weight = self.first.weight
            self.inner, self.out = nn.Linear(6, 5), nn.Linear(5, 2)

        def forward(self, x):
            return self.out(torch.relu(self.inner(self.second(torch.relu(self.first(x))))))

    groups, others = find_groups(Auto())
    assert [s.name for s in groups] == ["inner.weight"]
    assert "first.weight" in others


def test_branches_that_cannot_be_dropped():
    class Ends(nn.Module):
        def __init__(self, end):
            super().__init__()
            self.fc, self.end, self.out = nn.Linear(4, 4), end, nn.Linear(4, 2)

        def forward(self, x):
            return self.out(x + self.end(self.fc(x)))

    for end in (nn.Sigmoid(), nn.LayerNorm(4, elementwise_affine=False), nn.Softmax(-1)):
        with pytest.raises(mast.MastError, match="no residual branches"):
            mast.nn.sparsify(Ends(end), mast.nn.Layers(mast.Bernoulli(0.5)))
    with pytest.raises(mast.MastError, match="no residual branches"):
        mast.nn.sparsify(nn.Linear(2, 2), mast.nn.Layers(mast.Bernoulli(0.5)))

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            x = x + self.fc(x)
            return x + self.fc(x)

    with pytest.raises(mast.MastError, match=r"fc\.weight.*another place"):
        mast.nn.sparsify(Twice(), mast.nn.Layers(mast.Bernoulli(0.5)))
