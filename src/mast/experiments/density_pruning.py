"""Magnitude pruning: the largest weights stay, or the units with the largest weights. Nothing is rescaled."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from mast.experiments.density_networks import Design, count

SCOPES = ("layer", "global")  # each matrix keeps its share, or all of them together


def keep_largest(model: nn.Module, density: float, scope: str, base: nn.Module | None = None) -> nn.Module:
    """A copy in which the smallest weights are 0; with a base, the smallest changes to it are undone.

    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, -4.0], [3.0, 2.0]]))
    >>> keep_largest(model, 0.5, "layer").weight.tolist()
    [[0.0, -4.0], [3.0, 0.0]]
    """
    pruned = copy.deepcopy(model)
    origin = {} if base is None else dict(base.named_parameters())
    matrices = [(name, p) for name, p in pruned.named_parameters() if p.dim() > 1]
    with torch.no_grad():
        changes = [p - origin[name] if origin else p.clone() for name, p in matrices]
        together = _threshold(torch.cat([u.flatten() for u in changes]), density)
        for (name, p), u in zip(matrices, changes, strict=True):
            bound = together if scope == "global" else _threshold(u, density)
            small = u.abs() < bound
            p.copy_(torch.where(small, origin[name] if origin else torch.zeros_like(p), p))
    return pruned


def _threshold(values: Tensor, density: float) -> Tensor:
    """The magnitude of the smallest value that stays."""
    kept = count(values.numel(), density)
    return values.abs().flatten().kthvalue(values.numel() - kept + 1).values


def keep_largest_units(model: nn.Sequential, design: Design, density: float) -> nn.Module:
    """A copy in which the units of smallest weight feed nothing: in every hidden layer the same share stays.

    A unit's size is the norm of its incoming weights times that of its outgoing ones; after
    BatchNorm, whose output does not depend on the first, it is the norm's factor instead.
    """
    pruned = copy.deepcopy(model)
    with torch.no_grad():
        for i, consumer in enumerate(design.consumers):
            outgoing = pruned.get_submodule(consumer).weight
            assert isinstance(outgoing, Tensor)
            size = unit_sizes(model, i, consumer)
            dropped = size.argsort(descending=True, stable=True)[count(len(size), density) :]
            outgoing[:, dropped] = 0
    return pruned


def unit_sizes(model: nn.Module, i: int, consumer: str) -> Tensor:
    """How large the units of hidden layer i are."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    incoming = weights.get(f"norm{i}.weight")
    if incoming is None:
        incoming = weights[f"layer{i}.weight"].flatten(1).norm(dim=1)
    outgoing: Tensor = weights[f"{consumer}.weight"].transpose(0, 1).flatten(1).norm(dim=1)
    return incoming.abs() * outgoing
