"""Submodels are plain modules with the weights of a draw, and reports say how good they are."""

from __future__ import annotations

import copy

import pytest

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from torch import nn  # noqa: E402


@pytest.mark.parametrize("shift", [None, "init"])
@pytest.mark.parametrize("sketch", [mast.Bernoulli(0.6), mast.RandK(0.3), mast.PermK(4), mast.Gaussian(0.2)])
@pytest.mark.parametrize("name", ["mlp", "cnn", "lstm", "tied"])
def test_a_submodel_is_the_draw_of_its_seed(models, diagonal, name, sketch, shift):
    model, inputs = getattr(models, name)()
    sk = mast.nn.sparsify(model, sketch, shift=shift, seed=3, node=2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.5)
    sk.advance()
    before = copy.deepcopy(model.state_dict())
    sub = sk.submodel(seed=7)
    c = diagonal(sk, 0, seed=7, node=0)
    assert type(sub) is type(model)
    for key, p in sub.named_parameters():
        x, v = before[key], 0 if shift is None else sk.shift.get(key, 0)
        assert torch.equal(p, v + c[key] * (x - v) if key in c else x)
    assert all(torch.equal(model.state_dict()[key], before[key]) for key in before)
    assert not sub._forward_pre_hooks
    assert torch.equal(sub.train()(inputs[0]), sub(inputs[0]))  # plain: no new draw with each call
    assert sub is not sk.submodel(seed=7)


def test_a_submodel_in_the_middle_of_a_step(models):
    model, inputs = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    first = sk.submodel(1)
    pending = model(inputs[0]).sum()
    second = sk.submodel(1)
    pending.backward()
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))


def test_batch_norm_is_recalibrated(models):
    model, inputs = models.cnn()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    batches = [(x, None) for x in inputs]
    stale, fresh = sk.submodel(7), sk.submodel(7, calibrate=batches)
    assert not torch.equal(stale[1].running_mean, fresh[1].running_mean)
    entering = torch.stack([fresh[0](x) for x in inputs])
    torch.testing.assert_close(fresh[1].running_mean, entering.mean((0, 1, 3, 4)))
    assert fresh[1].momentum == model[1].momentum
    assert not fresh.training
    with pytest.raises(mast.MastError, match="no batch"):
        sk.submodel(7, calibrate=[])
    mast.nn.recalibrate(fresh, [{"input": inputs[0]}])


def test_report(models):
    model, _ = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5), keep={"4.weight": 0.9})

    def kept(sub):
        assert not sub.training
        return float((sub[0].weight != 0).double().mean())

    table = sk.report(kept, densities=[1.0, 0.75, 0.25], draws=30)
    assert table["density"].tolist() == [1.0, 0.75, 0.25]
    assert table["draws"].tolist() == [1, 30, 30]
    for row in table.itertuples():
        # 30 draws of 80 coins: five standard errors.
        assert row.mean == pytest.approx(row.density, abs=5 * (0.25 / 2400) ** 0.5)
        assert row.lowest <= row.quartile_1 <= row.median <= row.quartile_3 <= row.highest
    assert sk.report(kept, densities=[0.75], draws=3).equals(sk.report(kept, densities=[0.75], draws=3))
    assert sk.step == 0
    for wrong, message in (
        ({"densities": [0.0]}, "density must lie in"),
        ({"densities": [0.5], "draws": 0}, "draws must"),
    ):
        with pytest.raises(mast.MastError, match=message):
            sk.report(kept, **wrong)


@pytest.mark.parametrize(
    "sketch", [mast.RandK(10), mast.PermK(4), mast.PermK(2, redraw=True), mast.Identity()]
)
def test_reports_of_other_sketches_keep_their_density(sketch):
    layer = nn.Linear(40, 25, bias=False)
    sk = mast.nn.sparsify(layer, sketch)
    table = sk.report(lambda sub: float((sub.weight != 0).double().mean()), densities=[0.5, 0.3], draws=10)
    for row in table.itertuples():
        assert row.mean == pytest.approx(row.density, abs=5 * (0.25 / 10_000) ** 0.5)


def test_gaussian_sketches_have_no_densities():
    sk = mast.nn.sparsify(nn.Linear(3, 3), mast.Gaussian(0.1))
    with pytest.raises(mast.MastError, match="drops nothing"):
        sk.report(lambda sub: 0.0)
