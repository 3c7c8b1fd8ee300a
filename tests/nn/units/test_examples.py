"""UnitMap from an example: any model is followed by running it, and every result is checked."""

from __future__ import annotations

import types
from contextlib import contextmanager

import pytest

import mast

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.modules.module import register_module_forward_hook  # noqa: E402


def neurons(sketch=None):
    return mast.nn.Neurons(sketch or mast.Bernoulli(0.5))


def agree(sk, *inputs, **options):
    """Submodels are smaller, and compute what the whole model computes with the weights of the draw."""
    whole = sum(p.numel() for p in sk.model.parameters())
    sk.model.eval()
    for seed in range(3):
        small = sk.submodel(seed, calibrate=False)  # which checks itself, in both modes
        assert sum(p.numel() for p in small.parameters()) < whole
        with torch.no_grad(), drawn(sk, seed):
            expected = sk.model(*inputs, **options)
        with torch.no_grad():
            found = small(*inputs, **options)
        for a, b in zip(tensors(found), tensors(expected), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


@contextmanager
def drawn(sk, seed):
    """With S x of the draw (seed, step 0, node 0) in the whole model."""
    before = {w.name: w.parameter.detach().clone() for w in sk.weights}
    kept = sk.kept(mast.randomness.Key(seed))
    for w in sk.weights:
        w.parameter.mul_(torch.from_numpy(kept[w.name].diagonal()).to(w.parameter))
    try:
        yield
    finally:
        for w in sk.weights:
            w.parameter.copy_(before[w.name])


def tensors(output):
    return [output] if isinstance(output, torch.Tensor) else list(output.values())


def groups(sk):
    return {group.name: group.units for group in sk.unit_map.groups}


# ---- patterns ---------------------------------------------------------------------------------


class Shuffled(nn.Module):
    """As in ShuffleNet: half of the channels go through a branch, then both halves are shuffled."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 1)
        self.branch = nn.Sequential(
            nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6), nn.ReLU(),
            nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 1),
        )  # fmt: skip
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        a, b = self.stem(x).chunk(2, dim=1)
        x = torch.cat([a, self.branch(b)], dim=1)
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        return self.head(x.mean((2, 3)))


class Dense(nn.Module):
    """As in DenseNet: each layer sees all layers before it, side by side."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(6), nn.BatchNorm2d(10)])
        self.convs = nn.ModuleList([nn.Conv2d(6, 4, 3, padding=1), nn.Conv2d(10, 4, 3, padding=1)])
        self.last, self.head = nn.BatchNorm2d(14), nn.Linear(14, 3)

    def forward(self, x):
        x = self.stem(x)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, conv(F.relu(norm(x)))], 1)
        return self.head(F.relu(self.last(x)).mean((2, 3)))


class Excited(nn.Module):
    """Squeeze and excitation, layer scale, and stochastic depth."""

    def __init__(self):
        super().__init__()
        self.stem, self.out = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1)
        self.squeeze, self.excite = nn.Conv2d(8, 3, 1), nn.Conv2d(3, 8, 1)
        self.block = nn.Conv2d(8, 8, 3, padding=1)
        self.scale = nn.Parameter(torch.rand(8, 1, 1) + 0.5)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = x * self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))).sigmoid()
        branch = self.block(x) * self.scale
        if self.training:
            branch = branch * torch.empty(len(x), 1, 1, 1, dtype=x.dtype).bernoulli_(0.8).div_(0.8)
        return self.out(x + branch)


class SmallUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, 2, 1)
        self.norm = nn.GroupNorm(4, 8)
        self.up, self.c = nn.ConvTranspose2d(8, 6, 2, 2), nn.Conv2d(14, 3, 3, padding=1)

    def forward(self, x):
        skip = F.relu(self.a(x))
        x = self.up(F.silu(self.norm(self.b(skip))))
        return self.c(torch.cat([x, skip], dim=1))


