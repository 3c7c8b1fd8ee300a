"""Residual branches, found by running the model on an example, and what to remove of dropped ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from mast.nn.structure.following import entries, rules
from mast.nn.structure.following.examples import Example
from mast.nn.structure.following.modes import Arguments, ForwardPass, Options, tensors
from mast.nn.structure.following.proving import compare
from mast.nn.structure.resizing import Passing, Sizes, shadow

aten = torch.ops.aten
_WEIGHTED = (
    aten.addmm, aten.mm, aten.bmm, aten.baddbmm, aten.convolution, aten.linear, aten.native_batch_norm,
    aten.native_layer_norm, aten.native_group_norm, aten._native_batch_norm_legit,
)  # fmt: skip
NORMS = (
    aten.native_batch_norm, aten._native_batch_norm_legit, aten._native_batch_norm_legit_no_training,
    aten.native_group_norm, aten.native_layer_norm, aten.cudnn_batch_norm,
)  # fmt: skip
_PRODUCTS = (aten.mul, aten.mul_, aten.div, aten.div_)
SUMS = (aten.add, aten.add_)
_MOVES = {
    packet for packet, rule in rules.RULES.items() if rule in (entries.moved, entries.reshaped, entries.same)
}
_COPIES = {packet for packet, rule in rules.RULES.items() if rule is entries.same}
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
        moves = func.is_view or func.overloadpacket in _MOVES
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
        if packet in _WEIGHTED or (packet in _PRODUCTS and own):
            tail = own
        elif packet in SUMS:
            tail = (*first, *own) if len(inputs) == 1 and own and first else ()
        elif moves or packet in _ZERO_STAYS or packet in _PRODUCTS:
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


@dataclass(frozen=True)
class Branch:
    """A branch: the tensors that carry its scale, and the modules that go with it."""

    scaled: tuple[str, ...]
    modules: tuple[tuple[str, Passing], ...]  # with what stands in for each; none: it stays, times 0
    keep: float | None = None  # a keep probability of its own

    @property
    def name(self) -> str:
        """Its name."""
        return self.scaled[0]


def find_branches(model: nn.Module, example: Example) -> tuple[list[Branch], dict[str, str]]:
    """The branches that can be dropped whole, in the order of the computation, and reasons for the others.

    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> branches, _ = find_branches(layer, Example.of(torch.ones(2, 3, 8)))
    >>> [branch.scaled for branch in branches]
    [('self_attn.out_proj.weight', 'self_attn.out_proj.bias'), ('linear2.weight', 'linear2.bias')]
    """
    example = example.to(model)
    twin = shadow(model).eval()
    record = Recording(twin)
    record.run(example)
    order = {name: number for number, (name, _) in enumerate(model.named_parameters())}
    found: list[Branch] = []
    others: dict[str, str] = {}
    known: dict[int, tuple[int, int]] = {}  # additions of a branch to the trunk
    for number in range(len(record.steps)):
        sides = _sides(record.steps, number, known)
        if sides is None:
            continue
        known[number] = sides
        for output, addition in _addends(record.steps, *sides, number, known):
            tail = tuple(sorted(set(record.steps[output].tail), key=order.__getitem__))
            reason = _problem(record, output, tail)
            if tail and reason:
                others[tail[0]] = reason
            elif tail:
                modules = _stand_ins(model, record, output, addition)
                # A forward() that asks the norm of a branch for its type can do without the last one only.
                tries = [Branch(tail, modules), Branch(tail, modules[-1:])]
                proven = (branch for branch in tries if _can_leave(model, example, branch))
                found.append(next(proven, Branch(tail, ())))
    return found, others


def residual_weights(model: nn.Module, example: Example) -> list[str]:
    """The weights that write to a residual stream: the last ones before an addition to it.

    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> residual_weights(layer, Example.of(torch.ones(2, 3, 8)))
    ['self_attn.out_proj.weight', 'linear2.weight']
    """
    record = Recording(shadow(model).eval())
    record.run(example.to(model))
    steps = record.steps
    given = sum(step.packet is None for step in steps)  # the inputs, which come first
    shapes = {name: p.shape for name, p in model.named_parameters()}
    found: dict[str, None] = {}
    known: dict[int, tuple[int, int]] = {}

    def last_weight(step: int) -> tuple[int, str] | None:
        """The step that multiplies with a weight last, and its name."""
        while True:
            own = [name for name in steps[step].tail if len(shapes[name]) > 1]
            packet, inputs = steps[step].packet, steps[step].inputs
            if own and packet in _WEIGHTED:
                return step, own[0]
            if not inputs or not (steps[step].tail or packet in (*_ZERO_STAYS, *_PRODUCTS, *SUMS, *NORMS)):
                return None
            step = inputs[0]

    for number, step in enumerate(steps):
        if step.packet not in SUMS or len(step.inputs) != 2:
            continue
        sides = _sides(steps, number, known)
        if sides is not None:
            known[number] = sides
            for output, _ in _addends(steps, *sides, number, known):
                last = last_weight(output)
                if last is not None and steps[last[0]].before >> sides[1] & 1:  # it lies within the branch
                    found[last[1]] = None
            continue
        # A stream that changes its width is the sum of two convolutions of one value.
        ends = [end for end in map(last_weight, step.inputs) if end is not None]
        if len(ends) == 2 and all(len(shapes[name]) > 2 for _, name in ends) and ends[0] != ends[1]:
            (first, _), (second, _) = ends
            if steps[first].before & steps[second].before & -1 << given:
                found |= dict.fromkeys(name for _, name in ends)
    return list(found)


def _sides(steps: list[Step], number: int, known: dict[int, tuple[int, int]]) -> tuple[int, int] | None:
    """The two sides of an addition, if it is one: a branch, and what it is made of, a value of the trunk."""
    step = steps[number]
    if step.packet not in SUMS or len(step.inputs) != 2:
        return None
    for trunk, branch in (step.inputs, step.inputs[::-1]):
        while not steps[branch].before >> trunk & 1:
            if trunk in known:  # x + f(x), to which g(x) is added: the trunk is x
                trunk = known[trunk][1]
            elif steps[trunk].packet in _COPIES and steps[trunk].inputs:  # in another precision, say
                trunk = steps[trunk].inputs[0]
            else:
                break
        else:
            return branch, trunk
    return None


def _addends(
    steps: list[Step], branch: int, trunk: int, addition: int, known: Mapping[int, Any]
) -> Iterator[tuple[int, int]]:
    """The branches of a sum f(x) + g(x) that is added to x at once, each with its addition."""
    step = steps[branch]
    if step.packet in SUMS and len(step.inputs) == 2 and step.users == [addition] and branch not in known:
        for addend in step.inputs:
            yield from _addends(steps, addend, trunk, branch, known)
    elif step.before >> trunk & 1:
        yield branch, addition


def _problem(record: Recording, output: int, tail: tuple[str, ...]) -> str:
    """Why the weights of a tail cannot carry the scale of a branch."""
    for name in tail:
        if len(record.uses[name]) > 1:
            return f"{name} is used in another place too"
    step = output
    while True:
        users = set(record.steps[step].users)
        if len(users) > 1:
            return "the end of the branch is used elsewhere too"
        before = record.steps[step].inputs
        if not before or record.steps[before[0]].tail != record.steps[step].tail:
            return ""
        step = before[0]


def _stand_ins(
    model: nn.Module, record: Recording, output: int, addition: int
) -> tuple[tuple[str, Passing], ...]:
    """The outermost modules all of whose steps serve the branch only."""
    steps = record.steps
    dead: set[int] = set()  # steps that nobody needs without the branch
    for number in range(addition - 1, -1, -1):
        users = set(steps[number].users) - {addition if number == output else -1}
        if users <= dead and number not in record.outputs:
            dead.add(number)
    visits = Counter(visit.module for visit in record.visits)

    def serves(visit: Visit) -> bool:
        own = range(visit.first, visit.last)
        return bool(own) and visits[visit.module] == 1 and all(n in dead for n in own) and visit.module != ""

    chosen = [
        v
        for v in record.visits
        if serves(v) and v.output is not None and not (v.outer is not None and serves(record.visits[v.outer]))
    ]
    last = max((v.last for v in chosen), default=-1)

    def fresh(visit: Visit) -> bool:
        """Whether it makes new memory: what it is given is needed elsewhere, and may be written to next."""
        own = range(visit.first, visit.last)
        return any(i not in dead for n in own for i in steps[n].inputs)

    found = []
    for v in chosen:
        batch_first = getattr(model.get_submodule(v.module), "batch_first", False) is True
        stand_in = Passing(v.last == last or fresh(v), v.places, batch_first)
        found.append((v.module, stand_in))
    return tuple(found)


def _can_leave(model: nn.Module, example: Example, branch: Branch) -> bool:
    """Whether a model without the branch is like one whose branch is multiplied by 0."""
    if not branch.modules:
        return False
    small = shadow(model)
    Sizes(absent=dict(branch.modules)).take_out(small)
    parameters = dict(model.named_parameters())
    zeros = {name: torch.zeros_like(parameters[name]) for name in branch.scaled}
    return not compare(model, zeros, small, [example])[1]
