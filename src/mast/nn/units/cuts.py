"""A cut: what a draw leaves of a model's tensors, and the small dense model that it makes.

All that a machine needs to train its part of a model is the skeleton, the key of the draw, and the values of
the cut: `cut.gather(x)` sends them, `cut.module(values)` is the small model with the weights y = S x,
`cut.gradient` gives S'grad in the same order, `cut.add` brings a change home. Time, memory and bytes follow
what is kept.

The order of the values: parameters as `named_parameters` gives them, each the kept entries in row-major
order.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from mast.errors import ArgumentError
from mast.nn.tensors.torch_private import ConvTranspose, NormBase
from mast.nn.units.attention import HeadsAttention
from mast.nn.units.drawing import UnitDraw
from mast.sketches.draws import Draw, ModelDraw

if TYPE_CHECKING:
    from mast.nn.units.unit_map import UnitMap

Tensors = Mapping[str, Tensor] | nn.Module


class Cut:
    """What one draw keeps of the parameters and of the buffers. Made by `unit_map.cut(draw)`."""

    def __init__(
        self, unit_map: UnitMap, draw: UnitDraw, parameters: ModelDraw[Draw], buffers: ModelDraw[Draw]
    ) -> None:
        self.unit_map = unit_map
        self.draw = draw
        self.parameters = parameters
        self.buffers = buffers  # statistics of norms, and others of floating point
        self.count = parameters.count  #: how many values

    # ---- values ----------------------------------------------------------------------------

    def gather(self, tensors: Tensors, out: Tensor | None = None) -> Tensor:
        """The kept values of x, one after the other, in one contiguous tensor of one dimension."""
        return _gather(self.parameters, tensors, out)

    def gather_buffers(self, tensors: Tensors) -> Tensor:
        """The kept values of the buffers."""
        return _gather(self.buffers, tensors, None)

    def add(self, tensors: Tensors, values: Tensor, factor: float = 1.0) -> None:
        """x[kept] += factor * values, in place; nothing else of x is touched."""
        self.parameters.check(values)
        with torch.no_grad():
            self.parameters.add(tensors_of(tensors), values, factor)

    def place(self, tensors: Tensors, values: Tensor) -> None:
        """x[kept] = values, in place."""
        self.parameters.check(values)
        with torch.no_grad():
            self.parameters.place(tensors_of(tensors), values)

    def place_buffers(self, tensors: Tensors, values: Tensor) -> None:
        """The same for buffers."""
        self.buffers.check(values)
        with torch.no_grad():
            self.buffers.place(tensors_of(tensors), values)

    def scaled(self, values: Tensor) -> Tensor:
        """S times values of x or of a gradient, in their order: the scale is on outgoing weights only."""
        self.parameters.check(values)
        out = values.clone()
        self.parameters.scale(out)
        return out

    # ---- the small model --------------------------------------------------------------------

    def module(self, values: Tensor, buffers: Tensor | None = None) -> nn.Module:
        """The small model with the weights y = S x, in training mode, made of nothing but these values.

        Its parameters lie one after the other in one piece of memory. Without `buffers`, statistics of norms
        are as in a new layer.
        """
        return self.pour(self.scaled(values.detach()), buffers)

    def pour(self, y: Tensor, buffers: Tensor | None = None) -> nn.Module:
        """The small model with these weights y, as they are."""
        self.parameters.check(y)
        model = self.unit_map.blank(self.draw)
        for name, p in model.named_parameters():
            p.data = self.parameters.of(y, name).to(p.dtype)
        if buffers is not None:
            self.buffers.check(buffers)
        self._fill_buffers(model, buffers, y.device)
        self.unit_map.fit(model, self.draw)
        return model.train()

    def gradient(self, module: nn.Module) -> Tensor:
        """S'grad of the small model's loss, in the order of the values; 0 where there is no gradient."""
        named = dict(module.named_parameters())
        flat = _empty(self.count, named.values()).zero_()
        for name in self.parameters:
            g = named[name].grad
            if g is not None:
                self.parameters.of(flat, name).copy_(g)
        self.parameters.scale(flat)
        return flat

    def buffers_of(self, module: nn.Module) -> Tensor:
        """The small model's buffers, in the order of `gather_buffers`."""
        named = dict(module.named_buffers())
        flat = [named[name].detach().reshape(-1) for name in self.buffers]
        return torch.cat(flat) if flat else torch.empty(0)

    def _fill_buffers(self, model: nn.Module, values: Tensor | None, device: torch.device) -> None:
        """The given values; statistics of a new layer, or the model's own buffers, where none are given."""
        known = {name: b for name, b in self.unit_map.source.named_buffers() if not b.is_meta}
        for prefix, module in model.named_modules():
            fresh_norm = values is None and isinstance(module, NormBase)
            for key, b in module._buffers.items():
                name = f"{prefix}.{key}" if prefix else key
                kept, whole = self.buffers.get(name), known.get(name)
                if b is None:
                    continue
                if kept is not None and (values is not None or fresh_norm):
                    b.data = torch.empty(kept.kept_shape, dtype=b.dtype, device=device)
                    if values is not None:
                        b.data.copy_(self.buffers.of(values, name))
                elif whole is not None and not fresh_norm:
                    b.data = (whole.detach().clone() if kept is None else kept.gather(whole)).to(device)
                elif key == "num_batches_tracked":
                    b.data = torch.zeros((), dtype=b.dtype, device=device)
                else:
                    raise ArgumentError(
                        f"the buffer {name!r} is needed, and only its shape is known: pass buffers= if it is "
                        "of floating point, or use a model with values"
                    )
            if fresh_norm:
                module.reset_running_stats()

    def __repr__(self) -> str:
        return f"<cut: {self.count:,} of {self.unit_map.count:,} values; {self.draw!r}>"


