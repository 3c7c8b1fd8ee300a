"""The configuration of a small model of transformers: what `from_pretrained` makes it of."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from mast.errors import ArgumentError

_WORDS = ("head", "intermediate", "inner", "ffn", "d_ff", "hidden_dim", "mlp")
_OTHERS = ("head_dim", "dropout", "d_kv", "rope", "tie_", "head_bias")


def configurable(model: nn.Module) -> bool:
    """Whether it is a `PreTrainedModel`, which is made of a configuration."""
    config = getattr(model, "config", None)
    return hasattr(model, "save_pretrained") and hasattr(config, "to_dict")


def adapt(small: nn.Module, kept: Sequence[tuple[int, int]]) -> None:
    """Let the configuration of a `PreTrainedModel` say how large it is now.

    `kept` has units and kept units of each space. If no configuration has these sizes, because layers differ
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


def find_changes(small: nn.Module, kept: Sequence[tuple[int, int]]) -> dict[str, int] | None:
    """The values of the configuration with which a new model has the shapes of this one.

    Fields are changed one after the other, as long as more shapes fit. A dot leads into a part of the
    configuration: ``"text_config.intermediate_size"``.
    """
    wanted = {name: tuple(t.shape) for name, t in small.state_dict().items()}

    def misfits(changes: dict[str, int]) -> float:
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


def _beginnings(small: nn.Module) -> Iterator[dict[str, int]]:
    """No change; or the size of a head, told to classes that derive it from the width and the number."""
    yield {}
    sizes = (getattr(module, "head_dim", None) for module in small.modules())
    head_dim = next((size for size in sizes if type(size) is int), None)
    if head_dim is not None:
        parts = [
            path for path, part in _parts(small.config) if type(getattr(part, "head_dim", None)) is not int
        ]
        yield {f"{path}.head_dim".removeprefix("."): head_dim for path in parts}


def _choices(config: Any, kept: Sequence[tuple[int, int]]) -> list[tuple[str, int]]:
    """Other values of the fields that speak of heads and hidden units."""
    found: dict[tuple[str, int], None] = {}
    for path, part in _parts(config):
        for name, value in vars(part).items():
            if not any(word in name for word in _WORDS) or any(word in name for word in _OTHERS):
                continue
            values: list[int] = []
            if value is None:
                values = [k for _, k in kept]
            elif type(value) is int:
                whole = [(n, k) for n, k in kept if n > 0 and k != n and value * k % n == 0]
                values = [value * k // n for n, k in whole if value % n == 0 or "ratio" in name]
            found |= {(f"{path}.{name}".removeprefix("."), v): None for v in values}
    return list(found)


def _shapes(small: nn.Module, changes: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """The shapes of a new model of the class with another configuration."""
    config = copy.deepcopy(small.config)
    try:
        for path, value in changes.items():
            parent, _, name = path.rpartition(".")
            setattr(_part(config, parent), name, value)
        with torch.device("meta"):
            other = type(small)(config)
    except Exception:  # a combination that the class does not accept
        return {}
    return {name: tuple(t.shape) for name, t in other.state_dict().items()}


def _refuse(reason: str, *args: Any, **options: Any) -> None:
    raise ArgumentError(
        f"from_pretrained() could not read it: {reason}. sk.save_submodel() writes any submodel"
    )
