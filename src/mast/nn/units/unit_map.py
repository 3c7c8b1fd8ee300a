"""The unit map of a model: its groups of units, and how a key becomes the kept units of each."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from mast.errors import ArgumentError, MastError
from mast.nn.tensors.bound import BoundSketch
from mast.nn.tensors.selection import Selection
from mast.nn.tensors.weights import Weight, name_index, refuse_sharded, registered
from mast.nn.units.cuts import Cut, copy_with
from mast.nn.units.groups import Segment, UnitDraw, UnitGroup, segments_of
from mast.nn.units.sketches import Neurons, Structured
from mast.randomness import Key
from mast.sketches import Bernoulli, Constants, Sampled, Sketch
from mast.sketches.draws import DiagonalDraw, Draw, FullDraw, GridDraw
from mast.sketches.independent import entry_of
from mast.sketches.lists import sample_layer
from mast.support.checks import Array, Indices

if TYPE_CHECKING:
    from mast.nn.units.dependencies.examples import Example
    from mast.nn.units.dependencies.grouping import ModuleLength
    from mast.nn.units.dependencies.residual import Branch


REMEMBERED = 32  #: draws for which what is made of them is kept: the sizes of a list come again and again


@dataclass(frozen=True)
class ScaledParameter:
    """A parameter that carries scales: those of groups along one dimension, or of one unit everywhere."""

    tensor: str
    group: int
    shape: tuple[int, ...]
    dim: int | None = None
    segments: tuple[Segment, ...] = ()
    unit: int = 0  # if dim is None

    def kept(self, units: Sequence[DiagonalDraw]) -> Draw:
        """What the kept units of all groups leave of the parameter, with their scales on its columns."""
        if self.dim is not None:
            indices, scales = kept_along(self.segments, units)
            return GridDraw(self.shape, {self.dim: indices}, {self.dim: scales})
        scale = self.scale(units)
        nothing = np.empty(0, np.int64)
        return FullDraw(self.shape, scale) if scale else DiagonalDraw(self.shape, nothing, scale)

    def scale(self, units: Sequence[DiagonalDraw]) -> float:
        """That of its one unit, if it belongs to one as a whole."""
        return float(units[self.group].diagonal()[self.unit])


class UnitMap:
    """The units of a model that a structured sketch draws from. Made by `find_units`.

    Units are hidden ones, in one group per set of dimensions that are cut together, or residual
    `branches`, in one group, in the order in which they are computed.
    """

    def __init__(self, model: nn.Module, examples: Sequence[Example]) -> None:
        self.source = model  # whose buffers submodels have, where they are given none
        self.examples = examples
        self.modes: tuple[bool, ...] = (False, True)  # of training, in which the model does different things
        self.excluded: dict[str, str] = {}  # groups that are always kept, with the reason
        self.excluded_units: dict[str, int] = {}  # how many they are, where it is known
        self.skeleton = skeleton(model)
        parameters = {name: p.shape for name, p in self.skeleton.named_parameters()}
        buffers = {n: b.shape for n, b in self.skeleton.named_buffers() if b.is_floating_point()}
        self.parameters, self.buffers = list(parameters), list(buffers)  #: names; buffers of floating point
        self.shapes = {**buffers, **parameters}

    def set_groups(
        self,
        groups: Sequence[UnitGroup],
        lengths: Sequence[ModuleLength] = (),
        branches: Sequence[Branch] = (),
    ) -> None:
        """Take these groups, with the numbers in modules that follow from their units, or these branches."""
        self.groups, self.branches = list(groups), list(branches)
        self._cuts: dict[Hashable, Cut] = {}  # the last ones, by what their draws keep
        names = {group.name for group in groups}
        #: numbers in modules that follow from the units
        self.lengths = [length for length in lengths if any(name in names for name, _ in length.runs)]
        shapes = self.shapes
        #: how the dimensions of each tensor are divided among groups
        self.segments: dict[str, dict[int, tuple[Segment, ...]]] = {}
        self.scaled = [
            ScaledParameter(tensor, 0, tuple(shapes[tensor]), unit=number)
            for number, branch in enumerate(branches)
            for tensor in branch.scaled
        ]
        for tensor, dim in dict.fromkeys((a.tensor, a.dim) for group in groups for a in group.slices):
            segments = segments_of(groups, tensor, dim, shapes[tensor][dim])
            self.segments.setdefault(tensor, {})[dim] = segments
            taken = [s.group for s in segments if s.scaled and s.group is not None]
            if taken:
                self.scaled.append(ScaledParameter(tensor, taken[0], tuple(shapes[tensor]), dim, segments))
        order = {name: i for i, name in enumerate(self.parameters)}
        self.scaled.sort(key=lambda s: order[s.tensor])
        self._branch_ends = {s.tensor: s for s in self.scaled if s.dim is None}
        owners = {a.tensor.rpartition(".")[0] for group in groups for a in group.slices}
        #: the modules whose tensors are cut
        self.resized = {name: m for name, m in self.skeleton.named_modules() if name in owners}
        #: attention modules whose heads are units, and the names of those groups
        self.heads = {
            owner: group.name
            for group in groups
            if isinstance(self.resized.get(owner := group.name.rpartition(".")[0]), nn.MultiheadAttention)
        }

    # ---- draws -----------------------------------------------------------------------------------

    def bind(self, sketch: Sketch) -> BoundUnits:
        """A sketch over these units; branches with a keep probability of their own have it."""
        inner = sketch.sketch if isinstance(sketch, Structured) else sketch
        if any(branch.keep is not None for branch in self.branches):
            law = inner.law(len(self.branches))
            kept = np.broadcast_to(1.0 if law is None else law.keep, len(self.branches))
            pairs = zip(self.branches, kept.tolist(), strict=True)
            if not isinstance(inner, Bernoulli):
                raise ArgumentError(
                    "keep gives branches a keep probability of their own, which only Bernoulli sketches can "
                    f"have, not {inner!r}; keep = 1 leaves a branch out"
                )
            inner = type(inner)([branch.keep or keep for branch, keep in pairs])
        uniform = isinstance(sketch, Neurons) and sketch.uniform
        return BoundUnits(inner, self.groups, self.scaled, uniform)

    def cut(self, draw: UnitDraw) -> Cut:
        """The slices that a draw leaves; those of equal draws are one object."""
        for group in self.groups:
            found = draw.get(group.name)
            if found is None or found.dim != group.units:
                raise ArgumentError(
                    f"this draw is of another model: it does not fit the units of {group.name!r}"
                )
        signature = signature_of(draw)
        cut = self._cuts.get(signature)
        if cut is None:
            if len(self._cuts) >= REMEMBERED:
                oldest = list(self._cuts)[0]  # noqa: RUF015 (threads may be here at the same time)
                self._cuts.pop(oldest, None)
            cut = self._cuts[signature] = Cut(self, draw)
        return cut

    def examples_for(self, model: nn.Module) -> list[Example]:
        """The examples on the model's device, and in its type, if the model was converted since."""
        then, now = (next(m.parameters()).dtype for m in (self.skeleton, model))
        return [example.to(model, None if now == then else now) for example in self.examples]

    def present(self, draw: UnitDraw) -> list[DiagonalDraw]:
        """The units of each group in the small model of a draw.

        No layer can have none, and some have to have as many as others: more units stay there, with scale 0.
        """
        wanted: dict[str, int] = {}
        for group in self.groups:
            first = group.as_many_as or group.name
            wanted[first] = max(wanted.get(first, 1), draw[group.name].count)
        return [_at_least(wanted[group.as_many_as or group.name], draw[group.name]) for group in self.groups]

    def kept(self, tensor: str, units: Sequence[DiagonalDraw]) -> Draw:
        """What the kept units of all groups leave of a parameter or buffer in the small model."""
        shape = tuple(self.shapes[tensor])
        if tensor in self._branch_ends:
            return FullDraw(shape, self._branch_ends[tensor].scale(units))
        indices: dict[int, Indices] = {}
        scales: dict[int, Array] = {}
        for dim, segments in self.segments.get(tensor, {}).items():
            indices[dim], own = kept_along(segments, units)
            if any(segment.scaled for segment in segments):
                scales[dim] = own
        return GridDraw(shape, indices, scales)

    # ---- what users see --------------------------------------------------------------------------

    def selection(self, model: nn.Module) -> Selection:
        """The parameters that carry scales, as the weights of a sparsifier."""
        places = {id(p): place for place, p in registered(model)}
        scaled = {s.tensor: s for s in self.scaled}
        made = {a.tensor: group.name for group in self.groups for a in group.producers}
        weights, others = list[Weight](), dict[str, str]()
        for name, p in model.named_parameters():
            if name not in scaled:
                reason = "its weights do not leave the units that are drawn"
                if name in made:
                    reason = f"it makes the units of {made[name]}, and what takes them has the scales"
                others[name] = self.excluded.get(name, reason)
                continue
            if p.is_meta:
                raise ArgumentError(
                    f"the parameter {name!r} is on the meta device: materialise the model first"
                )
            refuse_sharded(name, p)
            keep = self.groups[scaled[name].group].keep
            weights.append(Weight(name, p.shape, places[id(p)], keep))
        return weights, others

    def consumed_by(self, tensor: str) -> list[str]:
        """The names of the groups whose units a parameter takes; none of branches."""
        return [group.name for group in self.groups if any(a.tensor == tensor for a in group.consumers)]

    def table(self) -> str:
        """A table with one row per group: its name, how many units it has, and whether they are cut.

        A group has the name of the first weight that makes its units.
        """
        rows = [("units of", "units", "cut")]
        rows += [(group.name, str(group.units), "yes") for group in self.groups]
        for name, reason in self.excluded.items():
            rows.append((name, str(self.excluded_units.get(name, "")), f"no: {reason}"))
        return "\n".join(align_columns(rows))

    def __repr__(self) -> str:
        parts = ", ".join(f"{s.name}: {s.units}" for s in self.groups)
        return f"<units of {type(self.skeleton).__name__}: {parts}>"


