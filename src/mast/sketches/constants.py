"""The numbers of a sketch that theory needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


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
