"""Examples of a model's input, and whether small models compute on them what the whole model computes."""

from __future__ import annotations

import itertools
import random as python_numbers
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy import random as numpy_numbers
from torch import Tensor, nn
from torch.func import functional_call

from mast.errors import ArgumentError, MastError
from mast.nn.tensors.torch_private import OperationMode
from mast.nn.tensors.weights import deep_copy
from mast.nn.units.groups import UnitDraw
from mast.sketches import DiagonalDraw

if TYPE_CHECKING:
    from mast.nn.units.unit_map import UnitMap

aten = torch.ops.aten
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@dataclass(frozen=True)
class Example:
    """Arguments that a model can be called with.

    >>> import torch
    >>> Example.of(torch.ones(2, 3)).call(torch.nn.Linear(3, 4)).shape
    torch.Size([2, 4])
    """

    args: tuple[Any, ...]
    options: Mapping[str, Any]
    unlabelled: bool = False  # whether labels were left out
    paired: bool = False  # whether it was the first of a pair

    @classmethod
    def of(cls, batch: Any) -> Example:
        """From a tensor, a tuple or list of arguments, or keyword arguments in a mapping."""
        if isinstance(batch, Example):
            return batch
        if isinstance(batch, Tensor):
            return cls((batch,), {})
        if isinstance(batch, Mapping):
            return cls((), dict(batch))
        if isinstance(batch, tuple | list):
            return cls(tuple(batch), {})
        raise ArgumentError(
            "example must be what the model is called with: a tensor, a tuple of arguments, or a dict of "
            f"keyword arguments; got {type(batch).__name__}"
        )

    def call(self, model: Callable[..., Any]) -> Any:
        """Call the model with it."""
        return model(*self.args, **self.options)

    def to(self, like: nn.Module, dtype: torch.dtype | None = None) -> Example:
        """On the device of a model; floating-point tensors in another type."""
        first = next(like.parameters(), None)
        device = None if first is None else first.device

        def moved(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.to(device=device, dtype=dtype if value.is_floating_point() else None)
            if isinstance(value, Mapping):
                return {key: moved(v) for key, v in value.items()}
            return type(value)(moved(v) for v in value) if type(value) in (list, tuple) else value

        return Example(moved(self.args), moved(dict(self.options)), self.unlabelled, self.paired)


def first_line(error: Exception) -> str:
    """What an error of a user's model says, in one line."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def tensors_in(output: Any) -> Iterator[Tensor]:
    """The tensors of a model's output: in tuples, lists and mappings (ModelOutput is one), not in caches."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping | list | tuple):
        for value in output.values() if isinstance(output, Mapping) else output:
            yield from tensors_in(value)


# ---- outputs without chance ---------------------------------------------------------------------


def shadow(model: nn.Module) -> nn.Module:
    """A copy with the same parameters and buffers of its own: what it does leaves no trace in the model."""
    return deep_copy(model, {id(p): p for p in model.parameters()})


@contextmanager
def fork_generators() -> Iterator[None]:
    """Whatever a user's model draws inside, the generators that it draws from go on as if it had not."""
    state, python_state = torch.get_rng_state(), python_numbers.getstate()
    numpy_state = numpy_numbers.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(state)
        numpy_numbers.set_state(numpy_state)  # noqa: NPY002
        python_numbers.setstate(python_state)


def seed_generators(number: int) -> None:
    """What a user's model draws next depends on this number only."""
    torch.default_generator.manual_seed(number)
    numpy_numbers.seed(number)  # noqa: NPY002
    python_numbers.seed(number)


class Deterministic(OperationMode):
    """Without chance: dropout lets everything pass, other random numbers depend on their place only."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0  # of operations, other than dropout, that drew numbers

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket is aten.native_dropout:
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if func is aten.bernoulli_.float:
            return args[0].fill_(args[1] if len(args) > 1 else (kwargs or {}).get("p", 0.5))
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.calls += 1
            seed_generators(self.calls)
        return func(*args, **(kwargs or {}))


def outputs_of(
    model: nn.Module, example: Example, training: bool, values: Mapping[str, Tensor]
) -> tuple[list[Tensor], bool]:
    """The tensors of a model's output, with these values of parameters, and whether they are random.

    Dropout is not; the model stays as it is.
    """
    twin = shadow(model).train(training)
    with fork_generators(), torch.no_grad(), Deterministic() as mode:
        seed_generators(0)  # some models draw with NumPy before anything else
        found = functional_call(twin, dict(values), example.args, dict(example.options))
    return [t.detach() for t in tensors_in(found) if t.is_floating_point()], mode.calls > 0


def largest_difference(some: Sequence[Tensor], others: Sequence[Tensor]) -> float:
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


def compare_outputs(
    whole: nn.Module,
    values: Mapping[str, Tensor],
    other: nn.Module,
    examples: Sequence[Example],
    modes: Sequence[bool] = (False, True),
    random: bool = True,
) -> tuple[float, str]:
    """The largest relative difference in these modes of training, and a message if it is too large.

    The whole model has these values of parameters; the other one is smaller, or has its units in another
    order. With ``random=False``, outputs that are random are not compared.
    """
    dtype = next(whole.parameters()).dtype
    tolerance = TOLERANCE.get(dtype, 1e-4)
    worst = 0.0
    for example, training in itertools.product(examples, modes):
        mode = "training" if training else "eval"
        try:
            gap = _gap(whole, values, other, example, training, random)
        except Exception as error:  # whatever a forward pass does with sizes that it does not expect
            return float("inf"), f"a smaller model cannot be run in {mode} mode: {_cause(error, other)}"
        limit = tolerance
        if gap > tolerance / 10 and dtype is not torch.float64:
            # More digits tell rounding from errors, which are small where fresh attention hardly looks.
            wide, exact = {n: v.double() for n, v in values.items()}, example.to(whole, torch.float64)
            with suppress(Exception):  # a model that insists on its type
                twins = deep_copy(whole).double(), deep_copy(other).double()
                gap, limit = _gap(twins[0], wide, twins[1], exact, training, random), tolerance / 10
        worst = max(worst, gap)
        if gap > limit:
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
    own = "" if type(error) is RuntimeError else f" ({said})"  # those of torch speak of shapes
    return f"the code of {type(failing[-1]).__name__} {why}{own}"


def _gap(
    whole: nn.Module,
    values: Mapping[str, Tensor],
    other: nn.Module,
    example: Example,
    training: bool,
    random: bool,
) -> float:
    found, is_random = outputs_of(other, example, training, {})
    expected, _ = outputs_of(whole, example, training, values)
    return 0.0 if is_random and not random else largest_difference(found, expected)


def masked_weights(
    unit_map: UnitMap, model: nn.Module, draw: UnitDraw, shift: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The parameters v + S(x - v) that differ from x: those that carry scales."""
    parameters, draws = dict(model.named_parameters()), list(draw.values())
    values = {}
    for scaled in unit_map.scaled:
        x, v = parameters[scaled.tensor].detach(), (shift or {}).get(scaled.tensor)
        y = torch.zeros_like(x) if v is None else v.to(x, copy=True)
        kept = scaled.kept(draws)
        change = kept.gather(x - y)
        kept.scale(change)
        kept.add(y, change)
        values[scaled.tensor] = y
    return values


def check_submodel(
    unit_map: UnitMap,
    model: nn.Module,
    draw: UnitDraw,
    small: nn.Module,
    shift: Mapping[str, Tensor] | None = None,
) -> None:
    """An error that names the group and its module, if a submodel is not what the whole model says."""
    whole, examples = shadow(model), unit_map.examples_for(model)
    values = masked_weights(unit_map, whole, draw, shift)
    _, message = compare_outputs(whole, values, small, examples, unit_map.modes)
    if not message:
        return
    for group in () if unit_map.branches else unit_map.groups:
        one = {s.name: DiagonalDraw(s.units, np.arange(s.units), np.ones(s.units)) for s in unit_map.groups}
        one[group.name] = draw[group.name]
        own = submodel_problem(unit_map, whole, UnitDraw(one, draw.key), examples)
        if own:
            owner = group.producers[0].tensor.rpartition(".")[0]
            raise MastError(
                f"the submodel is wrong, and not returned: with the units of {group.name!r} (module "
                f"{owner!r}) {own}. Leave them out with keep={{{group.name!r}: 1}}, or keep as many units in "
                "all layers of one size with Neurons(..., uniform=True)"
            )
    raise MastError(f"the submodel is wrong, and not returned: {message}")


def submodel_problem(unit_map: UnitMap, model: nn.Module, draw: UnitDraw, examples: Sequence[Example]) -> str:
    """What is wrong with the small model of a draw."""
    cut = unit_map.cut(draw)
    try:
        small = cut.module_of(model)
    except Exception as error:  # a module that cannot be copied or refitted
        return f"a smaller model cannot be made: {first_line(error)}"
    values = masked_weights(unit_map, model, draw)
    return compare_outputs(model, values, small, examples, unit_map.modes)[1]


def running_problem(unit_map: UnitMap, model: nn.Module, draw: UnitDraw, examples: Sequence[Example]) -> str:
    """Why the small model of a draw cannot be run, if it cannot."""
    small = unit_map.cut(draw).module_of(model)
    try:
        for example in examples:
            outputs_of(small, example, False, {})
    except Exception as error:  # such as a kernel that takes round numbers only
        return f"a smaller model cannot be run in eval mode: {_cause(error, small)}"
    return ""