def tensors_of(tensors: Tensors) -> Mapping[str, Tensor]:
    """Parameters and buffers by name, detached."""
    if isinstance(tensors, nn.Module):
        tensors = dict(tensors.named_parameters()) | dict(tensors.named_buffers())
    return {name: t.detach() for name, t in tensors.items()}


def _gather(kept: ModelDraw[Draw], tensors: Tensors, out: Tensor | None) -> Tensor:
    found = tensors_of(tensors)
    missing = [name for name in kept if name not in found]
    if missing:
        raise ArgumentError(f"there is no tensor {missing[0]!r} among those given")
    if out is None:
        out = _empty(kept.count, [found[name] for name in kept])
    kept.check(out)
    gathered: Tensor = kept.gather(found, out)
    return gathered


def _empty(count: int, like: Iterable[Tensor]) -> Tensor:
    """Room for values of these tensors, in a type that holds all of them."""
    tensors = list(like)
    if not tensors:
        return torch.empty(count)
    dtype = functools.reduce(torch.promote_types, [t.dtype for t in tensors])
    return torch.empty(count, dtype=dtype, device=tensors[0].device)


# ---- modules of the small model ----------------------------------------------------------------------


@dataclass(frozen=True)
class SubmodelSizes:
    """What the modules of a small model have to be told, besides the shapes of their tensors."""

    numbers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # lengths, by module and attribute
    heads: Mapping[str, Sequence[int]] = field(default_factory=dict)  # kept ones, by nn.MultiheadAttention
    absent: Mapping[str, PassThrough] = field(default_factory=dict)  # what stands in for modules

    def set_numbers(self, model: nn.Module) -> None:
        """Write the lengths into a model's modules."""
        for module, own in self.numbers.items():
            for name, value in own.items():
                setattr(model.get_submodule(module), name, value)

    def take_out(self, model: nn.Module) -> None:
        """Put the stand-ins into a model."""
        for name, stand_in in self.absent.items():
            replace_module(model, name, copy.deepcopy(stand_in).train(model.training))
        for module in model.modules() if self.absent else ():
            # Kernels of torch for whole layers look at modules that are not there any more.
            if isinstance(module, nn.TransformerEncoderLayer):
                module.activation_relu_or_gelu = 0
            elif isinstance(module, nn.TransformerEncoder):
                module.use_nested_tensor = False