def skeleton(model: nn.Module) -> nn.Module:
    """A copy whose parameters and buffers have shapes but no values (they are on the meta device).

    >>> skeleton(nn.Linear(3, 2)).weight.device
    device(type='meta')
    """
    bare = copy_with(model, lambda _, t: torch.empty_like(t, device="meta"))
    for name, module in bare.named_modules():
        own = [t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]
        if not all(isinstance(t, Tensor) and t.is_meta for t in own):
            raise ArgumentError(
                f"the module {name or 'at the root'!r} ({type(module).__name__}) makes its tensors anew "
                "when it is copied, so its structure cannot be found"
            )
    return bare


def align_columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows of text with aligned columns.

    >>> align_columns([("a", "b"), ("long", "c")])
    ['  a     b', '  long  c']
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]


# ---- draws ---------------------------------------------------------------------------------------------


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
        first = {group.units: group.name for group in reversed(groups)}  # of each size
        self._indices = [name_index(first[s.units] if uniform else s.name) for s in groups]
        own = [_of_group(sketch, group) for group in groups]
        lists = zip(own, self._indices, strict=True)
        self.sketches = [s.of_layer(index) if isinstance(s, Sampled) else s for s, index in lists]
        self._last: UnitDraw | None = None

    def draw(self, key: Key) -> UnitDraw:
        """The draw of a key: group by group, with the key's index that of the group's name."""
        if self._last is None or self._last.key != key:
            kept = {}
            own = Key(key.seed, key.step, key.node)
            for group, sketch, index in zip(self.groups, self.sketches, self._indices, strict=True):
                drawn = sample_layer(sketch, group.units, own, index)
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


