"""A pool: one small model that takes the weights of one cut after the other.

Its modules stay the same where they can, and the memory of the weights is one buffer that is used again at
each
step. The parameters are new ones each time: a graph that is still alive keeps the shape of the old.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mast.nn.structure.cuts import Cut
from mast.nn.structure.structures import Structure, UnitStructure


class Places:
    """Where a model keeps its tensors, found once: looking them up is quick, and finds replaced ones."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = _places(model, "_parameters", [name for name, _ in model.named_parameters()])
        self._buffers = _places(model, "_buffers", [name for name, _ in model.named_buffers()])

    def parameters(self) -> dict[str, Tensor]:
        """The parameters by name, detached."""
        return {name: home[key].detach() for name, home, key in self._parameters}

    def buffers(self) -> dict[str, Tensor]:
        """The buffers by name."""
        return {name: home[key] for name, home, key in self._buffers}


def _places(model: nn.Module, kind: str, names: list[str]) -> list[tuple[str, dict[str, Tensor], str]]:
    found = []
    for name in names:
        owner, _, key = name.rpartition(".")
        found.append((name, getattr(model.get_submodule(owner), kind), key))
    return found


class Pool:
    """Small models of many cuts, one at a time."""

    def __init__(self, structure: Structure) -> None:
        self.structure = structure
        self._model = copy.deepcopy(structure.template)
        #: the parameters of the present small model, by name
        self.parameters: dict[str, nn.Parameter] = dict(self._model.named_parameters())
        #: their scales, where they have some, in their type
        self.scales: dict[str, Tensor] = {}
        first = {id(p): name for name, p in self.parameters.items()}
        self._first = {  # of all the names that a parameter has
            name: first[id(p)] for name, p in self._model.named_parameters(remove_duplicate=False)
        }
        self._trainable = {name: p.requires_grad for name, p in self.parameters.items()}
        self._places = self._find_places()
        self._sizes: list[tuple[int, ...]] = []
        self._memory: dict[torch.dtype, Tensor] = {}

    def model(self, cut: Cut, x: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> nn.Module:
        """The small model with the weights y = S x and the kept entries of the buffers."""
        if not isinstance(self.structure, UnitStructure):
            self._model = self.structure.blank(cut.draw)
            self._places = self._find_places()
        self._fill(cut, x)
        self._fill_buffers(cut, buffers)
        sizes = [part.slice.shape for part in cut.parts]
        if sizes != self._sizes or not isinstance(self.structure, UnitStructure) or self.structure.heads:
            self.structure.fit(self._model, cut)
            self._sizes = sizes
        return self._model

    def back_to_x(self, cut: Cut, x: Mapping[str, Tensor]) -> None:
        """The parameters hold the kept weights of x instead of S x."""
        for part in cut.parts:
            if part.scales is not None:
                part.slice.take(x[part.name], self.parameters[part.name].data)

    def _fill(self, cut: Cut, x: Mapping[str, Tensor]) -> None:
        self.parameters, self.scales = {}, {}
        room = None
        for part in cut.parts:
            source = x[part.name]
            if room is None or room.dtype != source.dtype or room.device != source.device:
                room = self._room(cut.count, source)
            own = part.slice.take(source, part.of(room))
            if part.scales is not None:
                scales = self.scales[part.name] = part.scales.to(own)
                own.mul_(scales)
            self.parameters[part.name] = nn.Parameter(own, self._trainable[part.name])
        for module, key, name in self._places:
            module._parameters[key] = self.parameters[name]

    def return_buffers(self, cut: Cut, buffers: Mapping[str, Tensor]) -> None:
        """What the small model has made of its buffers goes back to where they came from."""
        if not buffers:
            return
        slices = {part.name: part.slice for part in cut.buffers}
        for name, b in self._model.named_buffers():
            if name in slices:
                slices[name].put(buffers[name], b)
            else:
                buffers[name].copy_(b)

    def _fill_buffers(self, cut: Cut, buffers: Mapping[str, Tensor]) -> None:
        if not buffers:
            return
        slices = {part.name: part.slice for part in cut.buffers}
        for name, b in self._model.named_buffers():
            b.data = slices[name].take(buffers[name]) if name in slices else buffers[name].clone()

    def _room(self, count: int, like: Tensor) -> Tensor:
        """Memory for the values of a cut, the same at every step."""
        room = self._memory.get(like.dtype)
        if room is None or len(room) < count or room.device != like.device:
            room = self._memory[like.dtype] = torch.empty(count, dtype=like.dtype, device=like.device)
        return room[:count]

    def _find_places(self) -> list[tuple[nn.Module, str, str]]:
        """Where the model keeps its parameters, and the first name of each."""
        return [
            (module, key, self._first[f"{prefix}.{key}" if prefix else key])
            for prefix, module in self._model.named_modules()
            for key, p in module._parameters.items()
            if p is not None
        ]
