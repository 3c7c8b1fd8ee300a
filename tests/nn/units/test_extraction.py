"""A submodel of a structured sketch is smaller, and computes what the masked whole model computes."""

from __future__ import annotations

import copy

import pytest

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from torch import nn  # noqa: E402

from mast.randomness import Key  # noqa: E402

SKETCHES = {
    "bernoulli": mast.Bernoulli(0.6),
    "randk": mast.RandK(0.4),
    "permk": mast.PermK(2),
    "mixture": mast.Mixture([mast.RandK(0.3), mast.Bernoulli(0.8)]),
    "gaussian": mast.Gaussian(0.3),
    "unscaled": mast.UnscaledBernoulli(0.5),
}


def agree(sk, zoo, inputs, seed):
    small, whole = sk.submodel(seed), zoo.masked(sk, Key(seed))
    with torch.no_grad():
        expected = whole(inputs)
        torch.testing.assert_close(small(inputs), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(small(inputs), whole(inputs), rtol=0, atol=1e-12)  # not the inference kernels
    return small, expected


@pytest.mark.parametrize("sketch", ["bernoulli", "mixture", "gaussian"])
def test_units(zoo, unit_model, sketch):
    model, inputs = zoo.make(unit_model)
    model.eval()
    plain = model(inputs).detach()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(SKETCHES[sketch]))
    differ = 0
    for seed in range(2):
        small, expected = agree(sk, zoo, inputs, seed)
        differ += not torch.allclose(expected, plain)
        assert type(small) is type(model)
        assert small.state_dict().keys() == model.state_dict().keys()
        count = sum(p.numel() for p in small.parameters())
        assert count == sk.unit_map.cut(sk.draw(seed)).count
        kept = sk.draw(seed).shares
        if sketch == "gaussian":
            assert count == sum(p.numel() for p in model.parameters())
        elif any(share < 1 for share in kept.values()):
            assert count < sum(p.numel() for p in model.parameters())
    assert differ >= 1  # the draw matters for the output


@pytest.mark.parametrize("sketch", ["randk", "permk", "unscaled"])
def test_units_of_more_sketches(zoo, sketch):
    for name in ("mlp", "resnet", "vit pre batch first"):
        model, inputs = zoo.make(name)
        agree(mast.nn.sparsify(model.eval(), mast.nn.Neurons(SKETCHES[sketch])), zoo, inputs, 1)


@pytest.mark.parametrize("sketch", ["bernoulli", "randk", "gaussian"])
def test_branches(zoo, branch_model, sketch):
    model, inputs = zoo.make(branch_model)
    model.eval()
    plain = model(inputs).detach()
    sk = mast.nn.sparsify(model, mast.nn.Layers(SKETCHES[sketch]))
    differ = 0
    for seed in range(4):
        small, expected = agree(sk, zoo, inputs, seed)
        differ += not torch.allclose(expected, plain)
        dropped = sk.draw(seed).shares[sk.unit_map.groups[0].name] < 1
        if dropped:
            assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())
    assert differ >= 2 or (sketch == "randk" and len(sk.unit_map.branches) == 1)  # which it keeps


def test_the_masked_model_is_what_sample_computes_with(zoo, unit_model):
    """The reference of this file is the library's own masked model, in both modes."""
    model, inputs = zoo.make(unit_model)
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.Bernoulli(0.6)), seed=5)
    whole = zoo.masked(sk, Key(5, step=2))
    model.eval()
    with sk.sample(2), torch.no_grad():
        torch.testing.assert_close(model(inputs), whole(inputs), rtol=0, atol=1e-12)
    model.train()
    whole.train()
    sk.load_state_dict(sk.state_dict() | {"step": 2})
    torch.testing.assert_close(model(inputs), whole(inputs), rtol=0, atol=1e-12)


def test_submodels_are_plain(zoo):
    model, inputs = zoo.make("resnet")
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)))
    before = copy.deepcopy(model.state_dict())
    small = sk.submodel(3)
    assert not small.training
    assert not small._forward_pre_hooks
    assert all(m._compiled_call_impl is None for m in small.modules())
    assert small.stem.out_channels == 4
    assert small.blocks[0].first.in_channels == 4
    assert small.norm.num_features == 4
    assert small.head.in_features == 6
    with torch.no_grad():
        for p in small.parameters():
            p.zero_()
    assert all(torch.equal(before[key], t) for key, t in model.state_dict().items())
    again = sk.submodel(sk.draw(3))
    assert torch.equal(again(inputs), sk.submodel(Key(3))(inputs))
    assert torch.equal(copy.deepcopy(again)(inputs), again(inputs))