def signature_of(draw: UnitDraw) -> Hashable:
    """What a draw keeps, to look up what was made of an equal one."""
    return tuple((name, kept.indices.tobytes(), kept.scales.tobytes()) for name, kept in draw.items())


def _of_group(sketch: Sketch, group: UnitGroup) -> Sketch:
    try:
        if group.keep is not None:
            if not isinstance(sketch, Bernoulli) or entry_of(sketch) is None:
                raise ArgumentError(
                    f"keep gives the units a keep probability of their own ({group.keep:g}), which only "
                    f"Bernoulli sketches can have, not {sketch!r}; keep = 1 leaves units out"
                )
            return type(sketch)(group.keep)
        sketch.check(group.units)
    except MastError as error:
        raise ArgumentError(f"the {group.units} units of {group.name!r}: {error}") from None
    return sketch


def _at_least(count: int, kept: DiagonalDraw) -> DiagonalDraw:
    if kept.count >= count:
        return kept
    more = np.setdiff1d(np.arange(kept.dim), kept.indices)[: count - kept.count]
    indices, scales = np.append(kept.indices, more), np.append(kept.scales, np.zeros(more.size))
    order = np.argsort(indices)
    return DiagonalDraw(kept.dim, indices[order], scales[order])


def kept_along(segments: Sequence[Segment], units: Sequence[DiagonalDraw]) -> tuple[Indices, Array]:
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