class Grouped(nn.Module):
    """Attention whose query heads share key and value heads, rotated, with gated MLP units, and options."""

    def __init__(self, heads=6, groups=3, size=4):
        super().__init__()
        width = heads * size
        self.heads, self.groups, self.size = heads, groups, size
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * groups * size)
        self.norm_q, self.o = nn.RMSNorm(size), nn.Linear(width, width)
        self.gate_up, self.down = nn.Linear(width, 2 * 10), nn.Linear(10, width)

    def forward(self, x, mask=None, **unused):
        n, t, _ = x.shape
        h = self.norm1(x)
        q = self.norm_q(self.q(h).view(n, t, self.heads, self.size)).transpose(1, 2)
        k, v = self.kv(h).view(n, t, 2, self.groups, self.size).permute(2, 0, 3, 1, 4).unbind(0)
        angle = torch.arange(t, dtype=x.dtype)[:, None] * torch.ones(self.size, dtype=x.dtype)
        q, k = q * angle.cos(), k * angle.cos()
        k, v = (
            z[:, :, None].expand(n, self.groups, self.heads // self.groups, t, self.size).flatten(1, 2)
            for z in (k, v)
        )
        if mask is None:
            mask = torch.ones(t, t, dtype=torch.bool).tril()
        a = F.scaled_dot_product_attention(q, k, v, mask)
        x = x + self.o(a.transpose(1, 2).reshape(n, t, -1))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return {"out": x + self.down(F.silu(gate) * up)}


class Remembering(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn, self.head = kind(5, 8, num_layers=2, bidirectional=True, batch_first=True), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def image():
    return torch.randn(3, 3, 8, 8, dtype=torch.float64)


def series(width):
    return torch.randn(2, 5, width, dtype=torch.float64)


@pytest.mark.parametrize(
    ("make", "example", "expected"),
    [
        (Shuffled, image, {"branch.0.weight": 6}),
        (Dense, image, {"stem.weight": 6, "convs.0.weight": 4, "convs.1.weight": 4}),
        (Excited, image, {"scale": 8, "squeeze.weight": 3}),
        (SmallUNet, image, {"a.weight": 8, "b.weight": 4, "up.weight": 6}),
        (Grouped, lambda: {"x": series(24)}, {"q.weight": 3, "gate_up.weight": 10}),
        (lambda: Remembering(nn.LSTM), lambda: series(5), {"rnn.weight_ih_l0": 8}),
        (lambda: Remembering(nn.GRU), lambda: series(5), {"rnn.weight_ih_l0": 8}),
    ],
    ids=["shuffle", "dense", "excite", "unet", "grouped heads", "lstm", "gru"],
)  # fmt: skip
def test_patterns(make, example, expected):
    torch.manual_seed(0)
    batch = example()
    sk = mast.nn.sparsify(make().double(), neurons(), example=batch)
    assert groups(sk) == expected
    agree(sk, **batch) if isinstance(batch, dict) else agree(sk, batch)


def test_the_model_is_left_as_it_was():
    torch.manual_seed(0)
    model = Dense().double()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    state = torch.get_rng_state()
    mast.nn.sparsify(model, neurons(), example=image_of_seed(0))
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def image_of_seed(seed):
    return torch.randn(3, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# ---- what a graph does not show ---------------------------------------------------------------


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).double()


class FreshAttention(nn.Module):
    """Another number is equal to that of its heads, and says little as long as all scores are near 0."""

    def __init__(self, number):
        super().__init__()
        self.num_heads, self.head_size, self.all_head_size = 4, 4, 16
        setattr(self, number, 4)
        self.number = number
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))
        for p in self.parameters():
            nn.init.normal_(p, std=0.05)

    def forward(self, x):
        q, k, v = (f(x).view(*x.shape[:2], self.num_heads, self.head_size) for f in (self.q, self.k, self.v))
        scores = torch.einsum("blhd,bmhd->bhlm", q, k) * getattr(self, self.number) / 10
        mixed = torch.einsum("bhlm,bmhd->blhd", scores.softmax(-1), v)
        return self.out(mixed.reshape(*x.shape[:2], self.all_head_size))


