"""Submodels of a density, within a budget, and the best of several draws."""

from __future__ import annotations

import pytest

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from torch import nn  # noqa: E402

from mast.nn.costs import flops  # noqa: E402
from mast.randomness import Key  # noqa: E402


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip


def count(model):
    return sum(p.numel() for p in model.parameters())


def test_a_density_is_that_of_the_sketch_at_it():
    sk = mast.nn.sparsify(network(), mast.nn.Neurons(mast.RandK(0.5)))
    quarter = sk.submodel(3, density=0.25)
    assert quarter[0].out_channels == quarter[2].out_channels == 4
    assert sk.submodel(3)[0].out_channels == 8  # the sketch stays
    sk.sketch = sk.sketch.at(0.25)
    assert all(
        torch.equal(a, b) for a, b in zip(quarter.parameters(), sk.submodel(3).parameters(), strict=True)
    )


@pytest.mark.parametrize("sketch", [mast.RandK(0.5), mast.Bernoulli(0.5)], ids=["randk", "bernoulli"])
@pytest.mark.parametrize(("budget", "share"), [("25% flops", 0.25), ("40% params", 0.4), (1000, None)])
def test_a_budget_is_used_and_not_exceeded(sketch, budget, share):
    x = torch.randn(2, 1, 12, 12)
    sk = mast.nn.sparsify(network(), mast.nn.Neurons(sketch), example=x)
    of = (lambda model: flops(model, x)) if "flops" in str(budget) else count
    most = 1000 if share is None else share * of(sk.model)
    small = sk.submodel(5, budget=budget)
    assert 0.75 * most < of(small) <= most  # one more channel in every layer costs up to a fourth
    assert of(sk.submodel(5, budget="100% params")) == of(sk.model)


def test_a_budget_of_single_weights():
    sk = mast.nn.sparsify(network(), mast.RandK(0.5))
    small = sk.submodel(5, budget="30% params")
    assert (
        0.29 * count(sk.model)
        < sum(int(p.count_nonzero()) for p in small.parameters())
        <= 0.3 * count(sk.model)
    )
    with pytest.raises(mast.MastError, match="smaller network"):
        sk.submodel(5, budget="30% flops")


def test_what_is_not_understood_is_refused():
    sk = mast.nn.sparsify(network(), mast.nn.Neurons(mast.RandK(0.5)))
    for options, message in (
        ({"budget": "a quarter"}, "is not understood"),
        ({"budget": "125% flops"}, "at most the whole"),
        ({"budget": 0}, "more than nothing"),
        ({"budget": [900]}, "is not understood"),
        ({"budget": 3}, "the smallest has"),
        ({"budget": 900, "density": 0.5}, "not both"),
    ):
        with pytest.raises(mast.MastError, match=message):
            sk.submodel(1, **options)
    with pytest.raises(mast.MastError, match="has its density"):
        sk.submodel(sk.draw(1), density=0.5)


def test_the_best_of_several_draws(tmp_path):
    x = torch.randn(4, 1, 12, 12)
    sk = mast.nn.sparsify(network(), mast.nn.Neurons(mast.RandK(0.5)))

    def score(model):
        return model(x).mean().item()

    found = sk.best(score, draws=6, density=0.25)
    assert found.scores == tuple(score(sk.submodel(seed, density=0.25)) for seed in range(6))
    assert found.score == max(found.scores) == score(found.model)
    assert found.key == Key(found.scores.index(found.score))
    assert "chosen: the best of 6 draws" in repr(found)
    model, best = sk.best(score, draws=6, density=0.25)
    assert best == found.score == score(model)
    path = sk.save_submodel(tmp_path / "best", found.draw)
    assert torch.equal(mast.nn.load_submodel(path, network())(x), found.model(x))
    path = sk.save_submodel(tmp_path / "budget", 2, budget="40% params")
    assert count(mast.nn.load_submodel(path, network())) <= 0.4 * count(sk.model)
    single = mast.nn.sparsify(network(), mast.RandK(0.5)).best(score, draws=2)
    assert single.draw is None
    with pytest.raises(mast.MastError, match="draws"):
        sk.best(score, draws=0)
    with pytest.raises(mast.MastError, match="evaluate returns one number"):
        sk.best(lambda model: None, draws=2)
    with pytest.raises(mast.MastError, match="seed 0 is NaN"):
        sk.best(lambda model: float("nan"), draws=2)
