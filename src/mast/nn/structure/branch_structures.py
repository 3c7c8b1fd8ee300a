"""The structure that `Layers` acts on: one unit a residual branch."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, fx, nn

from mast.errors import ArgumentError, MastError
from mast.nn.structure import functions, modules
from mast.nn.structure.branches import Branch, ancestors, find_branches
from mast.nn.structure.choosing import chosen
from mast.nn.structure.cuts import Cut
from mast.nn.structure.drawing import Scaled, UnitDraw, UnitDrawing
from mast.nn.structure.dropped import NoAttention, Zeros
from mast.nn.structure.finding import own_keep
from mast.nn.structure.memory import in_place, same_memory
from mast.nn.structure.resizing import put
from mast.nn.structure.sketches import Structured
from mast.nn.structure.spaces import Space
from mast.nn.structure.structures import Structure
from mast.nn.tensors.weights import Where
from mast.sketches import Sketch
from mast.sketches.kept import Everything, KeptTensors

if TYPE_CHECKING:
    from mast.nn.structure.following.branching import Followed
    from mast.nn.structure.following.examples import Example

_HARMLESS = functions.ENTRYWISE | {k for k, rule in functions.RULES.items() if rule is functions.same}


@dataclass
class Removal:
    """The modules that stand in for dropped branches, and encoder layers that need the plain forward pass."""

    modules: dict[str, nn.Module] = field(default_factory=dict)
    layers: set[str] = field(default_factory=set)
    stuck: list[str] = field(default_factory=list)  # names of branches that stay, times 0


class BranchStructure(Structure):
    """Residual branches: one space, whose units they are, in the order in which they are computed."""

    def __init__(
        self,
        model: nn.Module,
        keep: Mapping[str, float] | None = None,
        where: Where | None = None,
        example: Example | None = None,
    ) -> None:
        super().__init__(model)
        self.example = example
        self._followed: dict[str, Followed] = {}
        self.others = {}
        if example is None:
            self._graph, found = find_branches(self.bare, keep)
        else:
            from mast.nn.structure.following.branching import find_followed

            followed, self.others = find_followed(model, example)
            self._followed = {branch.name: branch for branch in followed}
            found = [Branch(b.scaled, keep=own_keep(b.name, keep or {})) for b in followed]
        self.others |= {branch.name: "keep = 1" for branch in found if branch.keep == 1}
        if not found and not self.others:
            raise ArgumentError(
                "the model has no residual branches (additions x + f(x)) that could be dropped"
            )
        rest = [branch for branch in found if branch.keep != 1]
        self.branches = chosen(self.bare, rest, self.others, keep or {}, where)
        self.spaces = [Space(self.branches[0].name, len(self.branches), (), ())]
        shapes = {name: tuple(p.shape) for name, p in self.bare.named_parameters()}
        order = {name: i for i, name in enumerate(shapes)}
        self.scaled = [
            Scaled(tensor, 0, shapes[tensor], None, unit=number)
            for number, branch in enumerate(self.branches)
            for tensor in branch.scaled
        ]
        self.scaled.sort(key=lambda s: order[s.tensor])
        self._unit = {s.tensor: s.unit for s in self.scaled}

    def drawing(self, sketch: Sketch) -> UnitDrawing:
        """Draws over branches; those with a keep probability of their own have it."""
        inner = sketch.sketch if isinstance(sketch, Structured) else sketch
        if any(branch.keep is not None for branch in self.branches):
            law = inner.law(len(self.branches))
            kept = np.broadcast_to(1.0 if law is None else law.keep, len(self.branches))
            each = [branch.keep or k for branch, k in zip(self.branches, kept.tolist(), strict=True)]
            other = inner.with_keep(each)
            if other is None:
                raise ArgumentError(
                    f"keep gives branches a keep probability of their own, which only Bernoulli sketches "
                    f"can have, "
                    f"not {inner!r}; keep = 1 leaves a branch out"
                )
            inner = other
        return UnitDrawing(inner, self.spaces, self.scaled)

    def cut(self, draw: UnitDraw) -> Cut:
        """All tensors but those of dropped branches."""
        self._check(draw)
        c = draw[self.spaces[0].name].diagonal()
        gone = self._gone(self._removal(draw))
        parameters = {
            name: Everything(p.shape, float(c[self._unit[name]]) if name in self._unit else 1.0)
            for name, p in self.bare.named_parameters()
            if name not in gone
        }
        buffers = {
            name: Everything(b.shape)
            for name, b in self.bare.named_buffers()
            if b.is_floating_point() and name not in gone
        }
        return Cut(self, draw, KeptTensors(parameters), KeptTensors(buffers))

    def fit(self, model: nn.Module, draw: UnitDraw) -> None:
        """Nothing has changed its size."""

    def blank(self, draw: UnitDraw) -> nn.Module:
        """A copy in which nothing is left of dropped branches."""
        model = copy.deepcopy(self.template)
        removal = self._removal(draw)
        for name, stand_in in removal.modules.items():
            put(model, name, copy.deepcopy(stand_in).train(model.training))
        for name in removal.layers:
            model.get_submodule(name).activation_relu_or_gelu = 0  # type: ignore[assignment]
        for module in model.modules():
            if isinstance(module, nn.TransformerEncoder) and removal.layers:
                module.use_nested_tensor = False  # its fast path needs whole layers
        return model

    def adapt(self, small: nn.Module, draw: UnitDraw) -> None:
        """No configuration of transformers leaves single branches out."""
        if self._gone(self._removal(draw)):
            from mast.nn.structure.following.configs import refuse_saving

            refuse_saving(small, "branches were taken out of this submodel")

    def remaining(self, draw: UnitDraw) -> list[str]:
        """The dropped branches that cannot be taken out of the small model: they are there, times 0."""
        return self._removal(draw).stuck

    def check(
        self, model: nn.Module, draw: UnitDraw, small: nn.Module, shift: Mapping[str, Tensor] | None = None
    ) -> None:
        """Compare the small model with the whole one whose branches have their scales, on the example."""
        if self.example is None:
            return
        from mast.nn.structure.following.proving import compare, shadow

        c = draw[self.spaces[0].name].diagonal()
        values = {}
        for name, p in model.named_parameters():
            if name in self._unit:
                v = torch.zeros_like(p) if shift is None else shift[name].to(p)
                values[name] = v + (p.detach() - v) * float(c[self._unit[name]])
        _, message = compare(shadow(model), values, small, self.example.to(model))
        if message:
            raise MastError(f"the submodel is wrong, and not returned: {message}")

    # ---- what goes with a branch -------------------------------------------------------------

    def _removal(self, draw: UnitDraw) -> Removal:
        kept = set(draw[self.spaces[0].name].indices.tolist())
        dropped = [branch for i, branch in enumerate(self.branches) if i not in kept]
        removal = Removal()
        if self.example is not None:
            for branch in dropped:
                removal.modules |= dict(self._followed[branch.name].modules)
            return removal
        for branch in dropped:
            if branch.layer or branch.part:
                self._of_layer(branch, removal)
        self._of_graph([branch for branch in dropped if branch.addition is not None], removal)
        return removal

    def _of_layer(self, branch: Branch, removal: Removal) -> None:
        layer = self.bare.get_submodule(branch.layer)
        assert isinstance(layer, nn.TransformerEncoderLayer)
        prefix = f"{branch.layer}." if branch.layer else ""
        removal.layers.add(branch.layer)
        if branch.part == "attention":
            removal.modules[prefix + "self_attn"] = NoAttention(layer.self_attn.batch_first)
            norm = "norm1"
        else:
            removal.modules[prefix + "linear1"] = nn.Identity()
            removal.modules[prefix + "linear2"] = Zeros()
            if isinstance(layer.activation, nn.Module):
                removal.modules[prefix + "activation"] = nn.Identity()
            norm = "norm2"
        if layer.norm_first:
            removal.modules[prefix + norm] = nn.Identity()

    def _of_graph(self, dropped: Sequence[Branch], removal: Removal) -> None:
        """Modules that only dropped branches need. Where shapes could change, a branch stays, times 0."""
        while dropped:
            live = _live(self._graph, dropped)
            stuck = [branch for branch in dropped if not _removable(self.bare, branch, live)]
            if not stuck:
                break
            dropped = [branch for branch in dropped if branch not in stuck]
            removal.stuck += [branch.name for branch in stuck]
        if not dropped:
            return
        tails = {str(branch.tail.target) for branch in dropped if branch.tail is not None}
        trunks = {branch.trunk for branch in dropped}
        calls = [node for node in self._graph.nodes if node.op == "call_module"]
        used = {str(node.target) for node in calls if node in live}
        # Zeros are new memory: what follows may write to it without touching the trunk.
        fresh = tails | {str(n.target) for n in calls if same_memory(self.bare, n) & trunks}
        for node in calls:
            name = str(node.target)
            if node not in live and name not in {*removal.modules, *used}:
                module = self.bare.get_submodule(name)
                if isinstance(module, nn.MultiheadAttention):
                    removal.modules[name] = NoAttention(module.batch_first)
                else:
                    removal.modules[name] = Zeros() if name in fresh else nn.Identity()

    def _gone(self, removal: Removal) -> set[str]:
        """The tensors that no module holds any more."""
        held: set[int] = set()
        for name, module in self.bare.named_modules():
            if not any(name == m or name.startswith(f"{m}.") for m in removal.modules):
                own = (*module._parameters.values(), *module._buffers.values())
                held |= {id(t) for t in own if t is not None}
        everything = [*self.bare.named_parameters(), *self.bare.named_buffers()]
        return {name for name, t in everything if id(t) not in held}


def _live(graph: fx.Graph, dropped: Sequence[Branch]) -> set[fx.Node]:
    """What the output still needs."""
    cut = {branch.addition: branch.trunk for branch in dropped}
    live: set[fx.Node] = set()
    waiting = [node for node in graph.nodes if node.op == "output"]
    while waiting:
        node = waiting.pop()
        if node not in live:
            live.add(node)
            trunk = cut.get(node)
            waiting += node.all_input_nodes if trunk is None else [trunk]
    return live


def _removable(bare: nn.Module, branch: Branch, live: set[fx.Node]) -> bool:
    """Whether the branch is made of its trunk alone, by modules and operations that keep any shape."""
    assert branch.output is not None
    assert branch.trunk is not None
    before = ancestors(branch.trunk) | {branch.trunk}
    inside = (ancestors(branch.output) | {branch.output}) - before - live
    used = {str(node.target) for node in live if node.op == "call_module"}
    for node in inside:
        if node.op == "call_module":
            shared = str(node.target) in used  # it stays as it is, and must not mind what it is given
            if shared and not modules.is_entrywise(bare.get_submodule(str(node.target))):
                return False
        elif node.op == "get_attr" or (
            node.target not in _HARMLESS and getattr(node.target, "__name__", "") != "getitem"
        ):
            return False
        if in_place(bare, node) and branch.trunk in same_memory(bare, node):
            return False  # it changes the trunk, which goes on
        if any(source in live and source is not branch.trunk for source in node.all_input_nodes):
            return False
    return True
