"""Estimators against their formulas, written out with the reference's gradients."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import mast
from mast import randomness
from mast.randomness import Key, Purpose

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from torch import nn  # noqa: E402

sgd = lambda p: torch.optim.SGD(p, lr=0.05)  # noqa: E731


class Plain:
    """Gradients of f_S at any weights, the long way, and a model to apply updates to."""

    def __init__(self, reference, diagonal, sk, model):
        self.ref = reference(sk, model, sgd)
        self.diagonal = diagonal
        self.sk = sk

    def gradient(self, key, loss, at=None):
        """grad f_S as one vector, at x or elsewhere."""
        ref = copy.copy(self.ref)
        ref.x = copy.deepcopy(self.ref.x)
        if at is not None:
            nn.utils.vector_to_parameters(at, ref.x.parameters())
        ref.gradient(None, [loss], self.diagonal(self.sk, key.step, seed=key.seed, node=key.node))
        return nn.utils.parameters_to_vector([p.grad for p in ref.x.parameters()])

    @property
    def x(self):
        return nn.utils.parameters_to_vector(self.ref.x.parameters()).detach().clone()

    def move(self, h):
        nn.utils.vector_to_parameters(self.x - 0.05 * h, self.ref.x.parameters())


def agree(model, plain):
    ours = nn.utils.parameters_to_vector(model.parameters())
    torch.testing.assert_close(ours, plain.x, rtol=1e-9, atol=1e-10)  # double precision, other order of sums


def both_forms(models, sketch, reference, diagonal, loss_on, shift="init"):
    model, inputs = models.mlp()
    model.double()
    sk = mast.nn.sparsify(model, sketch, shift=shift, seed=5)
    plain = Plain(reference, diagonal, sk, model)
    return model, sk, plain, loss_on(inputs[0].double()), sgd(model.parameters())


def test_average_is_the_mean_over_independent_draws(models, reference, diagonal, loss_on):
    model, sk, plain, loss, opt = both_forms(models, mast.Bernoulli(0.6), reference, diagonal, loss_on)
    estimator = mast.nn.Average(sk, draws=3)
    keys = []
    for step in range(4):
        own = [estimator.key(j) for j in range(3)]
        keys += own
        assert own[0] == Key(5, step, 0)  # the draw of plain training
        estimator.backward(lambda: loss(model))
        opt.step()
        opt.zero_grad()
        plain.move(torch.stack([plain.gradient(key, loss) for key in own]).mean(0))
    agree(model, plain)
    assert len(set(keys)) == 12
    assert sk.step == 4


def test_average_of_one_is_plain_training(models, loss_on, same):
    model, inputs = models.cnn()
    twin = copy.deepcopy(model)
    sk, other = (mast.nn.sparsify(m, mast.RandK(0.3), seed=5) for m in (model, twin))
    opts = [sgd(m.parameters()) for m in (model, twin)]
    estimator = mast.nn.Average(sk, draws=1)
    for x in inputs:
        value = estimator.backward(lambda x=x: loss_on(x)(model))
        expected = loss_on(x)(twin)
        expected.backward()
        assert value == expected.detach()
        for opt in opts:
            opt.step()
            opt.zero_grad()
    same(model, twin)
    assert other.step == sk.step


@pytest.mark.parametrize(
    ("sketch", "options"),
    [
        (mast.PermK(4), {"p": 0.4}),
        (mast.Bernoulli(0.6), {"N": 6, "p": 0.4}),
        (mast.Bernoulli(0.6), {"N": 6, "b": 3, "p": 0.4}),
        (mast.Bernoulli(0.6), {"N": 6, "b": 3, "p": 0.4, "batch": "kept"}),
    ],
)
def test_l_svrdsg_follows_its_algorithm(models, reference, diagonal, loss_on, sketch, options):
    model, sk, plain, loss, opt = both_forms(models, sketch, reference, diagonal, loss_on)
    estimator = mast.nn.LSVRDSG(sk, **options)
    N, b, fresh = estimator.N, estimator.b, estimator.batch == "fresh"
    root = Key(5).child(0, Purpose.SUPPORT).seed

    def batch(t):
        chosen = range(N) if b == N else randomness.permutation(Key(root, t), Purpose.BATCH, N, 0, b).tolist()
        return [Key(root, node=i) for i in chosen]

    mean = lambda keys, at: torch.stack([plain.gradient(k, loss, at) for k in keys]).mean(0)  # noqa: E731
    w, hhat = plain.x, mean(batch(0), plain.x)
    refreshed = 0
    for t in range(8):
        S = Key(root, node=randomness.below(Key(root, t), Purpose.CHOICE, N))
        if fresh and b < N:
            hhat = mean(batch(t), w)
        h = plain.gradient(S, loss) - plain.gradient(S, loss, w) + hhat
        before = plain.x
        plain.move(h)
        if randomness.uniform(Key(root, t), Purpose.COIN) < 0.4:
            w, hhat = before, mean(batch(t), before)
            refreshed += 1
        estimator.backward(lambda: loss(model))
        opt.step()
        opt.zero_grad()
        agree(model, plain)
    assert 0 < refreshed < 8


@pytest.mark.parametrize(
    ("sketch", "options"),
    [
        (mast.PermK(4), {"p": 0.4}),
        (mast.Bernoulli(0.6), {"N": 6, "p": 0.4, "b_small": 2}),
        (mast.RandK(0.5), {"N": 6, "b": 4, "p": 0.4, "b_small": 2}),
    ],
)
def test_s_page_follows_its_algorithm(models, reference, diagonal, loss_on, sketch, options):
    model, sk, plain, loss, opt = both_forms(models, sketch, reference, diagonal, loss_on)
    estimator = mast.nn.SPAGE(sk, **options)
    N, root = estimator.N, Key(5).child(0, Purpose.SUPPORT).seed

    def mean(t, size, at):
        chosen = (
            range(N)
            if size == N
            else randomness.permutation(Key(root, t), Purpose.BATCH, N, 0, size).tolist()
        )
        return torch.stack([plain.gradient(Key(root, node=i), loss, at) for i in chosen]).mean(0)

    renewed = 0
    for t in range(8):
        if t == 0 or randomness.uniform(Key(root, t), Purpose.COIN) < 0.4:
            h = mean(t, estimator.b, plain.x)
            renewed += 1
        else:
            h = h + mean(t, estimator.b_small, plain.x) - mean(t, estimator.b_small, before)  # noqa: F821
        before = plain.x  # noqa: F841
        plain.move(h)
        estimator.backward(lambda: loss(model))
        opt.step()
        opt.zero_grad()
        agree(model, plain)
    assert 1 < renewed < 8


def test_over_the_whole_support_variance_vanishes(models, loss_on):
    """With Perm-K's K blocks, S-PAGE with p = 1 and L-SVRDSG at w = x give grad f_D itself."""
    model, inputs = models.mlp()
    model.double()
    loss = loss_on(inputs[0].double())
    sk = mast.nn.sparsify(model, mast.PermK(4), seed=1)
    estimators = [mast.nn.SPAGE(sk, p=1.0), mast.nn.LSVRDSG(sk, p=0.5)]
    found = []
    for estimator in estimators:
        model.zero_grad()
        estimator.backward(lambda: loss(model))
        found.append(nn.utils.parameters_to_vector([p.grad for p in model.parameters()]))
        assert estimator.mean_error() == pytest.approx(0, abs=1e-15)
    mean = 0
    for i in range(4):
        model.zero_grad()
        with sk.at(estimators[0].key(i)):
            loss(model).backward()
        mean = mean + nn.utils.parameters_to_vector([p.grad for p in model.parameters()]) / 4
    for h in found:
        torch.testing.assert_close(h, mean, rtol=1e-10, atol=1e-12)


