"""Unit spaces, and how a key becomes the kept units of each, with their scales on the outgoing weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from mast.arrays import Array, Indices
from mast.errors import ArgumentError, MastError
from mast.nn.tensors.drawing import Drawing
from mast.nn.tensors.weights import name_index
from mast.randomness import Key
from mast.sketches import Constants, DiagonalDraw, Sketch
from mast.sketches.kept import Entries, Everything, Grid, Kept

OUTPUT = "they are the model's output"  #: why the units of a last layer stay


@dataclass(frozen=True)
class Axis:
    """One dimension of one tensor: unit u owns the entries offset + u*run .. offset + (u+1)*run - 1 of it."""

    tensor: str
    dim: int
    run: int = 1
    offset: int = 0


@dataclass(frozen=True)
class Space:
    """Units that live or die one by one, each with all of its slices. Named by its first producer."""

    name: str
    units: int
    producers: tuple[Axis, ...]  # rows of a weight, a bias, an affine norm and its statistics
    consumers: tuple[Axis, ...]  # columns of a weight: the outgoing weights, which carry the scale
    keep: float | None = None  # a keep probability of its own
    as_many_as: str | None = None  # the space that a small model has to have the same number of units of

    @property
    def axes(self) -> tuple[Axis, ...]:
        """All of its slices."""
        return self.producers + self.consumers


class UnitDraw(dict[str, DiagonalDraw]):
    """One draw over a model's units: what is kept of each space, by the space's name."""

    def __init__(self, key: Key, kept: Mapping[str, DiagonalDraw]) -> None:
        super().__init__(kept)
        self.key = key

    @property
    def shares(self) -> dict[str, float]:
        """The share of units kept, by space."""
        return {name: kept.count / kept.dim for name, kept in self.items()}

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}: {kept.count} of {kept.dim}" for name, kept in self.items())
        return f"<draw of units: {parts}>"


def present(spaces: Sequence[Space], draw: UnitDraw) -> list[DiagonalDraw]:
    """The units of each space in a small model.

    No layer can have none, and some have to have as many as others: more units stay there, with scale 0.
    """
    wanted: dict[str, int] = {}
    for space in spaces:
        group = space.as_many_as or space.name
        wanted[group] = max(wanted.get(group, 1), draw[space.name].count)
    return [_at_least(wanted[space.as_many_as or space.name], draw[space.name]) for space in spaces]


def _at_least(count: int, kept: DiagonalDraw) -> DiagonalDraw:
    if kept.count >= count:
        return kept
    more = np.setdiff1d(np.arange(kept.dim), kept.indices)[: count - kept.count]
    indices, scales = np.append(kept.indices, more), np.append(kept.scales, np.zeros(more.size))
    order = np.argsort(indices)
    return DiagonalDraw(kept.dim, indices[order], scales[order])


@dataclass(frozen=True)
class Piece:
    """Some entries along a dimension: the runs of a space's units, or entries that stay (`space` is None)."""

    space: int | None
    run: int
    offset: int
    scaled: bool = False  # whether these entries carry the scales


@dataclass(frozen=True)
class Scaled:
    """A parameter that carries scales: those of spaces along one dimension, or of one unit everywhere."""

    tensor: str
    space: int
    shape: tuple[int, ...]
    dim: int | None = None
    pieces: tuple[Piece, ...] = ()
    unit: int = 0  # if dim is None

    def kept(self, draws: Sequence[DiagonalDraw]) -> Kept:
        """What the draws of all spaces keep of the parameter, with the scales of units on their columns."""
        if self.dim is not None:
            indices, scales = along(self.pieces, draws)
            return Grid(self.shape, {self.dim: indices}, {self.dim: scales})
        scale = self.scale(draws)
        return Everything(self.shape, scale) if scale else Entries(self.shape, np.empty(0, np.int64), scale)

    def scale(self, draws: Sequence[DiagonalDraw]) -> float:
        """That of its one unit, if it belongs to one as a whole."""
        return float(draws[self.space].diagonal()[self.unit])


