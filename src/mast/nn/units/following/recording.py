"""What a forward pass does: its operations, what each is made of, and the modules that call them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from mast.nn.units.following import entries, rules
from mast.nn.units.following.examples import Example
from mast.nn.units.following.modes import Arguments, ForwardPass, Options, tensors

aten = torch.ops.aten
WEIGHTED = (
    aten.addmm, aten.mm, aten.bmm, aten.baddbmm, aten.convolution, aten.linear, aten.native_batch_norm,
    aten.native_layer_norm, aten.native_group_norm, aten._native_batch_norm_legit,
)  # fmt: skip
NORMS = (
    aten.native_batch_norm, aten._native_batch_norm_legit, aten._native_batch_norm_legit_no_training,
    aten.native_group_norm, aten.native_layer_norm, aten.cudnn_batch_norm,
)  # fmt: skip
PRODUCTS = (aten.mul, aten.mul_, aten.div, aten.div_)
SUMS = (aten.add, aten.add_)
MOVES = {
    packet for packet, rule in rules.RULES.items() if rule in (entries.moved, entries.reshaped, entries.same)
}
COPIES = {packet for packet, rule in rules.RULES.items() if rule is entries.same}
# Operations that make 0 of 0, so that a branch whose last weight is 0 is 0.
ZERO_STAYS = MOVES | {
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
    moves: bool = False  # it puts entries elsewhere, and does no more
    tail: tuple[str, ...] = ()
    users: list[int] = field(default_factory=list)


@dataclass
class Visit:
    """One call of a module: its steps are first .. last - 1."""

    module: str
    first: int
    last: int = 0
    outer: int | None = None
    output: int | None = None
    places: int | None = None  # how many entries the output has, if it is no single tensor


class Recording(ForwardPass):
    """A mode that writes down what each operation is made of, and which module calls it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.steps: list[Step] = []
        self.visits: list[Visit] = []
        self.uses: dict[str, list[int]] = {}  # of parameters: the steps that compute with them
        self.outputs: set[int | None] = set()  # steps whose values the model returns
        self._operations: list[int | None] = []  # the step of each; what moves a parameter is none
        self._effects: list[int] = []  # steps that matter even if nobody looks at their values
        self._at: Any = WeakIdKeyDictionary()
        self._names: Any = WeakIdKeyDictionary()
        for name, p in reversed(list(model.named_parameters())):
            self._names[p] = name
        self._visiting: list[int] = []  # the numbers of visits that have not ended

    def run(self, example: Example) -> list[Tensor]:
        """Call the model; its inputs are steps, too, made of nothing."""
        for given in tensors(example.args, dict(example.options)):
            self._write(None, False, [], [], [given])
        output = super().run(example)
        self.outputs = {self._at.get(t) for t in output}
        return output

    def see(self, func: Any, args: Arguments, options: Options, out: Any) -> None:
        """Write the operation down."""
        given = tensors(args, options)
        named = [self._names.get(t) for t in given]
        steps = [self._at.get(t) for t in given]
        results = tensors(out)
        moves = func.is_view or func.overloadpacket in MOVES
        if moves and named and named[0] is not None and steps[0] is None:
            self._operations.append(None)
            for result in results:
                self._names[result] = named[0]  # still the parameter
            return
        self._operations.append(len(self.steps))
        # What else shares memory that was written to is not known, nor what Python does with a number. All
        # steps of a recurrent layer are one, whichever are needed.
        recurrent = any(isinstance(module, nn.RNNBase) for module in self.open)
        if func._schema.is_mutable or not results or recurrent:
            self._effects.append(len(self.steps))
        self._write(func.overloadpacket, moves, [s for s in steps if s is not None], named, results)

    def needed(self) -> set[int]:
        """The numbers of the operations that the output needs.

        Others are for nothing, such as the mean over heads of attention weights that nobody looks at. What
        they do with units does not matter.
        """
        needed = 0  # steps, as bits
        for step in (*self.outputs, *self._effects):
            needed |= 0 if step is None else self.steps[step].before | 1 << step
        return {n for n, step in enumerate(self._operations) if step is None or needed >> step & 1}

    def _write(
        self, packet: Any, moves: bool, inputs: list[int], named: list[str | None], results: list[Tensor]
    ) -> None:
        own = tuple(name for name in named if name is not None)
        number, before = len(self.steps), 0
        for name in own:
            self.uses.setdefault(name, []).append(number)
        for i in inputs:
            before |= self.steps[i].before | (1 << i)
            self.steps[i].users.append(number)
        first = self.steps[inputs[0]].tail if inputs else ()
        if packet in WEIGHTED or (packet in PRODUCTS and own):
            tail = own
        elif packet in SUMS:
            tail = (*first, *own) if len(inputs) == 1 and own and first else ()
        elif moves or packet in ZERO_STAYS or packet in PRODUCTS:
            tail = first
        else:
            tail = ()
        self.steps.append(Step(before, inputs, packet, moves, tail))
        for result in results:
            self._at[result] = number

    def enter(self, module: nn.Module, inputs: Any) -> None:
        """A visit begins."""
        super().enter(module, inputs)
        outer = self._visiting[-1] if self._visiting else None
        self._visiting.append(len(self.visits))
        self.visits.append(Visit(self.names.get(id(module), ""), len(self.steps), outer=outer))

    def leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """It ends."""
        super().leave(module, inputs, output)
        visit = self.visits[self._visiting.pop()]
        visit.last = len(self.steps)
        first = output[0] if isinstance(output, tuple) and output else output
        if not isinstance(output, Tensor):
            visit.places = len(output) if isinstance(output, tuple) else 1
        visit.output = self._at.get(first) if isinstance(first, Tensor) else None
