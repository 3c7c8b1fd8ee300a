"""Whether small models compute what the whole model computes with the weights of the draw."""

from __future__ import annotations

import copy
import itertools
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from mast.errors import MastError
from mast.nn.tensors.scaling import sparsify
from mast.nn.tensors.torch_private import OperationMode, repeat_numbers, same_numbers_after
from mast.nn.units.drawing import Space, UnitDraw
from mast.nn.units.following.examples import Example, first_line, tensors_in
from mast.nn.units.resizing import shadow
from mast.randomness import Key, Purpose, permutation
from mast.sketches import DiagonalDraw

if TYPE_CHECKING:
    from mast.nn.units.following.reading import Length
    from mast.nn.units.structures import Structure

aten = torch.ops.aten
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


class Settled(OperationMode):
    """Without chance: dropout lets everything pass, other random numbers depend on their place only."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = 0

    @property
    def random(self) -> bool:
        """Whether anything but dropout drew numbers."""
        return self._calls > 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation."""
        packet = func.overloadpacket
        if packet is aten.native_dropout:
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if func is aten.bernoulli_.float:
            return args[0].fill_(args[1] if len(args) > 1 else (kwargs or {}).get("p", 0.5))
        if torch.Tag.nondeterministic_seeded in func.tags:
            self._calls += 1
            repeat_numbers(self._calls)
        return func(*args, **(kwargs or {}))


def outputs(model: nn.Module, example: Example, training: bool, values: Mapping[str, Tensor]) -> list[Tensor]:
    """The tensors of a model's output, with these values of parameters; the model stays as it is."""
    twin = shadow(model).train(training)
    with same_numbers_after(), torch.no_grad(), Settled():
        repeat_numbers(0)  # some models draw with NumPy before anything else
        found = functional_call(twin, dict(values), example.args, dict(example.options))
    return [t.detach() for t in tensors_in(found) if t.is_floating_point()]


def difference(some: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """The largest difference of two outputs, relative to the largest entry."""
    if [t.shape for t in some] != [t.shape for t in others]:
        return float("inf")
    worst = 0.0
    for a, b in zip(some, others, strict=True):
        if not torch.equal(a.isnan(), b.isnan()):
            return float("inf")
        if not a.numel():
            continue
        gap = float((a - b).abs_().nan_to_num_(nan=0.0, posinf=torch.inf).max())  # inf - inf is no difference
        size = float(b.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).abs_().max())
        worst = max(worst, gap / max(size, 1e-30))
    return worst


def compare(
    whole: nn.Module,
    values: Mapping[str, Tensor],
    small: nn.Module,
    examples: Sequence[Example],
    modes: Sequence[bool] = (False, True),
) -> tuple[float, str]:
    """The largest relative difference in these modes of training, and a message if it is too large."""
    first = next(whole.parameters())
    tolerance = TOLERANCE.get(first.dtype, 1e-4)
    worst = 0.0
    for example, training in itertools.product(examples, modes):
        mode = "training" if training else "eval"
        try:
            gap = _gap(whole, values, small, example, training)
        except Exception as error:  # whatever a forward pass does with sizes that it does not expect
            return float("inf"), f"a smaller model cannot be run in {mode} mode: {_cause(error, small)}"
        if gap > tolerance and first.dtype is not torch.float64:
            gap = _gap_in_double(whole, values, small, example, training)
        worst = max(worst, gap)
        if gap > tolerance:
            return gap, f"a smaller model differs in {mode} mode, by {gap:.1%} of its largest output"
    return worst, ""


def _cause(error: Exception, small: nn.Module) -> str:
    """In words: what module's code fails with fewer units, and why if that is known."""
    kinds = {type(module) for module in small.modules() if not type(module).__module__.startswith("torch.")}
    running = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    failing = [module for module in running if type(module) in kinds]  # the innermost one last
    said = first_line(error)
    if not failing:
        return said
    why = "works with all of them only"
    if "multiple of 16 bytes" in said:
        why = (
            "calls a kernel that takes multiples of 16 bytes only, unlike "
            'model.set_experts_implementation("eager")'
        )
    elif getattr(failing[-1], "config", None) is not None:
        why += ", perhaps because it reads their number from the configuration, which all layers share"
    return f"the code of {type(failing[-1]).__name__} {why} ({said})"