def test_no_unit_is_left(zoo, unit_model):
    """A layer that loses all of its units contributes nothing: one unit stays, with outgoing weights 0."""
    model, inputs = zoo.make(unit_model)
    sk = mast.nn.sparsify(model.eval(), mast.nn.Neurons(mast.Bernoulli(2**-30)))
    small, _ = agree(sk, zoo, inputs, 0)
    assert all(share == 0 for share in sk.draw(0).shares.values())
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())


def test_calibration(zoo):
    model, _ = zoo.make("resnet")
    batches = [torch.randn(8, 3, 8, 8, dtype=torch.float64) for _ in range(3)]
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)))
    stale, fresh = sk.submodel(1), sk.submodel(1, calibrate=batches)
    assert not torch.equal(stale.norm.running_mean, fresh.norm.running_mean)
    entering = torch.cat([fresh.stem(x) for x in batches])
    torch.testing.assert_close(fresh.norm.running_mean, entering.mean((0, 2, 3)))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_attention_masks(zoo, batch_first, norm_first):
    """Masks of two and of three dimensions and padding act on the kept heads as on the whole model's."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        8, 4, 12, dropout=0.0, batch_first=batch_first, norm_first=norm_first, dtype=torch.float64
    ).eval()
    sk = mast.nn.sparsify(layer, mast.nn.Neurons(mast.RandK(0.5)))
    small, whole = sk.submodel(1), zoo.masked(sk, Key(1))
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    batch, length = (3, 5) if batch_first else (5, 3)
    one = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
    each = torch.randn(batch * 4, length, length, dtype=torch.float64)
    padding = torch.zeros(batch, length, dtype=torch.bool)
    padding[:, -1] = True
    for options in (
        {"src_mask": one},
        {"src_mask": one, "is_causal": True},
        {"src_mask": each},
        {"src_key_padding_mask": padding},
        {"src_mask": one, "src_key_padding_mask": padding},
    ):
        torch.testing.assert_close(small(x, **options), whole(x, **options), rtol=0, atol=1e-12)
    unbatched = torch.randn(5, 8, dtype=torch.float64)
    torch.testing.assert_close(small(unbatched), whole(unbatched), rtol=0, atol=1e-12)


def test_a_shift_needs_zeros_where_units_are_dropped(zoo):
    model, inputs = zoo.make("mlp")
    model.eval()
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)), shift="init")
    with pytest.raises(mast.MastError, match=r"2\.weight.*base.*delta.*save_delta"):
        sk.submodel(0)
    sk.remove()
    # With v = 0 on all units that can be dropped, and anything elsewhere, it is a smaller model.
    names = ["2.weight", "5.weight"]
    free = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)))
    draw = free.draw(4)
    free.remove()
    shift = {}
    for name, group in zip(names, ["0.weight", "2.weight"], strict=True):
        v = torch.zeros_like(model.get_parameter(name))
        v[:, draw[group].indices] = torch.randn(len(v), draw[group].indices.size, dtype=torch.float64)
        shift[name] = v
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)), shift=shift)
    agree(sk, zoo, inputs, 4)


def test_draws_of_units_belong_to_structured_sketches(zoo):
    model, _ = zoo.make("mlp")
    other, _ = zoo.make("viewed")
    draw = mast.nn.sparsify(other, mast.nn.Neurons(mast.RandK(0.5))).draw(0)
    sk = mast.nn.sparsify(model, mast.nn.Neurons(mast.RandK(0.5)))
    with pytest.raises(mast.MastError, match="another model"):
        sk.submodel(draw)
    sk.remove()
    plain = mast.nn.sparsify(model, mast.RandK(0.5))
    with pytest.raises(mast.MastError, match="structured"):
        plain.submodel(draw)
    with pytest.raises(mast.MastError, match="single weights"):
        plain.draw(0)
    assert torch.equal(plain.submodel(3)[0].weight, plain.submodel(Key(3))[0].weight)