def test_a_ratio_that_happens_to_equal_the_number_of_heads_stays():
    torch.manual_seed(0)
    model, x = FreshAttention("reduction_ratio"), torch.randn(2, 5, 16) / 10
    sk = mast.nn.sparsify(model, neurons(), example=x)
    assert groups(sk) == {"q.weight": 4}
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(40)  # as they are when it is trained
    model.double()
    agree(sk, x.double())


def test_a_difference_that_is_small_before_training_is_seen():
    torch.manual_seed(0)
    model, x = FreshAttention("sharpness"), torch.randn(2, 5, 16) / 10
    with pytest.raises(mast.MastError, match=r"q\.weight: a smaller model differs in eval mode"):
        mast.nn.sparsify(model, neurons(), example=x)


def test_hooks_and_patched_forwards_are_followed():
    x = torch.randn(5, 4, dtype=torch.float64)
    hooked = plain()
    hooked[1].register_forward_hook(lambda module, inputs, output: output.flip(-1))
    sk = mast.nn.sparsify(hooked, neurons(), example=x)
    assert "2.weight" in groups(sk)
    agree(sk, x)
    mixing = plain()
    mixing[1].register_forward_hook(lambda module, inputs, output: output - output.mean(-1, keepdim=True))
    sk = mast.nn.sparsify(mixing, neurons(), example=x)
    assert groups(sk) == {"2.weight": 8}
    assert "mean" in sk.unit_map.excluded["0.weight"]
    agree(sk, x)
    patched = plain()
    patched[1].forward = types.MethodType(lambda self, h: torch.softmax(h, -1), patched[1])
    sk = mast.nn.sparsify(patched, neurons(), example=x)
    assert groups(sk) == {"2.weight": 8}
    agree(sk, x)


def test_both_modes_count():
    class Moody(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x):
            h = torch.relu(self.a(x))
            if self.training:
                h = h / (1 + h.sum(-1, keepdim=True))
            return self.c(torch.relu(self.b(h)))

    x = torch.randn(5, 4, dtype=torch.float64)
    for example in (x, None):
        sk = mast.nn.sparsify(Moody().double(), neurons(), example=example)
        assert groups(sk) == {"b.weight": 8}
        assert sk.unit_map.modes == (False, True)
        agree(sk, x)
    assert mast.nn.sparsify(plain(), neurons()).unit_map.modes == (False,)  # one is enough to compare in


def test_modes_differ_by_weights_too():
    class Moody(nn.Module):
        """The same operations in both modes, with other weights."""

        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.c(torch.relu((self.b if self.training else self.a)(x)))

    x = torch.randn(5, 4, dtype=torch.float64)
    sk = mast.nn.sparsify(Moody().double(), neurons(), example=x)
    assert sk.unit_map.modes == (False, True)
    assert {axis.tensor for axis in sk.unit_map.groups[0].producers} >= {"a.weight", "b.weight"}
    agree(sk, x)


def test_a_model_is_run_as_often_however_deep_it_is():
    """To record and to follow it in both modes; to compare a small one in each that differs."""

    def passes(depth, between):
        layers = [layer for _ in range(depth) for layer in (nn.Linear(6, 6), between(), nn.ReLU())]
        model, calls = nn.Sequential(nn.Flatten(), *layers, nn.Linear(6, 2)), []
        hook = register_module_forward_hook(lambda module, *_: calls.append(isinstance(module, nn.Flatten)))
        try:
            mast.nn.sparsify(model, neurons(), example=torch.randn(5, 6))
        finally:
            hook.remove()
        return sum(calls)

    assert passes(2, nn.Identity) == passes(12, nn.Identity) == 6
    assert passes(2, lambda: nn.BatchNorm1d(6)) == passes(12, lambda: nn.BatchNorm1d(6)) == 8


