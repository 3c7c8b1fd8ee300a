"""The structure of a model: its unit spaces, the parameters that carry scales, and the cuts of draws."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from mast.arrays import Array, Indices
from mast.errors import ArgumentError
from mast.nn.structure.attention import HeadsAttention
from mast.nn.structure.choosing import refuse_unfollowed
from mast.nn.structure.copies import refuse_lazy, skeleton, template, with_values
from mast.nn.structure.cuts import Cut
from mast.nn.structure.drawing import Piece, Scaled, Space, UnitDraw, UnitDrawing, along, pieces_of
from mast.nn.structure.resizing import Sizes, fit, replace_attention
from mast.nn.structure.sketches import Layers, Neurons, Structured
from mast.nn.tensors.weights import Where
from mast.randomness import Key
from mast.sketches import Sketch
from mast.sketches.kept import Grid, KeptTensors

if TYPE_CHECKING:
    from mast.nn.structure.following.examples import Example
    from mast.nn.structure.following.reading import Length
    from mast.nn.structure.transfer import Transfer


class Structure(ABC):
    """What a structured sketch needs to know of a model. Made by `structure_of`."""

    spaces: list[Space]
    scaled: list[Scaled]

    def __init__(self, model: nn.Module, examples: Sequence[Example]) -> None:
        self._source = model
        self.examples = examples
        self.modes: tuple[bool, ...] = (False, True)  # of training, in which the model does different things
        self.others: dict[str, str] = {}  # names of spaces whose units stay, with the reason
        self.other_units: dict[str, int] = {}  # how many they are, where it is known
        self.bare = skeleton(model)
        self.template = template(model)  # the model without values, into which submodels are poured
        self.count = sum(p.numel() for p in self.bare.parameters())  #: of all parameters' values

    def drawing(self, sketch: Sketch) -> UnitDrawing:
        """Draws of a sketch over these units."""
        inner = sketch.sketch if isinstance(sketch, Structured) else sketch
        uniform = isinstance(sketch, Neurons) and sketch.uniform
        return UnitDrawing(inner, self.spaces, self.scaled, uniform)

    def draw(self, sketch: Sketch, key: Key) -> UnitDraw:
        """The kept units, and their scales, of one key."""
        return self.drawing(sketch).draw(key)

    @abstractmethod
    def cut(self, draw: UnitDraw) -> Cut:
        """The slices that a draw leaves."""

    @abstractmethod
    def sizes(self, draw: UnitDraw) -> Sizes:
        """What the modules of a small model have to be told."""

    def blank(self, draw: UnitDraw) -> nn.Module:
        """A copy of the model for this draw, without values and without the modules of dropped branches."""
        model = copy.deepcopy(self.template)
        self.sizes(draw).take_out(model)
        return model

    def fit(self, model: nn.Module, draw: UnitDraw) -> None:
        """Adapt a copy that has the values of a draw's cut to their sizes."""
        return  # nothing has changed its size

    def remaining(self, draw: UnitDraw) -> list[str]:
        """Names of what a draw drops and a small model still has."""
        return []

    def adapt(self, small: nn.Module, draw: UnitDraw) -> None:
        """Let the configuration of a small model say its sizes, if it is one of transformers."""
        return  # it has none

    def check(
        self, model: nn.Module, draw: UnitDraw, small: nn.Module, shift: Mapping[str, Tensor] | None = None
    ) -> None:
        """An error if the small model of a draw does not compute what the whole one does, on the example."""
        from mast.nn.structure.following.proving import check

        check(self, model, draw, small, shift)

    def follow(self, model: nn.Module) -> None:
        """What is poured has the types of this model's tensors, and trains what is trained there."""
        own = dict(self.template.named_parameters()) | dict(self.template.named_buffers())
        for name, t in [*model.named_parameters(), *model.named_buffers()]:
            if name in own:
                own[name].data = own[name].data.to(t.dtype)
                own[name].requires_grad_(t.requires_grad)

    def buffer(self, name: str) -> Tensor | None:
        """A buffer of the model, if its values are known."""
        found = dict(self._source.named_buffers()).get(name)
        return None if found is None or found.is_meta else found

    def _check(self, draw: UnitDraw) -> None:
        for space in self.spaces:
            kept = draw.get(space.name)
            if kept is None or kept.dim != space.units:
                raise ArgumentError(
                    f"this draw is of another model: it does not fit the units of {space.name!r}"
                )

    def __repr__(self) -> str:
        parts = ", ".join(f"{s.name}: {s.units}" for s in self.spaces)
        return f"<structure of {type(self.bare).__name__}: {parts}>"