def test_a_sampled_support_says_how_far_its_mean_is_from_the_identity(models):
    model, _ = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    errors = [mast.nn.SPAGE(sk, N=N, p=0.5).mean_error() for N in (4, 400)]
    assert errors[0] == 1.0  # among 232 weights, one is never kept or always: |0 - 1| = |2 - 1| = 1
    assert errors[1] < 5 * np.sqrt(1 / 400)  # 232 means of 400 draws of variance 1


@pytest.mark.parametrize("kind", ["LSVRDSG", "SPAGE"])
def test_resuming_is_exact(models, loss_on, same, kind):
    model, inputs = models.mlp()
    make = lambda m: (mast.nn.sparsify(m, mast.PermK(3), seed=2), sgd(m.parameters()))  # noqa: E731
    sk, opt = make(model)
    estimator = getattr(mast.nn, kind)(sk, p=0.3)

    def run(estimator, model, opt, steps):
        for _ in range(steps):
            estimator.backward(lambda: loss_on(inputs[0])(model))
            opt.step()
            opt.zero_grad()

    run(estimator, model, opt, 4)
    twin = copy.deepcopy(model)
    sk2, opt2 = make(twin)
    sk2.load_state_dict(sk.state_dict())
    again = getattr(mast.nn, kind)(sk2, p=0.3)
    again.load_state_dict(estimator.state_dict())
    run(estimator, model, opt, 5)
    run(again, twin, opt2, 5)
    same(model, twin)
    with pytest.raises(mast.MastError, match="another p"):
        getattr(mast.nn, kind)(sk2, p=0.5).load_state_dict(estimator.state_dict())


