"""The sparsified weights y = v + S(x - v) of the current draw, made once and kept until it changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from mast.errors import MastError
from mast.nn.tensors.bound import BoundSketch
from mast.nn.tensors.scaling import Memory, adjoint, sparsify
from mast.nn.tensors.torch_private import go_back_early, in_backward
from mast.nn.tensors.weights import Weight, refuse_sharded
from mast.randomness import Key
from mast.sketches.draws import DiagonalDraw, Draw


class SketchedWeight(torch.autograd.Function):
    """y as a function of x in autograd's graph: forward gives y, which is known already; backward is S'g.

    What is kept is an attribute, not a saved tensor, so that several backward passes may go through
    one node, as they do when gradients are accumulated over batches.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        known: Callable[[], Tensor],
        kept: Draw,
        memory: Memory,
        observe: Callable[[Tensor], None] | None,
    ) -> Tensor:
        """The known values. They share their memory's version counter, so that overwriting it is noticed."""
        ctx.kept, ctx.memory, ctx.observe = kept, memory, observe
        return known().detach()

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[Tensor, None, None, None, None]:
        """S'g. A cut that is chosen by curvature looks at g first."""
        if ctx.observe is not None:
            ctx.observe(g[0])
        return adjoint(ctx.kept, g[0], ctx.memory), None, None, None, None


def changed_since(what: str) -> str:
    """The error for a forward pass that is repeated with other weights."""
    return (
        "a module was called during backward() (activation checkpointing recomputes its forward pass), but "
        f"the weights or the draw of {what} have changed since the first forward pass: call backward() "
        "before optimizer.step()"
    )


@dataclass
class Made:
    """One weight's y: the numbers, what made them, and their node in autograd's graph, if one was needed."""

    stamp: tuple[Any, ...]
    numbers: Tensor
    kept: Draw
    forward_pass: int = 0  # in which it was last compared with x
    node: Tensor | None = None


class SparsifiedWeights:
    """The y of each weight under the key of the moment."""

    def __init__(
        self, weights: Sequence[Weight], bound: BoundSketch, shift: dict[str, Tensor] | None
    ) -> None:
        self.weights = weights
        self.bound = bound
        self.shift = shift
        self._made: list[Made | None] = [None] * len(weights)
        # Memory is reused from draw to draw; beside it, the entries kept by the draw whose result it holds,
        # if it is known which (a mask would only take room: everything is written anew).
        self._memory: list[tuple[Tensor, Draw | None] | None] = [None] * len(weights)
        self._for_gradients = [Memory() for _ in weights]
        self.forward_pass = 0  # its number: x may have been changed since the last
        self.changed_in: set[int] = set()  # the passes of this draw that found x changed since the last

    def forget(self) -> None:
        """The draw has changed: nothing made so far is valid."""
        self._made = [None] * len(self.weights)
        self.changed_in.clear()

    def forget_all(self) -> None:
        """The shift has changed too: not even the memory is."""
        self.forget()
        self._memory = [None] * len(self.weights)
        self._for_gradients = [Memory() for _ in self.weights]

    def v(self, number: int, like: Tensor) -> Tensor | None:
        """The shift of a weight, moved to where the weight is."""
        if self.shift is None:
            return None
        name = self.weights[number].name
        v = self.shift[name]
        if v.device != like.device or v.dtype != like.dtype:
            v = self.shift[name] = v.to(like)
        return v

    def of(self, number: int, tensor: Tensor, key: Key) -> Tensor:
        """y for what stands at the place of this weight: its parameter, or a stand-in (functional_call)."""
        p = self.weights[number].parameter
        if tensor is not p or not isinstance(tensor, torch.nn.Parameter):
            return self._stand_in(number, tensor, key)
        made = self.current(number, key)
        if not (torch.is_grad_enabled() and p.requires_grad):
            return made.numbers
        if made.node is None:
            numbers, memory = made.numbers, self._for_gradients[number]
            apply: Any = SketchedWeight.apply
            node = apply(p, lambda: numbers, made.kept, memory, self.bound.observer(number))
            made.node = go_back_early(node)
        return made.node

    def current(self, number: int, key: Key) -> Made:
        """The numbers of the current draw, made now unless they were, and x has not changed since."""
        p = self.weights[number].parameter
        stamp = (key, id(p), p.data_ptr(), p._version, p.device, p.dtype)
        made = self._made[number]
        if made is not None and made.stamp == stamp:
            if made.forward_pass != self.forward_pass and not in_backward():
                made = self._compared(number, p, made)
        else:
            if in_backward():
                raise MastError(changed_since(repr(self.weights[number].name)))
            if made is not None and made.stamp[0] == key:
                self.changed_in.add(self.forward_pass)
            made = self._made[number] = Made(stamp, *self._make(number, p, key), self.forward_pass)
        return made

    def _compared(self, number: int, p: Tensor, made: Made) -> Made:
        """What was made for an earlier pass, unless x was changed since behind autograd's back (p.data)."""
        with torch.inference_mode(False), torch.no_grad():
            x = p.detach()
            v = self.v(number, x)
            y = adjoint(made.kept, x) if v is None else sparsify(made.kept, x, v)
        made.forward_pass = self.forward_pass
        if torch.equal(y, made.numbers):
            return made
        self.changed_in.add(self.forward_pass)
        self._memory[number] = (y, made.kept)  # graphs of the earlier pass keep the old memory
        made = self._made[number] = Made(made.stamp, y, made.kept, self.forward_pass)
        return made

    def _make(self, number: int, p: Tensor, key: Key) -> tuple[Tensor, Draw]:
        refuse_sharded(self.weights[number].name, p)
        with torch.inference_mode(False), torch.no_grad():  # also where inference mode is on: y outlives it
            x = p.detach()
            y, before = self._memory[number] or (None, None)
            if y is None or y.shape != x.shape or y.dtype != x.dtype or y.device != x.device:
                y, before = torch.empty_like(x), None
            else:
                increment_version(y)  # a graph that still needs the last draw's y must fail loudly
            self._memory[number] = (y, None)  # not known while it is being written
            kept = self.bound.write(number, key, x, self.v(number, x), y, before)
            self._memory[number] = (y, kept if isinstance(kept, DiagonalDraw) else None)
        return y, kept

    def _stand_in(self, number: int, tensor: Tensor, key: Key) -> Tensor:
        self.weights[number].check(tensor)
        return sparsify(self.bound.kept(number, key, tensor), tensor, self.v(number, tensor))
