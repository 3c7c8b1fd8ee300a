"""Residual branches, found by running the model on an example, and what to remove of dropped ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mast.nn.units.following.examples import Example
from mast.nn.units.following.proving import compare
from mast.nn.units.following.recording import (
    COPIES,
    NORMS,
    PRODUCTS,
    SUMS,
    WEIGHTED,
    ZERO_STAYS,
    Recording,
    Step,
    Visit,
)
from mast.nn.units.resizing import Passing, Sizes, shadow


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


def residual_weights(record: Recording) -> list[str]:
    """The weights that write to a residual stream: the last ones before an addition to it.

    >>> record = Recording(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval())
    >>> _ = record.run(Example.of(torch.ones(2, 3, 8)))
    >>> residual_weights(record)
    ['self_attn.out_proj.weight', 'linear2.weight']
    """
    steps = record.steps
    given = sum(step.packet is None for step in steps)  # the inputs, which come first
    shapes = {name: p.shape for name, p in record.model.named_parameters()}
    found: dict[str, None] = {}
    known: dict[int, tuple[int, int]] = {}

    def last_weight(step: int) -> tuple[int, str] | None:
        """The step that multiplies with a weight last, and its name."""
        while True:
            own = [name for name in steps[step].tail if len(shapes[name]) > 1]
            packet, inputs = steps[step].packet, steps[step].inputs
            if own and packet in WEIGHTED:
                return step, own[0]
            if not inputs or not (steps[step].tail or packet in (*ZERO_STAYS, *PRODUCTS, *SUMS, *NORMS)):
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
            elif steps[trunk].packet in COPIES and steps[trunk].inputs:  # in another precision, say
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
