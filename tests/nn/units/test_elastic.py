"""`elastic` and `sk.member`: the whole member is the given network, sizes are prefixes, runs resume."""

from __future__ import annotations

import copy
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

import mast

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from mast.nn.units.dependencies.examples import Example  # noqa: E402
from mast.nn.units.dependencies.recording import Recording  # noqa: E402
from mast.nn.units.dependencies.residual import residual_weights  # noqa: E402

F = torch.nn.functional
SIZES = [0.25, 0.5, 1.0]


def mlp():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3))
    x = torch.randn(6, 10, 4)
    return model, x


def prefix(model, share):
    """A copy of the MLP whose units after the first ones are cut by hand."""
    small = copy.deepcopy(model)
    linear = [m for m in small if isinstance(m, nn.Linear)]
    with torch.no_grad():
        for first, second in pairwise(linear):
            second.weight[:, round(share * first.out_features) :] = 0
    return small


# ---- elastic -----------------------------------------------------------------------------------------


def test_the_whole_member_is_the_given_network_and_members_are_prefixes():
    model, x = mlp()
    keys, given = list(model.state_dict()), copy.deepcopy(model)
    sk = mast.nn.elastic(model, SIZES, [(x[0], None), (x[1], None)])
    assert repr(sk.sketch.sketch) == repr(mast.Nested(SIZES, scaled=False))
    assert list(model.state_dict()) == keys
    torch.testing.assert_close(model.eval()(x[2]), given(x[2]))
    by_hand = mast.nn.sort_units(given, [x[0], x[1]])
    assert any(list(order) != sorted(order) for order in by_hand.values())
    for i, share in enumerate(SIZES):
        small = sk.submodel(member=i)
        assert (small[0].out_features, small[2].out_features) == (round(16 * share), round(12 * share))
        torch.testing.assert_close(small(x[2]), prefix(given, share)(x[2]))
        with sk.member(i):
            torch.testing.assert_close(model(x[2]), small(x[2]))


def test_options_reach_the_sketch_and_the_scores():
    model, x = mlp()
    batches = [(x[0], torch.arange(10) % 3)]
    weights = [0.5, 0.25, 0.25]
    taylor = copy.deepcopy(model)
    mast.nn.sort_units(taylor, batches, F.cross_entropy, score="taylor")
    sk = mast.nn.elastic(
        model, SIZES, batches, loss=F.cross_entropy, score="taylor", weights=weights, keep={"0.weight": 1.0},
        seed=5,
    )  # fmt: skip
    assert sk.seed == 5
    assert sk.sketch.sketch.weights.tolist() == weights
    assert [group.name for group in sk.unit_map.groups] == ["2.weight"]
    # one group moved, the other stayed
    torch.testing.assert_close(model[2].bias, taylor[2].bias)
    assert torch.equal(model[0].weight, mlp()[0][0].weight)
    plain = mlp()[0]
    mast.nn.elastic(plain, SIZES, batches, sort=False)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), mlp()[0].parameters(), strict=True))


def test_the_residual_stream_stays_whole_unless_it_is_asked_for(zoo):
    model, x = zoo.make("resnet")
    whole = mast.nn.elastic(copy.deepcopy(model), SIZES, [x])
    assert [s.name for s in whole.unit_map.groups] == [f"blocks.{i}.first.weight" for i in range(3)]
    for name in ("stem.weight", "blocks.2.second.weight"):
        assert "residual stream" in whole.unit_map.excluded[name]
    everything = mast.nn.elastic(copy.deepcopy(model), SIZES, [x], keep={})
    assert {"stem.weight", "blocks.2.second.weight"} <= {s.name for s in everything.unit_map.groups}
    less = mast.nn.elastic(copy.deepcopy(model), SIZES, [x], keep={"blocks.0.first.weight": 1.0})
    assert [s.name for s in less.unit_map.groups] == [f"blocks.{i}.first.weight" for i in (1, 2)]
    assert "residual stream" in less.unit_map.excluded["stem.weight"]
    with pytest.raises(mast.MastError, match=r"units of 'stem.weight': .* only Bernoulli sketches"):
        mast.nn.elastic(copy.deepcopy(model), SIZES, [x], keep={"stem.weight": 0.5})  # so it is to be cut
    with pytest.raises(mast.MastError, match=r"stem.weight: the residual stream.*keep=\{\}"):
        mast.nn.elastic(model, SIZES, [x], where="stem.weight")


