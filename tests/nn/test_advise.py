"""Advice: measured curvature against Hessians that are known, and the theory's numbers from it."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest

import mast
from mast import theory

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from torch import nn  # noqa: E402

mse = nn.functional.mse_loss


def linear(rows=30, d=6, seed=0):
    """A linear model without bias and least squares data, whose Hessian 2 A'A/n is known."""
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(rows, d, generator=generator, dtype=torch.float64)
    model = nn.Linear(d, 1, bias=False).double()
    return model, A, (A, A.sum(1, keepdim=True))


def top(H):
    return float(torch.linalg.eigvalsh(H)[-1])


def test_the_curvature_of_a_quadratic_is_exact():
    model, A, batch = linear()
    advice = mast.nn.advise(model, mse, [batch], mast.Bernoulli(0.5))
    assert advice.smoothness == pytest.approx(top(2 * A.T @ A / 30), rel=1e-10)
    assert advice.plain == pytest.approx(1 / advice.smoothness)
    assert advice.smoothness_error < 1e-6 * advice.smoothness


def test_the_numbers_are_those_of_the_theory():
    model, _, batch = linear()
    advice = mast.nn.advise(model, mse, [batch], mast.Bernoulli(0.5), steps=500)
    c, L = mast.Bernoulli(0.5).constants(6), advice.smoothness
    assert advice.constants == c
    sizes = dict(zip(advice.table["method"], advice.table["step_size"], strict=True))
    assert advice.step_size == pytest.approx(1 / (L * c.L_max))
    assert sizes["gd on f_D"] == pytest.approx(1 / (L * c.L_D))
    assert sizes["dsgd, T = 500"] == pytest.approx(
        theory.dsgd("nonconvex", L_f=L, L_D=c.L_D, L_max=c.L_max).max_step_size(500)
    )
    assert sizes["average of 8, T = 500"] == pytest.approx(
        theory.averaged_draws("nonconvex", draws=8, L_f=L, L_D=c.L_D, L_max=c.L_max).max_step_size(500)
    )
    ratios = advice.table["ratio_to_plain"].to_numpy(dtype=float)
    np.testing.assert_allclose(ratios, advice.table["step_size"].to_numpy(dtype=float) * L)


@pytest.mark.parametrize("sketch", [mast.Nested([0.2, 0.5], scaled=False), mast.Sampled(mast.RandK(2), 1)])
def test_what_is_never_kept_does_not_count(sketch):
    """It stays as it is, so that the step size is that of the other weights."""
    model, _, batch = linear()
    advice = mast.nn.advise(model, mse, [batch], sketch)
    assert advice.step_size == pytest.approx(1 / (advice.smoothness * sketch.constants(6).L_max))


def test_without_scales_the_rate_of_adam_stays():
    model, _, batch = linear()
    for sketch in (mast.UnscaledBernoulli(0.5), mast.Nested([0.5, 1], scaled=False)):
        assert mast.nn.advise(model, mse, [batch], sketch).adam == "keep the learning rate of plain training."


def test_no_statement_covers_a_window_that_moves():
    model, _, batch = linear()
    advice = mast.nn.advise(model, mse, [batch], mast.Rolling(2))
    assert advice.step_size is None
    assert "depend on those of the steps before" in str(advice)


def test_the_curvature_of_draws_is_that_of_S_H_S(diagonal):
    model, A, batch = linear()
    advice = mast.nn.advise(model, mse, [batch], mast.Bernoulli(0.5), draws=4)
    H = 2 * A.T @ A / 30
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    root = mast.randomness.Key(0).child(0, mast.randomness.Purpose.ESTIMATE).seed
    for step, found in enumerate(advice.of_draws):
        c = diagonal(sk, step, seed=root)["weight"].flatten()
        assert found.value == pytest.approx(top(c[:, None] * H * c), rel=1e-8, abs=1e-12)
        assert found.value <= advice.smoothness * advice.constants.L_max * (1 + 1e-9)


