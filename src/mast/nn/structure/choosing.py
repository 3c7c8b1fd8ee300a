"""Which unit spaces are sketched, and the parameters that carry their scales."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from torch import nn

from mast.errors import ArgumentError
from mast.nn.tensors.selection import Selection, check_keep, predicate, refuse_equal_codes, some
from mast.nn.tensors.weights import Where, refuse_sharded, registered

if TYPE_CHECKING:
    from mast.nn.structure.structures import Structure


class HasName(Protocol):
    """A space, or a branch."""

    @property
    def name(self) -> str:
        """That of its first tensor."""


Named = TypeVar("Named", bound=HasName)


def own_keep(name: str, keep: Mapping[str, float]) -> float | None:
    """The keep probability of the last pattern that matches."""
    own = None
    for pattern, share in keep.items():
        if fnmatch.fnmatchcase(name, pattern):
            own = float(share)
    return own


def chosen(
    bare: nn.Module,
    spaces: Sequence[Named],
    others: dict[str, str],
    keep: Mapping[str, float],
    where: Where | None,
) -> list[Named]:
    """The spaces that `where` names, all by default; the reasons for the others join `others`."""
    names = [name for name, _ in bare.named_parameters()]
    check_keep(keep, names)
    for pattern, share in keep.items():
        if share != 1 and not any(fnmatch.fnmatchcase(space.name, pattern) for space in spaces):
            raise ArgumentError(
                f"keep: {pattern!r} matches none of the units that can be dropped, which are named "
                f"{some([space.name for space in spaces])}"
            )
    wanted = predicate(bare, where) if where is not None else None
    parameters = dict(bare.named_parameters())
    kept = []
    for space in spaces:
        if wanted is None or wanted(space.name, parameters[space.name.partition("[")[0]]):
            kept.append(space)
        else:
            others[space.name] = "not named by where"
    if not kept:
        raise nothing_left(others)
    refuse_equal_codes([space.name for space in kept])
    return kept


def nothing_left(others: Mapping[str, str]) -> ArgumentError:
    """The error of a model without units that could be dropped, with the reasons."""
    reasons = [f"{name}: {reason}" for name, reason in others.items()]
    listed = "; ".join(reasons[:12]) + (f"; and {len(reasons) - 12} more" if len(reasons) > 12 else "")
    return ArgumentError(
        f"the model has no units that could be dropped ({listed or 'it has no hidden ones'})"
    )


def choose_scaled(model: nn.Module, structure: Structure) -> Selection:
    """The parameters that carry scales, as the weights of a sparsifier."""
    places = {id(p): place for place, p in registered(model)}
    scaled = {s.tensor: s for s in structure.scaled}
    selection = Selection()
    for name, p in model.named_parameters():
        if name not in scaled:
            selection.others[name] = structure.others.get(
                name, "its weights do not leave the units that are drawn"
            )
            continue
        if p.is_meta:
            raise ArgumentError(f"the parameter {name!r} is on the meta device: materialise the model first")
        refuse_sharded(name, p)
        keep = structure.spaces[scaled[name].space].keep
        selection.add(name, p, places[id(p)], keep)
    return selection
