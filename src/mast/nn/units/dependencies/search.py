"""`find_units`: the units of a model, found by running it on examples, as far as a user wants them drawn."""

from __future__ import annotations

import fnmatch
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from mast.errors import ArgumentError
from mast.nn.tensors.selection import (
    check_keep,
    check_mapping,
    predicate,
    probabilities,
    refuse_equal_codes,
    some,
)
from mast.nn.tensors.torch_private import Conv, NormBase
from mast.nn.tensors.weights import Keep, Where, deep_copy
from mast.nn.units.configurations import exclude_unloadable, sizes_of
from mast.nn.units.cuts import copy_with
from mast.nn.units.dependencies.examples import (
    Example,
    first_line,
    fork_generators,
    running_problem,
    submodel_problem,
)
from mast.nn.units.dependencies.grouping import ModuleLength, find_groups, is_a_size, module_numbers
from mast.nn.units.dependencies.recording import Recording
from mast.nn.units.dependencies.residual import find_branches
from mast.nn.units.groups import UnitDraw, UnitGroup
from mast.nn.units.sketches import Layers, Neurons
from mast.nn.units.unit_map import UnitMap
from mast.randomness import Key, Purpose, normal, permutation, words
from mast.sketches import DiagonalDraw, Nested, Sketch

BATCH, LENGTH = 3, 7
SIZES = (16, 32, 28, 8, 64, 96, 128, 224, 299)  # of images and series, the usual ones first
#: what reasons say if units could perhaps be dropped, and it is not known how
_UNKNOWN = ("has no rule", "a smaller model", "in no regular order")

#: Weights whose units stay whole if `keep` does not name them, and why, found in what a forward pass does.
Whole = Callable[[Recording], Mapping[str, str]]


def find_units(
    model: nn.Module,
    sketch: Sketch,
    keep: Mapping[str, Keep] | None = None,
    where: Where | None = None,
    *,
    example: Any = None,
    strict: bool = False,
    whole: Whole | None = None,
) -> UnitMap:
    """The units of a model that a sketch acts on: those of `Neurons`, or the branches of `Layers`.

    It is found by running the model on an `example` of its input: a tensor, a tuple of arguments, or a dict
    of keyword arguments. Without one, the input of MLPs and of networks for images is guessed. A model on the
    meta device is run with values that are made up, as only its shapes matter. Units that `keep` does not
    name stay whole where `whole` finds a weight that makes them in the record of that run, in eval mode.

    >>> import mast
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> find_units(model, mast.nn.Neurons(mast.RandK(2)))
    <units of Sequential: 0.weight: 8>
    """
    if not isinstance(sketch, Neurons | Layers):
        raise ArgumentError(f"structured sketches are Neurons and Layers, got {sketch!r}")
    shares = _shares({} if keep is None else check_mapping(keep))
    for name, p in model.named_parameters():
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise ArgumentError(
                f"the parameter {name!r} has no shape yet: run one forward pass before sparsify()"
            )
    examples = guess_examples(model) if example is None else [Example.of(example)]
    unit_map = UnitMap(model, examples if isinstance(sketch, Neurons) else examples[-1:])
    if isinstance(sketch, Neurons):
        _set_units(unit_map, model, sketch, shares, where, whole)
    else:
        _set_branches(unit_map, model, shares, where)
    if isinstance(sketch, Neurons) and sketch.loadable:
        exclude_unloadable(unit_map, model, sketch)
    unknown = [n for n, reason in unit_map.excluded.items() if any(word in reason for word in _UNKNOWN)]
    if strict and unknown:
        raise ArgumentError(
            f"strict: {len(unknown)} of the model's layers have units that could not be followed, such as "
            f"{unknown[0]!r}:\n{unit_map.table()}"
        )
    return unit_map


