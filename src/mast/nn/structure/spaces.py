"""Unit spaces: which slices of which tensors belong to the same hidden units."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """What a tensor does with the units along one of its dimensions."""

    PRODUCES = "produces"  # rows of a weight, a bias, an affine norm and its statistics
    CONSUMES = "consumes"  # columns of a weight: the outgoing weights, which carry the scale


@dataclass(frozen=True)
class Axis:
    """One dimension of one tensor: unit u owns the entries offset + u*run .. offset + (u+1)*run - 1 of it."""

    tensor: str
    dim: int
    run: int = 1
    offset: int = 0
    role: Role = Role.PRODUCES


@dataclass(frozen=True)
class Space:
    """Units that live or die one by one, each with all of its slices. Named by its first producer."""

    name: str
    units: int
    producers: tuple[Axis, ...]
    consumers: tuple[Axis, ...]
    keep: float | None = None  # a keep probability of its own

    @property
    def axes(self) -> tuple[Axis, ...]:
        """All of its slices."""
        return self.producers + self.consumers
