"""Sparsified weights: S on tensors, and y = v + S(x - v) of the current draw, made once until it changes.

`multiply(kept, u)` is S u in plain torch operations: readable, differentiable, right for any layout, type
and device. `adjoint(kept, g)` is the same S'g with a compiled shortcut for contiguous floats on the CPU.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from mast.errors import MastError
from mast.nn.tensors.torch_private import current_node, graph_task_id, holders, sequence_number
from mast.nn.tensors.weights import Weight, refuse_sharded
from mast.randomness import Key
from mast.sketches.draws import DiagonalDraw, Draw, FullDraw, GridDraw, MaskDraw

if TYPE_CHECKING:
    from mast.nn.tensors.bound import BoundSketch

_COMPILED = (torch.float32, torch.float64)
_WORTH_KEEPING = 1 << 17  # bytes: smaller pieces of memory are recycled by the allocator itself
_REMEMBERED = 256  # changes of the draw: a step with several members makes two for each


def multiply(kept: Draw, u: Tensor) -> Tensor:
    """S u, differentiable in u."""
    if isinstance(
        kept, MaskDraw
    ):  # first the mask, exactly, then the scale, so that half precision rounds once
        return u * _tensor(kept.mask, u).view(u.shape) * kept.scales
    if isinstance(kept, DiagonalDraw):
        flat, indices = u.reshape(-1), _tensor(kept.positions, u)
        picked = times(flat[indices], wide(kept.scales, u))
        return torch.zeros_like(flat).index_copy(0, indices, picked).view(u.shape)
    return times(u, _diagonal(kept, u))


def sparsify_tensor(kept: Draw, x: Tensor, v: Tensor | None) -> Tensor:
    """v + S(x - v), differentiable in x."""
    return multiply(kept, x) if v is None else v + multiply(kept, x - v)


def sparsify_into(kept: Draw, x: Tensor, v: Tensor | None, y: Tensor) -> None:
    """The same into y, by one product without a temporary tensor where it can be."""
    if v is None and isinstance(kept, GridDraw | FullDraw) and x.dtype in _COMPILED:
        torch.mul(x, _diagonal(kept, x), out=y)
    else:
        y.copy_(sparsify_tensor(kept, x, v))


def replace_entries(before: DiagonalDraw, kept: DiagonalDraw, x: Tensor, v: Tensor | None, y: Tensor) -> None:
    """The same into y, which holds that of the draw `before`: that is undone where it had kept something."""
    from mast.sketches.draws import kernels as draw_kernels

    old, new, base = numbers(x), numbers(y), None if v is None else numbers(v)
    draw_kernels.copy(new, before.indices, base)
    draw_kernels.sparsify_entries(new, kept.indices, _scales_of(kept, old.dtype), old, base)


def adjoint(kept: Draw, g: Tensor, memory: Memory | None = None) -> Tensor:
    """S'g, in memory that is used again if it is given."""
    if g.is_sparse:
        return _adjoint_sparse(kept, g)
    if not compiled(g) or (torch.is_grad_enabled() and g.requires_grad):
        return multiply(kept, g)
    out = torch.empty_like(g) if memory is None else memory.like(g)
    from mast.sketches.draws import kernels as draw_kernels

    flat = numbers(g)
    if isinstance(kept, MaskDraw):
        draw_kernels.select(numbers(_tensor(kept.mask, g)), flat.dtype.type(kept.scales), flat, numbers(out))
    elif isinstance(kept, DiagonalDraw):
        out.zero_()
        draw_kernels.sparsify_entries(numbers(out), kept.indices, _scales_of(kept, flat.dtype), flat, None)
    else:
        torch.mul(g, _diagonal(kept, g).to(g.dtype), out=out)
    return out


def _adjoint_sparse(kept: Draw, g: Tensor) -> Tensor:
    """Embeddings with ``sparse=True`` have gradients that hold some rows only."""
    g = g.coalesce()
    if g.sparse_dim() != 1:
        return multiply(kept, g.to_dense())
    rows = g.indices()[0]
    if isinstance(kept, MaskDraw):
        scales = _tensor(kept.mask, g).view(g.shape)[rows].double() * kept.scales
    elif isinstance(kept, DiagonalDraw):
        scales = multiply(kept, torch.ones(g.shape, dtype=torch.float64, device=g.device))[rows]
    else:
        scales = _diagonal(kept, g).expand(g.shape)[rows]
    values = g.values() * scales.to(g.dtype)
    return torch.sparse_coo_tensor(g.indices(), values, g.shape, is_coalesced=True, check_invariants=False)


def _diagonal(kept: Draw, u: Tensor) -> Tensor:
    """All scales, 0 where an entry is dropped, in a shape that broadcasts."""
    return wide(kept.compact_diagonal() if isinstance(kept, GridDraw) else kept.factors, u)


def wide(scales: Any, u: Tensor) -> Tensor:
    """Scales as a tensor where u is, at least in single precision."""
    return torch.as_tensor(scales, dtype=torch.promote_types(u.dtype, torch.float32), device=u.device)


