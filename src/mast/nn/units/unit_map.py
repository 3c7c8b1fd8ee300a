"""The unit map of a model: its groups of units, the parameters with their scales, and the cuts of draws."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from mast.errors import ArgumentError
from mast.nn.tensors.selection import Selection
from mast.nn.tensors.weights import refuse_sharded, registered
from mast.nn.units.attention import HeadsAttention
from mast.nn.units.configurations import adapt, refuse_saving
from mast.nn.units.copies import skeleton, template
from mast.nn.units.cuts import Cut, SubmodelSizes, fit_attributes, replace_attention
from mast.nn.units.drawing import (
    BoundUnits,
    ScaledParameter,
    Segment,
    UnitDraw,
    UnitGroup,
    along,
    present,
    segments_of,
)
from mast.nn.units.sketches import Neurons, Structured
from mast.sketches import Bernoulli, Sketch
from mast.sketches.draws import Draw, FullDraw, GridDraw, ModelDraw
from mast.support.arrays import Array, Indices

if TYPE_CHECKING:
    from mast.nn.units.dependencies.examples import Example
    from mast.nn.units.dependencies.grouping import ModuleLength
    from mast.nn.units.dependencies.residual import Branch
    from mast.nn.units.transfer import Transfer


class UnitMap:
    """The units of a model that a structured sketch draws from. Made by `find_units`.

    Units are hidden ones, in one group per set of dimensions that have to be cut alike, or residual
    `branches`, in one group, in the order in which they are computed.
    """

    def __init__(self, model: nn.Module, examples: Sequence[Example]) -> None:
        self.source = model  # whose buffers submodels have, where they are given none
        self.examples = examples
        self.modes: tuple[bool, ...] = (False, True)  # of training, in which the model does different things
        self.excluded: dict[str, str] = {}  # groups that are always kept, with the reason
        self.excluded_units: dict[str, int] = {}  # how many they are, where it is known
        self.skeleton = skeleton(model)
        self.template = template(model)  # the model without values, into which submodels are poured
        self._parameters = [(name, p.shape) for name, p in self.skeleton.named_parameters()]
        self._buffers = [(n, b.shape) for n, b in self.skeleton.named_buffers() if b.is_floating_point()]
        self.count = sum(shape.numel() for _, shape in self._parameters)  #: of all parameters' values

    def set_groups(
        self,
        groups: Sequence[UnitGroup],
        lengths: Sequence[ModuleLength] = (),
        branches: Sequence[Branch] = (),
    ) -> None:
        """Take these groups, with the numbers in modules that follow from their units, or these branches."""
        self.groups, self.branches = list(groups), list(branches)
        names = {group.name for group in groups}
        #: numbers in modules that follow from the units
        self.lengths = [length for length in lengths if any(name in names for name, _ in length.runs)]
        shapes = self.shapes = dict([*self._buffers, *self._parameters])
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
        order = {name: i for i, (name, _) in enumerate(self._parameters)}
        self.scaled.sort(key=lambda s: order[s.tensor])
        owners = {a.tensor.rpartition(".")[0] for group in groups for a in group.slices}
        self._resized = {name: m for name, m in self.skeleton.named_modules() if name in owners}
        #: attention modules whose heads are units, and the names of those groups
        self.heads = {
            owner: group.name
            for group in groups
            if isinstance(self._resized.get(owner := group.name.rpartition(".")[0]), nn.MultiheadAttention)
        }
        replaced = {name for name, m in self.template.named_modules() if isinstance(m, HeadsAttention)}
        if replaced - self.heads.keys():  # by groups that were tried and left whole
            self.template = template(self.source)
        for name in self.heads:
            if not isinstance(self.template.get_submodule(name), HeadsAttention):
                replace_attention(self.template, name)

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
            inner = inner.with_keep([branch.keep or keep for branch, keep in pairs])
        uniform = isinstance(sketch, Neurons) and sketch.uniform
        return BoundUnits(inner, self.groups, self.scaled, uniform)

    def cut(self, draw: UnitDraw) -> Cut:
        """The slices that a draw leaves.

        Of hidden units these are rows of producers and columns of consumers, with the scales on the columns;
        of branches, all tensors but those of dropped ones.
        """
        for group in self.groups:
            found = draw.get(group.name)
            if found is None or found.dim != group.units:
                raise ArgumentError(
                    f"this draw is of another model: it does not fit the units of {group.name!r}"
                )
        units = present(self.groups, draw)
        gone = self._gone(draw) if self.branches else ()
        branch_ends = {s.tensor: s for s in self.scaled if s.dim is None}

        def kept(name: str, shape: Sequence[int]) -> Draw:
            if name in branch_ends:
                return FullDraw(shape, branch_ends[name].scale(units))
            indices: dict[int, Indices] = {}
            scales: dict[int, Array] = {}
            for dim, segments in self.segments.get(name, {}).items():
                indices[dim], own = along(segments, units)
                if any(segment.scaled for segment in segments):
                    scales[dim] = own
            return GridDraw(shape, indices, scales)

        parameters = ModelDraw({n: kept(n, shape) for n, shape in self._parameters if n not in gone})
        buffers = ModelDraw({n: kept(n, shape) for n, shape in self._buffers if n not in gone})
        return Cut(self, draw, parameters, buffers)

    def transfer(self) -> Transfer | None:
        """The quick way of weights into small models and back, where there is one."""
        from mast.nn.units.transfer import Transfer  # with its compiled half, which takes a while to load

        if self.branches or not self._parameters or any(a.dim > 1 for s in self.groups for a in s.slices):
            return None
        return Transfer(self._parameters, self.segments, [group.units for group in self.groups])

    # ---- small models ----------------------------------------------------------------------------

    def sizes(self, draw: UnitDraw) -> SubmodelSizes:
        """What modules have to be told: lengths, heads that are left, and which stand in for dropped ones."""
        kept = {s.name: units for s, units in zip(self.groups, present(self.groups, draw), strict=True)}
        numbers: dict[str, dict[str, int]] = {}
        for length in self.lengths:
            dropped = sum(run * (kept[s].dim - kept[s].count) for s, run in length.runs if s in kept)
            numbers.setdefault(length.module, {})[length.attribute] = length.before - dropped
        heads = {name: kept[s].indices.tolist() for name, s in self.heads.items()}
        absent = {name: m for branch in self._dropped(draw) for name, m in branch.modules}
        return SubmodelSizes(numbers, heads, absent)

    def blank(self, draw: UnitDraw) -> nn.Module:
        """A copy of the model for this draw, without values and without the modules of dropped branches."""
        model = copy.deepcopy(self.template)
        self.sizes(draw).take_out(model)
        return model

    def fit(self, model: nn.Module, draw: UnitDraw) -> None:
        """Adapt a copy that has the values of a draw's cut to their sizes."""
        sizes = self.sizes(draw)
        for name, kept in sizes.heads.items():
            attention = model.get_submodule(name)
            assert isinstance(attention, HeadsAttention)
            attention.kept = list(kept)
        for name, before in self._resized.items():
            fit_attributes(model.get_submodule(name), before)
        sizes.set_numbers(model)

    def branches_left(self, draw: UnitDraw) -> list[str]:
        """The dropped branches that cannot be taken out of the small model: they are there, times 0."""
        return [branch.name for branch in self._dropped(draw) if not branch.modules]

    def adapt(self, small: nn.Module, draw: UnitDraw) -> None:
        """Let the configuration of a small model say its sizes, if it is one of transformers."""
        if not self.branches:
            adapt(small, [(kept.dim, kept.count) for kept in present(self.groups, draw)])
        elif self._gone(draw):
            refuse_saving(small, "branches were taken out of this submodel")

    def match_types(self, model: nn.Module) -> None:
        """What is poured has the types of this model's tensors, and trains what is trained there."""
        own = dict(self.template.named_parameters()) | dict(self.template.named_buffers())
        for name, t in [*model.named_parameters(), *model.named_buffers()]:
            if name in own:
                own[name].data = own[name].data.to(t.dtype)
                own[name].requires_grad_(t.requires_grad)

    def _dropped(self, draw: UnitDraw) -> list[Branch]:
        if not self.branches:
            return []
        kept = set(draw[self.groups[0].name].indices.tolist())
        return [branch for i, branch in enumerate(self.branches) if i not in kept]

    def _gone(self, draw: UnitDraw) -> set[str]:
        """The tensors that no module holds any more, because of dropped branches."""
        absent = [name for branch in self._dropped(draw) for name, _ in branch.modules]
        held: set[int] = set()
        for name, module in self.skeleton.named_modules():
            if not any(name == m or name.startswith(f"{m}.") for m in absent):
                own = (*module._parameters.values(), *module._buffers.values())
                held |= {id(t) for t in own if t is not None}
        everything = [*self.skeleton.named_parameters(), *self.skeleton.named_buffers()]
        return {name for name, t in everything if id(t) not in held}

    # ---- what users see --------------------------------------------------------------------------

    def selection(self, model: nn.Module) -> Selection:
        """The parameters that carry scales, as the weights of a sparsifier."""
        places = {id(p): place for place, p in registered(model)}
        scaled = {s.tensor: s for s in self.scaled}
        made = {a.tensor: group.name for group in self.groups for a in group.producers}
        selection = Selection()
        for name, p in model.named_parameters():
            if name not in scaled:
                reason = "its weights do not leave the units that are drawn"
                if name in made:
                    reason = f"it makes the units of {made[name]}, and what takes them has the scales"
                selection.others[name] = self.excluded.get(name, reason)
                continue
            if p.is_meta:
                raise ArgumentError(
                    f"the parameter {name!r} is on the meta device: materialise the model first"
                )
            refuse_sharded(name, p)
            selection.add(name, p, places[id(p)], self.groups[scaled[name].group].keep)
        return selection

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
        return "\n".join(columns(rows))

    def __repr__(self) -> str:
        parts = ", ".join(f"{s.name}: {s.units}" for s in self.groups)
        return f"<units of {type(self.skeleton).__name__}: {parts}>"


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows of text with aligned columns.

    >>> columns([("a", "b"), ("long", "c")])
    ['  a     b', '  long  c']
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]
