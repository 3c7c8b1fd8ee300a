"""The curvature of a loss at given weights: Lanczos on Hessian-vector products over batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mast import randomness
from mast.errors import ArgumentError
from mast.randomness import Key

Loss = Callable[..., Tensor]
_BASIS = 2**27  # numbers that the Krylov basis may hold


@dataclass(frozen=True)
class Curvature:
    """The largest absolute eigenvalue of the Hessian, and how uncertain it is.

    `residual` bounds the distance to an eigenvalue of the batches' Hessian; `stderr` is the standard error
    over batches (NaN for a single one), the part that more data would reduce.
    """

    value: float
    residual: float
    stderr: float

    @property
    def error(self) -> float:
        """Both together."""
        return self.residual + (0.0 if math.isnan(self.stderr) else self.stderr)


def curvature(model: nn.Module, loss: Loss, batches: Sequence[Any], iterations: int, seed: int) -> Curvature:
    """Of the mean loss over the batches, at the model's present weights, over its trainable parameters."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    hessian = _Hessian(model, loss, parameters)
    first = parameters[0]
    start = torch.from_numpy(randomness.normal(Key(seed), 0, sum(p.numel() for p in parameters)))
    start = start.to(first.device, torch.promote_types(first.dtype, torch.float32))
    top = extremes(lambda u: _finite_mean([hessian(batch, u) for batch in batches]), start, iterations)
    v = top.vector
    quotients = torch.stack([v @ hessian(batch, v) for batch in batches])
    n = len(batches)
    stderr = float(quotients.std() / math.sqrt(n)) if n > 1 else math.nan
    return Curvature(*top.dominant, stderr)


def evaluate(model: nn.Module, loss: Loss, batch: Any) -> Tensor:
    """``loss(model(inputs), targets)`` for a pair, ``loss(model, batch)`` for any other batch."""
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return loss(model(batch[0]), batch[1])
    return loss(model, batch)


class _Hessian:
    """Products of one batch's Hessian with vectors: exact, or by differences where torch cannot."""

    def __init__(self, model: nn.Module, loss: Loss, parameters: list[nn.Parameter]) -> None:
        self.model = model
        self.loss = loss
        self.parameters = parameters
        self.exact = True

    def __call__(self, batch: Any, u: Tensor) -> Tensor:
        if self.exact:
            try:
                return self._exact(batch, u)
            except RuntimeError as error:
                if "derivative for" not in str(error) and "double backward" not in str(error):
                    raise
                self.exact = False  # some layers (recurrent ones, fused attention) have no second derivative
        return self._differences(batch, u)

    def _exact(self, batch: Any, u: Tensor) -> Tensor:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
            value = evaluate(self.model, self.loss, batch)
            gradients = torch.autograd.grad(value, self.parameters, create_graph=True, allow_unused=True)
            terms = [
                (g * part.to(g.dtype)).sum()
                for g, part in zip(gradients, self._parts(u), strict=True)
                if g is not None and g.requires_grad
            ]
            if not terms:
                return torch.zeros_like(u)
            products = torch.autograd.grad(sum(terms), self.parameters, allow_unused=True)  # type: ignore[arg-type]
        return self._join(products, u)

    def _differences(self, batch: Any, u: Tensor) -> Tensor:
        """(grad(x + eps u) - grad(x - eps u)) / 2 eps, with eps relative to the size of x."""
        size = math.sqrt(sum(float(p.detach().double().square().sum()) for p in self.parameters))
        eps = 1e-3 * max(size, 1.0) / max(float(u.norm()), 1e-30) / math.sqrt(max(1, u.numel()) ** 0.5)
        shifted = []
        for sign in (1, -2):
            self._move(u, sign * eps)
            value = evaluate(self.model, self.loss, batch)
            gradients = torch.autograd.grad(value, self.parameters, allow_unused=True)
            shifted.append(self._join(gradients, u))
        self._move(u, eps)
        return (shifted[0] - shifted[1]) / (2 * eps)

    def _move(self, u: Tensor, amount: float) -> None:
        with torch.no_grad():
            for p, part in zip(self.parameters, self._parts(u), strict=True):
                p.add_(part.to(p.dtype), alpha=amount)

    def _parts(self, u: Tensor) -> list[Tensor]:
        parts = torch.split(u, [p.numel() for p in self.parameters])
        return [part.view(p.shape) for p, part in zip(self.parameters, parts, strict=True)]

    def _join(self, tensors: Sequence[Tensor | None], u: Tensor) -> Tensor:
        flat = [
            (torch.zeros_like(p) if t is None else t).detach().reshape(-1).to(u.dtype)
            for t, p in zip(tensors, self.parameters, strict=True)
        ]
        return torch.cat(flat)


def _finite_mean(tensors: list[Tensor]) -> Tensor:
    mean = sum(tensors[1:], tensors[0]) / len(tensors)
    if not torch.isfinite(mean).all():
        raise ArgumentError("the loss has no finite curvature at these weights: NaN or infinity appears")
    return mean


class Extremes(NamedTuple):
    """Largest and smallest eigenvalue, each within its residual of a true one.

    `vector` belongs to the one that is largest in magnitude.
    """

    largest: float
    largest_residual: float
    smallest: float
    smallest_residual: float
    vector: Tensor

    @property
    def dominant(self) -> tuple[float, float]:
        """The largest absolute eigenvalue, and its residual."""
        ends = ((abs(self.largest), self.largest_residual), (abs(self.smallest), self.smallest_residual))
        return max(ends, key=lambda end: end[0])


def extremes(product: Callable[[Tensor], Tensor], start: Tensor, iterations: int = 20) -> Extremes:
    """Lanczos with full reorthogonalisation from a start vector.

    >>> diagonal = torch.linspace(-1, 4, 50, dtype=torch.float64)
    >>> ends = extremes(lambda u: diagonal * u, torch.ones(50, dtype=torch.float64), 40)
    >>> round(ends.largest, 9), round(ends.smallest, 9)
    (4.0, -1.0)
    """
    iterations = max(2, min(iterations, start.numel(), _BASIS // start.numel()))
    basis = [start / start.norm()]
    alpha: list[float] = []
    beta: list[float] = []
    for _ in range(iterations):
        r = product(basis[-1])
        alpha.append(float(basis[-1] @ r))
        for _ in range(2):  # twice is enough
            for q in basis:
                r = r - (q @ r) * q
        beta.append(float(r.norm()))
        if beta[-1] <= 1e-7 * max(map(abs, alpha)):
            break
        basis.append(r / beta[-1])
    m = len(alpha)
    values, vectors = np.linalg.eigh(np.diag(alpha) + np.diag(beta[: m - 1], 1) + np.diag(beta[: m - 1], -1))
    residuals = abs(beta[m - 1] * vectors[-1])
    top = int(np.argmax(abs(values)))
    vector = torch.stack(basis[:m], dim=1) @ torch.from_numpy(vectors[:, top]).to(start)
    return Extremes(
        float(values[-1]), float(residuals[-1]), float(values[0]), float(residuals[0]), vector / vector.norm()
    )
