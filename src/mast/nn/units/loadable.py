"""`loadable=True`: units of models of transformers whose number their configuration can say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from mast.errors import ArgumentError
from mast.nn.units.configs import configurable, find_changes
from mast.nn.units.drawing import Space, UnitDraw
from mast.randomness import Key
from mast.sketches import DiagonalDraw, Sketch

if TYPE_CHECKING:
    from mast.nn.units.following.reading import Length
    from mast.nn.units.structures import Structure

_TRIALS = 32  # members of a list whose sizes a configuration is asked for


def leave_out_unloadable(structure: Structure, model: nn.Module, sketch: Sketch) -> None:
    """Keep whole the spaces that the configuration of a model of transformers cannot express.

    Spaces of one kind, in all layers, are tried together, with what the members of a list keep, or with half
    and a third of their units. Kinds that fail alone are tried with others of as many units: one number of
    the configuration may be that of both.
    """
    if not configurable(model):
        raise ArgumentError(
            "loadable=True is for models of transformers, which are made of a configuration, not for "
            f"{type(model).__name__}"
        )
    everything, attributes, left = structure.spaces, structure.attributes, list[Space]()
    kinds: dict[tuple[str, int], list[Space]] = {}
    for space in everything:
        kinds.setdefault((_kind(space), space.units), []).append(space)
    failed: dict[int, list[Space]] = {}
    for (_, units), some in kinds.items():
        if _expressible(structure, model, sketch, [*left, *some], attributes):
            left += some
        else:
            failed.setdefault(units, []).extend(some)
    for some in failed.values():
        several = len(set(map(_kind, some))) > 1
        if several and _expressible(structure, model, sketch, [*left, *some], attributes):
            left += some
    names = {space.name for space in left}
    for space in everything:
        if space.name not in names:
            structure.others[space.name] = (
                f"the configuration of {type(model).__name__} cannot say their number"
            )
            structure.other_units[space.name] = space.units
    if not left:
        raise ArgumentError(f"no units of {type(model).__name__} can be cut with loadable=True")
    structure.settle([space for space in everything if space.name in names], attributes)


def _kind(space: Space) -> str:
    """The name of a space without the numbers of layers."""
    return re.sub(r"\d+", "*", space.name)


def _expressible(
    structure: Structure,
    model: nn.Module,
    sketch: Sketch,
    spaces: Sequence[Space],
    attributes: Sequence[Length],
) -> bool:
    """Whether the configuration can say how many units of these spaces submodels have."""
    structure.settle(spaces, attributes)
    for draw in _trials(structure, sketch):
        cut = structure.cut(draw)
        small = cut.module(cut.gather(model), cut.gather_buffers(model))
        if find_changes(small, [(kept.dim, kept.count) for kept in draw.values()]) is None:
            return False
    return True


def _trials(structure: Structure, sketch: Sketch) -> list[UnitDraw]:
    """Draws that stand for those of a sketch, one for each size."""
    if sketch.members is not None:
        drawing = structure.drawing(sketch)
        draws = [drawing.draw(sketch.member_key(i)) for i in range(min(sketch.members, _TRIALS))]
        return list({tuple(kept.count for kept in draw.values()): draw for draw in draws}.values())
    found = []
    for part in (2, 3):
        counts = {space.name: -(-space.units // part) for space in structure.spaces}
        fronts = {
            s.name: DiagonalDraw(s.units, np.arange(n := counts[s.name]), np.ones(n))
            for s in structure.spaces
        }
        found.append(UnitDraw(Key(0), fronts))
    return found