def test_the_uncertainty_covers_the_truth():
    """Lanczos stopped early is off by no more than its residual; batches vary as they say."""
    generator = torch.Generator().manual_seed(3)
    d = 300
    A = torch.randn(4000, d, generator=generator, dtype=torch.float64)
    model = nn.Linear(d, 1, bias=False).double()
    batches = [(a, a.sum(1, keepdim=True)) for a in A.split(500)]
    exact = torch.linalg.eigvalsh(2 * A.T @ A / 4000)
    for iterations in (3, 6, 20):
        found = mast.nn.advise(model, mse, batches, mast.Bernoulli(0.5), iterations=iterations, draws=1).at_x
        assert (exact - found.value).abs().min() <= found.residual + 1e-9
        assert found.value <= exact[-1] + 1e-9
    assert 0 < found.stderr < found.value


class Passes:
    """Counts how often a loss is computed, gradients are taken, and products with the Hessian."""

    def __init__(self, monkeypatch):
        self.forward = self.gradients = self.products = 0
        self.original = torch.autograd.grad
        monkeypatch.setattr(torch.autograd, "grad", self.grad)

    def loss(self, outputs, targets):
        self.forward += 1
        return nn.functional.cross_entropy(outputs, targets)

    def grad(self, outputs, *args, create_graph=False, **options):
        self.gradients += create_graph
        self.products += not create_graph
        return self.original(outputs, *args, create_graph=create_graph, **options)


@pytest.mark.parametrize("sketch", [mast.Bernoulli(0.5), mast.nn.Neurons(mast.RandK(0.5))])
def test_the_quick_way_takes_twenty_passes_and_finds_nearly_the_same(models, monkeypatch, sketch):
    model, inputs = models.cnn()
    batches = [(inputs[0], torch.arange(10) % 3)]
    passes = Passes(monkeypatch)
    monkeypatch.setattr("mast.nn.advice.LARGE", 0)
    quick = mast.nn.advise(model, passes.loss, batches, sketch)
    assert passes.forward == passes.gradients == 2
    assert passes.gradients + 2.25 * passes.products <= 20  # a product costs 2.2 passes of resnet18
    slow = mast.nn.advise(model, passes.loss, batches, sketch, draws=1, iterations=40)
    pairs = [(quick.at_x, slow.at_x), *zip(quick.at_draws, slow.at_draws, strict=True)]
    for found, exact in [*pairs, *zip(quick.of_draws, slow.of_draws, strict=True)]:
        assert 0.2 * exact.value <= found.value <= (1 + 1e-5) * exact.value  # Lanczos comes from below
    assert 0.8 * slow.at_x.value <= quick.at_x.value
    assert quick.step_size <= 1.5 * slow.step_size


def test_many_batches_are_followed_once_each(models, monkeypatch):
    model, inputs = models.mlp()
    passes = Passes(monkeypatch)
    monkeypatch.setattr("mast.nn.advice.LARGE", 0)
    batches = [(inputs[i], torch.arange(10) % 3) for i in range(3)]
    advice = mast.nn.advise(model, passes.loss, batches, mast.Bernoulli(0.5))
    assert (passes.forward, passes.products) == (6, 21)
    assert advice.at_x.stderr > 0


def test_nothing_changes(models):
    model, inputs = models.cnn()
    before = copy.deepcopy(model.state_dict())
    advice = mast.nn.advise(
        model,
        nn.functional.cross_entropy,
        [(x, torch.arange(10) % 3) for x in inputs[:2]],
        mast.Bernoulli(0.7),
        draws=2,
    )
    assert all(torch.equal(model.state_dict()[key], before[key]) for key in before)
    assert all(p.grad is None for p in model.parameters())
    assert model.training
    assert not model._forward_pre_hooks
    assert len(advice.at_draws) == len(advice.of_draws) == 2
    text = str(advice)
    for word in ("curvature", "rule of thumb", "dsgd", "of plain", "L_max = 2.04"):
        assert word in text


def test_a_sparsified_model_is_advised_on_its_x():
    model, A, batch = linear()
    mast.nn.sparsify(model, mast.Bernoulli(0.1))
    advice = mast.nn.advise(model, mse, [batch], mast.Bernoulli(0.5))
    assert advice.smoothness == pytest.approx(top(2 * A.T @ A / 30), rel=1e-10)