class UnitStructure(Structure):
    """Hidden units: one space per set of dimensions that have to be cut alike."""

    def __init__(
        self,
        model: nn.Module,
        examples: Sequence[Example],
        keep: Mapping[str, float] | None = None,
        where: Where | None = None,
    ) -> None:
        from mast.nn.structure.following.finding import settle

        super().__init__(model, examples)
        settle(self, with_values(model), examples, keep or {}, where)

    def settle(self, spaces: Sequence[Space], attributes: Sequence[Length]) -> None:
        """Take these spaces, and the numbers in modules that follow from their units."""
        self.spaces = list(spaces)
        names = {space.name for space in spaces}
        self._attributes = [a for a in attributes if any(name in names for name, _ in a.runs)]
        parameters = dict(self.bare.named_parameters())
        self._parameters = [(name, p.shape) for name, p in self.bare.named_parameters()]
        self._buffers = [(n, b.shape) for n, b in self.bare.named_buffers() if b.is_floating_point()]
        sizes = dict([*self._parameters, *self._buffers])
        self._pieces: dict[str, dict[int, tuple[Piece, ...]]] = {}
        for tensor, dim in dict.fromkeys((a.tensor, a.dim) for space in self.spaces for a in space.axes):
            pieces = pieces_of(self.spaces, tensor, dim, sizes[tensor][dim])
            self._pieces.setdefault(tensor, {})[dim] = pieces
        self.scaled = []
        for tensor, own in self._pieces.items():
            for dim, pieces in own.items():
                taken = [p.space for p in pieces if p.scaled and p.space is not None]
                if taken:
                    self.scaled.append(Scaled(tensor, taken[0], tuple(parameters[tensor].shape), dim, pieces))
        order = {name: i for i, name in enumerate(parameters)}
        self.scaled.sort(key=lambda s: order[s.tensor])
        #: attention modules whose heads are units, and the names of those spaces
        self.heads = {
            space.name.removesuffix(".in_proj_weight"): space.name
            for space in self.spaces
            if isinstance(self._owner(space.name), nn.MultiheadAttention)
        }
        for name in self.heads:
            if not isinstance(self.template.get_submodule(name), HeadsAttention):
                replace_attention(self.template, name)
        owners = {a.tensor.rpartition(".")[0] for space in self.spaces for a in space.axes}
        self._resized = {name: m for name, m in self.bare.named_modules() if name in owners}

    def cut(self, draw: UnitDraw) -> Cut:
        """Rows of producers and columns of consumers; the scales are on the columns."""
        self._check(draw)
        units = [draw.present(space.name) for space in self.spaces]

        def kept(name: str, shape: Sequence[int]) -> Grid:
            indices: dict[int, Indices] = {}
            scales: dict[int, Array] = {}
            for dim, pieces in self._pieces.get(name, {}).items():
                indices[dim], own = along(pieces, units)
                if any(piece.scaled for piece in pieces):
                    scales[dim] = own
            return Grid(shape, indices, scales or None)

        parameters = KeptTensors({name: kept(name, shape) for name, shape in self._parameters})
        return Cut(self, draw, parameters, KeptTensors({n: kept(n, shape) for n, shape in self._buffers}))

    def transfer(self) -> Transfer | None:
        """The quick way of weights into small models and back, where there is one."""
        from mast.nn.structure.transfer import Transfer  # with its compiled half, which takes a while to load

        if not self._parameters or any(a.dim > 1 for space in self.spaces for a in space.axes):
            return None
        return Transfer(self._parameters, self._pieces, [space.units for space in self.spaces])

    def sizes(self, draw: UnitDraw) -> Sizes:
        """Numbers in modules that are lengths, and the heads that are left of attention."""
        kept = {space.name: draw.present(space.name) for space in self.spaces}
        numbers: dict[str, dict[str, int]] = {}
        for a in self._attributes:
            dropped = sum(run * (kept[s].dim - kept[s].count) for s, run in a.runs if s in kept)
            numbers.setdefault(a.module, {})[a.attribute] = a.before - dropped
        heads = {name: kept[s].indices.tolist() for name, s in self.heads.items()}
        return Sizes(numbers, heads)

    def fit(self, model: nn.Module, draw: UnitDraw) -> None:
        """Modules whose tensors have shrunk say so; attention is for the heads that are left."""
        sizes = self.sizes(draw)
        for name, kept in sizes.heads.items():
            attention = model.get_submodule(name)
            assert isinstance(attention, HeadsAttention)
            attention.kept = list(kept)
        for name, before in self._resized.items():
            fit(model.get_submodule(name), before)
        sizes.set_numbers(model)

    def adapt(self, small: nn.Module, draw: UnitDraw) -> None:
        """Let the configuration of a small model say its sizes, if it is one of transformers."""
        from mast.nn.structure.following.configs import adapt

        adapt(small, [(kept.dim, draw.present(space).count) for space, kept in draw.items()])

    def _owner(self, parameter: str) -> nn.Module:
        return self.bare.get_submodule(parameter.rpartition(".")[0])


def structure_of(
    model: nn.Module,
    sketch: Sketch,
    keep: Mapping[str, float] | None = None,
    where: Where | None = None,
    *,
    example: Any = None,
    strict: bool = False,
) -> Structure:
    """The structure that a sketch acts on: `Neurons` or `Layers`.

    It is found by running the model on an `example` of its input: a tensor, a tuple of arguments, or a dict
    of keyword arguments. Without one, the input is guessed from the model's layers. A model on the meta
    device is run with values that are made up, as only its structure is looked at.

    >>> import mast
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> structure_of(model, mast.nn.Neurons(mast.RandK(2)))
    <structure of Sequential: 0.weight: 8>
    """
    from mast.nn.structure.branch_structures import BranchStructure  # which uses this file
    from mast.nn.structure.following.examples import Example
    from mast.nn.structure.following.guessing import guess

    if not isinstance(sketch, Neurons | Layers):
        raise ArgumentError(f"structured sketches are Neurons and Layers, got {sketch!r}")
    refuse_lazy(model)
    examples = guess(model) if example is None else [Example.of(example)]
    kind = UnitStructure if isinstance(sketch, Neurons) else BranchStructure
    structure = kind(model, examples, keep, where)
    if strict:
        refuse_unfollowed(structure)
    return structure
