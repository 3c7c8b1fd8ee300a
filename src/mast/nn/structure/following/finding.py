"""The unit spaces of a model, found by running it on an example in training and in eval mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor, nn

from mast.errors import ArgumentError
from mast.nn.structure.choosing import own_keep
from mast.nn.structure.copies import shadow
from mast.nn.structure.following.atoms import Atoms
from mast.nn.structure.following.examples import Attribute, Example
from mast.nn.structure.following.living import Living
from mast.nn.structure.following.proving import unproven
from mast.nn.structure.following.reading import Found, Length, read
from mast.nn.structure.following.watching import Watching
from mast.nn.structure.resizing import is_conv1d
from mast.nn.structure.spaces import Space
from mast.nn.tensors.torch_private import Conv, NormBase

if TYPE_CHECKING:
    from mast.nn.structure.structures import UnitStructure

# Numbers in modules that are no lengths of dimensions of units, even where they are equal to one.
_OTHER_NUMBERS = (
    "group", "layer", "idx", "index", "window", "kernel", "stride", "pad", "seq", "vocab", "max_", "drop",
    "head_dim", "head_size", "proj_dim", "d_kv", "training", "patch", "image", "position", "bucket", "eps",
    "num_labels", "block", "step", "rank", "alpha", "rotary",
)  # fmt: skip


def find(model: nn.Module, examples: Sequence[Example]) -> Found:
    """The spaces of a model and the lengths that its modules work with, as all examples have it.

    >>> import torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> found = find(model, [Example.of(torch.ones(4, 3))])
    >>> [(s.name, s.units) for s in found.spaces], found.others
    ([('0.weight', 8)], {'2.weight': "they are the model's output"})
    """
    twin = shadow(model)
    tensors: dict[str, Tensor] = dict(twin.named_parameters())
    tensors |= {name: b for name, b in twin.named_buffers() if b.is_floating_point()}
    atoms = Atoms(tensors)
    lengths: dict[tuple[str, int], list[Tensor]] = {}
    alike = True
    for example in examples:
        seen = []
        for training in (False, True):
            twin.train(training)
            call = partial(example.call, twin)
            watching = Watching(atoms, twin, Living().run(call))
            watching.run(call)
            seen.append(watching.operations)
            for key, found in watching.lengths.items():
                lengths.setdefault(key, []).extend(found)
        alike &= seen[0] == seen[1]
    order = {name: number for number, name in enumerate(tensors)}
    return replace(read(atoms, order, lengths), modes=(False,) if alike else (False, True))


def settle(structure: UnitStructure, model: nn.Module, examples: Sequence[Example]) -> None:
    """Give a structure the spaces of examples, as far as small models of them are proven right."""
    examples = [example.to(model) for example in examples]
    try:
        found = find(model, examples)
    except ArgumentError:
        raise
    except Exception as error:  # whatever the model does with an input that does not suit it
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ArgumentError(f"the model cannot be run on the example: {message}") from error
    structure.modes = found.modes
    structure.others = dict(found.others)
    structure.other_units = dict(found.units)
    spaces = structure.chosen(_cuttable(structure, found.spaces))
    best: tuple[int, list[Space], dict[str, str], list[Attribute]] | None = None
    for usable in (_usual, _none, _all):
        attributes = _attributes(structure, found, usable)
        left, reasons = _proven(structure, model, examples, spaces, found, attributes)
        if best is None or len(left) > best[0]:
            best = (len(left), left, reasons, attributes)
        if not reasons:
            break
    assert best is not None
    _, left, reasons, attributes = best
    structure.others |= reasons
    structure.other_units |= {space.name: space.units for space in found.spaces}
    if not left:
        structure.chosen(left)  # which says why there are none
    _take(structure, left, found, attributes)


def _cuttable(structure: UnitStructure, spaces: Sequence[Space]) -> list[Space]:
    """Without the spaces whose keep is 1, and those whose scales a weight could not carry."""
    patterns = structure.keep
    left = []
    left_out = _left_out(structure)
    taking: dict[str, int] = {}  # the dimension along which a weight takes units
    for space in spaces:
        own = own_keep(space.name, patterns)
        twice = [a.tensor for a in space.consumers if taking.get(a.tensor, a.dim) != a.dim]
        weights = [a.tensor for a in space.producers if len(structure.bare.state_dict()[a.tensor].shape) > 1]
        stays = next((name for name in weights if own_keep(name, patterns) == 1), None)
        whole = next((a.tensor for a in space.consumers if a.tensor in left_out), None)
        if own == 1:
            structure.others[space.name] = "keep = 1"
        elif whole is not None:
            structure.others[space.name] = f"the module {left_out[whole]!r}, which is left out, takes them"
        elif twice:
            structure.others[space.name] = f"{twice[0]} takes units along two dimensions"
        elif own is None and stays is not None:
            structure.others[space.name] = f"keep = 1 of {stays}, whose units they are too"
        else:
            left.append(replace(space, keep=own))
            taking |= {a.tensor: a.dim for a in space.consumers}
            continue
        structure.other_units[space.name] = space.units
    return left


def _left_out(structure: UnitStructure) -> dict[str, str]:
    """The parameters of modules that keep = 1 leaves out as a whole, and the names of those modules."""
    found: dict[str, str] = {}
    layers = nn.Linear | Conv | NormBase | nn.GroupNorm | nn.LayerNorm | nn.RMSNorm | nn.PReLU
    for name, module in structure.bare.named_modules():
        own = [f"{name}.{p}" for p, _ in module.named_parameters()]
        kept = bool(own) and all(own_keep(p, structure.keep) == 1 for p in own)
        if name and kept and not isinstance(module, layers):
            found |= dict.fromkeys(own, name)
    return found


def _proven(
    structure: UnitStructure,
    model: nn.Module,
    examples: Sequence[Example],
    spaces: Sequence[Space],
    found: Found,
    attributes: Sequence[Attribute],
) -> tuple[list[Space], dict[str, str]]:
    """The spaces whose small models compute what the whole one does, and what is wrong with the others."""
    if not spaces:
        return [], {}

    def take(some: Sequence[Space]) -> None:
        _take(structure, some, found, attributes)

    reasons = unproven(structure, model, examples, spaces, take)
    return [space for space in spaces if space.name not in reasons], reasons


def _take(
    structure: UnitStructure, spaces: Sequence[Space], found: Found, attributes: Sequence[Attribute]
) -> None:
    """Settle on some spaces; attributes speak of their numbers among those."""
    where = {space.name: number for number, space in enumerate(spaces)}
    renumbered = []
    for attribute in attributes:
        stays, runs = attribute.stays, []
        for number, run in attribute.runs:
            space = found.spaces[number]
            if space.name in where:
                runs.append((where[space.name], run))
            else:
                stays += run * space.units
        if runs:
            renumbered.append(replace(attribute, stays=stays, runs=tuple(runs)))
    structure.settle(spaces, renumbered)


def _attributes(
    structure: UnitStructure, found: Found, usable: Callable[[str, Length], bool]
) -> list[Attribute]:
    """The numbers in modules that are lengths of dimensions of units."""
    chosen: dict[tuple[str, str], Attribute] = {}
    modules = dict(structure.bare.named_modules())
    for length in found.lengths:
        module = modules[length.module]
        if _says_itself(module):
            continue
        for name, value in vars(module).items():
            if (
                type(value) is int
                and value == length.before
                and not name.startswith("_")
                and usable(name, length)
            ):
                chosen.setdefault(
                    (length.module, name), Attribute(length.module, name, length.stays, length.runs)
                )
    return list(chosen.values())


def _says_itself(module: nn.Module) -> bool:
    """Whether the sizes of a module follow from its tensors: all layers of torch but norms without them."""
    if isinstance(module, NormBase | nn.GroupNorm):
        return module.weight is not None or getattr(module, "running_mean", None) is not None
    return type(module).__module__.startswith("torch.nn") or is_conv1d(module)


def _usual(name: str, length: Length) -> bool:
    return name == "num_groups" or not any(word in name for word in _OTHER_NUMBERS)


def _none(name: str, length: Length) -> bool:
    return False


def _all(name: str, length: Length) -> bool:
    return True
