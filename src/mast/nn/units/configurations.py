"""Configurations of models of transformers, which `from_pretrained` makes them of.

`adapt_configuration` lets the configuration of a small model say its sizes. With `loadable=True`, units whose
number no configuration can say are kept whole.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mast.errors import ArgumentError
from mast.nn.units.groups import UnitDraw, UnitGroup
from mast.randomness import Key
from mast.sketches import Sketch
from mast.sketches.lists import member_key

if TYPE_CHECKING:
    from mast.nn.units.dependencies.grouping import ModuleLength
    from mast.nn.units.unit_map import UnitMap

_WORDS = ("head", "intermediate", "inner", "ffn", "d_ff", "hidden_dim", "mlp", "rank")
_OTHERS = ("head_dim", "dropout", "d_kv", "rope", "tie_", "head_bias")
_TRIALS = 32  # members of a list whose sizes a configuration is asked for
_DRAWS = 8  # the same of a sketch without members; those of most have the same sizes


def configurable(model: nn.Module) -> bool:
    """Whether it is a `PreTrainedModel`, which is made of a configuration."""
    config = getattr(model, "config", None)
    return hasattr(model, "save_pretrained") and hasattr(config, "to_dict")


def adapt_configuration(small: nn.Module, kept: Sequence[tuple[int, int]]) -> None:
    """Let the configuration of a `PreTrainedModel` say how large it is now.

    `kept` has units and kept units of each group. If no configuration has these sizes, because layers differ
    or the class derives one size from another, `save_pretrained` says so.
    """
    if not configurable(small):
        return
    changes = find_changes(small, kept)
    if changes is None:
        refuse_saving(
            small,
            "no configuration of this class has the sizes of this submodel, because layers differ or one "
            "size follows from another, as that of heads does. Neurons(..., loadable=True) keeps as many "
            "units in every layer, and cuts only what the configuration can say, for the sizes of its sketch",
        )
        return
    owners = [module.config for module in small.modules() if hasattr(module, "config")]
    for path, value in changes.items():
        parent, _, name = path.rpartition(".")
        whose = type(_part(small.config, parent))
        for config in (_part(small.config, parent), *owners):
            if type(config) is whose or (not parent and hasattr(config, name)):
                setattr(config, name, value)


def find_changes(small: nn.Module, kept: Sequence[tuple[int, int]]) -> dict[str, Any] | None:
    """The values of the configuration with which a new model has the shapes of this one.

    Fields are changed one after the other, as long as more shapes fit. A dot leads into a part of the
    configuration: ``"text_config.intermediate_size"``.
    """
    wanted = {name: tuple(t.shape) for name, t in small.state_dict().items()}

    def misfits(changes: dict[str, Any]) -> float:
        shapes = _shapes(small, changes)
        return sum(shapes.get(name) != shape for name, shape in wanted.items()) if shapes else math.inf

    choices = _choices(small.config, kept)
    for changes in _beginnings(small):
        best = misfits(changes)
        for path, value in (*choices, *choices):  # some fields fit after others only
            if best and changes.get(path) != value:
                trial = changes | {path: value}
                if (found := misfits(trial)) < best:
                    changes, best = trial, found
        if not best and set(_shapes(small, changes)) == set(wanted):
            return changes
    return None


def refuse_saving(small: nn.Module, reason: str) -> None:
    """Let `save_pretrained` refuse what `from_pretrained` could not read."""
    if hasattr(small, "save_pretrained"):
        small.save_pretrained = partial(_refuse, reason)  # type: ignore[assignment]


def _parts(config: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """A configuration, and those inside of it, with their paths."""
    yield path, config
    for name, value in vars(config).items():
        if hasattr(value, "to_dict"):
            yield from _parts(value, f"{path}.{name}".removeprefix("."))


def _part(config: Any, path: str) -> Any:
    return next(part for own, part in _parts(config) if own == path)


def _beginnings(small: nn.Module) -> Iterator[dict[str, Any]]:
    """No change; or the size of a head, told to classes that derive it from the width and the number."""
    yield {}
    sizes = (getattr(module, "head_dim", None) for module in small.modules())
    head_dim = next((size for size in sizes if type(size) is int), None)
    if head_dim is not None:
        parts = [
            path for path, part in _parts(small.config) if type(getattr(part, "head_dim", None)) is not int
        ]
        yield {f"{path}.head_dim".removeprefix("."): head_dim for path in parts}


def _choices(config: Any, kept: Sequence[tuple[int, int]]) -> list[tuple[str, Any]]:
    """Other values of the fields that speak of heads and hidden units."""
    found: list[tuple[str, Any]] = []
    for path, part in _parts(config):
        for name, value in vars(part).items():
            if not any(word in name for word in _WORDS) or any(word in name for word in _OTHERS):
                continue
            for n, k in kept:
                left = k if value is None else _left_of(value, n, k, "ratio" in name)
                choice = (f"{path}.{name}".removeprefix("."), left)
                if left is not None and left != value and choice not in found:
                    found.append(choice)
    return found


def _left_of(value: Any, n: int, k: int, ratio: bool) -> Any:
    """What is left of a number, or of each of a list, where k of n units are; None if that is no number."""
    if type(value) is list:
        left = [_left_of(one, n, k, ratio) for one in value]
        return None if None in left else left
    if type(value) is float and ratio and n > 0:
        return value * k / n
    if type(value) is int and n > 0 and value * k % n == 0 and (ratio or value % n == 0):
        return value * k // n
    return None


def _shapes(small: nn.Module, changes: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of a new model of the class with another configuration."""
    config: Any = copy.deepcopy(small.config)
    try:
        for path, value in changes.items():
            parent, _, name = path.rpartition(".")
            setattr(_part(config, parent), name, value)
        if hasattr(config, "validate"):
            config.validate()  # as save_pretrained does: Llama wants heads that divide the width
        with torch.device("meta"):
            other = type(small)(config)
    except Exception:  # a combination that the class does not accept
        return {}
    return {name: tuple(t.shape) for name, t in other.state_dict().items()}


