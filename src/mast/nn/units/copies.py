"""Copies of a model with other tensors: without values, with empty ones, with values that are made up."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mast.errors import ArgumentError
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
