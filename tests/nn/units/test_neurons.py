"""Unit groups without an example, and `Neurons` is inverted dropout on them."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from mast.nn.tensors.sparsified import multiply  # noqa: E402
from mast.nn.tensors.weights import name_index  # noqa: E402
from mast.randomness import Key  # noqa: E402


def find_groups(model):
    unit_map = mast.nn.find_units(model, mast.nn.Neurons(mast.Identity()))
    return unit_map.groups, unit_map.excluded


def names(axes):
    return [(a.tensor, a.dim, a.run, a.offset) for a in axes]


def test_spaces_of_a_residual_network(zoo):
    model, _ = zoo.make("resnet")
    groups, others = find_groups(model)
    assert {s.name: s.units for s in groups} == {
        "stem.weight": 8,
        "blocks.0.first.weight": 8,
        "blocks.1.first.weight": 8,
        "blocks.2.first.weight": 12,
        "blocks.2.second.weight": 12,
    }
    assert others["head.weight"] == "they are the model's output"
    trunk = groups[0]  # all that is added to the stem is one group
    assert {a.tensor for a in trunk.producers} >= {"blocks.0.second.weight", "blocks.1.norm2.running_var"}
    assert names(trunk.consumers) == [
        ("blocks.0.first.weight", 1, 1, 0),
        ("blocks.1.first.weight", 1, 1, 0),
        ("blocks.2.first.weight", 1, 1, 0),
        ("blocks.2.around.0.weight", 1, 1, 0),
    ]


def test_heads_runs_and_groups(zoo):
    encoder, _ = zoo.make("encoder layer")
    heads, hidden = find_groups(encoder)[0]
    assert (heads.units, hidden.units) == (2, 12)
    assert names(heads.producers) == [("self_attn.in_proj_weight", 0, 4, offset) for offset in (0, 8, 16)]
    assert names(heads.consumers) == [("self_attn.out_proj.weight", 1, 4, 0)]
    viewed, _ = zoo.make("viewed")
    assert names(find_groups(viewed)[0][1].consumers) == [("c.weight", 1, 5, 0)]
    grouped, _ = zoo.make("grouped")
    groups, _ = find_groups(grouped)
    # 12 channels in 4 groups of 3 and in 6 groups of 2: blocks of 6 are whole groups of both.
    assert [(s.name, s.units) for s in groups] == [("0.weight", 2), ("6.weight", 6)]
    sk = mast.nn.sparsify(grouped, mast.nn.Neurons(mast.RandK(1)))
    small = sk.submodel(0, calibrate=False)
    assert [(small[i].num_groups, small[i].num_channels) for i in (1, 5)] == [(2, 6), (3, 6)]
    assert [(small[i].num_features) for i in (7, 8)] == [1, 1]


def test_shapes_are_enough(zoo, unit_model):
    model, _ = zoo.make(unit_model)
    assert find_groups(copy.deepcopy(model).to("meta")) == find_groups(model)


def test_each_space_has_a_draw_of_its_own(zoo):
    model, _ = zoo.make("mlp")
    sketch = mast.Bernoulli(0.5)
    sk = mast.nn.sparsify(model, mast.nn.Neurons(sketch), seed=11, node=2)
    draw = sk.draw(Key(11, 3, 2))
    for group, units in (("0.weight", 9), ("2.weight", 7)):
        expected = sketch.draw(units, 11, 3, 2, index=name_index(group))
        assert np.array_equal(draw[group].indices, expected.indices)
        assert np.array_equal(draw[group].diagonal(), expected.diagonal())
    kept = sk.kept(Key(11, 3, 2))
    assert set(kept) == {"2.weight", "5.weight"}  # the outgoing weights
    wide = multiply(kept["5.weight"], torch.ones(3, 7))
    assert torch.equal(wide, torch.from_numpy(draw["2.weight"].diagonal()).float().expand(3, 7))


def test_rand_k_keeps_its_share_of_each_layer_and_perm_k_splits_each():
    model = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 2))
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.25)))
    assert {name: units.count for name, units in sk.draw(5).items()} == {"0.weight": 3, "2.weight": 2}
    sk.remove()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.PermK(4)))
    for group, units in (("0.weight", 12), ("2.weight", 8)):
        blocks = [sk.draw(Key(1, 7, node))[group].indices for node in range(4)]
        assert sorted(np.concatenate(blocks).tolist()) == list(range(units))


def test_a_mixture_chooses_once_for_the_whole_model():
    model = nn.Sequential(nn.Linear(4, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 2))
    mixture = mast.Mixture([mast.RandK(0.1), mast.Mixture([mast.RandK(0.5), mast.RandK(0.9)])])
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mixture))
    seen = []
    for seed in range(60):
        shares = set(sk.draw(seed).shares.values())
        assert len(shares) == 1
        seen.append(shares.pop())
    assert set(seen) == {0.1, 0.5, 0.9}
    same = [np.array_equal(sk.draw(s)["0.weight"].indices, sk.draw(s)["2.weight"].indices) for s in range(60)]
    assert not any(same)  # one choice, but draws of their own


def dropout_mask(shape, p):
    """nn.Dropout's own factors, 0 or 1/(1-p)."""
    torch.manual_seed(42)
    return F.dropout(torch.ones(shape, dtype=torch.float64), p, training=True)


