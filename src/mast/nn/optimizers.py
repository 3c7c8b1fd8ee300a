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
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, optim
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from mast.errors import MastError
from mast.randomness import Key

if TYPE_CHECKING:
    from mast.nn.sparsifier import Sparsifier

_followed: weakref.WeakSet[OptimizerSteps] = weakref.WeakSet()
_handles: list[RemovableHandle] = []


class OptimizerSteps:
    """The steps that optimizers make on one sparsified model: each advances its draw."""

    def __init__(self, sk: Sparsifier) -> None:
        self.sk, self.watched, self.values = sk, sk.watched, sk.values
        self.under_way = False  # an optimizer's step(), or a draw that was asked for
        self._made: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # by these, since the draw last advanced
        self._validated: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.decaying_to_shift: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # those that were corrected
        self._elsewhere = 0  # in this draw, by optimizers without sketched weights
        self._passes_before = 0  # forward passes before the last of those

    def follow(self) -> None:
        """Watch the optimizers of this model."""
        _followed.add(self)
        if not _handles:
            _handles.append(register_optimizer_step_pre_hook(_before_step))
            _handles.append(register_optimizer_step_post_hook(_after_step))

    def unfollow(self) -> None:
        """Stop watching; without a model to watch, the hooks are removed."""
        _followed.discard(self)
        while _handles and not _followed:
            _handles.pop().remove()

    def move(self, key: Key) -> None:
        """Go to another draw."""
        self.watched.refuse_inside("the draw cannot advance")
        self.values.key = key
        self.values.forget()

    def advance(self) -> None:
        """Go to the next draw."""
        key = self.values.key
        self.move(Key(key.seed, key.step + 1, key.node))
        self.watched.used = False
        self._made.clear()
        self._elsewhere = 0

    @contextmanager
    def at(self, key: Key) -> Iterator[None]:
        """With another draw than the current one, and nothing else changed."""
        self.watched.refuse_removed("another draw cannot be used")
        before, stepping = self.values.key, self.under_way
        self.move(key)
        self.under_way = True  # whoever names the draw may change x while it stays
        try:
            yield
        finally:
            self.under_way = stepping
            self.move(before)

    def concern(self, optimizer: Optimizer) -> bool:
        """Whether it holds a sketched parameter; if all of these are frozen, any of the model."""
        try:
            sketched = [w.parameter for w in self.watched.weights]
        except MastError:  # the model was changed: its next forward pass says so
            return False
        if holds(optimizer, sketched):
            return True
        return not any(p.requires_grad for p in sketched) and holds(optimizer, self.sk.model.parameters())

    def before(self, optimizer: Optimizer) -> None:
        """A step begins; at the first of an optimizer, its traps are named."""
        if self.watched.sampling:
            raise MastError(
                "optimizer.step() inside sk.sample() would move the sparsified weights and lose the step: "
                "call it after the context"
            )
        self.watched.check()
        self.under_way = True
        if optimizer not in self._validated:
            from mast.nn.validation import warn_at_first_step

            self._validated.add(optimizer)
            warn_at_first_step(self.sk, optimizer)

    def after(self, optimizer: Optimizer) -> None:
        """Advance, unless another optimizer has done so since the last forward pass: theirs is one step."""
        self.under_way = False
        if not self._made or optimizer in self._made or self.watched.used:
            self.advance()
        self._made.add(optimizer)

    def after_other(self, optimizer: Optimizer) -> None:
        """An optimizer without sketched parameters has stepped: if it trains this model alone, draws rest."""
        passes = self.sk.calls.count
        if passes == self._passes_before or not holds(optimizer, self.sk.model.parameters()):
            return
        self._passes_before = passes
        self._elsewhere += 1
        if self._elsewhere == 2:
            self.watched.warn_once(
                f"{type(optimizer).__name__} has made two steps with one draw: it holds none of the sketched "
                "parameters, so its steps do not advance the draw. Call sk.advance() after each of them, "
                "or sketch what it trains (where=)"
            )

    def notice_changes(self) -> None:
        """Warn of loops that change x again and again while the draw stays as it is."""
        if not self.under_way:
            self.watched.warn_once(
                "the weights have changed three times since the draw did: they are not trained by a torch "
                "optimizer, whose steps advance the draw. Call sk.advance() after each step of your own"
            )


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for steps in list(_followed):
        if steps.concern(optimizer):
            steps.before(optimizer)


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for steps in list(_followed):
        (steps.after if steps.concern(optimizer) else steps.after_other)(optimizer)


def holds(optimizer: Optimizer, parameters: Iterable[Tensor]) -> bool:
    """Whether the optimizer holds one of these parameters."""
    wanted = {id(p) for p in parameters}
    return any(id(p) in wanted for group in optimizer.param_groups for p in group["params"])


# ---- weight decay ------------------------------------------------------------------------

#: optimizers of which it is known how they decay weights
DECAY_KNOWN = (
    optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax, optim.Adagrad, optim.Adadelta,
    optim.RMSprop,
)  # fmt: skip


def decays_to_zero(sk: Sparsifier, optimizer: Optimizer) -> bool:
    """Whether the optimizer decays a sketched weight towards 0, and has not been corrected."""
    corrected = optimizer in sk.optimizer_steps.decaying_to_shift
    return not corrected and any(True for _ in _decayed(sk, optimizer))


def decay_to_shift(sk: Sparsifier, optimizer: Optimizer) -> None:
    """Make the optimizer's weight decay pull the sketched weights towards v."""
    optimizer.register_step_pre_hook(partial(_add_decay, sk, False))
    optimizer.register_step_post_hook(partial(_add_decay, sk, True))
    sk.optimizer_steps.decaying_to_shift.add(optimizer)


@torch.no_grad()
def _add_decay(sk: Sparsifier, stepped: bool, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Before a step, -wd v joins the gradient; if decay is decoupled, lr wd v joins the weights after it."""
    for p, v, group in _decayed(sk, optimizer):
        decoupled = isinstance(optimizer, optim.AdamW) or group.get("decoupled_weight_decay", False)
        if p.grad is None or decoupled != stepped:
            continue
        if decoupled:
            p.add_(v, alpha=float(group["lr"]) * group["weight_decay"])
        else:
            p.grad.add_(v, alpha=(1 if group.get("maximize", False) else -1) * group["weight_decay"])


def _decayed(sk: Sparsifier, optimizer: Optimizer) -> Iterator[tuple[Tensor, Tensor, dict[str, Any]]]:
    """The sketched parameters that the optimizer decays, each with its shift and its group."""
    number = {id(w.parameter): i for i, w in enumerate(sk.weights)}
    for group in optimizer.param_groups:
        for p in group["params"] if group.get("weight_decay", 0) != 0 else ():
            v = sk.values.shift_of(number[id(p)], p) if id(p) in number else None
            if v is not None:
                yield p, v, group
