"""What a recording says of weights: residual branches, what writes to the stream, what a norm takes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mast.nn.units.cuts import SubmodelSizes
from mast.nn.units.dependencies.examples import Example, compare_outputs, shadow
from mast.nn.units.dependencies.recording import (
    COPIES,
    NORMS,
    PRODUCTS,
    SUMS,
    WEIGHTED,
    ZERO_STAYS,
    ModuleCall,
    Operation,
    Recording,
)
from mast.nn.units.stand_ins import PassThrough


@dataclass(frozen=True)
class Branch:
    """A residual branch: the parameters that carry its scale, and the modules that are dropped with it."""

    scaled: tuple[str, ...]
    modules: tuple[tuple[str, PassThrough], ...]  # with what stands in for each; none: it stays, times 0
    keep: float | None = None  # a keep probability of its own

    @property
    def name(self) -> str:
        """That of the first weight that carries its scale."""
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
    for output, addition, _ in _branch_ends(record):
        weights = tuple(sorted(set(record.operations[output].last_weights), key=order.__getitem__))
        reason = _why_unscalable(record, output, weights)
        if weights and reason:
            others[weights[0]] = reason
        elif weights:
            modules = _stand_ins(model, record, output, addition)
            # A forward() that asks the norm of a branch for its type can do without the last one only.
            tries = [Branch(weights, modules), Branch(weights, modules[-1:])]
            proven = (branch for branch in tries if _can_drop(model, example, branch))
            found.append(next(proven, Branch(weights, ())))
    return found, others


def residual_weights(record: Recording) -> list[str]:
    """The weights that write to a residual stream: the last ones before an addition to it.

    >>> record = Recording(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval())
    >>> _ = record.run(Example.of(torch.ones(2, 3, 8)))
    >>> residual_weights(record)
    ['self_attn.out_proj.weight', 'linear2.weight']
    """
    operations = record.operations
    given = sum(operation.kind is None for operation in operations)  # the inputs, which come first
    shapes = {name: p.shape for name, p in record.model.named_parameters()}
    found: dict[str, None] = {}

    def last_weight(number: int) -> tuple[int, str] | None:
        """The operation that multiplies with a weight last, and its name."""
        while True:
            at = operations[number]
            own = [name for name in at.last_weights if len(shapes[name]) > 1]
            if own and at.kind in WEIGHTED:
                return number, own[0]
            if not at.inputs or not (at.last_weights or at.kind in (*ZERO_STAYS, *PRODUCTS, *SUMS, *NORMS)):
                return None
            number = at.inputs[0]

    for output, _, stream in _branch_ends(record):
        last = last_weight(output)
        if last is not None and operations[last[0]].ancestors >> stream & 1:  # it lies within the branch
            found[last[1]] = None
    additions = _additions(record)
    for number, operation in enumerate(operations):
        if number in additions or not _is_sum(operation):
            continue
        # A stream that changes its width is the sum of two convolutions of one value.
        ends = [end for end in map(last_weight, operation.inputs) if end is not None]
        if len(ends) == 2 and all(len(shapes[name]) > 2 for _, name in ends) and ends[0] != ends[1]:
            (first, _), (second, _) = ends
            if operations[first].ancestors & operations[second].ancestors & -1 << given:
                found |= dict.fromkeys(name for _, name in ends)
    return list(found)


def normalised_weights(model: nn.Module, example: Example) -> set[str]:
    """The weights all of whose products go into a norm, with nothing but a bias added before.

    >>> import torch
    >>> block = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))
    >>> normalised_weights(block, Example.of(torch.ones(3, 4)))
    {'0.weight'}

    A sum with another value, as in ``norm(x + dense(h))``, is no such case: its parts are weighed there.

    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> normalised_weights(layer, Example.of(torch.ones(2, 3, 8)))
    set()
    """
    record = Recording(shadow(model).eval())
    record.run(example.to(model))
    inside = set()  # the operations of modules that normalise
    for call in record.calls:
        if "Norm" in type(model.get_submodule(call.module)).__name__:
            inside |= set(range(call.first, call.last))

    def normalised(number: int) -> bool:
        """Whether all that becomes of a value is its norm."""
        users = set(record.operations[number].users)
        return bool(users) and number not in record.outputs and all(map(ends_in_norm, users))

    def ends_in_norm(number: int) -> bool:
        operation = record.operations[number]
        if number in inside or operation.kind in NORMS:
            return True
        adds_bias = operation.kind in SUMS and len(operation.inputs) == 1 and number in biased
        return (operation.is_move or adds_bias) and normalised(number)

    rank = {name: p.dim() for name, p in model.named_parameters()}
    biased = {number for name, uses in record.uses.items() if rank[name] == 1 for number in uses}
    return {name for name, uses in record.uses.items() if rank[name] > 1 and all(map(normalised, uses))}


def _is_sum(operation: Operation) -> bool:
    return operation.kind in SUMS and len(operation.inputs) == 2


def _additions(record: Recording) -> dict[int, tuple[int, int]]:
    """The additions of a branch to the stream: the branch, and the value of the stream that it is made of.

    A step of a recurrent layer adds what is remembered to what comes in: that is none.
    """
    operations = record.operations
    inside = set()  # the operations of recurrent layers
    for call in record.calls:
        if isinstance(record.model.get_submodule(call.module), nn.RNNBase):
            inside |= set(range(call.first, call.last))
    found: dict[int, tuple[int, int]] = {}
    for number, operation in enumerate(operations):
        sums = _is_sum(operation) and number not in inside
        for stream, branch in itertools.permutations(operation.inputs) if sums else ():
            while not operations[branch].ancestors >> stream & 1:
                if stream in found:  # x + f(x), to which g(x) is added: the stream is x
                    stream = found[stream][1]
                elif operations[stream].kind in COPIES and operations[stream].inputs:  # in other types
                    stream = operations[stream].inputs[0]
                else:
                    break
            else:
                found[number] = branch, stream
                break
    return found


def _branch_ends(record: Recording) -> Iterator[tuple[int, int, int]]:
    """The ends of all branches, each with its addition, and the value of the stream that it is made of."""
    additions = _additions(record)
    for number, (branch, stream) in additions.items():
        for output, addition in _addends(record.operations, branch, stream, number, additions):
            yield output, addition, stream


def _addends(
    operations: list[Operation], branch: int, stream: int, addition: int, known: Mapping[int, Any]
) -> Iterator[tuple[int, int]]:
    """The branches of a sum f(x) + g(x) that is added to x at once, each with its addition."""
    operation = operations[branch]
    if _is_sum(operation) and operation.users == [addition] and branch not in known:
        for addend in operation.inputs:
            yield from _addends(operations, addend, stream, branch, known)
    elif operation.ancestors >> stream & 1:
        yield branch, addition


def _why_unscalable(record: Recording, output: int, weights: tuple[str, ...]) -> str:
    """Why the last weights of a branch cannot carry the scale of a branch."""
    for name in weights:
        if len(record.uses[name]) > 1:
            return f"{name} is used in another place too"
    number, last_weights = output, record.operations[output].last_weights
    while True:
        users = set(record.operations[number].users)
        if len(users) > 1:
            return "the end of the branch is used elsewhere too"
        inputs = record.operations[number].inputs
        if not inputs or record.operations[inputs[0]].last_weights != last_weights:
            return ""
        number = inputs[0]


def _stand_ins(
    model: nn.Module, record: Recording, output: int, addition: int
) -> tuple[tuple[str, PassThrough], ...]:
    """The outermost modules all of whose operations serve the branch only."""
    operations = record.operations
    unneeded: set[int] = set()  # operations that nobody needs without the branch
    for number in range(addition - 1, -1, -1):
        users = set(operations[number].users) - {addition if number == output else -1}
        if users <= unneeded and number not in record.outputs:
            unneeded.add(number)
    calls = Counter(call.module for call in record.calls)

    def serves(call: ModuleCall) -> bool:
        own = range(call.first, call.last)
        return bool(own) and calls[call.module] == 1 and all(n in unneeded for n in own) and call.module != ""

    chosen = [
        v
        for v in record.calls
        if serves(v) and v.output is not None and not (v.outer is not None and serves(record.calls[v.outer]))
    ]
    last = max((v.last for v in chosen), default=-1)

    def fresh(call: ModuleCall) -> bool:
        """Whether it makes new memory: what it is given is needed elsewhere, and may be written to next."""
        own = range(call.first, call.last)
        return any(i not in unneeded for n in own for i in operations[n].inputs)

    found = []
    for v in chosen:
        batch_first = getattr(model.get_submodule(v.module), "batch_first", False) is True
        stand_in = PassThrough(v.last == last or fresh(v), v.tuple_size, batch_first)
        found.append((v.module, stand_in))
    return tuple(found)


def _can_drop(model: nn.Module, example: Example, branch: Branch) -> bool:
    """Whether a model without the branch is like one whose branch is multiplied by 0."""
    if not branch.modules:
        return False
    small = shadow(model)
    SubmodelSizes(absent=dict(branch.modules)).replace_modules(small)
    parameters = dict(model.named_parameters())
    zeros = {name: torch.zeros_like(parameters[name]) for name in branch.scaled}
    return not compare_outputs(model, zeros, small, [example])[1]
