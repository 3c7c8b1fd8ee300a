"""Residual branches, found by running the model on an example, and what to remove of dropped ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch import nn

from mast.nn.structure.copies import shadow
from mast.nn.structure.following.examples import Example
from mast.nn.structure.following.proving import compare
from mast.nn.structure.following.recording import SUMS, Recording, Step, Visit
from mast.nn.structure.resizing import Passing, Sizes


@dataclass(frozen=True)
class Branch:
    """A branch: the tensors that carry its scale, and the modules that go with it."""

    scaled: tuple[str, ...]
    modules: tuple[tuple[str, Passing], ...]  # with what stands in for each; none: it stays, times 0

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
    record.run(twin, example)
    order = {name: number for number, (name, _) in enumerate(model.named_parameters())}
    found: list[Branch] = []
    others: dict[str, str] = {}
    for number, step in enumerate(record.steps):
        if step.packet not in SUMS or len(step.inputs) != 2:
            continue
        ends = _branch(record.steps, step)
        if ends is None:
            continue
        output, _ = ends
        tail = tuple(sorted(set(record.steps[output].tail), key=order.__getitem__))
        if not tail:
            continue
        reason = _problem(record, output, number, tail)
        if reason:
            others[tail[0]] = reason
            continue
        modules = _stand_ins(model, record, output, number)
        branch = Branch(tail, modules)
        found.append(branch if not _wrong(model, example, branch) else Branch(tail, ()))
    return found, others


def _branch(steps: list[Step], addition: Step) -> tuple[int, int] | None:
    """The two sides of an addition: the branch, and the trunk that it is made of."""
    a, b = addition.inputs
    if steps[b].before >> a & 1:
        return b, a
    if steps[a].before >> b & 1:
        return a, b
    return None


def _problem(record: Recording, output: int, addition: int, tail: tuple[str, ...]) -> str:
    for name in tail:
        if record.uses[name] > 1:
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
        stand_in = Passing(v.last == last or fresh(v), None if v.single else v.places, batch_first)
        found.append((v.module, stand_in))
    return tuple(found)


def _wrong(model: nn.Module, example: Example, branch: Branch) -> str:
    """What is wrong with a model without the branch, beside one whose branch is multiplied by 0."""
    if not branch.modules:
        return "no module makes it alone, so that it could be left out"
    small = shadow(model)
    Sizes(absent=dict(branch.modules)).take_out(small)
    parameters = dict(model.named_parameters())
    zeros = {name: torch.zeros_like(parameters[name]) for name in branch.scaled}
    _, message = compare(model, zeros, small, [example])
    return message