class PassThrough(nn.Module):
    """In the place of a module whose result nobody needs: the first tensor it is given, or zeros like it.

    >>> import torch
    >>> PassThrough(zeros=True)(torch.ones(2)), PassThrough(places=2)(torch.ones(2))
    (tensor([0., 0.]), (tensor([1., 1.]), None))
    """

    # What nn.TransformerEncoderLayer asks its attention for, before it takes the way without its own kernel.
    _qkv_same_embed_dim, in_proj_bias, num_heads = False, None, 1

    def __init__(self, zeros: bool = False, places: int | None = None, batch_first: bool = False) -> None:
        super().__init__()
        self.zeros, self.places, self.batch_first = zeros, places, batch_first

    def options(self) -> dict[str, Any]:
        """What makes another one like it."""
        return {"zeros": self.zeros, "places": self.places, "batch_first": self.batch_first}

    def forward(self, *args: Any, **options: Any) -> Any:
        """That tensor, alone or as the first of a tuple."""
        given = next(a for a in (*args, *options.values()) if isinstance(a, Tensor))
        found = torch.zeros_like(given) if self.zeros else given
        return found if self.places is None else (found, *[None] * (self.places - 1))


def replace_module(model: nn.Module, name: str, new: nn.Module) -> None:
    """Put another module under this name, and under all others that the old one has."""
    old = model.get_submodule(name)
    for parent in list(model.modules()):
        for key, child in parent._modules.items():
            if child is old:
                parent._modules[key] = new


def replace_attention(model: nn.Module, name: str) -> None:
    """Put a module for any number of heads in the place of an attention, with its parameters."""
    whole = model.get_submodule(name)
    assert isinstance(whole, nn.MultiheadAttention)
    replace_module(model, name, HeadsAttention(whole))
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # its fast path knows no such heads


def fit_attributes(module: nn.Module, shaped: nn.Module) -> None:
    """Let the attributes of a module say what its tensors are; `shaped` is the module before."""
    own, before = cast(Any, module), cast(Any, shaped)
    if isinstance(module, nn.Linear):
        own.out_features, own.in_features = module.weight.shape
    elif isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        own.out_channels = module.weight.shape[0]
        if before.groups > 1:
            own.groups = own.out_channels * before.groups // before.out_channels
        own.in_channels = module.weight.shape[1] * own.groups
    elif isinstance(module, ConvTranspose):
        if before.groups == 1:
            own.in_channels, own.out_channels = module.weight.shape[:2]
    elif isinstance(module, nn.PReLU):
        own.num_parameters = len(module.weight)
    elif isinstance(module, nn.Embedding):
        own.embedding_dim = module.weight.shape[1]
    elif isinstance(module, nn.RNNCellBase):
        own.hidden_size, own.input_size = module.weight_hh.shape[1], module.weight_ih.shape[1]
    elif isinstance(module, nn.RNNBase):
        own.hidden_size, own.input_size = own.weight_hh_l0.shape[1], own.weight_ih_l0.shape[1]
        own._flat_weights = [getattr(module, name) for name in own._flat_weights_names]
    elif is_conv1d(module):
        own.nx, own.nf = own.weight.shape
    elif isinstance(module, NormBase):
        tensor = module.weight if module.weight is not None else module.running_mean
        if tensor is not None:
            own.num_features = len(tensor)
    elif isinstance(module, nn.GroupNorm) and module.weight is not None:
        own.num_channels = len(module.weight)
        own.num_groups = own.num_channels * before.num_groups // before.num_channels


def is_conv1d(module: nn.Module) -> bool:
    """Whether it is the Conv1D of transformers: a Linear with its weight transposed."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")