@pytest.mark.parametrize(
    ("kind", "saved", "other", "message"),
    [
        ("LSVRDSG", {"b": 3}, {"b": 2}, "another b: it was 3, is 2"),
        ("LSVRDSG", {"b": 3}, {"b": 3, "batch": "kept"}, "another batch: it was 'fresh', is 'kept'"),
        ("SPAGE", {"b": 3}, {"b": 2}, "another b: it was 3, is 2"),
        ("SPAGE", {"b_small": 2}, {}, "another b_small: it was 2, is 1"),
    ],
)
def test_a_state_of_other_settings_is_refused(models, loss_on, kind, saved, other, message):
    model, inputs = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    make = getattr(mast.nn, kind)
    estimator = make(sk, N=4, p=0.3, **saved)
    estimator.backward(lambda: loss_on(inputs[0])(model))
    state = estimator.state_dict()
    with pytest.raises(mast.MastError, match=message):
        make(sk, N=4, p=0.3, **other).load_state_dict(state)
    make(sk, N=4, p=0.3, **saved).load_state_dict(state)
    with pytest.raises(mast.MastError, match=f"not the state of a {kind}: it has no 'b'"):
        make(sk, N=4, p=0.3, **saved).load_state_dict({name: state[name] for name in state if name != "b"})


def test_the_support_is_that_of_the_seed_that_was_loaded(models):
    model, _ = models.mlp()
    state = mast.nn.sparsify(copy.deepcopy(model), mast.Bernoulli(0.5), seed=9).state_dict()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5), seed=0)
    estimator = mast.nn.SPAGE(sk, N=4, p=0.5)
    before = estimator.key(1)
    sk.load_state_dict(state)
    assert estimator.key(1) != before
    assert estimator.key(1) == mast.nn.SPAGE(sk, N=4, p=0.5).key(1)


def test_extra_passes_leave_buffers_and_gradients_alone(models, loss_on):
    model, inputs = models.cnn()
    sk = mast.nn.sparsify(model, mast.PermK(3))
    estimator = mast.nn.LSVRDSG(sk, p=0.5)
    twin = copy.deepcopy(model)
    other = mast.nn.sparsify(twin, mast.PermK(3))
    with other.at(estimator._one()):
        loss_on(inputs[0])(twin)
    estimator.backward(lambda: loss_on(inputs[0])(model))
    for mine, theirs in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.equal(mine, theirs)
    once = [p.grad.clone() for p in model.parameters()]
    mast.nn.Average(sk, 1).backward(lambda: 0 * loss_on(inputs[0])(model))
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), once, strict=True))


def test_bad_arguments(models):
    model, _ = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
    for call, message in (
        (lambda: mast.nn.Average(model, 2), "what sparsify"),
        (lambda: mast.nn.Average(sk, 0), "draws"),
        (lambda: mast.nn.SPAGE(sk, p=0.5), "pass N"),
        (lambda: mast.nn.SPAGE(sk, N=4, p=0.0), "refresh"),
        (lambda: mast.nn.SPAGE(sk, N=4, p=0.5, b_small=5), "b_small"),
        (lambda: mast.nn.LSVRDSG(sk, N=4, p=0.5, b=5), "b must lie in"),
        (lambda: mast.nn.LSVRDSG(sk, N=4, p=0.5, batch="stale"), "fresh"),
        (lambda: mast.nn.Average(sk, 1).backward(lambda: 3.0), "closure must return"),
    ):
        with pytest.raises(mast.MastError, match=message):
            call()
