"""Unit groups: the slices of a model's tensors that are cut together, and a draw of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mast.sketches.draws import DiagonalDraw, ModelDraw
from mast.support.checks import Indices

OUTPUT = "they are the model's output"  #: why the units of a last layer stay

#: one draw over a model's units: what is kept of each group, by the group's name
UnitDraw = ModelDraw[DiagonalDraw]


@dataclass(frozen=True)
class UnitSlices:
    """One dimension of one tensor: unit u owns the entries offset + u*run .. offset + (u+1)*run - 1 of it."""

    tensor: str
    dim: int
    run: int = 1
    offset: int = 0

    def entries(self, units: Indices) -> Indices:
        """The entries of these units, one row for each.

        >>> UnitSlices("weight", 0, run=2, offset=10).entries(np.array([0, 3]))
        array([[10, 11],
               [16, 17]])
        """
        return self.offset + units[:, None] * self.run + np.arange(self.run)


@dataclass(frozen=True)
class UnitGroup:
    """Units that are kept or dropped one by one, each with all of its slices.

    Torch-Pruning has one group per set of coupled layers, too. It is named by its first producer.
    """

    name: str
    units: int
    producers: tuple[UnitSlices, ...]  # rows of a weight, a bias, an affine norm and its statistics
    consumers: tuple[UnitSlices, ...]  # columns of a weight: the outgoing weights, which carry the scale
    keep: float | None = None  # a keep probability of its own
    as_many_as: str | None = None  # the group that a small model has to have the same number of units of

    @property
    def slices(self) -> tuple[UnitSlices, ...]:
        """All of its slices."""
        return self.producers + self.consumers


@dataclass(frozen=True)
class Segment:
    """Some entries along a dimension: the runs of a group's units, or entries that stay (`group` is None)."""

    group: int | None
    run: int
    offset: int
    scaled: bool = False  # whether these entries carry the scales


def segments_of(groups: Sequence[UnitGroup], tensor: str, dim: int, size: int) -> tuple[Segment, ...]:
    """How a dimension is divided among groups, in order, with what stays between them."""
    own = sorted(
        (a.offset, a.run, number, a in group.consumers)
        for number, group in enumerate(groups)
        for a in group.slices
        if (a.tensor, a.dim) == (tensor, dim)
    )
    segments, end = [], 0
    for offset, run, number, scaled in own:
        if offset > end:
            segments.append(Segment(None, offset - end, end))
        segments.append(Segment(number, run, offset, scaled))
        end = offset + run * groups[number].units
    if end < size:
        segments.append(Segment(None, size - end, end))
    return tuple(segments)