def _refuse(reason: str, *args: Any, **options: Any) -> None:
    raise ArgumentError(
        f"from_pretrained() could not read it: {reason}. sk.save_submodel() writes any submodel"
    )


# ---- loadable=True ---------------------------------------------------------------------------------


def exclude_unloadable(unit_map: UnitMap, model: nn.Module, sketch: Sketch) -> None:
    """Keep whole the groups that the configuration of a model of transformers cannot express.

    Groups of one kind, in all layers, are tried together, with what the sketch keeps. Kinds that fail alone
    are tried with others of as many units, and with those of other layers: one number of the configuration
    may be that of both, or a ratio.
    """
    if not configurable(model):
        raise ArgumentError(
            "loadable=True is for models of transformers, which are made of a configuration, not for "
            f"{type(model).__name__}"
        )
    everything, lengths, left = unit_map.groups, unit_map.lengths, list[UnitGroup]()
    kinds: dict[tuple[str, int], list[UnitGroup]] = {}
    for group in everything:
        kinds.setdefault((_kind(group), group.units), []).append(group)
    failed: dict[int | str, dict[str, UnitGroup]] = {}
    for (kind, units), some in kinds.items():
        if _expressible(unit_map, model, sketch, [*left, *some], lengths):
            left += some
        else:
            for common in (units, kind):
                failed.setdefault(common, {}).update({group.name: group for group in some})
    names = {group.name for group in left}
    for together in failed.values():
        others = [group for name, group in together.items() if name not in names]
        several = len({(_kind(group), group.units) for group in others}) > 1
        if several and _expressible(unit_map, model, sketch, [*left, *others], lengths):
            left += others
            names |= {group.name for group in others}
    for group in everything:
        if group.name not in names:
            unit_map.excluded[group.name] = (
                f"the configuration of {type(model).__name__} cannot say their number"
            )
            unit_map.excluded_units[group.name] = group.units
    if not left:
        raise ArgumentError(
            f"no units of {type(model).__name__} can be cut with loadable=True: its configuration cannot say "
            "how many are left"
        )
    unit_map.set_groups([group for group in everything if group.name in names], lengths)


def _kind(group: UnitGroup) -> str:
    """The name of a group without the numbers of layers."""
    return re.sub(r"\d+", "*", group.name)


def _expressible(
    unit_map: UnitMap,
    model: nn.Module,
    sketch: Sketch,
    groups: Sequence[UnitGroup],
    lengths: Sequence[ModuleLength],
) -> bool:
    """Whether the configuration can say how many units of these groups submodels have."""
    unit_map.set_groups(groups, lengths)
    for draw in sizes_of(unit_map, sketch):
        cut = unit_map.cut(draw)  # which leaves one of the units of a group where a draw keeps none
        if find_changes(cut.module_of(model), [(kept.dim, kept.count) for kept in cut.units]) is None:
            return False
    return True


def sizes_of(unit_map: UnitMap, sketch: Sketch) -> list[UnitDraw]:
    """Draws that stand for those of a sketch, one for each size."""
    drawing = unit_map.bind(sketch)
    if sketch.members is None:
        keys = [Key(seed) for seed in range(_DRAWS)]
    else:
        keys = [member_key(sketch, i) for i in range(min(sketch.members, _TRIALS))]
    draws = [drawing.draw(key) for key in keys]
    return list({tuple(kept.count for kept in draw.values()): draw for draw in draws}.values())