def with_values(model: nn.Module) -> nn.Module:
    """The model; if it has shapes only, a copy with values that are as good as any to follow it with.

    >>> with_values(nn.Linear(3, 2, device="meta")).weight.device
    device(type='cpu')
    """
    if not any(t.is_meta for t in (*model.parameters(), *model.buffers())):
        return model
    numbers = itertools.count()

    def made(_: str, t: torch.Tensor) -> torch.Tensor:
        key = Key(0, index=next(numbers))
        if not t.is_meta:
            return t.detach().clone()
        if not t.is_floating_point():
            return torch.zeros(t.shape, dtype=t.dtype)
        shares = torch.from_numpy(words(key, Purpose.START, 0, t.numel()) / 2**32).view(t.shape)
        return (shares - 0.5 if t.dim() > 1 else shares + 0.5).to(t.dtype)  # variances are positive

    return copy_with(model, made)


def _shares(keep: Mapping[str, Keep]) -> dict[str, float]:
    shares = {pattern: probabilities(pattern, share) for pattern, share in keep.items()}
    if any(np.ndim(share) for share in shares.values()):
        raise ArgumentError("keep with one probability per entry is for single weights, not for units")
    return {pattern: float(share) for pattern, share in shares.items()}


def _set_units(
    unit_map: UnitMap,
    model: nn.Module,
    sketch: Neurons,
    keep: Mapping[str, float],
    where: Where | None,
    whole: Whole | None,
) -> None:
    """Give a unit map the groups of its examples, as far as small models of them are proven right."""
    model = with_values(model)
    examples = [example.to(model) for example in unit_map.examples]
    found, record = find_groups(model, examples)
    unit_map.modes = found.modes
    unit_map.excluded, unit_map.excluded_units = dict(found.excluded), dict(found.excluded_units)
    by_default = {} if whole is None else whole(record)
    cuttable = {group.name: group for group in _cuttable(unit_map, found.groups, keep, by_default)}
    groups = [cuttable[n] for n in _chosen(unit_map, list(cuttable), keep, where)]
    tries: list[tuple[dict[str, str], list[ModuleLength]]] = []
    for usable in (is_a_size, lambda name: False, lambda name: True):
        lengths = module_numbers(unit_map.skeleton, found.lengths, usable)
        tries.append((_wrong_groups(unit_map, model, sketch, examples, groups, lengths), lengths))
        if not tries[-1][0]:
            break
    reasons, lengths = min(tries, key=lambda one: len(one[0]))
    unit_map.excluded |= reasons
    unit_map.excluded_units |= {group.name: group.units for group in found.groups}
    left = [group for group in groups if group.name not in reasons]
    if not left:
        raise _nothing_left(unit_map.excluded)
    unit_map.set_groups(left, lengths)


def _set_branches(
    unit_map: UnitMap, model: nn.Module, keep: Mapping[str, float], where: Where | None
) -> None:
    """Give a unit map the residual branches of its example."""
    found, unit_map.excluded = find_branches(with_values(model), unit_map.examples[0])
    branches = {branch.name: replace(branch, keep=_own_keep(branch.name, keep)) for branch in found}
    unit_map.excluded |= {name: "keep = 1" for name, branch in branches.items() if branch.keep == 1}
    if not unit_map.excluded and not branches:
        raise ArgumentError("the model has no residual branches (additions x + f(x)) that could be dropped")
    names = [name for name, branch in branches.items() if branch.keep != 1]
    chosen = [branches[name] for name in _chosen(unit_map, names, keep, where)]
    unit_map.set_groups([UnitGroup(chosen[0].name, len(chosen), (), ())], branches=chosen)


def _own_keep(name: str, keep: Mapping[str, float]) -> float | None:
    """The keep probability of the last pattern that matches."""
    matching = [share for pattern, share in keep.items() if fnmatch.fnmatchcase(name, pattern)]
    return float(matching[-1]) if matching else None


