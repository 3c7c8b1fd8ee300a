"""Residual branches, found by running the model on an example, and what to remove of dropped ones."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mast.nn.structure.following.examples import Example
from mast.nn.structure.following.proving import compare, shadow
from mast.nn.structure.following.recording import SUMS, Recording, Step, Visit
from mast.nn.structure.resizing import put
from mast.nn.tensors.torch_private import same_numbers_after


@dataclass(frozen=True)
class Followed:
    """A branch: the tensors that carry its scale, and the modules that go with it."""

    scaled: tuple[str, ...]
    modules: tuple[tuple[str, nn.Module], ...]  # with what stands in for each

    @property
    def name(self) -> str:
        """Its name."""
        return self.scaled[0]


class Passing(nn.Module):
    """In the place of a module whose result nobody needs: the first tensor it is given, or zeros like it."""

    def __init__(self, zeros: bool = False, places: int | None = None) -> None:
        super().__init__()
        self.zeros, self.places = zeros, places

    def forward(self, *args: Any, **options: Any) -> Any:
        """That tensor, alone or as the first of a tuple."""
        given = next(a for a in (*args, *options.values()) if isinstance(a, Tensor))
        found = torch.zeros_like(given) if self.zeros else given
        return found if self.places is None else (found, *[None] * (self.places - 1))


def find_followed(model: nn.Module, example: Example) -> tuple[list[Followed], dict[str, str]]:
    """The branches that can be dropped whole, and reasons for the others."""
    example = example.to(model)
    twin = shadow(model).eval()
    record = Recording(twin)
    with same_numbers_after():
        record.run(lambda: example.call(twin))
    found: list[Followed] = []
    others: dict[str, str] = {}
    for number, step in enumerate(record.steps):
        if step.packet not in SUMS or len(step.inputs) != 2:
            continue
        ends = _branch(record.steps, step)
        if ends is None:
            continue
        output, trunk = ends
        tail = tuple(dict.fromkeys(record.steps[output].tail))
        if not tail:
            continue
        reason = _problem(record, output, number, tail)
        branch = Followed(tail, _stand_ins(record, output, trunk, number)) if not reason else None
        if branch is not None:
            reason = _wrong(model, example, branch)
        if branch is None or reason:
            others[tail[0]] = reason
        else:
            found.append(branch)
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
    record: Recording, output: int, trunk: int, addition: int
) -> tuple[tuple[str, nn.Module], ...]:
    """The outermost modules all of whose steps serve the branch only."""
    steps = record.steps
    region = (steps[output].before | 1 << output) & ~(steps[trunk].before | 1 << trunk)
    dead: set[int] = set()
    for number in range(output, -1, -1):
        if region >> number & 1:
            users = set(steps[number].users) - {addition if number == output else -1}
            if users <= dead:
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
    return tuple(
        (v.module, Passing(zeros=v.last == last, places=None if v.single else v.places)) for v in chosen
    )


def _wrong(model: nn.Module, example: Example, branch: Followed) -> str:
    """What is wrong with a model without the branch, beside one whose branch is multiplied by 0."""
    if not branch.modules:
        return "no module makes it alone, so that it could be left out"
    small = copy.deepcopy(shadow(model))
    for name, stand_in in branch.modules:
        put(small, name, copy.deepcopy(stand_in))
    parameters = dict(model.named_parameters())
    zeros = {name: torch.zeros_like(parameters[name]) for name in branch.scaled}
    _, message = compare(model, zeros, small, example)
    return message
