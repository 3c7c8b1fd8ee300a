"""Which unit spaces are sketched, which parameters carry their scales, and what stays whole, as a table."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import nn

from mast.errors import ArgumentError
from mast.nn.tensors.selection import Selection, check_keep, predicate, refuse_equal_codes, some
from mast.nn.tensors.weights import Where, refuse_sharded, registered

if TYPE_CHECKING:
    from mast.nn.structure.structures import Structure


#: what reasons say if units could perhaps be dropped, and it is not known how
UNFOLLOWED = ("has no rule", "a smaller model", "in no regular order")


def own_keep(name: str, keep: Mapping[str, float]) -> float | None:
    """The keep probability of the last pattern that matches."""
    own = None
    for pattern, share in keep.items():
        if fnmatch.fnmatchcase(name, pattern):
            own = float(share)
    return own


def chosen(
    bare: nn.Module,
    names: Sequence[str],
    others: dict[str, str],
    keep: Mapping[str, float],
    where: Where | None,
) -> list[str]:
    """The names of units that `where` names, all by default; the reasons for the others join `others`."""
    parameters = dict(bare.named_parameters())
    check_keep(keep, list(parameters))
    for pattern, share in keep.items():
        if share != 1 and not fnmatch.filter(names, pattern):
            raise ArgumentError(
                f"keep: {pattern!r} matches none of the units that can be dropped, which are named "
                f"{some(names)}"
            )
    wanted = predicate(bare, where) if where is not None else None
    kept = [n for n in names if wanted is None or wanted(n, parameters[n.partition("[")[0]])]
    others |= {name: "not named by where" for name in names if name not in kept}
    if not kept:
        raise nothing_left(others)
    refuse_equal_codes(kept)
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


def text_of(structure: Structure) -> str:
    """A table with one row per space: its name, how many units it has, and whether they are cut."""
    rows = [("units of", "units", "cut")]
    rows += [(space.name, str(space.units), "yes") for space in structure.spaces]
    for name, reason in structure.others.items():
        rows.append((name, str(structure.other_units.get(name, "")), f"no: {reason}"))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join("  " + line.rstrip() for line in lines)


def refuse_unfollowed(structure: Structure) -> None:
    """An error if units stay whole for no better reason than that they could not be followed."""
    unknown = [n for n, reason in structure.others.items() if any(word in reason for word in UNFOLLOWED)]
    if unknown:
        raise ArgumentError(
            f"strict: {len(unknown)} of the model's layers have units that could not be followed, such as "
            f"{unknown[0]!r}:\n{text_of(structure)}"
        )