def _chosen(
    unit_map: UnitMap, names: Sequence[str], keep: Mapping[str, float], where: Where | None
) -> list[str]:
    """The names of units that `where` names, all by default; the others are excluded."""
    tensors: dict[str, Any] = dict(unit_map.skeleton.named_parameters())
    check_keep(keep, list(tensors))
    tensors |= dict(unit_map.skeleton.named_buffers())
    for pattern, share in keep.items():
        if share != 1 and not fnmatch.filter(names, pattern):
            raise ArgumentError(
                f"keep: {pattern!r} matches none of the units that can be dropped, which are named "
                f"{some(names)}"
            )
    wanted = predicate(unit_map.skeleton, where) if where is not None else None
    kept = [n for n in names if wanted is None or wanted(n, tensors[n.partition("[")[0]])]
    unit_map.excluded |= {name: "not named by where" for name in names if name not in kept}
    if not kept:
        raise _nothing_left(unit_map.excluded)
    refuse_equal_codes(kept)
    return kept


def _nothing_left(excluded: Mapping[str, str]) -> ArgumentError:
    """The error of a model without units that could be dropped, with the reasons."""
    reasons = [f"{name}: {reason}" for name, reason in excluded.items()]
    listed = "; ".join(reasons[:12]) + (f"; and {len(reasons) - 12} more" if len(reasons) > 12 else "")
    return ArgumentError(
        f"the model has no units that could be dropped ({listed or 'it has no hidden ones'})"
    )


def _cuttable(
    unit_map: UnitMap, groups: Sequence[UnitGroup], keep: Mapping[str, float], whole: Mapping[str, str]
) -> list[UnitGroup]:
    """Without the groups that stay whole, and those whose scales a weight could not carry."""
    left = []
    left_out = _left_out(unit_map.skeleton, keep)
    taking: dict[str, int] = {}  # the dimension along which a weight takes units
    buffers = dict(unit_map.skeleton.named_buffers())
    weights = {name for name, p in unit_map.skeleton.named_parameters() if p.dim() > 1}
    for group in groups:
        own = _own_keep(group.name, keep)
        dims = dict(taking)
        twice = [a.tensor for a in group.consumers if dims.setdefault(a.tensor, a.dim) != a.dim]
        made_by = [a.tensor for a in group.producers if a.tensor in weights]
        stays = next((name for name in made_by if _own_keep(name, keep) == 1), None)
        unscaled = next((a.tensor for a in group.consumers if a.tensor in buffers), None)
        outside = next((a.tensor for a in group.consumers if a.tensor in left_out), None)
        by_default = next((whole[name] for name in made_by if name in whole), "")
        reason = ""
        if own == 1:
            reason = "keep = 1"
        elif outside is not None:
            reason = f"the module {left_out[outside]!r}, which is left out, takes them"
        elif unscaled is not None:
            reason = f"the buffer {unscaled} takes them, and only parameters carry scales"
        elif twice:
            reason = f"{twice[0]} takes units along two dimensions"
        elif own is None and stays is not None:
            reason = f"keep = 1 of {stays}, whose units they are too"
        elif own is None:
            reason = by_default
        if reason:
            unit_map.excluded[group.name], unit_map.excluded_units[group.name] = reason, group.units
        else:
            left.append(replace(group, keep=own))
            taking = dims
    return left


def _left_out(skeleton: nn.Module, keep: Mapping[str, float]) -> dict[str, str]:
    """The parameters of modules that keep = 1 leaves out as a whole, and the names of those modules."""
    found: dict[str, str] = {}
    layers = nn.Linear | Conv | NormBase | nn.GroupNorm | nn.LayerNorm | nn.RMSNorm | nn.PReLU
    for name, module in skeleton.named_modules():
        own = [f"{name}.{p}" for p, _ in module.named_parameters()]
        kept = bool(own) and all(_own_keep(p, keep) == 1 for p in own)
        if name and kept and not isinstance(module, layers):
            found |= dict.fromkeys(own, name)
    return found


