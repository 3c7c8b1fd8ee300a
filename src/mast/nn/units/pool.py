"""A pool: one small model that takes the kept weights of one draw after the other.

Its modules stay the same, and where a `CompiledCut` can move the weights so does the memory of these. The
parameters are new ones each time: a graph that is still needed keeps the shape of the old, and hooks on them
end with the step. Only dropped branches, which are modules that are not there, make a new model each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mast.nn.tensors.torch_private import make_parameter
from mast.nn.units.cuts import Cut, SubmodelSizes, copy_with
from mast.nn.units.groups import UnitDraw
from mast.nn.units.stand_ins import HeadsAttention
from mast.nn.units.unit_map import UnitMap

if TYPE_CHECKING:
    from mast.nn.units.compiled_cut import CompiledCut, KeptUnits

Home = tuple[str, dict[str, Any], str]  # a tensor's name, and the dictionary and key it is found by


class Pool:
    """Small models of many draws of units, one at a time, out of one model."""

    cut: Cut  #: that of the present draw

    def __init__(self, unit_map: UnitMap, whole: nn.Module) -> None:
        self.unit_map, self._source = unit_map, whole
        self._model = copy_with(unit_map.skeleton, lambda _, t: torch.empty(0, dtype=t.dtype))
        SubmodelSizes(heads=dict.fromkeys(unit_map.heads, ())).replace_modules(self._model)
        #: the parameters of the present small model, by name
        self.parameters: dict[str, nn.Parameter] = dict(self._model.named_parameters())
        self._names = unit_map.parameters
        first = {id(p): name for name, p in self.parameters.items()}  # of all the names that it has
        self._homes: list[Home] = [
            (first[id(p)], module._parameters, key)
            for module in self._model.modules()
            for key, p in module._parameters.items()
            if p is not None
        ]
        # Where the whole model keeps its tensors: looking them up there finds replaced ones, too.
        self._whole = _homes_by_name(whole, "_parameters", self._names)
        self._whole_buffers = _homes_by_name(whole, "_buffers", [name for name, _ in whole.named_buffers()])
        self._compiled = _compiled_cut(unit_map)
        # Modules that have to be told of each draw: attention of its heads, recurrent ones of new parameters.
        self._tells = any(isinstance(m, nn.RNNBase | HeadsAttention) for m in self._model.modules())
        self._views: list[Tensor] | None = None  # of the present small model, if kernels have made it
        self._fitted: list[Tensor] | None = None  # those whose sizes the modules were told last

    def x(self) -> dict[str, Tensor]:
        """The whole model's parameters by name, detached."""
        return {name: home[key].detach() for name, home, key in self._whole}

    # ---- into the small model ----------------------------------------------------------------

    def units_of(self, draw: UnitDraw) -> KeptUnits | None:
        """What the quick way has to know of a draw, where there is such a way."""
        if self._compiled is None:
            return None
        return self._compiled.units(self.unit_map.present(draw))

    def model(self, draw: UnitDraw, units: KeptUnits | None) -> nn.Module:
        """The small model with the weights y = S x and the kept entries of the buffers."""
        self.cut = self.unit_map.cut(draw)
        if self.unit_map.branches:
            self._model = self.cut.module_of(self._source)
            self.parameters = dict(self._model.named_parameters())
            return self._model
        x = [home[key] for _, home, key in self._whole]
        self._views = None
        if self._compiled is not None and units is not None:
            self._views = self._compiled.gather(units, x)
        views = self._views
        if views is None:
            y = self.cut.scaled(self.cut.gather(self._source))
            pairs = zip(self._names, x, strict=True)
            views = [self.cut.parameters.of(y, name).to(t.dtype) for name, t in pairs]
        self.parameters = {
            name: make_parameter(nn.Parameter, view, t.requires_grad)
            for name, view, t in zip(self._names, views, x, strict=True)
        }
        for name, home, key in self._homes:
            home[key] = self.parameters[name]
        if self._whole_buffers:
            self._fill_buffers()
        if views is not self._fitted or self._tells:
            self.cut.fit(self._model)
            self._fitted = views
        return self._model

    # ---- and back ----------------------------------------------------------------------------

    def add(self, factor: float) -> None:
        """x[kept] += factor * S'g, where there are gradients g."""
        if self._views is not None and self._compiled is not None:
            x = [home[key] for _, home, key in self._whole]
            if self._compiled.scatter(x, [p.grad for p in self.parameters.values()], factor):
                return
        self.scale_gradients()
        found = self.x()
        with torch.no_grad():
            for name, kept in self.cut.parameters.items():
                g = self.parameters[name].grad
                if g is not None:
                    kept.add(found[name], g, factor)

    def adam(self, state: dict[str, dict[str, Any]], group: Mapping[str, Any]) -> bool:
        """A step of Adam on the kept entries of x and of its state; False where there is no quick way."""
        if self._views is None or self._compiled is None:
            return False
        x = [home[key] for _, home, key in self._whole]
        gradients = [p.grad for p in self.parameters.values()]
        own: list[dict[str, Any] | None] = []
        for name, t, g in zip(self._names, x, gradients, strict=True):
            if g is not None and name not in state:
                averages = {key: torch.zeros_like(t) for key in ("exp_avg", "exp_avg_sq")}
                state[name] = {**averages, "step": torch.tensor(0.0)}
            own.append(None if g is None else state[name])
        first, second = ([None if s is None else s[key] for s in own] for key in ("exp_avg", "exp_avg_sq"))
        steps = [1.0 if s is None else float(s["step"]) + 1 for s in own]
        if not self._compiled.adam(x, (first, second), gradients, steps, group):
            return False
        for s in own:
            if s is not None:
                s["step"] += 1
        return True

    def scale_gradients(self) -> None:
        """The gradients become S'g."""
        for name, kept in self.cut.parameters.items():
            g = self.parameters[name].grad
            if g is not None:
                kept.scale(g)

    def back_to_x(self) -> None:
        """The parameters hold the kept weights of x instead of S x."""
        x = self.x()
        for name, kept in self.cut.parameters.items():
            if not kept.unscaled:
                kept.gather(x[name], self.parameters[name].data)

    # ---- buffers -----------------------------------------------------------------------------

    def _fill_buffers(self) -> None:
        buffers = {name: home[key] for name, home, key in self._whole_buffers}
        with torch.no_grad():
            for name, b in self._model.named_buffers():
                kept = self.cut.buffers.get(name)
                b.data = buffers[name].clone() if kept is None else kept.gather(buffers[name])

    def return_buffers(self) -> None:
        """What the small model has made of its buffers goes back to where they came from."""
        if not self._whole_buffers:
            return
        buffers = {name: home[key] for name, home, key in self._whole_buffers}
        with torch.no_grad():
            for name, b in self._model.named_buffers():
                kept = self.cut.buffers.get(name)
                if kept is None:
                    buffers[name].copy_(b)
                else:
                    kept.place(buffers[name], b)


def _compiled_cut(unit_map: UnitMap) -> CompiledCut | None:
    """The quick way of weights into small models and back, where there is one."""
    from mast.nn.units.compiled_cut import CompiledCut  # with its kernels, which take a while to load

    deep = any(a.dim > 1 for group in unit_map.groups for a in group.slices)
    if unit_map.branches or deep or not unit_map.parameters:
        return None
    shapes = [(name, unit_map.shapes[name]) for name in unit_map.parameters]
    return CompiledCut(shapes, unit_map.segments, [group.units for group in unit_map.groups])


def _homes_by_name(model: nn.Module, kind: str, names: list[str]) -> list[Home]:
    found = []
    for name in names:
        owner, _, key = name.rpartition(".")
        found.append((name, getattr(model.get_submodule(owner), kind), key))
    return found
