"""How a node holds the network that it trains: with zeros in it, or as a smaller one. Needs torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mast.distributed.messages import Values
from mast.distributed.nodes import Part
from mast.nn.nodes.capacities import VectorLayout, capacities_of
from mast.randomness import Key

_KINDS: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
}


class MaskedModel:
    """How a node holds single weights: all of the model, with zeros (or the shift) where nothing is kept."""

    def __init__(self, model: nn.Module, layout: VectorLayout, shift: Values | None) -> None:
        self.model, self.layout = model, layout
        self.shift = None if shift is None else layout.arrays(np.ascontiguousarray(shift))
        self.parameters = layout.parameters(model)
        kinds = {_KINDS.get(p.dtype) for p in self.parameters.values()}
        #: of all parameters, if they are alike and NumPy has it
        self.dtype: np.dtype[Any] | None = kinds.pop() if len(kinds) == 1 else None
        self._memory = np.empty(0)
        model.train()

    def module(self, part: Part, values: Values, made: nn.Module | None = None) -> nn.Module:
        """The node's model in training mode with the weights v + S(x - v), its gradients cleared."""
        y = self._scratch(part.count, values.dtype if self.shift else self.dtype or values.dtype)
        y[...] = values
        for name, kept in part.kept.items():
            parameter, numbers = self.parameters[name].detach(), part.kept.of(y, name)
            if self.shift is None:
                parameter.zero_()
                kept.scale(numbers)
            else:
                v = self.shift[name].astype(values.dtype)
                around = kept.gather(v)
                numbers -= around
                kept.scale(numbers)
                numbers += around
                parameter.copy_(torch.from_numpy(v))
            kept.place(parameter, numbers)
        self.model.zero_grad(set_to_none=True)
        return self.model.train()  # whatever was done with it between two messages

    def _scratch(self, count: int, dtype: np.dtype[Any]) -> Values:
        """Memory that is used again: fresh memory costs as much as filling it."""
        if self._memory.size < count or self._memory.dtype != dtype:
            self._memory = np.empty(count + count // 16, dtype)
        return self._memory[:count]

    def collect(self, part: Part, module: nn.Module, out: Values) -> None:
        """S' times the parameters' gradients, on what is kept."""
        for name, kept in part.kept.items():
            gradient, target = self.parameters[name].grad, out[part.kept.slices[name]]
            if gradient is None:  # the loss does not depend on it
                target[...] = 0
            else:
                wide = gradient.detach() if gradient.dtype in _KINDS else gradient.detach().float()
                kept.gather(wide.cpu().numpy(), target)
                kept.scale(target)

    def finish_round(self, part: Part, module: nn.Module | None) -> None:
        """The local steps of a round are done: the model keeps its statistics anyway."""


class SmallModel:
    """How a node holds whole units: a model of its own for each draw, as large as what is kept."""

    def __init__(self, model: nn.Module, layout: VectorLayout, keeps_statistics: bool = False) -> None:
        self.layout = layout
        #: the node's own statistics of norms and other buffers, of all units
        self.buffers = {n: b.detach().clone() for n, b in model.named_buffers()} if keeps_statistics else None
        self.frozen = {name: p.detach() for name, p in model.named_parameters() if name not in layout.slices}

    def module(self, part: Part, values: Values, made: nn.Module | None = None) -> nn.Module:
        """The small model in training mode, with the weights S x; frozen parameters are the node's own.

        `made` is the model of the same part that was made before: it gets the new weights.
        """
        cut, sent = part.draw, torch.from_numpy(values)
        if self.frozen:
            full = sent.new_empty(cut.count)
            for name, kept in cut.parameters.items():
                small = cut.parameters.of(full, name)
                if name in part.kept:
                    small.copy_(part.kept.of(sent, name))
                else:
                    kept.gather(self.frozen[name].to(full), small)
            sent = full
        if made is not None:
            y = cut.scaled(sent)
            for name, p in made.named_parameters():
                p.data, p.grad = cut.parameters.of(y, name).to(p.dtype), None
            return made.train()
        buffers = None if self.buffers is None else cut.gather_buffers(self.buffers)
        module: nn.Module = cut.module(sent, buffers)
        for counted, known in self._counts(module):
            counted.copy_(known)
        return module

    def finish_round(self, part: Part, module: nn.Module | None) -> None:
        """The local steps of a round are done: remember the statistics, if the node has its own."""
        if self.buffers is not None and module is not None:
            part.draw.place_buffers(self.buffers, part.draw.buffers_of(module))
            for counted, known in self._counts(module):
                known.copy_(counted)

    def _counts(self, module: nn.Module) -> list[tuple[Tensor, Tensor]]:
        """How many batches a norm has seen, in the small model and here: means over all batches need it."""
        own = self.buffers or {}
        named = [(b, own.get(name)) for name, b in module.named_buffers()]
        return [
            (b, b_own) for b, b_own in named if b_own is not None and b.dtype == torch.int64 and b.dim() == 0
        ]

    def collect(self, part: Part, module: nn.Module, out: Values) -> None:
        """S' times the small model's gradients, without those of frozen parameters."""
        gradient, slices = part.draw.gradient(module), part.draw.parameters.slices
        if self.frozen:
            gradient = torch.cat([gradient[slices[name]] for name in part.kept])
        torch.from_numpy(out).copy_(gradient)


def submodel_of(
    model: nn.Module,
    scheme: str,
    share: float,
    key: Key = Key(0),  # noqa: B008
    *,
    example: Any = None,
) -> nn.Module:
    """What a client of a share runs when the model is trained: a small dense model, in evaluation mode.

    In schemes of prefixes it is the largest that the client holds. In schemes of random units `key` says
    which draw. BatchNorm's statistics are those of the model: take them anew with `mast.nn.recalibrate`.

    >>> model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> submodel_of(model, "mast_balanced", 0.25)
    Sequential(
      (0): Linear(in_features=10, out_features=2, bias=True)
      (1): ReLU()
      (2): Linear(in_features=2, out_features=2, bias=True)
    )
    """
    (capacity,) = capacities_of(model, scheme, [share], example=example)
    layout = VectorLayout(model)
    part = capacity.largest(key)
    held = SmallModel(model, layout, keeps_statistics=True)
    return held.module(part, part.gather(layout.read(model))).eval()