def test_without_sorting_an_example_stands_for_batches():
    model, x = mlp()
    sk = mast.nn.elastic(model, SIZES, None, sort=False, example=x[0])
    assert [s.units for s in sk.unit_map.groups] == [16, 12]
    for options in ({}, {"sort": False}):
        with pytest.raises(mast.MastError, match="elastic needs batches in a list or a loader"):
            mast.nn.elastic(mlp()[0], SIZES, None, **options)


def test_where_only_the_stream_is_left_the_error_says_so():
    """A depthwise convolution at the end of each branch ties its units to the stream."""

    class Depthwise(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.wide = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
            self.each, self.last = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Linear(8, 2)

        def forward(self, x):
            x = self.stem(x)
            return self.last((x + self.each(F.relu(self.wide(x)))).mean((2, 3)))

    x = torch.randn(2, 3, 8, 8)
    with pytest.raises(mast.MastError, match=r"the residual stream, which elastic leaves whole; keep=\{\}"):
        mast.nn.elastic(Depthwise(), SIZES, [x])
    assert mast.nn.elastic(Depthwise(), SIZES, [x], keep={}).unit_map.groups[0].units == 8


def recorded(model, x):
    record = Recording(model.eval())
    record.run(Example.of(x))
    return record


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gated", ["down.weight"]),
        ("mixer", ["down.weight"]),
        ("excited", []),
        ("mlp", []),
        ("class token", ["attention.out_proj.weight", "feed.3.weight"]),
    ],
)
def test_what_writes_to_a_residual_stream(zoo, name, expected):
    model, x = zoo.make(name)
    assert residual_weights(recorded(model, x)) == expected


def test_activations_written_as_sums_are_no_residual_streams():
    """The x + c x³ of a written-out GELU, and the two halves of a rotation, add a value to itself."""

    class Written(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x):
            h = self.a(x)
            h = 0.5 * h * (1 + torch.tanh(0.8 * (h + 0.04 * torch.pow(h, 3))))
            return self.b(h * 0.5 + h.sin() * 0.5)

    assert residual_weights(recorded(Written(), torch.randn(2, 4))) == []


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_layers_have_no_residual_stream(kind):
    """Each step adds what comes in and what was remembered: none of them is a stream."""

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent, self.last = kind(5, 8, num_layers=2), nn.Linear(8, 3)

        def forward(self, x):
            return self.last(self.recurrent(x)[0][-1])

    model, x = Words(), torch.randn(6, 4, 5)
    sk = mast.nn.elastic(model, SIZES, [x])
    assert [(s.name, s.units) for s in sk.unit_map.groups] == [("recurrent.weight_ih_l0", 8)]
    assert sk.submodel(member=0).recurrent.hidden_size == 2


class Attending(nn.Module):
    """nn.MultiheadAttention with the masks that it takes."""

    def __init__(self, batch_first):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 4, batch_first=batch_first)
        self.head = nn.Linear(8, 3)

    def forward(self, x, **options):
        return self.head(x + self.attention(x, x, x, **options)[0])


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_heads_are_cut_whatever_masks_the_batches_have(need_weights, batch_first):
    torch.manual_seed(0)
    x = torch.randn(3, 3, 5, 8, dtype=torch.float64)
    x = x if batch_first else x.transpose(1, 2)
    padding = torch.arange(5) >= torch.tensor([[5], [4], [3]])
    causal = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    each = torch.randn(12, 5, 5, dtype=torch.float64)
    for masks in (
        {"key_padding_mask": padding},
        {"attn_mask": causal},
        {"attn_mask": each},
        {"attn_mask": causal, "key_padding_mask": padding},
        {"attn_mask": causal, "is_causal": True},
    ):
        model = Attending(batch_first).double()
        options = masks | {"need_weights": need_weights}
        # A mask for each head is no function of the rows alone: sorting heads would change what it masks.
        sort = masks.get("attn_mask") is not each
        sk = mast.nn.elastic(model, SIZES, [{"x": x[0], **options}, {"x": x[1], **options}], sort=sort)
        assert [group.units for group in sk.unit_map.groups] == [4]
        for i, heads in enumerate((1, 2, 4)):
            small = sk.submodel(member=i)
            assert getattr(small.attention, "num_heads", None) == heads
            with sk.member(i):
                whole = model(x[2], **options)
            torch.testing.assert_close(small(x[2], **options), whole, rtol=0, atol=1e-12)


