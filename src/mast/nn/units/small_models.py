"""Copies of a model, and what makes them smaller: other tensors, sizes, stand-ins, fewer heads."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from mast.errors import ArgumentError
from mast.nn.tensors.torch_private import ConvTranspose, NormBase
from mast.nn.units.attention import HeadsAttention
from mast.randomness import Key, Purpose, words


def refuse_lazy(model: nn.Module) -> None:
    """An error if a parameter would get its shape from the first batch."""
    for name, p in model.named_parameters():
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise ArgumentError(
                f"the parameter {name!r} has no shape yet: run one forward pass before sparsify()"
            )


def skeleton(model: nn.Module) -> nn.Module:
    """A copy whose parameters and buffers have shapes but no values (they are on the meta device).

    >>> import torch
    >>> skeleton(torch.nn.Linear(3, 2)).weight.device
    device(type='meta')
    """
    bare = _copy(model, lambda t: torch.empty_like(t, device="meta"))
    for name, module in bare.named_modules():
        own = [t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]
        if not all(isinstance(t, Tensor) and t.is_meta for t in own):
            raise ArgumentError(
                f"the module {name or 'at the root'!r} ({type(module).__name__}) makes its tensors anew "
                "when it is copied, so its structure cannot be found"
            )
    return bare


def template(model: nn.Module) -> nn.Module:
    """A copy whose parameters and floating-point buffers are empty: what a submodel is poured into."""
    return _copy(model, lambda t: torch.empty(0, dtype=t.dtype))


def shadow(model: nn.Module) -> nn.Module:
    """A copy with the same parameters and buffers of its own: what it does leaves no trace in the model."""
    return copy.deepcopy(model, {id(p): p for p in model.parameters()})


def with_values(model: nn.Module) -> nn.Module:
    """The model; if it has shapes only, a copy with values that are as good as any to follow it with.

    >>> import torch
    >>> with_values(torch.nn.Linear(3, 2, device="meta")).weight.device
    device(type='cpu')
    """
    if not any(t.is_meta for t in (*model.parameters(), *model.buffers())):
        return model

    numbers = itertools.count()

    def made(t: Tensor) -> Tensor:
        number = next(numbers)
        if not t.is_meta:
            return t.detach().clone()
        if not t.is_floating_point():
            return torch.zeros(t.shape, dtype=t.dtype)
        key = Key(0, index=number)
        shares = torch.from_numpy(words(key, Purpose.START, 0, t.numel()) / 2**32).view(t.shape)
        return (shares - 0.5 if t.dim() > 1 else shares + 0.5).to(t.dtype)  # variances are positive

    return _copy(model, made)


def _copy(model: nn.Module, made: Callable[[Tensor], Tensor]) -> nn.Module:
    """A copy with other parameters and buffers, each made of the old one; what is shared stays shared."""
    memo: dict[int, Any] = {id(p): nn.Parameter(made(p), p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, memo | {id(b): made(b) for b in model.buffers()})


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
