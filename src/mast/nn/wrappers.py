"""Models inside of wrappers: which are looked through, and which are refused, with the reason."""

from __future__ import annotations

import torch
from torch import nn

from mast.errors import ArgumentError


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside of DistributedDataParallel; an error for what cannot be sparsified."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"the first argument must be an nn.Module, got {type(model).__name__}")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return unwrapped(model.module)
    if isinstance(model, nn.DataParallel):
        raise ArgumentError(
            "nn.DataParallel copies the model in every forward pass: use DistributedDataParallel"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise ArgumentError("a TorchScript module cannot be sparsified: pass the original nn.Module")
    for module in model.modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            raise ArgumentError(
                "FSDP shards parameters, so no process holds a whole weight to sketch: use "
                "DistributedDataParallel"
            )
        if type(module).__name__ == "OptimizedModule":
            raise ArgumentError("the model is compiled: sparsify the original; training then runs uncompiled")
    return model