def _gap(
    whole: nn.Module, values: Mapping[str, Tensor], small: nn.Module, example: Example, training: bool
) -> float:
    return difference(outputs(small, example, training, {}), outputs(whole, example, training, values))


def _gap_in_double(
    whole: nn.Module, values: Mapping[str, Tensor], small: nn.Module, example: Example, training: bool
) -> float:
    """The same with more digits, which tells rounding from errors."""
    values, example = {n: v.double() for n, v in values.items()}, example.to(whole, torch.float64)
    try:
        whole, small = copy.deepcopy(whole).double(), copy.deepcopy(small).double()
        return _gap(whole, values, small, example, training)
    except Exception:  # a model that insists on its type
        return float("inf")


def masked(
    structure: Structure, model: nn.Module, draw: UnitDraw, shift: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The parameters v + S(x - v) that differ from x: those that carry scales."""
    parameters, draws = dict(model.named_parameters()), list(draw.values())
    values = {}
    for scaled in structure.scaled:
        x, v = parameters[scaled.tensor].detach(), (shift or {}).get(scaled.tensor)
        values[scaled.tensor] = sparsify(scaled.kept(draws), x, None if v is None else v.to(x))
    return values


def check(
    structure: Structure,
    model: nn.Module,
    draw: UnitDraw,
    small: nn.Module,
    shift: Mapping[str, Tensor] | None = None,
) -> None:
    """An error that names the space and its module, if a submodel is not what the whole model says."""
    whole = shadow(model)
    examples = [example.to(model) for example in structure.examples]
    values = masked(structure, whole, draw, shift)
    _, message = compare(whole, values, small, examples, structure.modes)
    if not message:
        return
    for space in () if structure.branches else structure.spaces:
        one = {s.name: DiagonalDraw(s.units, np.arange(s.units), np.ones(s.units)) for s in structure.spaces}
        one[space.name] = draw[space.name]
        own = _problem(structure, whole, UnitDraw(draw.key, one), examples)
        if own:
            owner = space.producers[0].tensor.rpartition(".")[0]
            raise MastError(
                f"the submodel is wrong, and not returned: with the units of {space.name!r} (module "
                f"{owner!r}) {own}. Leave them out with keep={{{space.name!r}: 1}}, or keep as many units in "
                "all layers of one size with Neurons(..., uniform=True)"
            )
    raise MastError(f"the submodel is wrong, and not returned: {message}")


def _problem(structure: Structure, model: nn.Module, draw: UnitDraw, examples: Sequence[Example]) -> str:
    """What is wrong with the small model of a draw."""
    cut = structure.cut(draw)
    try:
        small = cut.module(cut.gather(model), cut.gather_buffers(model))
    except Exception as error:  # a module that cannot be copied or refitted
        return f"a smaller model cannot be made: {first_line(error)}"
    return compare(model, masked(structure, model, draw), small, examples, structure.modes)[1]


def unproven(
    structure: Structure,
    model: nn.Module,
    examples: Sequence[Example],
    spaces: Sequence[Space],
    attributes: Sequence[Length],
) -> dict[str, str]:
    """The spaces that cannot be cut after all, and what is wrong: found by trying, and by halving."""
    good: list[Space] = []
    wrong: dict[str, str] = {}

    def try_all(some: Sequence[Space]) -> None:
        structure.settle([*good, *some], attributes)
        message = _problem(structure, model, _uneven(structure.spaces), examples)
        if not message:
            good.extend(some)
        elif len(some) == 1:
            wrong[some[0].name] = message
        else:
            half = len(some) // 2
            try_all(some[:half])
            try_all(some[half:])

    try_all(spaces)
    return wrong


def _uneven(spaces: Sequence[Space]) -> UnitDraw:
    """A draw that keeps another share of each space, with a scale of its own on each unit."""
    kept = {}
    for number, space in enumerate(spaces):
        third = space.units // 3
        count = max(1, third + number * 7 % (third + 1))
        chosen = permutation(Key(number), Purpose.SUBSET, space.units, 0, count)
        kept[space.name] = DiagonalDraw(space.units, np.sort(chosen), np.linspace(0.5, 2.0, count))
    return UnitDraw(Key(0), kept)
