"""What happens around an optimizer's step: the draw advances, and weight decay may pull towards v.

Torch calls hooks around the `step()` of every optimizer; these look up which sparsified models it concerns.
The draw advances when an optimizer that holds a sketched parameter has made its step. A step that a gradient
scaler skips is not made, so the draw stays; gradient accumulation and the repeated forward passes of a
closure (LBFGS) lie within one step and share one draw. Several optimizers on one model are one step together
if they follow one forward pass: the first of them advances the draw, the others do not.

With a shift v, the neutral point of weight decay is v, not 0. The optimizer keeps its own decay, and hooks
add what is missing: with decoupled decay, x <- x - lr wd x, the amount lr wd v after the step; with decay
that enters the gradient, g + wd x, the amount -wd v before it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, optim
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

if TYPE_CHECKING:
    from mast.nn.sparsifier import Sparsifier

_followed: weakref.WeakSet[Sparsifier] = weakref.WeakSet()
_handles: list[RemovableHandle] = []


def follow(sk: Sparsifier) -> None:
    """Watch the optimizers of this model."""
    _followed.add(sk)
    if not _handles:
        _handles.append(register_optimizer_step_pre_hook(_before_step))
        _handles.append(register_optimizer_step_post_hook(_after_step))


def unfollow(sk: Sparsifier) -> None:
    """Stop watching; without a model to watch, the hooks are removed."""
    _followed.discard(sk)
    if not _followed:
        while _handles:
            _handles.pop().remove()


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for sk in list(_followed):
        if sk.concerns(optimizer):
            sk._before_step(optimizer)


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for sk in list(_followed):
        if sk.concerns(optimizer):
            sk._after_step(optimizer)
        else:
            sk._after_other_step(optimizer)


def holds(optimizer: Optimizer, parameters: Iterable[Tensor]) -> bool:
    """Whether the optimizer holds one of these parameters."""
    wanted = {id(p) for p in parameters}
    return any(id(p) in wanted for group in optimizer.param_groups for p in group["params"])


# ---- weight decay ------------------------------------------------------------------------

_DECOUPLED = (optim.AdamW,)
_KNOWN = (
    optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax, optim.Adagrad, optim.Adadelta,
    optim.RMSprop,
)  # fmt: skip


def decay_is_understood(optimizer: Optimizer) -> bool:
    """Whether it is known how this optimizer decays weights."""
    return type(optimizer) in _KNOWN


def decays_to_zero(sk: Sparsifier, optimizer: Optimizer) -> bool:
    """Whether the optimizer decays a sketched weight towards 0, and has not been corrected."""
    hooks = optimizer._optimizer_step_pre_hooks.values()
    corrected = any(isinstance(hook, _DecayInGradient) and hook.sk is sk for hook in hooks)
    return not corrected and any(True for _ in _decayed(sk, optimizer))


def decay_to_shift(sk: Sparsifier, optimizer: Optimizer) -> None:
    """Make the optimizer's weight decay pull the sketched weights towards v."""
    optimizer.register_step_pre_hook(_DecayInGradient(sk))
    optimizer.register_step_post_hook(_DecoupledDecay(sk))


class _DecayInGradient:
    """Before a step: -wd v joins the gradient."""

    def __init__(self, sk: Sparsifier) -> None:
        self.sk = sk

    @torch.no_grad()
    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for p, v, group in _decayed(self.sk, optimizer):
            if not _is_decoupled(optimizer, group) and p.grad is not None:
                sign = 1 if group.get("maximize", False) else -1
                p.grad.add_(v, alpha=sign * group["weight_decay"])


class _DecoupledDecay:
    """After a step: lr wd v joins the weights."""

    def __init__(self, sk: Sparsifier) -> None:
        self.sk = sk

    @torch.no_grad()
    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for p, v, group in _decayed(self.sk, optimizer):
            if _is_decoupled(optimizer, group) and p.grad is not None:
                p.add_(v, alpha=float(group["lr"]) * group["weight_decay"])


def _decayed(sk: Sparsifier, optimizer: Optimizer) -> Iterator[tuple[Tensor, Tensor, dict[str, Any]]]:
    """The sketched parameters that the optimizer decays, each with its shift and its group."""
    number = {id(w.parameter): i for i, w in enumerate(sk.weights)}
    for group in optimizer.param_groups:
        for p in group["params"] if group.get("weight_decay", 0) != 0 else ():
            v = sk._values.v(number[id(p)], p) if id(p) in number else None
            if v is not None:
                yield p, v, group


def _is_decoupled(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    return isinstance(optimizer, _DECOUPLED) or bool(group.get("decoupled_weight_decay", False))
