"""A network as one vector: which entry of x is which weight. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mast.checkpoint import describe, source_digest
from mast.errors import ArgumentError
from mast.methods.distributed.messages import Values


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

    Of modules that are not torch's, the source of the class counts too. Values of parameters do not.

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
    source = "" if kind.__module__.startswith("torch.") else f", source {source_digest(kind)}"
    return f"{kind.__module__}.{kind.__qualname__}({describe(options)}{source})"