def test_sizes_of_gated_units():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 16), nn.GLU(), nn.Linear(8, 3)).eval(), torch.randn(9, 6)
    given = copy.deepcopy(model)
    sk = mast.nn.elastic(model, SIZES, [x])
    assert [(s.name, s.units) for s in sk.unit_map.groups] == [("0.weight", 8)]
    torch.testing.assert_close(model(x), given(x))
    for i, share in enumerate(SIZES):
        small = sk.submodel(member=i)
        assert small[0].out_features == 2 * small[2].in_features == 2 * round(8 * share)
        with sk.member(i):
            torch.testing.assert_close(model(x), small(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_submodels_of_a_model_that_was_converted_since(dtype):
    model, x = mlp()
    sk = mast.nn.elastic(model, SIZES, [x[0]])
    model.to(dtype).eval()
    small = sk.submodel(member=0)
    with sk.member(0):
        torch.testing.assert_close(model(x[1].to(dtype)), small(x[1].to(dtype)))
    assert next(sk.submodel(budget="50% flops").parameters()).dtype is dtype


class KeepsWhatItSaw(nn.Module):
    """Attention is often written so, for pictures: torch does not copy what has a graph."""

    def __init__(self):
        super().__init__()
        self.scores, self.first, self.last = nn.Linear(4, 1), nn.Linear(4, 16), nn.Linear(16, 3)
        self.attention, self.seen = None, []

    def forward(self, x):
        hidden = self.first(x).relu()
        self.attention = self.scores(x).softmax(1)
        self.seen = [hidden]
        return self.last(self.attention * hidden)


def test_a_network_that_keeps_results_of_its_last_pass():
    torch.manual_seed(0)
    model, x = KeepsWhatItSaw(), torch.randn(2, 5, 4)
    given = copy.deepcopy(model)
    model(x).sum().backward()
    sk = mast.nn.elastic(model, SIZES, [x])
    torch.testing.assert_close(model.eval()(x), given(x))
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
    model(x).square().sum().backward()
    optimizer.step()
    for i in range(sk.members):
        with sk.member(i):
            torch.testing.assert_close(sk.submodel(member=i)(x), model(x))
    assert model.attention.grad_fn is not None
    sk.remove()
    mast.nn.sort_units(model, [x])
    assert mast.nn.sparsify(model, mast.Bernoulli(0.5)).submodel()(x).shape == (2, 5, 3)


def test_an_error_leaves_the_model_plain():
    model, x = mlp()
    with pytest.raises(mast.MastError, match="a loss is needed"):
        mast.nn.elastic(model, SIZES, [x[0]], score="taylor")
    mast.nn.sparsify(model, mast.Bernoulli(0.5)).remove()
    with pytest.raises(mast.MastError, match="ascend"):
        mast.nn.elastic(model, [1.0, 0.5], [x[0]])
    mast.nn.elastic(model, SIZES, [x[0]])
    with pytest.raises(mast.MastError, match="already sparsified"):
        mast.nn.elastic(model, SIZES, [x[0]])


# ---- resumed runs ----------------------------------------------------------------------------------------


def train(model, sk, optimizer, x, steps):
    for step in range(*steps):
        F.cross_entropy(model(x[step]), torch.arange(10) % 3).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("order", ["model first", "model last", "sk first", "sort=False"])
def test_a_resumed_run_has_the_bits_of_the_straight_one(tmp_path, order):
    model, x = mlp()
    sk = mast.nn.elastic(model, SIZES, list(x[:2]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    train(model, sk, optimizer, x, (0, 3))
    torch.save([model.state_dict(), optimizer.state_dict(), sk.state_dict()], tmp_path / "run.pt")
    train(model, sk, optimizer, x, (3, 6))

    weights, moments, state = torch.load(tmp_path / "run.pt")
    again, _ = mlp()
    if order in ("model first", "sort=False"):  # weights that are sorted, and have changed since
        again.load_state_dict(weights)
    sk = mast.nn.elastic(again, SIZES, list(x[:2]), sort=order != "sort=False")
    if order == "model first":
        assert not torch.equal(again[0].weight, weights["0.weight"])  # sorted a second time
    optimizer = torch.optim.AdamW(again.parameters(), lr=0.05)
    if order == "model last":
        again.load_state_dict(weights)
    sk.load_state_dict(state)
    if order == "sk first":
        again.load_state_dict(weights)
    optimizer.load_state_dict(moments)
    sk.load_state_dict(state)  # once more changes nothing
    assert sk.step == 3
    train(again, sk, optimizer, x, (3, 6))
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize("way", ["old state", "new optimizer", "sort_units", "loaded", "sort=False"])
def test_an_optimizer_whose_state_is_not_sorted_is_named(way):
    model, x = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    F.cross_entropy(model(x[0]), torch.arange(10) % 3).backward()
    optimizer.step()
    weights = copy.deepcopy(model.state_dict())
    if way == "sort_units":
        mast.nn.sort_units(model, list(x[:2]), optimizer=optimizer)
    sk = mast.nn.elastic(model, SIZES, list(x[:2]), sort=way not in ("sort_units", "sort=False"))
    if way == "new optimizer":
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    if way == "loaded":  # a run that goes on and whose state fits these weights
        model.load_state_dict(weights)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, sk, optimizer, x, (0, 2))
    named = [w for w in caught if "its state was made before elastic() sorted the units" in str(w.message)]
    assert len(named) == (way == "old state")


@pytest.mark.parametrize("way", ["averaged weights", "sort=False", "loaded later"])
def test_a_second_sorting_that_cannot_be_undone_is_named(way):
    """Averaged or rounded weights are not those of the saved state: whether they are sorted is not known."""
    model, x = mlp()
    sk = mast.nn.elastic(model, SIZES, list(x[:2]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    train(model, sk, optimizer, x, (0, 3))
    averaged = {name: t * 0.99 for name, t in model.state_dict().items()}
    again, _ = mlp()
    again.load_state_dict(averaged)
    resumed = mast.nn.elastic(again, SIZES, list(x[:2]), sort=way != "sort=False")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resumed.load_state_dict(sk.state_dict())
        if way == "loaded later":
            again.load_state_dict(averaged)
        small = resumed.submodel(member=0)
        train(again, resumed, torch.optim.AdamW(again.parameters()), x, (3, 5))
    assert sum("sizes are not the ones that were trained" in str(w.message) for w in caught) == (
        way == "averaged weights"
    )
    if way != "averaged weights":
        assert torch.equal(small[0].weight, averaged["0.weight"][: len(small[0].weight)])


def test_statistics_are_put_right_too(zoo):
    model, x = zoo.make("resnet")
    sk = mast.nn.elastic(model, SIZES, [x])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(x).square().mean().backward()
        optimizer.step()
    weights, state = copy.deepcopy(model.state_dict()), sk.state_dict()
    again, _ = zoo.make("resnet")
    again.load_state_dict(weights)
    sk = mast.nn.elastic(again, SIZES, [x])
    assert any(not torch.equal(t, weights[name]) for name, t in again.state_dict().items())
    sk.load_state_dict(state)
    assert all(torch.equal(t, weights[name]) for name, t in again.state_dict().items())


def test_runs_in_channels_last_resume():
    """Strides of 1 x 1 kernels are ambiguous, and torch takes them for contiguous in any format."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 4, 1))
    model.to(memory_format=torch.channels_last)
    x, plain = torch.randn(2, 3, 4, 4), copy.deepcopy(model)
    sk = mast.nn.elastic(model, SIZES, [x])
    plain.load_state_dict(model.state_dict())
    again = mast.nn.elastic(plain, SIZES, [x])
    again.load_state_dict(sk.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


# ---- members ---------------------------------------------------------------------------------------------


def test_several_members_before_one_backward():
    """The sandwich rule: losses of several sizes, one backward(), one step; against masks written out."""
    model, x = mlp()
    plain = copy.deepcopy(model)
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.Nested(SIZES, scaled=False)), example=x[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    y = torch.arange(10) % 3
    for step in range(3):
        loss = torch.zeros(())
        for i in (2, 0, 1):
            with sk.member(i):
                assert [kept.count for kept in sk.draw().values()] == [round(n * SIZES[i]) for n in (16, 12)]
                loss = loss + (i + 1) * F.cross_entropy(model(x[step]), y)
        loss.backward()
        total = torch.zeros(())
        for i in (2, 0, 1):
            masks = [torch.arange(n) < round(n * SIZES[i]) for n in (16, 12)]
            h = torch.relu(plain[0](x[step])) * masks[0]
            h = torch.relu(plain[2](h)) * masks[1]
            total = total + (i + 1) * F.cross_entropy(plain[4](h), y)
        total.backward()
        assert sk.step == step
        optimizer.step()
        reference.step()
        assert sk.step == step + 1
        optimizer.zero_grad()
        reference.zero_grad()
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_large_weights_are_not_written_over_before_backward():
    """Beyond the size at which memory is used again from draw to draw."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 3))
    x = torch.randn(4, 64)
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.Nested(SIZES, scaled=False)), example=x)
    together, alone = 0.0, None
    for i in range(3):
        with sk.member(i):
            together = together + model(x).square().sum()
    together.backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    for i in range(3):
        with sk.member(i):
            model(x).square().sum().backward()
    alone = [p.grad for p in model.parameters()]
    for g, h in zip(found, alone, strict=True):
        torch.testing.assert_close(g, h, rtol=1e-5, atol=1e-5)


def test_members_in_evaluation_and_in_training_loops():
    model, x = mlp()
    sk = mast.nn.elastic(model, SIZES, [x[0]])
    model.eval()
    whole = model(x[1])
    with sk.member(0), torch.inference_mode():
        small = model(x[1])
    torch.testing.assert_close(small, sk.submodel(member=0)(x[1]))
    assert torch.equal(model(x[1]), whole)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = copy.deepcopy(model.state_dict())
    with sk.member(0):  # steps inside go on with the member
        train(model, sk, optimizer, x, (0, 4))
        assert sk.step == 4
        with sk.member(2):
            torch.testing.assert_close(model(x[1]), copy.deepcopy(model)(x[1]))
        assert sk.draw()["0.weight"].count == 4
    changed = (model[4].weight != before["4.weight"]).any(0)
    assert changed.tolist() == [True] * 3 + [False] * 9
    assert sk.drawn == sk.key


def test_members_are_used_by_one_thread_at_a_time():
    """The member is that of all calls: a second thread's would silently be used by the first one."""
    model, x = mlp()
    sk = mast.nn.elastic(model.eval(), SIZES, list(x[:2]))
    expected = [sk.submodel(member=i)(x[0]) for i in (0, 1)]

    def evaluated(member):
        with sk.member(member):
            return model(x[0])

    with ThreadPoolExecutor(1) as pool:
        with sk.member(0):
            with pytest.raises(mast.MastError, match=r"another thread is inside sk\.member\(\)"):
                pool.submit(evaluated, 1).result()
            torch.testing.assert_close(pool.submit(model, x[0]).result(), expected[0])
            torch.testing.assert_close(evaluated(1), expected[1])
            torch.testing.assert_close(model(x[0]), expected[0])
        torch.testing.assert_close(pool.submit(evaluated, 1).result(), expected[1])


def test_members_are_of_lists():
    model, x = mlp()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)), example=x[0])
    with pytest.raises(mast.MastError, match="is no list of draws"), sk.member(0):
        pass
    sk.sketch = mast.nn.Neurons(mast.Nested(SIZES))
    with pytest.raises(mast.MastError, match="member"), sk.member(3):
        pass
    assert sk.drawn == sk.key


def test_unscaled_starts_stay():
    model, _ = mlp()
    before = copy.deepcopy(model.state_dict())
    for sketch in (
        mast.UnscaledBernoulli(0.5),
        mast.nn.Neurons(mast.Nested(SIZES, scaled=False)),
        mast.nn.Neurons(mast.Sampled(mast.UnscaledBernoulli(0.5), 4)),
    ):
        assert "nothing was changed" in mast.nn.scale_start(model, sketch)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert "multiplied" in mast.nn.scale_start(model, mast.Bernoulli(0.5))
