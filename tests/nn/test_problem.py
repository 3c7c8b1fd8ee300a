"""The networks' gradients are those of the core's f_D."""

from __future__ import annotations

import numpy as np
import pytest

import mast

torch = pytest.importorskip("torch", reason="mast.nn needs PyTorch")
from torch import nn  # noqa: E402


@pytest.mark.parametrize(
    "sketch",
    [mast.Bernoulli(0.6), mast.RandK(2), mast.PermK(3), mast.PermK(3, redraw=True), mast.Gaussian(0.4)],
)
def test_the_mean_gradient_is_the_gradient_of_f_D(sketch):
    """A linear model with a quadratic loss, over 4,000 draws: five standard errors in each coordinate."""
    rng = np.random.default_rng(0)
    A, b, v, x = (
        rng.standard_normal((20, 6)),
        rng.standard_normal(20),
        rng.standard_normal(6),
        rng.standard_normal(6),
    )
    f = mast.Quadratic(A.T @ A / 20, A.T @ b / 20, b @ b / 40)
    problem = mast.Problem(f, sketch, shift=v)

    model = nn.Linear(6, 1, bias=False).double()
    model.weight.data = torch.from_numpy(x).view(1, 6)
    sk = mast.nn.sparsify(model, sketch, shift={"weight": torch.from_numpy(v).view(1, 6)})
    inputs, targets = torch.from_numpy(A), torch.from_numpy(b)
    gradients, values = [], []
    for _ in range(4000):
        model.weight.grad = None
        loss = (model(inputs).flatten() - targets).square().mean() / 2
        loss.backward()
        gradients.append(model.weight.grad.flatten().numpy())
        values.append(loss.item())
        sk.advance()
    for found, exact in ((np.array(gradients), problem.gradient(x)), (np.array(values), problem.value(x))):
        stderr = found.std(axis=0, ddof=1) / np.sqrt(len(found))
        assert (abs(found.mean(axis=0) - exact) < 5 * stderr).all()
