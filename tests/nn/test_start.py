"""Fresh weights: sketched outputs keep the variance of plain ones."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import mast  # noqa: E402
from mast.errors import ArgumentError  # noqa: E402


def mlp(width=256):
    torch.manual_seed(1)
    layers = [nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)]
    model = nn.Sequential(*layers)
    for layer in layers[::2]:
        nn.init.kaiming_normal_(layer.weight)
        nn.init.zeros_(layer.bias)
    return model


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def ratio(model, sketch):
    """The mean square of sparsified outputs, over that of the plain outputs before the start was scaled."""
    torch.manual_seed(0)
    x = torch.randn(200, 64)
    with torch.no_grad():
        plain = model(x).square().mean().item()
        mast.nn.scale_start(model, sketch)
        sk = mast.nn.sparsify(model, sketch)
        squares = [sk.submodel(seed)(x).square().mean().item() for seed in range(12)]
    return np.mean(squares) / plain


@pytest.mark.parametrize(
    "sketch",
    [mast.Bernoulli(0.2), mast.RandK(0.3), mast.PermK(4), mast.Sampled(mast.Bernoulli(0.2), 20),
     mast.Sampled(mast.Bernoulli(0.3), 12, corrected=True), mast.nn.Neurons(mast.RandK(0.25)),
     mast.nn.Neurons(mast.Sampled(mast.RandK(0.25), 12)), mast.Rolling(0.25)],
    ids=repr,
)  # fmt: skip
def test_sketched_outputs_keep_their_variance(sketch):
    assert 0.6 < ratio(mlp(), sketch) < 1.7  # unscaled it is between 16 and 125


def test_the_factor_is_the_root_of_the_share():
    model = mlp()
    before = weights(model)
    assert mast.nn.scale_start(model, "bernoulli:.25") == "3 weights were multiplied by 0.5"
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name] * (0.5 if p.ndim > 1 else 1))


def test_shares_of_their_own():
    model = mlp()
    before = weights(model)
    mast.nn.scale_start(model, mast.Bernoulli(0.25), keep={"0.*": 1, "4.weight": 0.04})
    factors = [(p / before[n]).mean().item() for n, p in model.named_parameters() if n.endswith("weight")]
    assert factors == pytest.approx([1, 0.5, 0.2], rel=1e-6)


def test_nested_the_whole_draw_is_the_ordinary_start():
    for sketch in (mast.Nested([0.25, 1.0]), mast.nn.Neurons(mast.Nested([0.25, 1.0]))):
        model = mlp()
        before = weights(model)
        mast.nn.scale_start(model, sketch)
        sk = mast.nn.sparsify(model, sketch)
        for name, p in sk.submodel(member=1).named_parameters():
            torch.testing.assert_close(p, before[name])


def test_nothing_where_every_part_of_a_mixture_has_scale_1():
    dropout = [mast.UnscaledBernoulli(0.3), mast.UnscaledBernoulli(0.6)]
    sizes = [mast.Nested([0.25, 1.0], scaled=False), mast.Nested([0.5, 1.0], scaled=False)]
    for sketch in (mast.Mixture(dropout, [0.5, 0.5]), mast.nn.Neurons(mast.Mixture(sizes))):
        model = mlp()
        before = weights(model)
        assert "scale 1" in mast.nn.scale_start(model, sketch)
        assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    half = mast.Mixture([mast.UnscaledBernoulli(0.3), mast.Bernoulli(0.3)])
    assert "multiplied" in mast.nn.scale_start(mlp(), half)


def test_a_list_that_is_corrected_has_scales():
    """Divided by their means over the list, masks without scales are those of Bernoulli."""
    one, two = mlp(), mlp()
    mast.nn.scale_start(one, mast.Sampled(mast.UnscaledBernoulli(0.25), 4, corrected=True))
    mast.nn.scale_start(two, mast.Sampled(mast.Bernoulli(0.25), 4, corrected=True))
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_nothing_where_a_norm_follows():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    before = weights(model)
    line = mast.nn.scale_start(model, mast.Bernoulli(0.25))
    assert "norm follows" in line
    assert torch.equal(model[0].weight, before["0.weight"])
    assert torch.equal(model[3].weight, before["3.weight"] / 2)


class Output(nn.Module):
    """The end of a block of BERT."""

    def __init__(self, residual):
        super().__init__()
        self.dense, self.norm, self.residual = nn.Linear(16, 16), nn.LayerNorm(16), residual

    def forward(self, x):
        return self.norm(x + self.dense(x) if self.residual else self.dense(x))


@pytest.mark.parametrize("example", [None, torch.ones(2, 16)], ids=["guessed", "given"])
def test_a_residual_before_the_norm_makes_the_size_matter(example):
    for residual, factor in ((True, 0.5), (False, 1.0)):
        model = nn.Sequential(Output(residual), nn.ReLU(), nn.Linear(16, 2))
        before = weights(model)
        mast.nn.scale_start(model, mast.Bernoulli(0.25), example=example)
        assert torch.equal(model[0].dense.weight, factor * before["0.dense.weight"])
        assert torch.equal(model[2].weight, before["2.weight"] / 2)


def test_a_norm_does_not_undo_factors_that_differ_from_channel_to_channel():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8),
              nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 2)]  # fmt: skip
    model, sketch = nn.Sequential(*layers), mast.nn.Neurons(mast.Nested([0.25, 0.5, 1.0]))
    before, x = weights(model), torch.randn(5, 3, 8, 8)
    plain = model.eval()(x)
    assert "norm" not in mast.nn.scale_start(model, sketch, example=x)
    whole = mast.nn.sparsify(model, sketch, example=x).submodel(member=2, calibrate=False)
    for name, p in whole.named_parameters():
        torch.testing.assert_close(p, before[name])
    torch.testing.assert_close(whole(x), plain)


def test_an_example_shows_where_norms_follow():
    class Embedded(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.norm = nn.Embedding(10, 16), nn.LayerNorm(16)
            self.dense, self.after, self.head = nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 2)

        def forward(self, ids):
            return self.head(self.after(self.dense(self.norm(self.table(ids)))))

    batch = {"ids": torch.arange(6).view(2, 3)}
    line = mast.nn.scale_start(Embedded(), mast.Bernoulli(0.25), example=batch)
    assert line == "1 weight was multiplied by 0.5; 2 weights left as they were, because a norm follows"
    assert mast.nn.scale_start(Embedded(), mast.Bernoulli(0.25)) == "3 weights were multiplied by 0.5"


def test_nothing_with_a_shift():
    model = mlp()
    before = weights(model)
    assert "shift" in mast.nn.scale_start(model, mast.Bernoulli(0.25), shift="init")
    mast.nn.sparsify(model, mast.Bernoulli(0.25), shift="init")
    assert "shift" in mast.nn.scale_start(model, mast.Bernoulli(0.25))
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_after_sparsify_it_is_the_same_and_another_sketch_is_refused():
    one, two = mlp(), mlp()
    mast.nn.scale_start(one, mast.Bernoulli(0.5))
    sk = mast.nn.sparsify(two, mast.Bernoulli(0.5))
    with pytest.raises(ArgumentError, match="sparsified with"):
        mast.nn.scale_start(two, mast.Bernoulli(0.2))
    mast.nn.scale_start(two, mast.Bernoulli(0.5))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    sk.remove()


def test_validate_measures_the_outputs():
    torch.manual_seed(0)
    batch = (torch.randn(64, 64), torch.zeros(64))
    model, sketch = mlp(), mast.Bernoulli(0.2)
    sk = mast.nn.sparsify(model, sketch)
    (finding,) = [f for f in mast.nn.validate(model, batch=batch) if f.where == "outputs"]
    assert "scale_start" in finding.fix
    assert float(finding.problem.split(" vary ")[1].split()[0]) > 5
    mast.nn.scale_start(model, sketch)
    assert not [f for f in mast.nn.validate(model, batch=batch) if f.where == "outputs"]
    sk.remove()
    fresh = mlp()
    mast.nn.sparsify(fresh, mast.Bernoulli(0.7))
    assert not [f for f in mast.nn.validate(fresh, batch=batch) if f.where == "outputs"]


def test_outputs_that_are_too_small_are_nothing_for_scale_start():
    torch.manual_seed(0)
    model = mlp()
    mast.nn.sparsify(model, mast.UnscaledBernoulli(0.05))
    (finding,) = [f for f in mast.nn.validate(model, batch=torch.randn(64, 64)) if f.where == "outputs"]
    assert "keep a larger share" in finding.fix
    assert "scale_start" not in finding.fix


def test_outputs_that_are_whole_numbers_do_not_hide_the_others():
    class Classes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4)))

        def forward(self, x):
            outputs = self.layers(x)
            return outputs, 1_000_000 * torch.arange(len(x))

    model, batch = Classes(), torch.randn(8, 64)
    mast.nn.sparsify(model, mast.Bernoulli(0.1))
    assert [f for f in mast.nn.validate(model, batch=batch) if f.where == "outputs"]


def test_a_second_call_changes_nothing():
    model = mlp()
    mast.nn.scale_start(model, mast.Bernoulli(0.25))
    once = weights(model)
    line = mast.nn.scale_start(model, mast.Bernoulli(0.25))
    assert line == "3 weights left as they were, because they were scaled before"
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.25))
    mast.nn.scale_start(model, sk.sketch)
    assert all(torch.equal(p, once[name]) for name, p in model.named_parameters())


def test_a_second_call_for_another_sketch_is_refused():
    model = mlp()
    mast.nn.scale_start(model, mast.Bernoulli(0.25))
    once = weights(model)
    with pytest.raises(ArgumentError, match=r"scaled for <Bernoulli\(0.25\).* before.*fresh weights"):
        mast.nn.scale_start(model, mast.Bernoulli(0.5))
    assert all(torch.equal(p, once[name]) for name, p in model.named_parameters())


def test_weights_that_were_made_anew_are_scaled_again():
    model = mlp()
    mast.nn.scale_start(model, mast.Bernoulli(0.25))
    model[0].weight.data.copy_(mlp()[0].weight)  # behind autograd's back
    nn.init.kaiming_normal_(model[2].weight)
    before = weights(model)
    line = mast.nn.scale_start(model, mast.Bernoulli(0.25))
    assert line.startswith("2 weights were multiplied by 0.5; 1 weight left as it was, because it was")
    for name in ("0.weight", "2.weight"):
        assert torch.equal(model.get_parameter(name), before[name] / 2)
    assert torch.equal(model[4].weight, before["4.weight"])


def test_a_factor_of_one_does_not_count():
    model = mlp()
    mast.nn.scale_start(model, mast.Identity())
    assert mast.nn.scale_start(model, mast.Bernoulli(0.25)) == "3 weights were multiplied by 0.5"