def times(u: Tensor, scales: Tensor) -> Tensor:
    """u times scales, rounded once: in half precision the scales themselves would be off, and S biased."""
    return (u.to(scales.dtype) * scales).to(u.dtype)


def _scales_of(kept: DiagonalDraw, dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """One scale for each kept entry, in this precision."""
    scales = np.asarray(kept.scales, dtype=dtype)
    return scales if scales.ndim else np.broadcast_to(scales, kept.count)


def _tensor(numbers_there: Any, like: Tensor) -> Tensor:
    """An array, a number or a tensor, as a tensor on the device of another."""
    return torch.as_tensor(numbers_there, device=like.device)


class Memory:
    """Memory for one parameter's gradients or masks, used again as soon as nobody holds it.

    A training loop frees a gradient and asks for an equal one at every step; for large ones the system
    takes the pages back and clears them anew each time, which costs as much as the product itself.
    """

    def __init__(self) -> None:
        self._storages: list[torch.UntypedStorage] = []  # at most two: that of this step, and of the last
        self._lock = threading.Lock()

    def like(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """An uninitialised tensor like this one on the CPU, perhaps of another type."""
        dtype = tensor.dtype if dtype is None else dtype
        size = tensor.numel() * dtype.itemsize
        if size < _WORTH_KEEPING or holders is None:
            return torch.empty_like(tensor, dtype=dtype)
        with self._lock:  # threads that go backward at the same time must not find the same piece
            for storage in self._storages:
                if storage.nbytes() == size and holders(storage._cdata) == 1:
                    return torch.empty(0, dtype=dtype).set_(storage, 0, tensor.shape, tensor.stride())
            fresh = torch.empty_like(tensor, dtype=dtype)
            self._storages = [*self._storages[-1:], fresh.untyped_storage()]
        return fresh


def compiled(*tensors: Tensor | None) -> bool:
    """Whether the compiled kernels can work on all of these."""
    return all(
        t.dtype in _COMPILED and t.device.type == "cpu" and t.layout == torch.strided and t.is_contiguous()
        for t in tensors
        if t is not None
    )


def numbers(tensor: Tensor) -> np.ndarray[Any, np.dtype[Any]]:
    """The tensor's memory as a flat NumPy array."""
    array: np.ndarray[Any, np.dtype[Any]] = (tensor.detach() if tensor.requires_grad else tensor).numpy()
    return array.reshape(-1)


# ---- y of the current draw -----------------------------------------------------------------


def in_backward() -> bool:
    """Whether this thread is in the middle of a backward pass."""
    return bool(graph_task_id() != -1)


class SketchedWeight(torch.autograd.Function):
    """S x in autograd's graph, given as two functions: of x, and of the gradient g, which make S x and S'g.

    What is kept is in a function, not a saved tensor, so that several backward passes may go through
    one node, as they do when gradients are accumulated over batches. What the first function returns shares
    the version counter of x, or of its own memory, so that a change before backward() is noticed.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, sketched: Callable[[Tensor], Tensor], adjoint: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """S x."""
        ctx.adjoint = adjoint
        return sketched(x.detach())

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[Tensor, None, None]:
        """S'g."""
        return ctx.adjoint(g[0]), None, None


def sketched_node(
    x: Tensor, sketched: Callable[[Tensor], Tensor], adjoint: Callable[[Tensor], Tensor]
) -> Tensor:
    """A `SketchedWeight` that backward passes go through as soon as its gradient is there.

    Passes go back in the opposite order of forward. Functions that were all called before the model ran would
    be last, and all their gradients would wait for them.
    """
    y: Tensor = SketchedWeight.apply(x, sketched, adjoint)  # type: ignore[no-untyped-call]
    y.grad_fn._set_sequence_nr(1 << 62)  # type: ignore[union-attr]
    return y


def changed_since(what: str) -> str:
    """The error for a forward pass that is repeated with other weights."""
    return (
        "a module was called during backward() (activation checkpointing recomputes its forward pass), but "
        f"the weights or the draw of {what} have changed since the first forward pass: call backward() "
        "before optimizer.step(), and inside the same `with sk.member(...)` as the forward pass"
    )


#: what a pass draws with: the key of the step, that of a member if one was asked for, and the sketch
Drawn = tuple[Key, Key | None, "BoundSketch"]


@dataclass
class CachedWeight:
    """One weight's y: the numbers, what made them, and their node in autograd's graph, if one was needed."""

    stamp: tuple[Any, ...]
    numbers: Tensor
    kept: Draw
    forward_pass: int  # in which it was last compared with x
    node: Tensor | None = None


class SparsifiedWeights:
    """The y of each weight under the current draw: that of a member of a list, if one was asked for."""

    def __init__(
        self, weights: Sequence[Weight], bound: BoundSketch, shift: dict[str, Tensor] | None, key: Key
    ) -> None:
        self.weights = weights
        self.bound = bound
        self.shift = shift
        self.key = key  # of the current step
        self.member: Key | None = None
        self.forward_pass = 0  # its number: x may have been changed since the last
        self.changed_in: set[int] = set()  # the passes of this draw that found x changed since the last
        # What was drawn, each with the number of the first node of autograd's graph that was made with it ...
        self._history: deque[tuple[int, Drawn]] = deque([(0, self._now)], maxlen=_REMEMBERED)
        self._thread = threading.get_ident()  # ... in this thread: each counts its nodes by itself
        self.forget_all()

    @property
    def drawn(self) -> Key:
        """The key of the draw that forward passes use."""
        return self.key if self.member is None else self.member

    @property
    def _now(self) -> Drawn:
        return self.key, self.member, self.bound

    def forget(self) -> None:
        """The draw has changed: nothing made so far is valid."""
        self._made: list[CachedWeight | None] = [None] * len(self.weights)
        self.changed_in.clear()
        self._history.append((sequence_number(), self._now))
        self._thread = threading.get_ident()

    def forget_all(self) -> None:
        """The weights or the shift have changed too, or graphs need their memory: it is not used again."""
        self.forget()
        # Memory is reused from draw to draw; beside it, the entries kept by the draw whose result it holds,
        # if it is known which (a mask would only take room: everything is written anew).
        self._memory: list[tuple[Tensor, Draw | None] | None] = [None] * len(self.weights)
        self._for_gradients = [Memory() for _ in self.weights]

    def begin_pass(self) -> None:
        """A forward pass begins, or is repeated during backward()."""
        self.forward_pass += 1
        if in_backward():
            self.refuse_other_draws()
        elif threading.get_ident() != self._thread:
            self._history.clear()
            self._history.append((0, self._now))
            self._thread = threading.get_ident()

    def refuse_other_draws(self) -> None:
        """An error if the forward pass that is being repeated was made with another draw than the current.

        It is the one that made the node which backward() is at.
        """
        node = current_node()
        if node is None:  # a forward pass in a callback repeats none
            return
        number = node._sequence_nr()
        if next((drawn for start, drawn in reversed(self._history) if start <= number), None) != self._now:
            raise MastError(changed_since("the model"))

    def shift_of(self, number: int, like: Tensor) -> Tensor | None:
        """v of a weight, moved to where `like` is; None without a shift."""
        if self.shift is None:
            return None
        name = self.weights[number].name
        v = self.shift[name]
        if v.device != like.device or v.dtype != like.dtype:
            v = self.shift[name] = v.to(like)
        return v

    def of(self, number: int, tensor: Tensor) -> Tensor:
        """y for what stands at the place of this weight: its parameter, or a stand-in (functional_call)."""
        p = self.weights[number].parameter
        if tensor is not p or not isinstance(tensor, torch.nn.Parameter):
            self.weights[number].check(tensor)
            kept = self.bound.kept(number, self.drawn, tensor)
            return sparsify_tensor(kept, tensor, self.shift_of(number, tensor))
        y = self.current(number, self.drawn)
        if not (torch.is_grad_enabled() and p.requires_grad):
            return y.numbers
        if y.node is None:
            known, kept, memory = y.numbers, y.kept, self._for_gradients[number]
            observe = self.bound.observer(number)

            def send_back(g: Tensor) -> Tensor:
                if observe is not None:  # a choice by curvature looks at g itself
                    observe(g)
                return adjoint(kept, g, memory)

            y.node = sketched_node(p, lambda _: known.detach(), send_back)
        return y.node

    def current(self, number: int, key: Key) -> CachedWeight:
        """The numbers of a draw, made now unless they were, and x has not changed since."""
        p = self.weights[number].parameter
        stamp = (key, id(p), p.data_ptr(), p._version, p.device, p.dtype)
        y = self._made[number]
        if y is not None and y.stamp == stamp:
            if y.forward_pass == self.forward_pass or in_backward():
                return y
            return self._compared(number, p, y)
        if in_backward():
            raise MastError(changed_since(repr(self.weights[number].name)))
        if y is not None and y.stamp[0] == key:
            self.changed_in.add(self.forward_pass)
        y = self._made[number] = CachedWeight(stamp, *self._make(number, p, key), self.forward_pass)
        return y

    def _compared(self, number: int, p: Tensor, known: CachedWeight) -> CachedWeight:
        """What was made for an earlier pass, unless x was changed since behind autograd's back (p.data)."""
        with torch.inference_mode(False), torch.no_grad():
            x = p.detach()
            v = self.shift_of(number, x)
            numbers = adjoint(known.kept, x) if v is None else sparsify_tensor(known.kept, x, v)
        known.forward_pass = self.forward_pass
        if torch.equal(numbers, known.numbers):
            return known
        self.changed_in.add(self.forward_pass)
        self._memory[number] = (numbers, known.kept)  # graphs of the earlier pass keep the old memory
        y = self._made[number] = CachedWeight(known.stamp, numbers, known.kept, self.forward_pass)
        return y

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
            kept = self.bound.write(number, key, x, self.shift_of(number, x), y, before)
            self._memory[number] = (y, kept if isinstance(kept, DiagonalDraw) else None)
        return y, kept