class Given(nn.Module):
    """Dropout of whole units with a mask that is given."""

    def __init__(self, mask):
        super().__init__()
        self.mask = mask

    def forward(self, x):
        return x * self.mask


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Sigmoid, nn.Softplus])
def test_equals_inverted_dropout_on_units(activation):
    """With nn.Dropout's mask, one for the batch: equal loss, equal gradients."""
    torch.manual_seed(1)
    mask = dropout_mask(9, 0.5)
    dropout = nn.Sequential(
        nn.Linear(4, 9), activation(), Given(mask), nn.Linear(9, 7), activation(), nn.Linear(7, 3)
    ).double()
    model = nn.Sequential(*(copy.deepcopy(dropout[i]) for i in (0, 1, 3, 4, 5)))
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.Bernoulli(0.5)), keep={"2.weight": 1})
    _give(sk, "0.weight", mask)
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 3
    F.cross_entropy(dropout(x), y).backward()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    assert loss.item() == pytest.approx(F.cross_entropy(dropout(x), y).item(), abs=1e-14)
    for mine, theirs in zip(model.parameters(), dropout.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=1e-14)
    dropped = mask == 0
    assert dropped.any()
    assert torch.equal(model[0].weight.grad[dropped], torch.zeros(int(dropped.sum()), 4, dtype=torch.float64))


def _give(sk, group, mask):
    """Let the current draw be a mask that is known."""
    from mast.nn.units import UnitDraw
    from mast.sketches import DiagonalDraw

    kept = np.flatnonzero(mask.numpy())
    sk.bound._last = UnitDraw({group: DiagonalDraw(mask.numel(), kept, mask.numpy()[kept])}, sk.key)


def test_constants_are_those_over_units(zoo):
    model, _ = zoo.make("mlp")
    for sketch in (mast.Bernoulli(0.25), mast.RandK(0.5), mast.PermK(3)):
        sk = mast.nn.sparsify(model, mast.nn.Neurons(sketch))
        by_space = [sketch.constants(d) for d in (9, 7)]
        found = sk.bound.constants()
        assert found.L_D == max(c.L_D for c in by_space)
        assert found.mu_D == min(c.mu_D for c in by_space)
        assert found.L_max == max(c.L_max for c in by_space)
        # S over all outgoing weights, the long way: E[S'S] by Monte Carlo over 4000 draws.
        squares = sum(sk.kept(Key(s))["2.weight"].compact_diagonal() ** 2 for s in range(4000)) / 4000
        c = sketch.constants(9)
        spread = 5 * np.sqrt(c.L_max * c.L_D / 4000)
        assert abs(squares - c.L_D).max() < spread
        sk.remove()


def test_the_mean_of_s_is_the_identity(zoo):
    model, _ = zoo.make("vit pre batch first")
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.PermK(2)))
    for name in sk.kept():
        mean = sum(sk.kept(Key(0, 5, node))[name].compact_diagonal() for node in range(2)) / 2
        assert (mean == 1).all()  # two nodes share all units


def test_advice_and_validation():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    data = (torch.randn(16, 4, dtype=torch.float64), torch.randn(16, 1, dtype=torch.float64))
    advice = mast.nn.advise(model, F.mse_loss, [data], mast.nn.Neurons(mast.RandK(2)))
    assert advice.constants == mast.sketches.Constants(4.0, 1.0, 16.0)  # 1: biases and incoming weights stay
    assert advice.step_size == pytest.approx(1 / (16 * advice.smoothness), rel=1e-6)
    assert "Neurons(RandK(2)" in str(advice)
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.UnscaledBernoulli(0.5)))
    assert mast.nn.validate(model) == []
    sk.remove()
    mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(2)))
    assert any("sqrt(L_D) = 2" in f.problem for f in mast.nn.validate(model))


