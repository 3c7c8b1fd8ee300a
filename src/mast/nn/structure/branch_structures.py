"""The structure that `Layers` acts on: one unit per residual branch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from mast.errors import ArgumentError
from mast.nn.structure.choosing import chosen, own_keep
from mast.nn.structure.copies import with_values
from mast.nn.structure.cuts import Cut
from mast.nn.structure.drawing import Scaled, Space, UnitDraw, UnitDrawing
from mast.nn.structure.resizing import Sizes
from mast.nn.structure.sketches import Structured
from mast.nn.structure.structures import Structure
from mast.nn.tensors.weights import Where
from mast.sketches import Sketch
from mast.sketches.kept import Everything, KeptTensors

if TYPE_CHECKING:
    from mast.nn.structure.following.branching import Branch
    from mast.nn.structure.following.examples import Example


class BranchStructure(Structure):
    """Residual branches: one space, whose units they are, in the order in which they are computed."""

    def __init__(
        self,
        model: nn.Module,
        examples: Sequence[Example],
        keep: Mapping[str, float] | None = None,
        where: Where | None = None,
    ) -> None:
        from mast.nn.structure.following.branching import find_branches

        super().__init__(model, examples[-1:])
        found, self.others = find_branches(with_values(model), examples[-1])
        shares = {branch.name: own_keep(branch.name, keep or {}) for branch in found}
        self.others |= {name: "keep = 1" for name, share in shares.items() if share == 1}
        if not found and not self.others:
            raise ArgumentError(
                "the model has no residual branches (additions x + f(x)) that could be dropped"
            )
        rest = {branch.name: branch for branch in found if shares[branch.name] != 1}
        names = chosen(self.bare, list(rest), self.others, keep or {}, where)
        self.branches: list[Branch] = [rest[name] for name in names]
        self._keeps = [shares[branch.name] for branch in self.branches]
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
        if any(keep is not None for keep in self._keeps):
            law = inner.law(len(self.branches))
            kept = np.broadcast_to(1.0 if law is None else law.keep, len(self.branches))
            other = inner.with_keep([own or k for own, k in zip(self._keeps, kept.tolist(), strict=True)])
            if other is None:
                raise ArgumentError(
                    "keep gives branches a keep probability of their own, which only Bernoulli sketches can "
                    f"have, not {inner!r}; keep = 1 leaves a branch out"
                )
            inner = other
        return UnitDrawing(inner, self.spaces, self.scaled)

    def cut(self, draw: UnitDraw) -> Cut:
        """All tensors but those of dropped branches."""
        self._check(draw)
        c = draw[self.spaces[0].name].diagonal()
        gone = self._gone(self.sizes(draw))
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

    def sizes(self, draw: UnitDraw) -> Sizes:
        """What stands in for the modules of dropped branches."""
        return Sizes(absent={name: m for branch in self._dropped(draw) for name, m in branch.modules})

    def adapt(self, small: nn.Module, draw: UnitDraw) -> None:
        """No configuration of transformers leaves single branches out."""
        if self._gone(self.sizes(draw)):
            from mast.nn.structure.following.configs import refuse_saving

            refuse_saving(small, "branches were taken out of this submodel")

    def remaining(self, draw: UnitDraw) -> list[str]:
        """The dropped branches that cannot be taken out of the small model: they are there, times 0."""
        return [branch.name for branch in self._dropped(draw) if not branch.modules]

    def _dropped(self, draw: UnitDraw) -> list[Branch]:
        kept = set(draw[self.spaces[0].name].indices.tolist())
        return [branch for i, branch in enumerate(self.branches) if i not in kept]

    def _gone(self, sizes: Sizes) -> set[str]:
        """The tensors that no module holds any more."""
        held: set[int] = set()
        for name, module in self.bare.named_modules():
            if not any(name == m or name.startswith(f"{m}.") for m in sizes.absent):
                own = (*module._parameters.values(), *module._buffers.values())
                held |= {id(t) for t in own if t is not None}
        everything = [*self.bare.named_parameters(), *self.bare.named_buffers()]
        return {name for name, t in everything if id(t) not in held}
