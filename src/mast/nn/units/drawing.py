"""Unit groups, and how a key becomes the kept units of each, with their scales on the outgoing weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from mast.errors import ArgumentError, MastError
from mast.nn.tensors.bound import BoundSketch
from mast.nn.tensors.weights import name_index
from mast.randomness import Key
from mast.sketches import Bernoulli, Constants, Sketch
from mast.sketches.draws import DiagonalDraw, Draw, FullDraw, GridDraw, ModelDraw
from mast.sketches.independent import entry_of
from mast.support.arrays import Array, Indices

OUTPUT = "they are the model's output"  #: why the units of a last layer stay


@dataclass(frozen=True)
class UnitSlices:
    """One dimension of one tensor: unit u owns the entries offset + u*run .. offset + (u+1)*run - 1 of it."""

    tensor: str
    dim: int
    run: int = 1
    offset: int = 0


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


#: one draw over a model's units: what is kept of each group, by the group's name
UnitDraw = ModelDraw[DiagonalDraw]


def present(groups: Sequence[UnitGroup], draw: UnitDraw) -> list[DiagonalDraw]:
    """The units of each group in a small model.

    No layer can have none, and some have to have as many as others: more units stay there, with scale 0.
    """
    wanted: dict[str, int] = {}
    for group in groups:
        first = group.as_many_as or group.name
        wanted[first] = max(wanted.get(first, 1), draw[group.name].count)
    return [_at_least(wanted[group.as_many_as or group.name], draw[group.name]) for group in groups]


def _at_least(count: int, kept: DiagonalDraw) -> DiagonalDraw:
    if kept.count >= count:
        return kept
    more = np.setdiff1d(np.arange(kept.dim), kept.indices)[: count - kept.count]
    indices, scales = np.append(kept.indices, more), np.append(kept.scales, np.zeros(more.size))
    order = np.argsort(indices)
    return DiagonalDraw(kept.dim, indices[order], scales[order])


@dataclass(frozen=True)
class Segment:
    """Some entries along a dimension: the runs of a group's units, or entries that stay (`group` is None)."""

    group: int | None
    run: int
    offset: int
    scaled: bool = False  # whether these entries carry the scales


@dataclass(frozen=True)
class ScaledParameter:
    """A parameter that carries scales: those of groups along one dimension, or of one unit everywhere."""

    tensor: str
    group: int
    shape: tuple[int, ...]
    dim: int | None = None
    segments: tuple[Segment, ...] = ()
    unit: int = 0  # if dim is None

    def kept(self, draws: Sequence[DiagonalDraw]) -> Draw:
        """What the draws of all groups keep of the parameter, with the scales of units on their columns."""
        if self.dim is not None:
            indices, scales = along(self.segments, draws)
            return GridDraw(self.shape, {self.dim: indices}, {self.dim: scales})
        scale = self.scale(draws)
        nothing = np.empty(0, np.int64)
        return FullDraw(self.shape, scale) if scale else DiagonalDraw(self.shape, nothing, scale)

    def scale(self, draws: Sequence[DiagonalDraw]) -> float:
        """That of its one unit, if it belongs to one as a whole."""
        return float(draws[self.group].diagonal()[self.unit])


class BoundUnits(BoundSketch):
    """A sketch over the units of each group; a parameter that is no consumer carries no scale."""

    def __init__(
        self,
        sketch: Sketch,
        groups: Sequence[UnitGroup],
        scaled: Sequence[ScaledParameter],
        uniform: bool = False,
    ) -> None:
        self.sketch = sketch  # over units
        self.groups = list(groups)
        self.scaled = list(scaled)
        self.sketches = [_of_group(sketch, group) for group in groups]
        first = {group.units: group.name for group in reversed(groups)}  # of each size
        self._indices = [name_index(first[s.units] if uniform else s.name) for s in groups]
        self._last: UnitDraw | None = None

    def draw(self, key: Key) -> UnitDraw:
        """The draw of a key: group by group, with the key's index that of the group's name."""
        if self._last is None or self._last.key != key:
            kept = {}
            own = Key(key.seed, key.step, key.node)
            for group, sketch, index in zip(self.groups, self.sketches, self._indices, strict=True):
                drawn = sketch.sample_layer(group.units, own, index)
                assert isinstance(drawn, DiagonalDraw)
                kept[group.name] = drawn
            self._last = UnitDraw(kept, key)
        return self._last

    def kept(self, number: int, key: Key, like: Tensor) -> Draw:
        """The kept columns of a consumer, with the scales of their units."""
        return self.scaled[number].kept(list(self.draw(key).values()))

    def share(self, number: int) -> float:
        """The expected share of the units that are kept."""
        scaled = self.scaled[number]
        if len(scaled.segments) < 2:
            return self._share(scaled.group)
        sizes = [p.run * (1 if p.group is None else self.groups[p.group].units) for p in scaled.segments]
        return float(np.average([self._share(p.group) for p in scaled.segments], weights=sizes))

    def _share(self, group: int | None) -> float:
        return 1.0 if group is None else self.sketches[group].share(self.groups[group].units)

    def constants(self) -> Constants:
        """Of S over the outgoing weights: the largest L_D and L_max and the smallest mu_D of the groups."""
        found = [s.constants(group.units) for s, group in zip(self.sketches, self.groups, strict=True)]
        return Constants.of_parts(found)


def _of_group(sketch: Sketch, group: UnitGroup) -> Sketch:
    try:
        if group.keep is not None:
            if not isinstance(sketch, Bernoulli) or entry_of(sketch) is None:
                raise ArgumentError(
                    f"keep gives the units a keep probability of their own ({group.keep:g}), which only "
                    f"Bernoulli sketches can have, not {sketch!r}; keep = 1 leaves units out"
                )
            return sketch.with_keep(group.keep)
        sketch.check(group.units)
    except MastError as error:
        raise ArgumentError(f"the {group.units} units of {group.name!r}: {error}") from None
    return sketch


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


def along(segments: Sequence[Segment], units: Sequence[DiagonalDraw]) -> tuple[Indices, Array]:
    """The kept entries along a dimension, and their scales, given the kept units of each group."""
    indices, scales = [], []
    for segment in segments:
        if segment.group is None:
            indices.append(np.arange(segment.offset, segment.offset + segment.run))
            scales.append(np.ones(segment.run))
            continue
        kept = units[segment.group]
        own = kept.scales if segment.scaled else np.ones(kept.count)
        if segment.run == 1:  # at every step of a training run
            indices.append(kept.indices + segment.offset)
            scales.append(own)
        else:
            run = np.arange(segment.offset, segment.offset + segment.run)
            indices.append((kept.indices[:, None] * segment.run + run).reshape(-1))
            scales.append(np.repeat(own, segment.run))
    return (
        (indices[0], scales[0]) if len(segments) == 1 else (np.concatenate(indices), np.concatenate(scales))
    )
