"""Making a model's copy smaller: templates without values, and the attributes that speak of sizes."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import nn

from mast.nn.structure.attention import HeadsAttention
from mast.nn.tensors.torch_private import ConvTranspose, NormBase


def template(model: nn.Module) -> nn.Module:
    """A copy whose parameters and floating-point buffers are empty: what a submodel is poured into."""
    memo: dict[int, Any] = {}
    for _, p in model.named_parameters(remove_duplicate=False):
        memo[id(p)] = nn.Parameter(torch.empty(0, dtype=p.dtype), requires_grad=p.requires_grad)
    for _, b in model.named_buffers(remove_duplicate=False):
        memo[id(b)] = torch.empty(0, dtype=b.dtype)
    return copy.deepcopy(model, memo)


def replace_attention(model: nn.Module, bare: nn.Module, name: str) -> None:
    """Put a module for any number of heads in the place of an attention, with its parameters."""
    old, shaped = model.get_submodule(name), bare.get_submodule(name)
    assert isinstance(old, nn.MultiheadAttention)
    assert isinstance(shaped, nn.MultiheadAttention)
    new = HeadsAttention(
        shaped.embed_dim,
        shaped.head_dim,
        kept=range(shaped.num_heads),
        all_heads=shaped.num_heads,
        dropout=shaped.dropout,
        bias=shaped.in_proj_bias is not None,
        batch_first=shaped.batch_first,
        device="meta",
    )
    new.in_proj_weight, new.in_proj_bias = old.in_proj_weight, old.in_proj_bias
    new.out_proj.weight, new.out_proj.bias = old.out_proj.weight, old.out_proj.bias
    new.train(old.training)
    put(model, name, new)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # its fast path knows no such heads


def put(model: nn.Module, name: str, new: nn.Module) -> None:
    """Another module under this name, and under all others that the old one has."""
    old = model.get_submodule(name)
    for parent in list(model.modules()):
        for key, child in parent._modules.items():
            if child is old:
                parent._modules[key] = new


def fit(module: nn.Module, shaped: nn.Module, entries: int | None) -> None:
    """Let the attributes of a module say what its tensors are.

    `shaped` is the module before, `entries` how many channels a norm is left with (None: all).
    """
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
    elif isinstance(module, nn.RNNBase):
        own.hidden_size, own.input_size = own.weight_hh_l0.shape[1], own.weight_ih_l0.shape[1]
        own._flat_weights = [getattr(module, name) for name in own._flat_weights_names]
    elif is_conv1d(module):
        own.nx, own.nf = own.weight.shape
    elif isinstance(module, NormBase):
        tensor = module.weight if module.weight is not None else module.running_mean
        own.num_features = entries if tensor is None else len(tensor)
    elif isinstance(module, nn.GroupNorm):
        own.num_channels = entries if module.weight is None else len(module.weight)
        own.num_groups = own.num_channels * before.num_groups // before.num_channels


def is_conv1d(module: nn.Module) -> bool:
    """Whether it is the Conv1D of transformers: a Linear with its weight transposed."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")
