"""Weight decay with a shift: decay x - v, not x.

The optimizer keeps its own weight decay, and hooks around its step add what is missing: with
decoupled decay, x <- x - lr wd x, the amount lr wd v after the step; with decay that enters the
gradient, g + wd x, the amount -wd v before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, optim
from torch.optim import Optimizer

from mast.nn.sparsifier import Sparsifier

_DECOUPLED = (optim.AdamW,)
_KNOWN = (
    optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax, optim.Adagrad, optim.Adadelta,
    optim.RMSprop,
)  # fmt: skip


def understands(optimizer: Optimizer) -> bool:
    """Whether it is known how this optimizer decays weights."""
    return type(optimizer) in _KNOWN


def is_decaying(sk: Sparsifier, optimizer: Optimizer) -> bool:
    """Whether the optimizer decays a sketched weight towards 0, and has not been corrected."""
    if any(
        isinstance(hook, _Before) and hook.sk is sk for hook in optimizer._optimizer_step_pre_hooks.values()
    ):
        return False
    return any(True for _ in _decayed(sk, optimizer))


def decay_to_shift(sk: Sparsifier, optimizer: Optimizer) -> None:
    """Make the optimizer's weight decay pull the sketched weights towards v."""
    optimizer.register_step_pre_hook(_Before(sk))
    optimizer.register_step_post_hook(_After(sk))


class _Before:
    """Decay that enters the gradient."""

    def __init__(self, sk: Sparsifier) -> None:
        self.sk = sk

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        with torch.no_grad():
            for p, v, group in _decayed(self.sk, optimizer):
                if not _decoupled(optimizer, group) and p.grad is not None:
                    sign = 1 if group.get("maximize", False) else -1
                    p.grad.add_(v, alpha=sign * group["weight_decay"])


class _After:
    """Decoupled decay."""

    def __init__(self, sk: Sparsifier) -> None:
        self.sk = sk

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        with torch.no_grad():
            for p, v, group in _decayed(self.sk, optimizer):
                if _decoupled(optimizer, group) and p.grad is not None:
                    p.add_(v, alpha=float(group["lr"]) * group["weight_decay"])


def _decayed(sk: Sparsifier, optimizer: Optimizer) -> Iterator[tuple[Tensor, Tensor, dict[str, Any]]]:
    """The sketched parameters that the optimizer decays, each with its shift and its group."""
    number = {id(w.parameter): i for i, w in enumerate(sk.weights)}
    for group in optimizer.param_groups:
        if group.get("weight_decay", 0) == 0:
            continue
        for p in group["params"]:
            if id(p) in number:
                v = sk._values.v(number[id(p)], p)
                if v is not None:
                    yield p, v, group


def _decoupled(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    return isinstance(optimizer, _DECOUPLED) or bool(group.get("decoupled_weight_decay", False))