def test_the_dimension_of_a_norm_is_seen():
    class Series(nn.Module):
        """Values of (N, L, C) with L = C: the norm acts along L, with statistics over C."""

        def __init__(self):
            super().__init__()
            self.a, self.norm = nn.Linear(3, 6), nn.BatchNorm1d(6)
            self.b, self.c = nn.Linear(6, 5), nn.Linear(5, 2)

        def forward(self, x):
            return self.c(torch.relu(self.b(torch.relu(self.norm(self.a(x))))))

    model = Series().double()
    nn.init.normal_(model.norm.weight)
    x = torch.randn(4, 6, 3, dtype=torch.float64)
    sk = mast.nn.sparsify(model, neurons(), example=x)
    assert groups(sk) == {"b.weight": 5}
    assert "normalises along their dimension" in sk.unit_map.excluded["a.weight"]
    agree(sk, x)


# ---- one answer -------------------------------------------------------------------------------


class Partly(nn.Module):
    """One layer that can be cut, one that a determinant looks at, and one that is split by hand."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(8, 9), nn.Linear(9, 6)
        self.d = nn.Linear(6, 2)

    def forward(self, x):
        h = self.b(torch.relu(self.a(x)))
        h = h * torch.linalg.det(h.view(-1, 3, 3))[:, None]
        h = self.c(h)
        return self.d(torch.cat([h[:, :2], 2 * h[:, 2:]], 1))


def test_what_cannot_be_cut_is_listed():
    torch.manual_seed(0)
    x = torch.randn(5, 4, dtype=torch.float64)
    sk = mast.nn.sparsify(Partly().double(), neurons(), example=x)
    assert groups(sk) == {"a.weight": 8}
    assert "no rule" in sk.unit_map.excluded["b.weight"]
    assert "a smaller model" in sk.unit_map.excluded["c.weight"]
    lines = [line.split() for line in str(sk).splitlines()]
    assert ["a.weight", "8", "yes"] in lines
    assert any(line[:3] == ["b.weight", "9", "no:"] for line in lines)
    agree(sk, x)
    with pytest.raises(mast.MastError, match=r"(?s)strict.*b\.weight +9 +no: .*no rule"):
        mast.nn.sparsify(Partly().double(), neurons(), example=x, strict=True)
    mast.nn.sparsify(plain(), neurons(), example=x, strict=True)


def test_where_and_keep_choose_among_what_is_found():
    x = torch.randn(5, 4, dtype=torch.float64)
    torch.manual_seed(0)
    sk = mast.nn.sparsify(Partly().double(), neurons(), example=x, keep={"a.weight": 0.25})
    assert sk.unit_map.groups[0].keep == 0.25
    sk = mast.nn.sparsify(plain(), neurons(), example=x, where="2.*")
    assert groups(sk) == {"2.weight": 8}
    assert sk.unit_map.excluded["0.weight"] == "not named by where"
    agree(sk, x)
    sk = mast.nn.sparsify(plain(), neurons(), example=x, keep={"0.*": 1})
    assert groups(sk) == {"2.weight": 8}
    sk = mast.nn.sparsify(Grouped().double(), neurons(), example={"x": series(24)}, where="q.*")
    assert groups(sk) == {"q.weight": 3}
    agree(sk, series(24))


def test_nothing_to_cut_is_refused_with_the_cause():
    x = torch.randn(5, 4)
    with pytest.raises(mast.MastError, match="they are the model's output"):
        mast.nn.sparsify(nn.Linear(4, 2), neurons(), example=x)
    for sketch in (neurons(), mast.nn.Layers(mast.Bernoulli(0.5))):
        with pytest.raises(mast.MastError, match="cannot be run on the example"):
            mast.nn.sparsify(nn.Linear(3, 2), sketch, example=x)
    with pytest.raises(mast.MastError, match="example must be"):
        mast.nn.sparsify(nn.Linear(4, 2), neurons(), example="a batch")


def test_a_wrong_submodel_is_not_returned():
    torch.manual_seed(0)
    x = torch.randn(5, 4, dtype=torch.float64)
    model = plain()
    sk = mast.nn.sparsify(model, neurons(), example=x)
    sk.submodel(0)
    sk.unit_map.skeleton[3].register_forward_hook(lambda module, inputs, output: output + 0.01)
    with pytest.raises(mast.MastError, match=r"not returned"):
        sk.submodel(0)
    sk = mast.nn.sparsify(plain(), neurons(), example=x, check=False)
    sk.unit_map.skeleton[3].register_forward_hook(lambda module, inputs, output: output + 0.01)
    sk.submodel(0)


def test_training_goes_on_as_without_an_example():
    x = torch.randn(5, 4, dtype=torch.float64)
    found = []
    for example in (None, x):
        model = plain()
        sk = mast.nn.sparsify(model, neurons(), example=example, seed=3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
        found.append((groups(sk), model[2].weight.detach().clone()))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


def test_rows_of_a_recurrent_network_are_trained():
    """RowOptimizer with plain SGD is training with masks, hidden units of an LSTM included."""
    x = series(5)
    found = []
    for rows in (False, True):
        torch.manual_seed(0)
        model = Remembering(nn.LSTM).double()
        sk = mast.nn.sparsify(model, neurons(mast.RandK(4)), example=x, seed=1)
        start = model.rnn.weight_hh_l0.detach().clone()
        if rows:
            optimizer = mast.nn.RowOptimizer(sk, torch.optim.SGD, lr=0.1)
            for _ in range(3):
                with optimizer.submodel() as small:
                    small(x).square().sum().backward()
                optimizer.step()
        else:
            plain_sgd = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                plain_sgd.zero_grad()
                model.train()(x).square().sum().backward()
                plain_sgd.step()
        assert not torch.equal(model.rnn.weight_hh_l0, start)
        found.append(model.rnn.weight_hh_l0.detach().clone())
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-10)


# ---- branches ---------------------------------------------------------------------------------


class Turned(nn.Module):
    """A branch that changes its layout inside, and ends in a scale of its own."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 6, 1), nn.LayerNorm(6)
        self.up, self.down = nn.Linear(6, 11), nn.Linear(11, 6)
        self.scale, self.head = nn.Parameter(torch.rand(6) + 0.5), nn.Linear(6, 3)

    def forward(self, x):
        x = self.stem(x)
        h = self.down(F.gelu(self.up(self.norm(x.permute(0, 2, 3, 1))))) * self.scale
        x = x + h.permute(0, 3, 1, 2)
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("example", [None, image], ids=["guessed", "given"])
def test_branches_are_removed(example):
    torch.manual_seed(0)
    x = image()
    dropped = mast.nn.Layers(mast.Bernoulli(0.01))
    sk = mast.nn.sparsify(Turned().double(), dropped, example=None if example is None else x)
    assert [branch.scaled for branch in sk.unit_map.branches] == [("scale",)]
    agree(sk, x)
    names = {name for name, _ in sk.submodel(0).named_parameters()}
    assert names == {"stem.weight", "stem.bias", "head.weight", "head.bias", "scale"}


