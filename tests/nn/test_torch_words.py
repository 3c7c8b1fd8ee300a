"""The pure-torch generator gives the bits of the compiled one, and training with it is the same."""

from __future__ import annotations

import numpy as np
import pytest

import mast
from mast import randomness
from mast.randomness import Key, Purpose

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")

KEYS = [Key(), Key(1, 2, 3, 4), Key(2**64 - 1, 2**48 - 1, 2**32 - 1, 2**32 - 1), Key(0xDEADBEEF << 20, 7)]
CPU = torch.device("cpu")


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("count", [1, 3, 4, 1001])
def test_words_and_masks_are_bit_equal(key, count):
    from mast.nn.tensors import torch_words

    stream = torch_words._stream(key, Purpose.MASK)
    words = torch_words.blocks(stream, 0, -(-count // 4), CPU).flatten()[:count]
    assert words.tolist() == randomness.words(key, Purpose.MASK, 0, count).tolist()
    for keep in (2**-32, 0.3, 0.5, 1.0):
        t = randomness.threshold(keep)
        mask = torch_words.torch_mask(key, t, count, CPU).numpy()
        assert np.array_equal(mask, randomness.bernoulli(key, t, 0, count))


def test_high_block_numbers_and_slices(monkeypatch):
    from mast.nn.tensors import torch_words

    stream = torch_words._stream(Key(5), Purpose.MASK)
    far = (1 << 34) + 12345
    words = torch_words.blocks(stream, far, far + 2, CPU).flatten().tolist()
    assert words == randomness.words(Key(5), Purpose.MASK, 4 * far, 4 * far + 8).tolist()
    whole = torch_words.torch_mask(Key(5), 2**31, 1000, CPU)
    monkeypatch.setattr(torch_words, "_SLICE", 64)
    assert torch.equal(torch_words.torch_mask(Key(5), 2**31, 1000, CPU), whole)


@pytest.mark.parametrize("key", KEYS)
def test_normals_agree_to_rounding(key):
    from mast.nn.tensors import torch_words

    ours, theirs = torch_words.torch_normal(key, 999, CPU).numpy(), randomness.normal(key, 0, 999)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)  # log, sin and cos of two libraries


@pytest.mark.parametrize("shift", [None, "init"])
@pytest.mark.parametrize(
    "sketch", [mast.Bernoulli(0.6), mast.UnscaledBernoulli(0.6), mast.RandK(0.3), mast.PermK(4)]
)
def test_training_as_on_another_device_is_bit_equal(models, reference, loss_on, same, sketch, shift):
    """The path of other devices, forced on the CPU."""
    model, inputs = models.cnn()
    sk = mast.nn.sparsify(model, sketch, shift=shift)
    sk.bound.torch_only = True
    make = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)  # noqa: E731
    ref, opt = reference(sk, model, make), make(model.parameters())
    for step, x in enumerate(inputs):
        loss_on(x)(model).backward()
        opt.step()
        opt.zero_grad()
        ref.step(step, [loss_on(x)])
    same(model, ref.x)


def test_no_numbers_return_to_the_cpu(models, loss_on, monkeypatch):
    """On another device a step must not wait for it: no .item(), .cpu(), .numpy() or .tolist() of weights."""
    model, inputs = models.mlp()
    sk = mast.nn.sparsify(model, mast.Bernoulli(0.6))
    sk.bound.torch_only = True
    monkeypatch.setattr("mast.nn.tensors.sparsified.compiled", lambda *tensors: False)
    monkeypatch.setattr("mast.nn.tensors.bound.compiled", lambda *tensors: False)

    def forbidden(*args, **kwargs):
        raise AssertionError("a copy to the CPU")

    for name in ("item", "cpu", "numpy", "tolist", "__bool__", "__float__"):
        monkeypatch.setattr(torch.Tensor, name, forbidden)
    model(inputs[0]).sum().backward()
