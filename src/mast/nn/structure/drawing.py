"""How a key becomes the kept units of each space, and their scales on the outgoing weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mast.arrays import Array, Indices
from mast.errors import ArgumentError, MastError
from mast.nn.drawing import Drawing
from mast.nn.factors import Factor, _times
from mast.nn.structure.spaces import Space
from mast.nn.weights import name_index
from mast.randomness import Key
from mast.sketches import Bernoulli, Constants, DiagonalDraw, Sketch


@dataclass(frozen=True)
class Kept:
    """The units of one space that a draw keeps (ascending), and their scales."""

    units: Indices
    scales: Array
    of: int

    def diagonal(self) -> Array:
        """The scales of all units, 0 where they are dropped."""
        c = np.zeros(self.of)
        c[self.units] = self.scales
        return c


class UnitDraw:
    """One draw over a model's units: what is kept of each space, by the space's name."""

    def __init__(self, key: Key, kept: Mapping[str, Kept]) -> None:
        self.key = key
        self.kept = dict(kept)

    def __getitem__(self, space: str) -> Kept:
        return self.kept[space]

    @property
    def shares(self) -> dict[str, float]:
        """The share of units kept, by space."""
        return {name: k.units.size / k.of for name, k in self.kept.items()}

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}: {k.units.size} of {k.of}" for name, k in self.kept.items())
        return f"<draw of units: {parts}>"


class Spread(Factor):
    """Scales that are the same along all dimensions but one: they are broadcast, never written out."""

    def __init__(self, scales: Tensor) -> None:
        self.scales = scales  # with as many dimensions as the parameter

    def multiply(self, u: Tensor) -> Tensor:
        """Each slice times its unit's scale."""
        return _times(u, self.scales)

    def _compiled(self, g: Tensor, out: Tensor) -> None:
        torch.mul(g, self.scales.to(g.dtype), out=out)

    def _at_rows(self, rows: Tensor, shape: torch.Size) -> Tensor:
        return self.scales.expand(shape)[rows]


@dataclass(frozen=True)
class Scaled:
    """A parameter that carries scales: those of a space along one dimension, or of one unit everywhere."""

    tensor: str
    space: int
    shape: tuple[int, ...]
    dim: int | None = None
    run: int = 1
    unit: int = 0  # if dim is None


class Units(Drawing):
    """Draws over the units of each space; a parameter that is no consumer carries no scale."""

    def __init__(self, sketch: Sketch, spaces: Sequence[Space], scaled: Sequence[Scaled]) -> None:
        self.sketch = sketch  # over units
        self.spaces = list(spaces)
        self.scaled = list(scaled)
        self.sketches = [_of_space(sketch, space) for space in spaces]
        self._indices = [name_index(space.name) for space in spaces]
        self._last: UnitDraw | None = None
        self._vectors: dict[tuple[Any, ...], Tensor] = {}

    def draw(self, key: Key) -> UnitDraw:
        """The draw of a key: space by space, with the key's index that of the space's name."""
        if self._last is None or self._last.key != key:
            kept = {}
            chosen, own = self.sketch.choose(Key(key.seed, key.step, key.node))  # one for the whole model
            for space, sketch, index in zip(self.spaces, self.sketches, self._indices, strict=True):
                law = sketch if chosen is self.sketch else chosen
                drawn = law.sample(space.units, Key(own.seed, own.step, own.node, index))
                assert isinstance(drawn, DiagonalDraw)
                kept[space.name] = Kept(drawn.indices, drawn.scales, space.units)
            self._last, self._vectors = UnitDraw(key, kept), {}
        return self._last

    def factor(self, number: int, key: Key, like: Tensor) -> Factor:
        """The scales of a consumer's columns."""
        draw, scaled = self.draw(key), self.scaled[number]
        dtype = torch.promote_types(like.dtype, torch.float32)
        place = (scaled.space, scaled.dim, scaled.run, scaled.unit, len(scaled.shape), dtype, like.device)
        vector = self._vectors.get(place)
        if vector is None:
            vector = self._vectors[place] = self._vector(draw, scaled).to(like.device, dtype)
        return Spread(vector)

    def write(
        self, number: int, key: Key, x: Tensor, v: Tensor | None, y: Tensor, before: Factor | None
    ) -> Factor:
        """One product, without a mask of the parameter's size."""
        factor = self.factor(number, key, x)
        assert isinstance(factor, Spread)
        if v is None and x.dtype == factor.scales.dtype:
            torch.mul(x, factor.scales, out=y)
        else:
            y.copy_(factor.sparsify(x, v))
        return factor

    def _vector(self, draw: UnitDraw, scaled: Scaled) -> Tensor:
        c = draw[self.spaces[scaled.space].name].diagonal()
        rank = len(scaled.shape)
        if scaled.dim is None:
            return torch.full((1,) * rank, float(c[scaled.unit]), dtype=torch.float64)
        shape = [1] * rank
        shape[scaled.dim] = -1
        return torch.from_numpy(np.repeat(c, scaled.run)).view(shape)

    def share(self, number: int) -> float:
        """The expected share of the units that are kept."""
        space = self.scaled[number].space
        return self.sketches[space].share(self.spaces[space].units)

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
            if not isinstance(sketch, Bernoulli) or isinstance(sketch.keep, np.ndarray):
                raise ArgumentError(
                    f"keep gives the units a keep probability of their own ({space.keep:g}), which only "
                    f"Bernoulli "
                    f"sketches can have, not {sketch!r}; keep = 1 leaves units out"
                )
            return type(sketch)(space.keep)
        sketch.check(space.units)
    except MastError as error:
        raise ArgumentError(f"the {space.units} units of {space.name!r}: {error}") from None
    return sketch
