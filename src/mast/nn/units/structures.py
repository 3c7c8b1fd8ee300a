"""The structure of a model: its units, the parameters that carry their scales, and the cuts of draws."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from mast.arrays import Array, Indices
from mast.errors import ArgumentError
from mast.nn.tensors.selection import Selection
from mast.nn.tensors.weights import Keep, Where, refuse_sharded, registered
from mast.nn.units.attention import HeadsAttention
from mast.nn.units.configs import adapt, refuse_saving
from mast.nn.units.cuts import Cut
from mast.nn.units.drawing import Piece, Scaled, Space, UnitDraw, UnitDrawing, along, pieces_of, present
from mast.nn.units.resizing import Sizes, fit, refuse_lazy, replace_attention, skeleton, template
from mast.nn.units.sketches import Layers, Neurons, Structured
from mast.sketches import Sketch
from mast.sketches.kept import Everything, Grid, Kept, KeptTensors

if TYPE_CHECKING:
    from mast.nn.units.following.branching import Branch
    from mast.nn.units.following.examples import Example
    from mast.nn.units.following.reading import Length
    from mast.nn.units.following.recording import Recording
    from mast.nn.units.transfer import Transfer

#: what reasons say if units could perhaps be dropped, and it is not known how
_UNFOLLOWED = ("has no rule", "a smaller model", "in no regular order")


class Structure:
    """What a structured sketch needs to know of a model. Made by `structure_of`.

    Units are hidden ones, in one space per set of dimensions that have to be cut alike, or residual
    `branches`, in one space, in the order in which they are computed.
    """

    def __init__(self, model: nn.Module, examples: Sequence[Example]) -> None:
        self.source = model  # whose buffers submodels have, where they are given none
        self.examples = examples
        self.modes: tuple[bool, ...] = (False, True)  # of training, in which the model does different things
        self.others: dict[str, str] = {}  # names of spaces whose units stay, with the reason
        self.other_units: dict[str, int] = {}  # how many they are, where it is known
        self.bare = skeleton(model)
        self.template = template(model)  # the model without values, into which submodels are poured
        self._parameters = [(name, p.shape) for name, p in self.bare.named_parameters()]
        self._buffers = [(n, b.shape) for n, b in self.bare.named_buffers() if b.is_floating_point()]
        self.count = sum(shape.numel() for _, shape in self._parameters)  #: of all parameters' values

    def settle(
        self, spaces: Sequence[Space], attributes: Sequence[Length] = (), branches: Sequence[Branch] = ()
    ) -> None:
        """Take these spaces, with the numbers in modules that follow from their units, or these branches."""
        self.spaces, self.branches = list(spaces), list(branches)
        names = {space.name for space in spaces}
        #: numbers in modules that follow from the units
        self.attributes = [a for a in attributes if any(name in names for name, _ in a.runs)]
        shapes = self.shapes = dict([*self._buffers, *self._parameters])
        #: how the dimensions of each tensor are divided among spaces
        self.pieces: dict[str, dict[int, tuple[Piece, ...]]] = {}
        self.scaled = [
            Scaled(tensor, 0, tuple(shapes[tensor]), unit=number)
            for number, branch in enumerate(branches)
            for tensor in branch.scaled
        ]
        for tensor, dim in dict.fromkeys((a.tensor, a.dim) for space in spaces for a in space.axes):
            pieces = pieces_of(spaces, tensor, dim, shapes[tensor][dim])
            self.pieces.setdefault(tensor, {})[dim] = pieces
            taken = [p.space for p in pieces if p.scaled and p.space is not None]
            if taken:
                self.scaled.append(Scaled(tensor, taken[0], tuple(shapes[tensor]), dim, pieces))
        order = {name: i for i, (name, _) in enumerate(self._parameters)}
        self.scaled.sort(key=lambda s: order[s.tensor])
        owners = {a.tensor.rpartition(".")[0] for space in spaces for a in space.axes}
        self._resized = {name: m for name, m in self.bare.named_modules() if name in owners}
        #: attention modules whose heads are units, and the names of those spaces
        self.heads = {
            owner: space.name
            for space in spaces
            if isinstance(self._resized.get(owner := space.name.rpartition(".")[0]), nn.MultiheadAttention)
        }
        replaced = {name for name, m in self.template.named_modules() if isinstance(m, HeadsAttention)}
        if replaced - self.heads.keys():  # by spaces that were tried and left whole
            self.template = template(self.source)
        for name in self.heads:
            if not isinstance(self.template.get_submodule(name), HeadsAttention):
                replace_attention(self.template, name)

    # ---- draws -----------------------------------------------------------------------------------

    def drawing(self, sketch: Sketch) -> UnitDrawing:
        """Draws of a sketch over these units; branches with a keep probability of their own have it."""
        inner = sketch.sketch if isinstance(sketch, Structured) else sketch
        if any(branch.keep is not None for branch in self.branches):
            law = inner.law(len(self.branches))
            kept = np.broadcast_to(1.0 if law is None else law.keep, len(self.branches))
            pairs = zip(self.branches, kept.tolist(), strict=True)
            other = inner.with_keep([branch.keep or keep for branch, keep in pairs])
            if other is None:
                raise ArgumentError(
                    "keep gives branches a keep probability of their own, which only Bernoulli sketches can "
                    f"have, not {inner!r}; keep = 1 leaves a branch out"
                )
            inner = other
        uniform = isinstance(sketch, Neurons) and sketch.uniform
        return UnitDrawing(inner, self.spaces, self.scaled, uniform)

    def cut(self, draw: UnitDraw) -> Cut:
        """The slices that a draw leaves.

        Of hidden units these are rows of producers and columns of consumers, with the scales on the columns;
        of branches, all tensors but those of dropped ones.
        """
        for space in self.spaces:
            found = draw.get(space.name)
            if found is None or found.dim != space.units:
                raise ArgumentError(
                    f"this draw is of another model: it does not fit the units of {space.name!r}"
                )
        units = present(self.spaces, draw)
        gone = self._gone(draw) if self.branches else ()
        tails = {s.tensor: s for s in self.scaled if s.dim is None}

        def kept(name: str, shape: Sequence[int]) -> Kept:
            if name in tails:
                return Everything(shape, tails[name].scale(units))
            indices: dict[int, Indices] = {}
            scales: dict[int, Array] = {}
            for dim, pieces in self.pieces.get(name, {}).items():
                indices[dim], own = along(pieces, units)
                if any(piece.scaled for piece in pieces):
                    scales[dim] = own
            return Grid(shape, indices, scales)

        parameters = KeptTensors({n: kept(n, shape) for n, shape in self._parameters if n not in gone})
        buffers = KeptTensors({n: kept(n, shape) for n, shape in self._buffers if n not in gone})
        return Cut(self, draw, parameters, buffers)

    def transfer(self) -> Transfer | None:
        """The quick way of weights into small models and back, where there is one."""
        from mast.nn.units.transfer import Transfer  # with its compiled half, which takes a while to load

        if self.branches or not self._parameters or any(a.dim > 1 for s in self.spaces for a in s.axes):
            return None
        return Transfer(self._parameters, self.pieces, [space.units for space in self.spaces])

    # ---- small models ----------------------------------------------------------------------------

    def sizes(self, draw: UnitDraw) -> Sizes:
        """What modules have to be told: lengths, heads that are left, and which stand in for dropped ones."""
        kept = {s.name: units for s, units in zip(self.spaces, present(self.spaces, draw), strict=True)}
        numbers: dict[str, dict[str, int]] = {}
        for a in self.attributes:
            dropped = sum(run * (kept[s].dim - kept[s].count) for s, run in a.runs if s in kept)
            numbers.setdefault(a.module, {})[a.attribute] = a.before - dropped
        heads = {name: kept[s].indices.tolist() for name, s in self.heads.items()}
        absent = {name: m for branch in self._dropped(draw) for name, m in branch.modules}
        return Sizes(numbers, heads, absent)

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
            fit(model.get_submodule(name), before)
        sizes.set_numbers(model)

    def remaining(self, draw: UnitDraw) -> list[str]:
        """The dropped branches that cannot be taken out of the small model: they are there, times 0."""
        return [branch.name for branch in self._dropped(draw) if not branch.modules]

    def adapt(self, small: nn.Module, draw: UnitDraw) -> None:
        """Let the configuration of a small model say its sizes, if it is one of transformers."""
        if not self.branches:
            adapt(small, [(kept.dim, kept.count) for kept in present(self.spaces, draw)])
        elif self._gone(draw):
            refuse_saving(small, "branches were taken out of this submodel")

    def follow(self, model: nn.Module) -> None:
        """What is poured has the types of this model's tensors, and trains what is trained there."""
        own = dict(self.template.named_parameters()) | dict(self.template.named_buffers())
        for name, t in [*model.named_parameters(), *model.named_buffers()]:
            if name in own:
                own[name].data = own[name].data.to(t.dtype)
                own[name].requires_grad_(t.requires_grad)

    def _dropped(self, draw: UnitDraw) -> list[Branch]:
        if not self.branches:
            return []
        kept = set(draw[self.spaces[0].name].indices.tolist())
        return [branch for i, branch in enumerate(self.branches) if i not in kept]

    def _gone(self, draw: UnitDraw) -> set[str]:
        """The tensors that no module holds any more, because of dropped branches."""
        absent = [name for branch in self._dropped(draw) for name, _ in branch.modules]
        held: set[int] = set()
        for name, module in self.bare.named_modules():
            if not any(name == m or name.startswith(f"{m}.") for m in absent):
                own = (*module._parameters.values(), *module._buffers.values())
                held |= {id(t) for t in own if t is not None}
        everything = [*self.bare.named_parameters(), *self.bare.named_buffers()]
        return {name for name, t in everything if id(t) not in held}

    # ---- what users see --------------------------------------------------------------------------

    def selection(self, model: nn.Module) -> Selection:
        """The parameters that carry scales, as the weights of a sparsifier."""
        places = {id(p): place for place, p in registered(model)}
        scaled = {s.tensor: s for s in self.scaled}
        made = {a.tensor: space.name for space in self.spaces for a in space.producers}
        selection = Selection()
        for name, p in model.named_parameters():
            if name not in scaled:
                reason = "its weights do not leave the units that are drawn"
                if name in made:
                    reason = f"it makes the units of {made[name]}, and what takes them has the scales"
                selection.others[name] = self.others.get(name, reason)
                continue
            if p.is_meta:
                raise ArgumentError(
                    f"the parameter {name!r} is on the meta device: materialise the model first"
                )
            refuse_sharded(name, p)
            selection.add(name, p, places[id(p)], self.spaces[scaled[name].space].keep)
        return selection

    def taken(self, tensor: str) -> list[str]:
        """The names of the spaces whose units a parameter takes; none of branches."""
        return [space.name for space in self.spaces if any(a.tensor == tensor for a in space.consumers)]

    def table(self) -> str:
        """A table with one row per space: its name, how many units it has, and whether they are cut.

        A space has the name of the first weight that makes its units.
        """
        rows = [("units of", "units", "cut")]
        rows += [(space.name, str(space.units), "yes") for space in self.spaces]
        for name, reason in self.others.items():
            rows.append((name, str(self.other_units.get(name, "")), f"no: {reason}"))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = ["  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)) for row in rows]
        return "\n".join("  " + line.rstrip() for line in lines)

    def __repr__(self) -> str:
        parts = ", ".join(f"{s.name}: {s.units}" for s in self.spaces)
        return f"<structure of {type(self.bare).__name__}: {parts}>"


def structure_of(
    model: nn.Module,
    sketch: Sketch,
    keep: Mapping[str, Keep] | Callable[[Recording], Mapping[str, float]] | None = None,
    where: Where | None = None,
    *,
    example: Any = None,
    strict: bool = False,
) -> Structure:
    """The structure that a sketch acts on: `Neurons` or `Layers`.

    It is found by running the model on an `example` of its input: a tensor, a tuple of arguments, or a dict
    of keyword arguments. Without one, the input of MLPs and of networks for images is guessed. A model on the
    meta device is run with values that are made up, as only its structure is looked at. For
    units, `keep` may be a function that is shown the record of that run.

    >>> import mast
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> structure_of(model, mast.nn.Neurons(mast.RandK(2)))
    <structure of Sequential: 0.weight: 8>
    """
    from mast.nn.units.following.examples import Example, guess
    from mast.nn.units.following.finding import settle_branches, settle_units
    from mast.nn.units.loadable import leave_out_unloadable

    if not isinstance(sketch, Neurons | Layers):
        raise ArgumentError(f"structured sketches are Neurons and Layers, got {sketch!r}")
    shares = keep if callable(keep) else _shares(keep or {})
    refuse_lazy(model)
    examples = guess(model) if example is None else [Example.of(example)]
    structure = Structure(model, examples if isinstance(sketch, Neurons) else examples[-1:])
    if isinstance(sketch, Neurons) or callable(shares):
        settle_units(structure, model, shares, where)
    else:
        settle_branches(structure, model, shares, where)
    if isinstance(sketch, Neurons) and sketch.loadable:
        leave_out_unloadable(structure, model, sketch)
    unknown = [n for n, reason in structure.others.items() if any(word in reason for word in _UNFOLLOWED)]
    if strict and unknown:
        raise ArgumentError(
            f"strict: {len(unknown)} of the model's layers have units that could not be followed, such as "
            f"{unknown[0]!r}:\n{structure.table()}"
        )
    return structure


def _shares(keep: Mapping[str, Keep]) -> dict[str, float]:
    if any(np.ndim(share) for share in keep.values()):
        raise ArgumentError("keep with one probability per entry is for single weights, not for units")
    return {pattern: float(share) for pattern, share in keep.items()}