def test_a_branch_that_no_module_makes_stays_times_0():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.head = nn.Parameter(torch.randn(4, 4)), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(x + torch.tanh(x @ self.weight))

    torch.manual_seed(0)
    x = torch.randn(3, 4, dtype=torch.float64)
    sk = mast.nn.sparsify(Bare().double(), mast.nn.Layers(mast.Bernoulli(0.01)))
    with pytest.warns(UserWarning, match="could not be taken out of the submodel.*Pass example="):
        small = sk.submodel(0)
    torch.testing.assert_close(small(x), sk.model.head(x))
    sk = mast.nn.sparsify(Bare().double(), mast.nn.Layers(mast.Bernoulli(0.01)), example=x)
    with pytest.warns(UserWarning, match="times 0$"):
        sk.submodel(0)


# ---- more patterns -----------------------------------------------------------------------------


class EinsumAttention(nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("q", "k", "v"):
            self.register_parameter(name, nn.Parameter(torch.randn(4, 12, 6) / 4))
        self.out = nn.Parameter(torch.randn(4, 6, 12) / 4)

    def forward(self, x):
        q, k, v = (torch.einsum("bld,hde->bhle", x, w) for w in (self.q, self.k, self.v))
        weights = torch.einsum("bhle,bhme->bhlm", q, k).softmax(-1)
        return x + torch.einsum("bhlm,bhme,hed->bld", weights, v, self.out)


class Queries(nn.Module):
    """Learned queries go through a layer of their own."""

    def __init__(self):
        super().__init__()
        self.queries, self.inner = nn.Parameter(torch.randn(5, 12)), nn.Linear(12, 16)
        self.input, self.head = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(torch.relu(self.input(x)[:, None] + self.inner(self.queries)))


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.lstm, self.head = nn.GRUCell(5, 8), nn.LSTMCell(8, 6), nn.Linear(6, 2)

    def forward(self, x):
        h, state = None, None
        for t in range(x.shape[1]):
            h = self.gru(x[:, t], h)
            state = self.lstm(h, state)
        return self.head(state[0])


@pytest.mark.parametrize(
    ("model", "shape", "units"),
    [
        (EinsumAttention, (2, 5, 12), {"q": 4}),
        (Queries, (2, 6), {"inner.weight": 16}),
        (Cells, (2, 3, 5), {"gru.weight_ih": 8, "lstm.weight_ih": 6}),
    ],
)
def test_further_patterns_are_followed(model, shape, units):
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64)
    sk = mast.nn.sparsify(model().double(), neurons(), example=x)
    assert groups(sk) == units
    agree(sk, x)