def _wrong_groups(
    unit_map: UnitMap,
    model: nn.Module,
    sketch: Neurons,
    examples: Sequence[Example],
    groups: Sequence[UnitGroup],
    lengths: Sequence[ModuleLength],
) -> dict[str, str]:
    """The groups that cannot be cut after all, and what is wrong: found by trying, and by halving."""
    good: list[UnitGroup] = []
    wrong: dict[str, str] = {}

    def of_trial() -> str:
        return submodel_problem(unit_map, model, _trial_draw(unit_map.groups), examples)

    def of_sizes() -> str:
        problems = (running_problem(unit_map, model, d, examples) for d in sizes_of(unit_map, sketch))
        return next(filter(None, problems), "")

    def try_all(some: Sequence[UnitGroup], problem: Callable[[], str]) -> None:
        unit_map.set_groups([*good, *some], lengths)
        message = problem()
        if not message:
            good.extend(some)
        elif len(some) == 1:
            wrong[some[0].name] = message
        else:
            half = len(some) // 2
            try_all(some[:half], problem)
            try_all(some[half:], problem)

    try_all(groups, of_trial)
    if good and isinstance(sketch.sketch, Nested):
        left, good = good, []  # training computes with its sizes, and a kernel may not take them
        try_all(left, of_sizes)
    return wrong


def _trial_draw(groups: Sequence[UnitGroup]) -> UnitDraw:
    """A draw that keeps another share of each group, with a scale of its own on each unit."""
    kept = {}
    for number, group in enumerate(groups):
        third = group.units // 3
        count = max(1, third + number * 7 % (third + 1))
        chosen = permutation(Key(number), Purpose.SUBSET, group.units, 0, count)
        kept[group.name] = DiagonalDraw(group.units, np.sort(chosen), np.linspace(0.5, 2.0, count))
    return UnitDraw(kept)


# ---- examples ----------------------------------------------------------------------------------------


def guess_examples(model: nn.Module) -> list[Example]:
    """Examples that an MLP or a network for images of a usual size can be run on.

    The linear and convolutional layers say what the model may take; shapes are tried on a copy of it until
    one runs. A model that takes rows and sequences is followed with both, so that its submodels are right
    for both.

    >>> [tuple(example.args[0].shape) for example in guess_examples(nn.Conv2d(1, 4, 3))]
    [(3, 1, 16, 16)]
    >>> [tuple(example.args[0].shape) for example in guess_examples(nn.Linear(5, 2))]
    [(3, 5), (3, 7, 5)]
    """
    trial = deep_copy(with_values(model))  # what it does leaves no trace in the model
    like = next((p for p in trial.parameters() if p.is_floating_point()), torch.empty(0))
    problem = "it has no linear or convolutional layer"
    for shapes in dict.fromkeys(_input_shapes(model)):
        found = []
        for shape in shapes:
            numbers = normal(Key(0, index=len(shape)), 0, math.prod(shape))  # always the same ones
            example = Example((torch.from_numpy(numbers).view(shape).to(like),), {})
            try:
                with torch.no_grad(), fork_generators():
                    for training in (True, False):
                        example.call(trial.train(training))
                found.append(example)
            except Exception as error:  # whatever a model does with an input that does not suit it
                problem = f"the last of those that were tried, {shape}, failed: {first_line(error)}"
        if found:
            return found
    raise ArgumentError(
        f"no input that the model ({type(model).__name__}) can be run on could be guessed from its layers "
        f"({problem}): pass example=, a batch as the model is called with"
    )


def _input_shapes(model: nn.Module) -> Iterator[tuple[tuple[int, ...], ...]]:
    """What the layers of a model take: rows and sequences of features, images of one size after the other."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            yield (BATCH, module.in_features), (BATCH, LENGTH, module.in_features)
        elif isinstance(module, Conv):
            dimensions = len(module.kernel_size)
            for size in SIZES if dimensions < 3 else SIZES[:4]:
                yield ((BATCH, module.in_channels, *[size] * dimensions),)