def test_keep_and_where(zoo):
    model, inputs = zoo.make("mlp")
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.Bernoulli(0.5)), keep={"2.*": 0.9})
    assert [s.keep for s in sk.unit_map.groups] == [None, 0.9]
    assert [repr(s) for s in sk.bound.sketches] == [repr(mast.Bernoulli(0.5)), repr(mast.Bernoulli(0.9))]
    assert sk.density == pytest.approx((0.5 * 63 + 0.9 * 21) / 84)
    state = sk.state_dict()
    sk.remove()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.Bernoulli(0.5)), keep={"0.weight": 1})
    assert [s.name for s in sk.unit_map.groups] == ["2.weight"]
    assert "keep = 1" in str(sk)
    with pytest.raises(mast.MastError, match="another"):
        sk.load_state_dict(state)
    sk.remove()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(3)), where=lambda name, p: len(p) == 9)
    assert [s.name for s in sk.unit_map.groups] == ["0.weight"]
    assert sk.submodel(0)[0].out_features == 3
    sk.remove()
    for sketch, options, message in (
        (mast.RandK(0.5), {"keep": {"2.*": 0.9}}, r"2\.weight.*only Bernoulli"),
        (mast.Bernoulli(0.5), {"keep": {"0.bias": 0.9}}, "none of the units"),
        (mast.Bernoulli(0.5), {"keep": {"nothing": 0.9}}, "none of the parameters"),
        (mast.Bernoulli(0.5), {"keep": {"*": 0.0}}, "probability"),
        (mast.Bernoulli(0.5), {"where": "nothing"}, "none of the parameters"),
        (mast.Bernoulli(0.5), {"where": "5.weight"}, "no units.*output"),
        (mast.RandK(8), {}, r"7 units of '2\.weight'.*cannot keep 8"),
        (mast.Bernoulli([0.5] * 9), {}, r"2\.weight"),
    ):
        with pytest.raises(mast.MastError, match=message):
            mast.nn.sparsify(model, mast.nn.Neurons(sketch), **options)
    assert model(inputs) is not None  # nothing was left behind


def test_checkpoints_continue(zoo):
    model, inputs = zoo.make("resnet")
    start = copy.deepcopy(model)

    def train(net, sk, steps):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(steps):
            optimizer.zero_grad()
            net(inputs).square().mean().backward()
            optimizer.step()

    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.Bernoulli(0.5)), seed=3)
    train(model, sk, 4)
    other = mast.nn.sparsify(start, mast.nn.Neurons(mast.Bernoulli(0.5)))
    other.load_state_dict(
        mast.nn.sparsify(copy.deepcopy(start), mast.nn.Neurons(mast.Bernoulli(0.5)), seed=3).state_dict()
    )
    train(start, other, 2)
    again = copy.deepcopy(start)
    last = mast.nn.sparsify(again, mast.nn.Neurons(mast.Bernoulli(0.5)))
    last.load_state_dict(other.state_dict())
    train(again, last, 2)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters(), strict=True))


def test_densities(zoo):
    assert repr(mast.nn.Neurons(mast.Bernoulli(0.7)).at(0.5)) == repr(mast.nn.Neurons(mast.Bernoulli(0.5)))
    assert repr(mast.nn.Layers(mast.RandK(3)).at(1)) == repr(mast.nn.Layers(mast.Identity()))


def test_spelling():
    for text, sketch in (
        ("neurons:.25", mast.nn.Neurons(mast.RandK(0.25))),
        ("neurons:25%", mast.nn.Neurons(mast.RandK(0.25))),
        ("neurons:3", mast.nn.Neurons(mast.RandK(3))),
        ("Neurons:permk:4", mast.nn.Neurons(mast.PermK(4))),
        ("layers:bernoulli:.8", mast.nn.Layers(mast.Bernoulli(0.8))),
        ("randk:10", mast.RandK(10)),
    ):
        assert repr(mast.nn.parse(text)) == repr(sketch)
    for text in ("neurons", "neurons:", "layers:what:1", "neurons:1.5", "nothing:1", 3):
        with pytest.raises(mast.MastError):
            mast.nn.parse(text)


def test_what_structured_sketches_take():
    with pytest.raises(mast.MastError, match="diagonal"):
        mast.nn.Neurons(mast.Matrices([[[1.0, 1.0], [0.0, 1.0]], [[1.0, -1.0], [0.0, 1.0]]]))
    with pytest.raises(mast.MastError, match="takes a sketch"):
        mast.nn.Neurons(0.5)
    with pytest.raises(mast.MastError, match="over a network"):
        mast.nn.Layers(mast.nn.Neurons(mast.RandK(1)))
    assert mast.nn.Neurons(mast.RandK(2)).constants(10) == mast.RandK(2).constants(10)
