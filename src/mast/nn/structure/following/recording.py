"""A record of one forward pass: which value is made of which, by which module's code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from mast.nn.structure.following import entries, rules
from mast.nn.structure.following.examples import Example, run_in, tensors_in
from mast.nn.tensors.torch_private import OperationMode, tree_leaves

aten = torch.ops.aten
_NORMS = (
    aten.native_batch_norm,
    aten.native_layer_norm,
    aten.native_group_norm,
    aten._native_batch_norm_legit,
)
_WEIGHTED = (aten.addmm, aten.mm, aten.bmm, aten.baddbmm, aten.convolution, aten.linear)
_PRODUCTS = (aten.mul, aten.mul_, aten.div, aten.div_)
SUMS = (aten.add, aten.add_)
_MOVES = {
    packet for packet, rule in rules.RULES.items() if rule in (entries.moved, entries.reshaped, entries.same)
}
# Operations that make 0 of 0, so that a branch whose last weight is 0 is 0.
_ZERO_STAYS = _MOVES | {
    aten.relu, aten.relu_, aten.gelu, aten.silu, aten.silu_, aten.tanh, aten.leaky_relu, aten.hardswish,
    aten.hardswish_, aten.hardtanh, aten.elu, aten.mish, aten.native_dropout, aten.neg, aten.index,
    aten.index_select, aten.avg_pool2d, aten.max_pool2d_with_indices, aten.mean, aten.sum,
    aten.constant_pad_nd,
}  # fmt: skip


@dataclass
class Step:
    """One operation: what it is made of, and the weights that it is 0 without."""

    before: int  # all steps that its value depends on, as bits
    inputs: list[int]
    packet: Any
    tail: tuple[str, ...] = ()
    users: list[int] = field(default_factory=list)


@dataclass
class Visit:
    """One call of a module: its steps are first .. last - 1."""

    module: str
    first: int
    last: int = 0
    outer: int | None = None
    single: bool = False  # whether its output is one tensor; else a tuple that begins with one
    output: int | None = None
    places: int = 1  # how many entries the output tuple has


class Recording(OperationMode):
    """A mode that writes the record."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.visits: list[Visit] = []
        self.uses: dict[str, int] = {}  # of parameters, by operations that compute with them
        self.outputs: set[int | None] = set()  # steps whose values the model returns
        self._at: Any = WeakIdKeyDictionary()
        self._names: Any = WeakIdKeyDictionary()
        for name, p in reversed(list(model.named_parameters())):
            self._names[p] = name
        self._modules = {id(m): name for name, m in model.named_modules()}
        self._open: list[int] = []

    def run(self, model: nn.Module, example: Example) -> None:
        """Call the model; its inputs are steps, too, made of nothing."""
        for given in tree_leaves((example.args, dict(example.options))):
            if isinstance(given, Tensor):
                self._write(None, False, [], [], [], [given])
        output = run_in(self, self._enter, self._leave, lambda: example.call(model))
        self.outputs = {self._at.get(t) for t in tensors_in(output)}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation and write it down."""
        given = entries.tensors(args, dict(kwargs or {}))
        named = [self._names.get(t) for t in given]
        steps = [self._at.get(t) for t in given]
        out = func(*args, **(kwargs or {}))
        results = entries.tensors(out)
        moves = func.is_view or func.overloadpacket in _MOVES
        if moves and named and named[0] is not None and steps[0] is None:
            for result in results:
                self._names[result] = named[0]  # still the parameter
            return out
        self._write(func.overloadpacket, moves, [s for s in steps if s is not None], steps, named, results)
        return out

    def _write(
        self,
        packet: Any,
        moves: bool,
        inputs: list[int],
        steps: list[int | None],
        named: list[str | None],
        results: list[Tensor],
    ) -> None:
        own = tuple(name for name in named if name is not None)
        for name in own:
            self.uses[name] = self.uses.get(name, 0) + 1
        number, before = len(self.steps), 0
        for i in inputs:
            before |= self.steps[i].before | (1 << i)
            self.steps[i].users.append(number)
        first = self.steps[inputs[0]].tail if inputs else ()
        if packet in _WEIGHTED or packet in _NORMS or (packet in _PRODUCTS and own):
            tail = own
        elif packet in SUMS:
            tail = (*first, *own) if len(inputs) == 1 and own and first else ()
        elif moves or packet in _ZERO_STAYS or packet in _PRODUCTS:
            tail = first
        else:
            tail = ()
        self.steps.append(Step(before, inputs, packet, tail))
        for result in results:
            self._at[result] = number

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        outer = self._open[-1] if self._open else None
        self._open.append(len(self.visits))
        self.visits.append(Visit(self._modules.get(id(module), ""), len(self.steps), outer=outer))

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        visit = self.visits[self._open.pop()]
        visit.last = len(self.steps)
        visit.single = isinstance(output, Tensor)
        first = output[0] if isinstance(output, tuple) and output else output
        visit.places = len(output) if isinstance(output, tuple) else 1
        visit.output = self._at.get(first) if isinstance(first, Tensor) else None
