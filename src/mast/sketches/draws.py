"""One draw of a sketch, and the numbers of a sketch that theory needs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mast.arrays import Array, Indices, numbers, refuse_too_large
from mast.errors import ArgumentError, NotDiagonalError
from mast.sketches.kept import Entries, Everything, Kept

MANY_EQUAL = 1 << 17  #: equal scales from which on they are one number, read many times


@dataclass(frozen=True)
class Constants:
    """The numbers of a sketch that theory needs.

    `L_D` and `mu_D` are the largest and smallest eigenvalue of E[S'S]; `L_max` is the
    largest eigenvalue that S'S ever has, and may be infinite. If they are `estimated`, from draws,
    `L_max` is the largest that was seen. `unbiased` says whether E[S] = I: the statements about DSGD do
    not need it, those that compare f_D with f do (Theorem 1).
    """

    L_D: float
    mu_D: float
    L_max: float
    estimated: bool = False
    unbiased: bool = True

    @property
    def kappa_D(self) -> float:
        """The condition number of E[S'S]; infinite if some coordinates are never kept."""
        return self.L_D / self.mu_D if self.mu_D else math.inf

    @classmethod
    def of_parts(cls, parts: Sequence[Constants]) -> Constants:
        """Those of an S that is made of independent or fixed blocks, each with its own constants."""
        return cls(
            max(part.L_D for part in parts),
            min(part.mu_D for part in parts),
            max(part.L_max for part in parts),
            any(part.estimated for part in parts),
            all(part.unbiased for part in parts),
        )

    def __repr__(self) -> str:
        how = ", estimated=True" * self.estimated + ", unbiased=False" * (not self.unbiased)
        return f"Constants(L_D={self.L_D!r}, mu_D={self.mu_D!r}, L_max={self.L_max!r}{how})"


def equal_scales(count: int, scale: float) -> Array:
    """The same scale for each of `count` coordinates; many of them are one number in memory."""
    return np.full(count, scale) if count < MANY_EQUAL else np.broadcast_to(np.float64(scale), count)


class Draw(ABC):
    """One S. `apply(u)` is S u and `adjoint(r)` is S'r."""

    dim: int
    #: the coordinates that are read and written: all, unless S is diagonal
    kept: Kept

    @abstractmethod
    def matrix(self) -> Array:
        """S as a dense matrix."""

    def apply(self, u: ArrayLike) -> Array:
        """S u; u is a vector or a matrix of columns."""
        return self.matrix() @ _columns("u", u, self.dim)

    def adjoint(self, r: ArrayLike) -> Array:
        """S'r."""
        return self.matrix().T @ _columns("r", r, self.dim)

    def sparsified(self, x: Array, shift: Array) -> Array:
        """The point v + S(x - v)."""
        return shift + self.apply(x - shift)

    def gather_scaled(self, gradient: Array) -> Array:
        """S' times a gradient, at the kept coordinates."""
        return self.adjoint(gradient)


class DiagonalDraw(Entries, Draw):
    """A diagonal S: `scales` on the coordinates `indices` (ascending), 0 elsewhere."""

    def __init__(self, dim: int, indices: Indices, scales: Array) -> None:
        super().__init__((dim,), indices, scales)
        self.dim = dim

    @property
    def kept(self) -> Kept:  # type: ignore[override]
        """The draw itself says what is kept."""
        return self

    def apply(self, u: ArrayLike) -> Array:
        """S u; u may be float32 or float64, a vector or a matrix of columns."""
        u = _columns("u", u, self.dim)
        out = np.zeros_like(u)
        scales = self.scales.astype(u.dtype, copy=False)
        out[self.indices] = (u[self.indices].T * scales).T
        return out

    def adjoint(self, r: ArrayLike) -> Array:
        """S'r, which is S r."""
        return self.apply(r)

    def matrix(self) -> Array:
        """S as a dense matrix."""
        refuse_too_large(f"the {self.dim:,} x {self.dim:,} matrix of a draw", float(self.dim) ** 2)
        return np.diag(self.diagonal())

    def __repr__(self) -> str:
        return f"<draw: keeps {self.count} of {self.dim} coordinates>"


class MatrixDraw(Draw):
    """An S that is any matrix."""

    def __init__(self, matrix: Array) -> None:
        self.dim = matrix.shape[0]
        self.kept = Everything((self.dim,))
        self._matrix = matrix

    def matrix(self) -> Array:
        """S itself."""
        return self._matrix

    @property
    def indices(self) -> Indices:
        """Only a diagonal S has them."""
        raise NotDiagonalError("this S is a general matrix: it has no kept indices; use matrix()")

    scales = indices

    def __repr__(self) -> str:
        return f"<draw: a {self.dim} x {self.dim} matrix>"


def _columns(name: str, value: ArrayLike, d: int) -> Array:
    array: Any = np.asarray(value)
    if array.dtype != np.float32:
        array = numbers(name, array, array.ndim, finite=False)
    if array.ndim not in (1, 2) or array.shape[0] != d:
        raise ArgumentError(f"{name} must have {d} entries, as the draw has, got shape {array.shape}")
    result: Array = array
    return result
