"""Forward passes on the kept slices: where a draw keeps ranges of units, a call computes with those alone.

Prefixes of sorted units, and windows, are ranges along every dimension that they cut. While the model is
being called, the places of its weights and statistics hold these slices (views, where they are scaled by 1)
and its modules the smaller sizes, so that the call costs what the submodel costs. Gradients come back as S'g
of full size, 0 where units are dropped: the loop and its optimizer stay as they are.

What cannot be sliced is masked, as in `tensors.sparsified`: draws that keep scattered units, a shift,
stand-ins of `functional_call`, and parts of the model that are called by themselves, whose results have to
have their full shapes. Heads of `nn.MultiheadAttention`, which has no size for them, are masked within a
call that is sliced.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mast.nn.tensors.sparsified import Memory, sketched_node, times, wide
from mast.nn.tensors.weights import Place, Weight, find, registered
from mast.nn.units import UnitDraw, UnitMap
from mast.nn.units.cuts import tensors_of
from mast.nn.units.unit_map import REMEMBERED, kept_along, signature_of
from mast.sketches import DiagonalDraw
from mast.support.checks import Array, Indices

_MOST_RANGES = 8  # along a dimension: q, k and v of a fused weight are three

Ranges = tuple[tuple[int, int], ...]  # first entry and length
ModuleSizes = list[tuple[dict[str, Any], str, int]]  # a module's attributes, the name of one, its value


@dataclass(eq=False)
class Slice:
    """What is kept of one tensor: ranges along some dimensions, with scales along some of them."""

    shape: torch.Size
    memory: Memory  # for gradients
    ranges: dict[int, Ranges] = field(default_factory=dict)
    scales: dict[int, Array] = field(default_factory=dict)

    @property
    def changes(self) -> bool:
        """Whether something of the tensor is dropped or scaled."""
        return bool(self.ranges or self.scales)

    def take(self, x: Tensor) -> Tensor:
        """S x of the kept entries: a view, if each dimension has one range and nothing is scaled."""
        for dim, ranges in self.ranges.items():
            parts = [x.narrow(dim, start, length) for start, length in ranges]
            x = parts[0] if len(parts) == 1 else torch.cat(parts, dim)
        return self._scaled(x)

    def give_back(self, g: Tensor, like: Tensor) -> Tensor:
        """S'g in the shape of the whole tensor, 0 where nothing is kept."""
        if g.is_sparse:
            return self._give_back_rows(g.coalesce())
        g = self._scaled(g)
        if not self.ranges:
            return g
        if g.is_cpu and g.dtype == like.dtype and not torch.is_grad_enabled():
            return self._filled(self.memory.like(like).zero_(), g)
        return self._filled(g.new_zeros(self.shape), g)

    def _give_back_rows(self, g: Tensor) -> Tensor:
        """That of an embedding with ``sparse=True``: some rows, all of whose columns are units."""
        values = self._scaled(g.values())
        whole = self._filled(values.new_zeros(len(values), *self.shape[1:]), values)
        return torch.sparse_coo_tensor(
            g.indices(), whole, self.shape, is_coalesced=True, check_invariants=False
        )

    def _filled(self, whole: Tensor, g: Tensor) -> Tensor:
        """The whole with g in its ranges."""
        for numbers in itertools.product(*(range(len(ranges)) for ranges in self.ranges.values())):
            to, of = whole, g
            for (dim, ranges), number in zip(self.ranges.items(), numbers, strict=True):
                start, length = ranges[number]
                to = to.narrow(dim, start, length)
                of = of.narrow(dim, sum(n for _, n in ranges[:number]), length)
            to.copy_(of)
        return whole

    def _scaled(self, x: Tensor) -> Tensor:
        for dim, scales in self.scales.items():
            x = times(x, wide(scales, x).view(-1, *[1] * (x.dim() - dim - 1)))
        return x


@dataclass(eq=False)
class SlicedModel:
    """One draw's slices: where they go, and the sizes that modules have to be told meanwhile."""

    places: list[Place]  # numbered as the sketched weights are, where a mask comes before the slice; else -1
    slices: list[Slice]  # one for each place; the same object where a tensor has several places
    sizes: ModuleSizes  # of modules, where they are smaller

    def fits(self, held: Sequence[Any]) -> bool:
        """Whether the places hold the model's own tensors, of the shapes that they had."""
        return all(
            isinstance(t, nn.Parameter if place.path[0] != "_buffers" else Tensor) and t.shape == kept.shape
            for place, t, kept in zip(self.places, held, self.slices, strict=True)
        )

    def values(self, held: Sequence[Tensor], masked: Callable[[int, Tensor], Tensor]) -> list[Tensor]:
        """The slice of each place's tensor, in autograd's graph where a gradient is wanted."""
        found: dict[int, Tensor] = {}
        for place, t, kept in zip(self.places, held, self.slices, strict=True):
            if id(t) in found:
                continue
            y = t if place.number < 0 else masked(place.number, t)
            if not (torch.is_grad_enabled() and y.requires_grad):
                found[id(t)] = kept.take(y.detach())
            elif kept.changes:
                found[id(t)] = sketched_node(y, kept.take, partial(kept.give_back, like=y.detach()))
            else:
                found[id(t)] = y
        return [found[id(t)] for t in held]

    def shrink(self) -> ModuleSizes:
        """Tell the modules their smaller sizes; returns the ones that they had."""
        before = [(attributes, name, attributes[name]) for attributes, name, _ in self.sizes]
        for attributes, name, size in self.sizes:
            attributes[name] = size
        return before


