"""Which unit spaces are sketched, and the parameters that carry their scales."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from torch import nn

from mast.errors import ArgumentError
from mast.nn.structure.branches import Branch
from mast.nn.structure.spaces import Space
from mast.nn.weights import Selection, Weight, Where, name_index, predicate, refuse_sharded, registered

if TYPE_CHECKING:
    from mast.nn.structure.structures import Structure


Named = TypeVar("Named", Space, Branch)


def chosen(
    bare: nn.Module,
    spaces: Sequence[Named],
    others: dict[str, str],
    keep: Mapping[str, float],
    where: Where | None,
) -> list[Named]:
    """The spaces that `where` names, all by default; the reasons for the others join `others`."""
    names = [name for name, _ in bare.named_parameters()]
    for pattern, share in keep.items():
        if not 0 < float(share) <= 1:
            raise ArgumentError(f"keep[{pattern!r}] is a probability in (0, 1], got {share!r}")
        if not fnmatch.filter(names, pattern):
            raise ArgumentError(f"keep: {pattern!r} matches none of the parameters {_some(names)}")
        if share != 1 and not any(fnmatch.fnmatchcase(space.name, pattern) for space in spaces):
            raise ArgumentError(
                f"keep: {pattern!r} matches none of the units that can be dropped, which are named "
                f"{_some([space.name for space in spaces])}"
            )
    wanted = predicate(bare, where) if where is not None else None
    parameters = dict(bare.named_parameters())
    kept = []
    for space in spaces:
        if wanted is None or wanted(space.name, parameters[space.name]):
            kept.append(space)
        else:
            others[space.name] = "not named by where"
    if not kept:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in others.items())
        raise ArgumentError(
            f"the model has no units that could be dropped ({reasons or 'it has no hidden ones'})"
        )
    by_index: dict[int, str] = {}
    for space in kept:
        other = by_index.setdefault(name_index(space.name), space.name)
        if other != space.name:
            raise ArgumentError(
                f"the names {other!r} and {space.name!r} share one 32-bit code: rename one of them"
            )
    return kept


def choose_scaled(model: nn.Module, structure: Structure) -> Selection:
    """The parameters that carry scales, as the weights of a sparsifier."""
    places = {id(p): place for place, p in registered(model)}
    scaled = {s.tensor: s for s in structure.scaled}
    selection = Selection([])
    for name, p in model.named_parameters():
        if name not in scaled:
            selection.others[name] = (p.shape, structure.others.get(name, "no outgoing weight of units"))
            continue
        if p.is_meta:
            raise ArgumentError(f"the parameter {name!r} is on the meta device: materialise the model first")
        refuse_sharded(name, p)
        keep = structure.spaces[scaled[name].space].keep
        weight = Weight(name, p.shape, places[id(p)], keep)
        weight.place.number = len(selection.weights)
        selection.weights.append(weight)
    return selection


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f", ... ({len(names)} in all)" if len(names) > 6 else "")