class UnitDrawing(Drawing):
    """Draws over the units of each space; a parameter that is no consumer carries no scale."""

    def __init__(
        self, sketch: Sketch, spaces: Sequence[Space], scaled: Sequence[Scaled], uniform: bool = False
    ) -> None:
        self.sketch = sketch  # over units
        self.spaces = list(spaces)
        self.scaled = list(scaled)
        self.sketches = [_of_space(sketch, space) for space in spaces]
        first = {space.units: space.name for space in reversed(spaces)}  # of each size
        self._indices = [name_index(first[s.units] if uniform else s.name) for s in spaces]
        self._last: UnitDraw | None = None

    def draw(self, key: Key) -> UnitDraw:
        """The draw of a key: space by space, with the key's index that of the space's name."""
        if self._last is None or self._last.key != key:
            kept = {}
            chosen, own = self.sketch.choose(Key(key.seed, key.step, key.node))  # one for the whole model
            for space, sketch, index in zip(self.spaces, self.sketches, self._indices, strict=True):
                law = sketch if chosen is self.sketch else chosen
                place = 0 if law.per_layer else index  # one share, or window, for all spaces
                drawn = law.sample(space.units, Key(own.seed, own.step, own.node, place))
                assert isinstance(drawn, DiagonalDraw)
                kept[space.name] = drawn
            self._last = UnitDraw(key, kept)
        return self._last

    def kept(self, number: int, key: Key, like: Tensor) -> Kept:
        """The kept columns of a consumer, with the scales of their units."""
        return self.scaled[number].kept(list(self.draw(key).values()))

    def share(self, number: int) -> float:
        """The expected share of the units that are kept."""
        scaled = self.scaled[number]
        if len(scaled.pieces) < 2:
            return self._share(scaled.space)
        sizes = [p.run * (1 if p.space is None else self.spaces[p.space].units) for p in scaled.pieces]
        return float(np.average([self._share(p.space) for p in scaled.pieces], weights=sizes))

    def _share(self, space: int | None) -> float:
        return 1.0 if space is None else self.sketches[space].share(self.spaces[space].units)

    def sketch_of(self, number: int) -> Sketch:
        """That of the units whose outgoing weight this is."""
        return self.sketches[self.scaled[number].space]

    def constants(self) -> Constants:
        """Of S over the outgoing weights: the largest L_D and L_max and the smallest mu_D of the spaces."""
        found = [s.constants(space.units) for s, space in zip(self.sketches, self.spaces, strict=True)]
        return Constants.of_parts(found)


def _of_space(sketch: Sketch, space: Space) -> Sketch:
    try:
        if space.keep is not None:
            other = sketch.with_keep(space.keep)
            if other is None or sketch.entry() is None:
                raise ArgumentError(
                    f"keep gives the units a keep probability of their own ({space.keep:g}), which only "
                    f"Bernoulli sketches can have, not {sketch!r}; keep = 1 leaves units out"
                )
            return other
        sketch.check(space.units)
    except MastError as error:
        raise ArgumentError(f"the {space.units} units of {space.name!r}: {error}") from None
    return sketch


def pieces_of(spaces: Sequence[Space], tensor: str, dim: int, size: int) -> tuple[Piece, ...]:
    """How a dimension is divided among spaces, in order, with what stays between them."""
    own = sorted(
        (a.offset, a.run, number, a in space.consumers)
        for number, space in enumerate(spaces)
        for a in space.axes
        if (a.tensor, a.dim) == (tensor, dim)
    )
    pieces, end = [], 0
    for offset, run, number, scaled in own:
        if offset > end:
            pieces.append(Piece(None, offset - end, end))
        pieces.append(Piece(number, run, offset, scaled))
        end = offset + run * spaces[number].units
    if end < size:
        pieces.append(Piece(None, size - end, end))
    return tuple(pieces)


def along(pieces: Sequence[Piece], units: Sequence[DiagonalDraw]) -> tuple[Indices, Array]:
    """The kept entries along a dimension, and their scales, given the kept units of each space."""
    indices, scales = [], []
    for piece in pieces:
        if piece.space is None:
            indices.append(np.arange(piece.offset, piece.offset + piece.run))
            scales.append(np.ones(piece.run))
            continue
        kept = units[piece.space]
        own = kept.scales if piece.scaled else np.ones(kept.count)
        if piece.run == 1:  # at every step of a training run
            indices.append(kept.indices + piece.offset)
            scales.append(own)
        else:
            run = np.arange(piece.offset, piece.offset + piece.run)
            indices.append((kept.indices[:, None] * piece.run + run).reshape(-1))
            scales.append(np.repeat(own, piece.run))
    return (indices[0], scales[0]) if len(pieces) == 1 else (np.concatenate(indices), np.concatenate(scales))
