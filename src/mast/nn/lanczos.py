"""The extreme eigenvalues of a Hessian that is only known by its products with vectors, with error bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]
_MEMORY = 2**27  # numbers that the Krylov basis may hold


@dataclass(frozen=True)
class Extremes:
    """Largest and smallest eigenvalue, each within its residual of a true one.

    `vector` belongs to the one that is largest in magnitude.
    """

    largest: float
    largest_residual: float
    smallest: float
    smallest_residual: float
    vector: Tensor

    @property
    def magnitude(self) -> float:
        """The largest absolute eigenvalue."""
        return max(abs(self.largest), abs(self.smallest))

    @property
    def residual(self) -> float:
        """The residual that belongs to it."""
        return self.largest_residual if abs(self.largest) >= abs(self.smallest) else self.smallest_residual


def extremes(product: Product, start: Tensor, iterations: int = 20) -> Extremes:
    """Lanczos with full reorthogonalisation from a start vector.

    >>> diagonal = torch.linspace(-1, 4, 50, dtype=torch.float64)
    >>> found = extremes(lambda u: diagonal * u, torch.ones(50, dtype=torch.float64), 40)
    >>> round(found.largest, 9), round(found.smallest, 9)
    (4.0, -1.0)
    """
    iterations = max(2, min(iterations, start.numel(), _MEMORY // start.numel()))
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
