"""The curvature of a loss at given weights: Lanczos on Hessian-vector products over batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from mast import randomness
from mast.errors import ArgumentError
from mast.nn.batches import Batch, Loss
from mast.nn.units.dependencies.examples import fork_generators, seed_generators
from mast.randomness import Key

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
        """The residual and the standard error together."""
        return self.residual + (0.0 if math.isnan(self.stderr) else self.stderr)

    @property
    def upper(self) -> Curvature:
        """The largest that an eigenvalue within the residual can be."""
        return replace(self, value=self.value + self.residual)


def curvature(
    hessian: MeanHessian, start: Tensor, iterations: int, sketched: Callable[[Tensor], Tensor] = lambda u: u
) -> tuple[Curvature, Tensor]:
    """Of H, or of S'HS with a function that applies S, and the vector along which it is largest."""
    seen: list[Tensor] = []  # what H was multiplied with, and for each batch all products of pairs of these
    forms: list[list[list[float]]] = [[] for _ in hessian.batches]

    def product(u: Tensor) -> Tensor:
        seen.append(u)
        products = [sketched(p) for p in hessian(sketched(u))]
        for form, p in zip(forms, products, strict=True):
            form.append([float(q @ p) for q in seen])
        return _finite_mean(products)

    value, residual, vector = dominant(product, start, iterations)
    n = len(forms)
    along = np.array([float(q @ vector) for q in seen])
    quotients = [sum(float(along[: i + 1] @ row) * along[i] * 2 - row[i] * along[i] ** 2
                     for i, row in enumerate(form)) for form in forms]  # fmt: skip
    stderr = float(np.std(quotients, ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    return Curvature(value, residual, stderr), vector


class MeanHessian:
    """Products of vectors with the Hessian of each batch's loss, at the model's weights when it is made.

    The graphs of the gradients stay in memory, so that a product takes the time of about 2.2 forward and
    backward passes. Where torch has no second derivative, differences of gradients stand in. What a model
    draws by itself (dropout) is the same in all of them.
    """

    def __init__(self, model: nn.Module, loss: Loss | None, batches: Sequence[Batch]) -> None:
        self.model = model
        self.loss = loss
        self.batches = batches
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.exact = True  # until a layer turns out to have no second derivative
        self._gradients = [self._gradient(batch, create_graph=True) for batch in batches]

    def random(self, seed: int) -> Tensor:
        """A vector with normal entries, in the order of the parameters."""
        u = torch.from_numpy(randomness.normal(Key(seed), 0, sum(p.numel() for p in self.parameters)))
        first = self.parameters[0]
        return u.to(first.device, torch.promote_types(first.dtype, torch.float32))

    def gradient(self) -> Tensor:
        """Of the mean loss: large curvature shows in it, so that few iterations from it come far."""
        return _finite_mean([self.join(gradients) for gradients in self._gradients])

    def __call__(self, u: Tensor) -> list[Tensor]:
        """One product for each batch."""
        if self.exact:
            try:
                return [self._exact(number, u) for number in range(len(self.batches))]
            except RuntimeError as error:
                if "derivative for" not in str(error) and "double backward" not in str(error):
                    raise
                self.exact = False  # some layers (recurrent ones, fused attention) have no second derivative
        return [self._differences(batch, u) for batch in self.batches]

    def _exact(self, number: int, u: Tensor) -> Tensor:
        terms = [
            (g, part.to(g.dtype))
            for g, part in zip(self._gradients[number], self.parts(u), strict=True)
            if g is not None and g.requires_grad
        ]
        if not terms:
            return torch.zeros_like(u)
        outputs, along = zip(*terms, strict=True)
        products = torch.autograd.grad(outputs, self.parameters, along, retain_graph=True, allow_unused=True)
        return self.join(products)

    def _differences(self, batch: Batch, u: Tensor) -> Tensor:
        """(grad(x + eps u) - grad(x - eps u)) / 2 eps, with eps relative to the size of x."""
        size = math.sqrt(sum(float(p.detach().double().square().sum()) for p in self.parameters))
        eps = 1e-3 * max(size, 1.0) / max(float(u.norm()), 1e-30) / math.sqrt(max(1, u.numel()) ** 0.5)
        shifted = []
        for amount in (eps, -2 * eps):
            self._move(u, amount)
            shifted.append(self.join(self._gradient(batch)))
        self._move(u, eps)
        return (shifted[0] - shifted[1]) / (2 * eps)

    def _gradient(self, batch: Batch, create_graph: bool = False) -> tuple[Tensor | None, ...]:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(SDPBackend.MATH), torch.enable_grad(), fork_generators():
            seed_generators(0)
            value = batch.loss(self.model, self.loss)
            return torch.autograd.grad(value, self.parameters, create_graph=create_graph, allow_unused=True)

    def _move(self, u: Tensor, amount: float) -> None:
        with torch.no_grad():
            for p, part in zip(self.parameters, self.parts(u), strict=True):
                p.add_(part.to(p.dtype), alpha=amount)

    def parts(self, u: Tensor) -> list[Tensor]:
        """A vector cut into the shapes of the parameters."""
        parts = torch.split(u, [p.numel() for p in self.parameters])
        return [part.view(p.shape) for p, part in zip(self.parameters, parts, strict=True)]

    def join(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """The vector of these; None is zeros."""
        wide = torch.promote_types(self.parameters[0].dtype, torch.float32)
        flat = [
            (torch.zeros_like(p) if t is None else t).detach().reshape(-1).to(wide)
            for t, p in zip(tensors, self.parameters, strict=True)
        ]
        return torch.cat(flat)


def _finite_mean(tensors: Sequence[Tensor]) -> Tensor:
    mean = tensors[0] if len(tensors) == 1 else sum(tensors[1:], tensors[0]) / len(tensors)
    if not torch.isfinite(mean.sum()) and not torch.isfinite(mean).all():  # a sum may overflow
        raise ArgumentError("the loss has no finite curvature at these weights: NaN or infinity appears")
    return mean


def dominant(
    product: Callable[[Tensor], Tensor], start: Tensor, iterations: int
) -> tuple[float, float, Tensor]:
    """The largest absolute eigenvalue, its residual and its vector: Lanczos with full reorthogonalisation.

    >>> diagonal = torch.linspace(-4, 1, 50, dtype=torch.float64)
    >>> value, residual, _ = dominant(lambda u: diagonal * u, torch.ones(50, dtype=torch.float64), 40)
    >>> round(value, 9), residual < 1e-6
    (4.0, True)
    """
    iterations = max(2, min(iterations, start.numel(), _BASIS // start.numel()))
    basis = [start / start.norm()]
    alpha: list[float] = []
    beta: list[float] = []
    for _ in range(iterations):
        r = product(basis[-1])  # new memory, which is written to
        alpha.append(float(basis[-1] @ r))
        for _ in range(2):  # twice is enough
            for q in basis:
                r -= (q @ r) * q
        beta.append(float(r.norm()))
        if beta[-1] <= 1e-7 * max(map(abs, alpha)):
            break
        basis.append(r / beta[-1])
    m = len(alpha)
    values, vectors = np.linalg.eigh(np.diag(alpha) + np.diag(beta[: m - 1], 1) + np.diag(beta[: m - 1], -1))
    top = int(np.argmax(abs(values)))
    vector = torch.zeros_like(start)
    for q, share in zip(basis, vectors[:, top].tolist(), strict=False):
        vector.add_(q, alpha=share)
    vector /= vector.norm()
    return abs(float(values[top])), abs(float(beta[m - 1] * vectors[-1, top])), vector