def test_layers_without_second_derivatives_use_differences(models, monkeypatch):
    from mast.nn.curvature import MeanHessian

    model, inputs = models.mlp()
    model.double()
    batches = [(inputs[0].double(), torch.arange(10) % 3)]
    loss = nn.functional.cross_entropy
    exact = mast.nn.advise(model, loss, batches, mast.Bernoulli(0.7), draws=1, iterations=40).at_x.value

    def unavailable(self, batch, u):
        raise RuntimeError("derivative for aten::something is not implemented")

    monkeypatch.setattr(MeanHessian, "_exact", unavailable)
    close = mast.nn.advise(model, loss, batches, mast.Bernoulli(0.7), draws=1, iterations=40).at_x.value
    assert close == pytest.approx(exact, rel=1e-3)  # a ReLU network's differences see a few kinks


def test_inputs_in_a_dict_and_a_loss_of_ones_own(models):
    model, inputs = models.lstm()
    batches = [({"x": inputs[0]}, None)]
    advice = mast.nn.advise(model, lambda y, _: y.square().mean(), batches, mast.PermK(4), draws=1)
    assert advice.constants.L_max == 16
    assert advice.step_size > 0


def test_where_no_statement_applies_it_says_so():
    model, _, batch = linear()
    gaussian = mast.nn.advise(model, mse, [batch], mast.Gaussian(0.5))
    assert gaussian.step_size is None
    assert gaussian.constants.L_max == math.inf
    assert "L_max" in str(gaussian)
    biased = mast.nn.advise(model, mse, [batch], mast.nn.TopShare(0.5))
    assert biased.constants is None
    assert biased.step_size is None
    assert "biased" in str(biased)


def test_constants_cover_what_is_not_sketched(models):
    model, inputs = models.mlp()
    batches = [(inputs[0], torch.arange(10) % 3)]
    advice = mast.nn.advise(
        model, nn.functional.cross_entropy, batches, mast.Bernoulli(0.5), keep={"2.*": 0.25}, draws=1
    )
    assert (advice.constants.L_D, advice.constants.mu_D, advice.constants.L_max) == (4.0, 1.0, 16.0)


def test_bad_arguments():
    model, _, batch = linear()
    for call, message in (
        (lambda: mast.nn.advise(model, mse, [], mast.Bernoulli(0.5)), "at least one batch"),
        (lambda: mast.nn.advise(model, mse, [batch], mast.Bernoulli(0.5), steps=0), "steps must be"),
        (lambda: mast.nn.advise(model, mse, [batch], mast.Bernoulli(0.5), draws="x"), "draws must be"),
        (lambda: mast.nn.advise(model, mse, [batch], mast.Bernoulli(0.5), iterations=0.5), "iterations must"),
        (lambda: mast.nn.advise(model, lambda o, t: 0 * o.sum(), [batch], mast.Bernoulli(0.5)), "flat"),
        (
            lambda: mast.nn.advise(model, lambda o, t: (o / 0).square().sum(), [batch], mast.Bernoulli(0.5)),
            "finite",
        ),
        (lambda: mast.nn.advise(model, mse, [batch[0]], mast.Bernoulli(0.5)), "a loss needs targets"),
        (lambda: mast.nn.advise(model, None, [batch], mast.Bernoulli(0.5)), "a loss is needed"),
        (lambda: mast.nn.advise(model, mse, batch, mast.Bernoulli(0.5)), "targets: batches have to be pairs"),
    ):
        with pytest.raises(mast.MastError, match=message):
            call()


@pytest.mark.parametrize("spectrum", [(1.0, 5.0, -7.0), (3.0, 3.0, 3.0), (0.0, 0.0, 2.0)])
def test_lanczos_finds_the_largest_absolute_eigenvalue(spectrum):
    from mast.nn.curvature import dominant

    diagonal = torch.tensor(spectrum, dtype=torch.float64)
    start = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    value, residual, vector = dominant(lambda u: diagonal * u, start, 10)
    assert value == pytest.approx(max(map(abs, spectrum)), abs=1e-9)
    assert residual < 1e-6
    assert abs(float(vector @ (diagonal * vector))) == pytest.approx(value, abs=1e-9)