class Slices:
    """The slices of draws over the units of one model, whose sketched weights have these names."""

    def __init__(self, model: nn.Module, unit_map: UnitMap, sketched: Sequence[str]) -> None:
        self.model, self.unit_map = model, unit_map
        heads = [i for i, group in enumerate(unit_map.groups) if group.name in unit_map.heads.values()]
        carried = {s.tensor for s in unit_map.scaled for p in s.segments if p.group in heads}
        self._masked = {name: i for i, name in enumerate(sketched) if name in carried}
        cut = {id(t) for name, t in tensors_of(model).items() if name in unit_map.segments}
        #: the modules that hold a tensor of which draws keep slices, or a size
        self.modules = {
            module
            for module in model.modules()
            if any(id(t) in cut for t in (*module._parameters.values(), *module._buffers.values()))
        } | {model.get_submodule(length.module) for length in unit_map.lengths}
        self._known: dict[Hashable, SlicedModel | None] = {}
        self._memory: dict[str, Memory] = {}  # by tensor: all draws share it

    def of(self, draw: UnitDraw) -> SlicedModel | None:
        """Those of a draw that keeps ranges of units; None for any other."""
        if self.unit_map.branches:
            return None
        if any(kept.count and kept.indices[-1] - kept.indices[0] >= kept.count for kept in draw.values()):
            return None
        signature = signature_of(draw)
        if signature not in self._known:
            if len(self._known) >= REMEMBERED:
                self._known.pop(next(iter(self._known)))
            self._known[signature] = self._make(draw)
        return self._known[signature]

    def _make(self, draw: UnitDraw) -> SlicedModel | None:
        whole = {
            name: DiagonalDraw(n := draw[name].dim, np.arange(n), np.ones(n))
            for name in self.unit_map.heads.values()
        }
        draw = UnitDraw({**draw, **whole}, draw.key)
        units = self.unit_map.present(draw)
        slices: dict[str, Slice] = {}
        for name, shape in self.unit_map.shapes.items():
            own = Slice(shape, self._memory.setdefault(name, Memory()))
            for dim, segments in self.unit_map.segments.get(name, {}).items():
                indices, scales = kept_along(segments, units)
                ranges = _ranges(indices)
                if len(ranges) > _MOST_RANGES:
                    return None
                if ranges != ((0, shape[dim]),):
                    own.ranges[dim] = ranges
                if any(segment.scaled for segment in segments) and not (scales == 1).all():
                    own.scales[dim] = scales
            if own.changes or name in self._masked:
                slices[name] = own
        return self._placed(draw, slices)

    def _placed(self, draw: UnitDraw, slices: Mapping[str, Slice]) -> SlicedModel | None:
        owners = {id(p): place for place, p in registered(self.model)}
        weights = [
            Weight(name, p.shape, owners[id(p)])
            for name, p in self.model.named_parameters()
            if name in slices
        ]
        places, found = [], []
        for place in itertools.chain.from_iterable(find(self.model, weights).values()):
            name = weights[place.number].name
            places.append(Place(place.attributes, place.path, self._masked.get(name, -1)))
            found.append(slices[name])
        for prefix, module in self.model.named_modules():
            for key, buffer in module._buffers.items():
                kept = slices.get(f"{prefix}.{key}".removeprefix("."))
                if buffer is None or kept is None:
                    continue
                if any(len(ranges) > 1 for ranges in kept.ranges.values()):
                    return None  # no view: what the module writes there would be lost
                places.append(Place(vars(module), ("_buffers", key), -1))
                found.append(kept)
        return SlicedModel(places, found, self._sizes(draw))

    def _sizes(self, draw: UnitDraw) -> ModuleSizes:
        """The numbers in which the modules of the small model differ from the whole model's."""
        cut = self.unit_map.cut(draw)
        small = cut.pour(torch.empty(cut.count))
        return [
            (attributes, name, size)
            for module, smaller in small.named_modules()
            for attributes in (vars(self.model.get_submodule(module)),)
            for name, size in vars(smaller).items()
            if type(size) is int and type(attributes.get(name)) is int and attributes[name] != size
        ]


def _ranges(indices: Indices) -> Ranges:
    """Ascending indices as ranges."""
    starts = np.flatnonzero(np.diff(indices, prepend=-2) != 1)
    lengths = np.diff(starts, append=indices.size)
    return tuple((int(indices[s]), int(n)) for s, n in zip(starts, lengths, strict=True))
