"""The network of a node: as one vector, and as it is trained, with zeros in it or smaller. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mast.distributed.messages import Values
from mast.distributed.nodes import Part
from mast.errors import ArgumentError
from mast.support.checkpoint import describe

_KINDS: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
}


class VectorLayout:
    """The trainable parameters of a model, in the order of `named_parameters`, as one vector.

    The model may be on the meta device: only names, shapes and types are looked at. Frozen parameters
    and buffers are no part of x: they are what every node's own copy of the model holds.

    >>> model = nn.Linear(3, 2)
    >>> layout = VectorLayout(model)
    >>> layout.dim, layout.slices
    (8, {'weight': slice(0, 6, None), 'bias': slice(6, 8, None)})
    """

    def __init__(self, model: nn.Module) -> None:
        self.shapes: dict[str, torch.Size] = {}
        self.slices: dict[str, slice] = {}
        kinds = set()
        offset = 0
        for name, p in model.named_parameters():
            if not p.requires_grad:
                continue
            if not p.is_floating_point() or isinstance(p, nn.parameter.UninitializedParameter):
                raise ArgumentError(f"the parameter {name!r} is not made of real numbers in a known shape")
            self.shapes[name] = p.shape
            self.slices[name] = slice(offset, offset + p.numel())
            kinds.add(p.dtype)
            offset += p.numel()
        if not offset:
            raise ArgumentError("the model has no trainable parameters")
        self.dim = offset
        #: float64 only if the model has such parameters; half precision is summed in float32
        self.dtype: np.dtype[Any] = np.dtype("<f8" if torch.float64 in kinds else "<f4")

    def read(self, model: nn.Module) -> Values:
        """The model's parameters as a new vector."""
        x = np.empty(self.dim, dtype=self.dtype)
        tensors = self.tensors(x)
        with torch.no_grad():
            for name, p in self.parameters(model).items():
                tensors[name].copy_(p)
        return x

    def write(self, x: Values, model: nn.Module) -> None:
        """Give the model the parameters of the vector x."""
        tensors = self.tensors(x)
        with torch.no_grad():
            for name, p in self.parameters(model).items():
                p.copy_(tensors[name])

    def arrays(self, x: Values) -> dict[str, Values]:
        """The pieces of x in their shapes; they share its memory."""
        if x.shape != (self.dim,) or not x.flags.c_contiguous:
            raise ArgumentError(f"x is a contiguous vector of {self.dim} numbers, got shape {x.shape}")
        return {name: x[part].reshape(self.shapes[name]) for name, part in self.slices.items()}

    def tensors(self, x: Values) -> dict[str, Tensor]:
        """The same as tensors."""
        return {name: torch.from_numpy(array) for name, array in self.arrays(x).items()}

    def parameters(self, model: nn.Module) -> Mapping[str, nn.Parameter]:
        """The parameters of a model that are pieces of x; a model of other shapes is refused."""
        named = {name: p for name, p in model.named_parameters() if name in self.slices}
        for name, shape in self.shapes.items():
            if name not in named or named[name].shape != shape:
                raise ArgumentError(f"the model has no parameter {name!r} of shape {tuple(shape)}")
        return named


_PLAIN = (bool, int, float, str, tuple, list, torch.dtype, type(None))


def module_identity(model: nn.Module) -> dict[str, str]:
    """What tells the modules of a model from others, one field per module: its kind and its options.

    Of classes of the user's own the source counts too. Values of parameters do not.

    >>> module_identity(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))["module 1"]
    "torch.nn.modules.activation.ReLU({'inplace': False})"
    """
    names = {id(m): name for name, m in model.named_modules(remove_duplicate=False)}
    fields = {f"module {name or '(the model)'}": _described(m) for name, m in model.named_modules()}
    shared = [(name, names[id(m)]) for name, m in model.named_modules(remove_duplicate=False)]
    return fields | {"modules that are used twice": describe([pair for pair in shared if pair[0] != pair[1]])}


def _described(module: nn.Module) -> str:
    kind = type(module)
    options = {
        name: value
        for name, value in vars(module).items()
        if name != "training" and not name.startswith("_") and (isinstance(value, _PLAIN) or callable(value))
    }
    return f"{describe(kind)}({describe(options)})"


def made_of(model: nn.Module, layout: VectorLayout) -> str:
    """What a model must have in common on server and nodes: the shapes of x, and torch's modules.

    Classes of the user's own may be written in two ways: they do not count.
    """
    modules = model.named_modules()
    own = {name: _described(m) for name, m in modules if type(m).__module__.startswith("torch.")}
    return describe([dict(layout.shapes), own])


class MaskedModel:
    """How a node holds single weights: all of the model, with zeros (or the shift) where nothing is kept."""

    def __init__(self, model: nn.Module, layout: VectorLayout, shift: Values | None) -> None:
        self.model, self.layout = model, layout
        self.shift = None if shift is None else layout.arrays(np.ascontiguousarray(shift))
        self.parameters = layout.parameters(model)
        kinds = {_KINDS.get(p.dtype) for p in self.parameters.values()}
        #: the type of all parameters, if they have one in common and NumPy has it
        self.dtype: np.dtype[Any] | None = kinds.pop() if len(kinds) == 1 else None
        model.train()

    def module(self, part: Part, values: Values, made: nn.Module | None = None) -> nn.Module:
        """The node's model in training mode with the weights v + S(x - v), its gradients cleared."""
        y = values.astype(values.dtype if self.shift else self.dtype or values.dtype)
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