class Parallel(nn.Module):
    """Two branches of one value, added one after the other, or at once."""

    def __init__(self, at_once):
        super().__init__()
        self.at_once = at_once
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 2)
        self.a, self.b = (nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 6)) for _ in range(2))

    def forward(self, x):
        n = self.norm(x)
        return self.head(x + (self.a(n) + self.b(n)) if self.at_once else x + self.a(n) + self.b(n))


@pytest.mark.parametrize("at_once", [False, True])
def test_branches_of_one_value_are_dropped_one_by_one(at_once):
    torch.manual_seed(0)
    x = torch.randn(4, 6, dtype=torch.float64)
    sk = mast.nn.sparsify(Parallel(at_once).double(), mast.nn.Layers(mast.RandK(1)), example=x)
    assert [branch.name for branch in sk.unit_map.branches] == ["a.2.weight", "b.2.weight"]
    agree(sk, x)


def test_a_model_that_changes_its_parameters_is_refused_before_it_does():
    class Rescaled(nn.Linear):
        def forward(self, x):
            with torch.no_grad():
                self.weight.data.mul_(0.5)
            return super().forward(x)

    model = nn.Sequential(nn.Linear(3, 8), Rescaled(8, 2))
    before = model[1].weight.detach().clone()
    for sketch in (neurons(), mast.nn.Layers(mast.Bernoulli(0.5))):
        with pytest.raises(mast.MastError, match=r"changes its parameter '1\.weight' in place"):
            mast.nn.sparsify(model, sketch, example=torch.ones(2, 3))
        with pytest.raises(mast.MastError, match=r"changes its parameter '1\.weight' in place"):
            mast.nn.sparsify(model, sketch)
    assert torch.equal(model[1].weight, before)


def test_weights_without_a_rule_are_in_the_list_of_reasons():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 8)), nn.ReLU(), nn.Linear(8, 2))
    with pytest.raises(mast.MastError, match=r"weight_norm.* has no rule that says what becomes of units"):
        mast.nn.sparsify(model, neurons(), example=torch.ones(2, 3))
