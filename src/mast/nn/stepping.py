"""The draw advances when an optimizer that holds a sketched parameter has made its step.

Torch calls hooks around every optimizer's `step()`; these look up which sparsified models it concerns.
A step that a gradient scaler skips is not made, so the draw stays; gradient accumulation and the
repeated forward passes of a closure (LBFGS) lie within one step and share one draw.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

if TYPE_CHECKING:
    from mast.nn.sparsifier import Sparsifier

_active: weakref.WeakSet[Sparsifier] = weakref.WeakSet()
_handles: list[RemovableHandle] = []


def follow(sk: Sparsifier) -> None:
    """Watch the optimizers of this model."""
    _active.add(sk)
    if not _handles:
        _handles.append(register_optimizer_step_pre_hook(_before))
        _handles.append(register_optimizer_step_post_hook(_after))


def unfollow(sk: Sparsifier) -> None:
    """Stop watching; the last one out removes the hooks."""
    _active.discard(sk)
    if not _active:
        while _handles:
            _handles.pop().remove()


def _before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for sk in list(_active):
        if sk.concerns(optimizer):
            sk._before_step()


def _after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for sk in list(_active):
        if sk.concerns(optimizer):
            sk.advance()
