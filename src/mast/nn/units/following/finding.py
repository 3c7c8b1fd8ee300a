"""The units of a model, found by running it on examples, as far as a user wants them to be drawn."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from mast.errors import ArgumentError
from mast.nn.tensors.selection import check_keep, predicate, refuse_equal_codes, some
from mast.nn.tensors.torch_private import Conv, NormBase
from mast.nn.tensors.weights import Where
from mast.nn.units.drawing import OUTPUT, Space
from mast.nn.units.following.branching import find_branches
from mast.nn.units.following.examples import Example
from mast.nn.units.following.marks import Atoms
from mast.nn.units.following.proving import unproven
from mast.nn.units.following.reading import Found, Length, read
from mast.nn.units.following.recording import Recording
from mast.nn.units.following.watching import Watching
from mast.nn.units.resizing import is_conv1d, shadow, with_values

if TYPE_CHECKING:
    from mast.nn.units.structures import Structure

# Numbers in modules that are no lengths of dimensions of units, even where they are equal to one.
_OTHER_NUMBERS = (
    "group", "layer", "idx", "index", "window", "kernel", "stride", "pad", "seq", "vocab", "max_", "drop",
    "head_dim", "head_size", "proj_dim", "d_kv", "training", "patch", "image", "position", "bucket", "eps",
    "num_labels", "block", "step", "rank", "alpha", "rotary",
)  # fmt: skip


#: Keep probabilities by pattern, or a function that finds them in what a forward pass does, in eval mode.
Keeps = Mapping[str, float] | Callable[[Recording], Mapping[str, float]]


def find(model: nn.Module, examples: Sequence[Example]) -> tuple[Found, Recording]:
    """The spaces of a model and the lengths that its modules work with, as all examples have it.

    Besides, the record of a forward pass on the first example, in eval mode.

    >>> import torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> found, _ = find(model, [Example.of(torch.ones(4, 3))])
    >>> [(s.name, s.units) for s in found.spaces], found.others
    ([('0.weight', 8)], {'2.weight': "they are the model's output"})
    """
    twin = shadow(model)
    tensors: dict[str, Tensor] = dict(twin.named_parameters())
    tensors |= {name: b for name, b in twin.named_buffers() if b.is_floating_point()}
    atoms = Atoms(tensors)
    lengths: dict[tuple[str, int], list[Tensor]] = {}
    records: list[Recording] = []
    alike = True
    for example in examples:
        seen = []
        for training in (False, True):  # the second time it is known which units the first has joined
            twin.train(training)
            records.append(record := Recording(twin))
            record.run(example)
            watching = Watching(atoms, twin, record.needed())
            for tensor in watching.run(example):
                watching.pin(watching.of(tensor), OUTPUT)
            seen.append(watching.operations)
            for key, found in watching.lengths.items():
                lengths.setdefault(key, []).extend(found)
        alike &= seen[0] == seen[1]
    order = {name: number for number, name in enumerate(tensors)}
    modes = (False,) if alike else (False, True)
    return replace(read(atoms, order, lengths), modes=modes), records[0]


def settle_units(structure: Structure, model: nn.Module, keep: Keeps, where: Where | None) -> None:
    """Give a structure the spaces of its examples, as far as small models of them are proven right."""
    model = with_values(model)
    examples = [example.to(model) for example in structure.examples]
    found, record = find(model, examples)
    keep = keep(record) if callable(keep) else keep
    structure.modes = found.modes
    structure.others, structure.other_units = dict(found.others), dict(found.units)
    cuttable = {space.name: space for space in _cuttable(structure, found.spaces, keep)}
    spaces = [cuttable[n] for n in _chosen(structure, list(cuttable), keep, where)]
    tries: list[tuple[dict[str, str], list[Length]]] = []
    for usable in (_is_a_size, lambda name: False, lambda name: True):
        attributes = _attributes(structure.bare, found.lengths, usable)
        tries.append((unproven(structure, model, examples, spaces, attributes), attributes))
        if not tries[-1][0]:
            break
    reasons, attributes = min(tries, key=lambda one: len(one[0]))
    structure.others |= reasons
    structure.other_units |= {space.name: space.units for space in found.spaces}
    left = [space for space in spaces if space.name not in reasons]
    if not left:
        raise _nothing_left(structure.others)
    structure.settle(left, attributes)


def settle_branches(
    structure: Structure, model: nn.Module, keep: Mapping[str, float], where: Where | None
) -> None:
    """Give a structure the residual branches of its example."""
    found, structure.others = find_branches(with_values(model), structure.examples[0])
    branches = {branch.name: replace(branch, keep=_own_keep(branch.name, keep)) for branch in found}
    structure.others |= {name: "keep = 1" for name, branch in branches.items() if branch.keep == 1}
    if not structure.others and not branches:
        raise ArgumentError("the model has no residual branches (additions x + f(x)) that could be dropped")
    names = [name for name, branch in branches.items() if branch.keep != 1]
    chosen = [branches[name] for name in _chosen(structure, names, keep, where)]
    structure.settle([Space(chosen[0].name, len(chosen), (), ())], branches=chosen)


def _own_keep(name: str, keep: Mapping[str, float]) -> float | None:
    """The keep probability of the last pattern that matches."""
    matching = [share for pattern, share in keep.items() if fnmatch.fnmatchcase(name, pattern)]
    return float(matching[-1]) if matching else None


def _chosen(
    structure: Structure, names: Sequence[str], keep: Mapping[str, float], where: Where | None
) -> list[str]:
    """The names of units that `where` names, all by default; the structure is told about the others."""
    tensors: dict[str, Any] = dict(structure.bare.named_parameters())
    check_keep(keep, list(tensors))
    tensors |= dict(structure.bare.named_buffers())
    for pattern, share in keep.items():
        if share != 1 and not fnmatch.filter(names, pattern):
            raise ArgumentError(
                f"keep: {pattern!r} matches none of the units that can be dropped, which are named "
                f"{some(names)}"
            )
    wanted = predicate(structure.bare, where) if where is not None else None
    kept = [n for n in names if wanted is None or wanted(n, tensors[n.partition("[")[0]])]
    structure.others |= {name: "not named by where" for name in names if name not in kept}
    if not kept:
        raise _nothing_left(structure.others)
    refuse_equal_codes(kept)
    return kept


def _nothing_left(others: Mapping[str, str]) -> ArgumentError:
    """The error of a model without units that could be dropped, with the reasons."""
    reasons = [f"{name}: {reason}" for name, reason in others.items()]
    listed = "; ".join(reasons[:12]) + (f"; and {len(reasons) - 12} more" if len(reasons) > 12 else "")
    return ArgumentError(
        f"the model has no units that could be dropped ({listed or 'it has no hidden ones'})"
    )


def _cuttable(structure: Structure, spaces: Sequence[Space], keep: Mapping[str, float]) -> list[Space]:
    """Without the spaces whose keep is 1, and those whose scales a weight could not carry."""
    left = []
    left_out = _left_out(structure.bare, keep)
    taking: dict[str, int] = {}  # the dimension along which a weight takes units
    buffers = dict(structure.bare.named_buffers())
    weights = {name for name, p in structure.bare.named_parameters() if p.dim() > 1}
    for space in spaces:
        own = _own_keep(space.name, keep)
        dims = dict(taking)
        twice = [a.tensor for a in space.consumers if dims.setdefault(a.tensor, a.dim) != a.dim]
        made_by = [a.tensor for a in space.producers if a.tensor in weights]
        stays = next((name for name in made_by if _own_keep(name, keep) == 1), None)
        unscaled = next((a.tensor for a in space.consumers if a.tensor in buffers), None)
        whole = next((a.tensor for a in space.consumers if a.tensor in left_out), None)
        reason = ""
        if own == 1:
            reason = "keep = 1"
        elif whole is not None:
            reason = f"the module {left_out[whole]!r}, which is left out, takes them"
        elif unscaled is not None:
            reason = f"the buffer {unscaled} takes them, and only parameters carry scales"
        elif twice:
            reason = f"{twice[0]} takes units along two dimensions"
        elif own is None and stays is not None:
            reason = f"keep = 1 of {stays}, whose units they are too"
        if reason:
            structure.others[space.name], structure.other_units[space.name] = reason, space.units
        else:
            left.append(replace(space, keep=own))
            taking = dims
    return left


def _left_out(bare: nn.Module, keep: Mapping[str, float]) -> dict[str, str]:
    """The parameters of modules that keep = 1 leaves out as a whole, and the names of those modules."""
    found: dict[str, str] = {}
    layers = nn.Linear | Conv | NormBase | nn.GroupNorm | nn.LayerNorm | nn.RMSNorm | nn.PReLU
    for name, module in bare.named_modules():
        own = [f"{name}.{p}" for p, _ in module.named_parameters()]
        kept = bool(own) and all(_own_keep(p, keep) == 1 for p in own)
        if name and kept and not isinstance(module, layers):
            found |= dict.fromkeys(own, name)
    return found


def _attributes(bare: nn.Module, lengths: Sequence[Length], usable: Callable[[str], bool]) -> list[Length]:
    """The lengths of dimensions of units that are numbers in modules, with the names of those numbers."""
    found: dict[tuple[str, str], Length] = {}
    modules = dict(bare.named_modules())
    for length in lengths:
        module = modules[length.module]
        for name, value in () if _says_itself(module) else vars(module).items():
            number = type(value) is int and value == length.before and not name.startswith("_")
            if number and usable(name):
                found.setdefault((length.module, name), replace(length, attribute=name))
    return list(found.values())


def _says_itself(module: nn.Module) -> bool:
    """Whether the sizes of a module follow from its tensors: all layers of torch but norms without them."""
    if isinstance(module, NormBase | nn.GroupNorm):
        return module.weight is not None or getattr(module, "running_mean", None) is not None
    return type(module).__module__.startswith("torch.nn") or is_conv1d(module)


def _is_a_size(name: str) -> bool:
    return name == "num_groups" or not any(word in name for word in _OTHER_NUMBERS)
