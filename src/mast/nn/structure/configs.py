"""The configuration of a small model of transformers: what `from_pretrained` makes it of."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from mast.errors import ArgumentError

_WORDS = ("head", "intermediate", "inner", "ffn", "d_ff", "hidden_dim", "mlp")
_OTHERS = ("head_dim", "dropout", "d_kv", "rope", "tie_", "head_bias")
_TRIES = 64


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
            "no configuration of this class has the sizes of this submodel: Neurons(..., loadable=True) "
            "keeps as many units in every layer (as uniform=True does), and leaves whole what the class "
            "derives, such as heads",
        )
        return
    for module in small.modules():
        if hasattr(module, "config"):
            for name, value in changes.items():
                if hasattr(module.config, name) or name == "head_dim":
                    setattr(module.config, name, value)


def find_changes(small: nn.Module, kept: Sequence[tuple[int, int]]) -> dict[str, int] | None:
    """The values of the configuration with which a new model has the shapes of this one."""
    wanted = {name: tuple(t.shape) for name, t in small.state_dict().items()}
    sizes = (getattr(module, "head_dim", None) for module in small.modules())
    head_dim = next((size for size in sizes if type(size) is int), None)
    for changes in itertools.islice(_changes(small.config, kept, head_dim), _TRIES):
        if _shapes(small, changes) == wanted:
            return changes
    return None


def refuse_saving(small: nn.Module, reason: str) -> None:
    """Let `save_pretrained` refuse what `from_pretrained` could not read."""
    if hasattr(small, "save_pretrained"):
        small.save_pretrained = partial(_refuse, reason)  # type: ignore[assignment]


def _changes(config: Any, kept: Sequence[tuple[int, int]], head_dim: int | None) -> Iterator[dict[str, int]]:
    """Other values of the fields that speak of heads and hidden units: all changed first, then fewer."""
    choices: dict[str, list[int]] = {}
    for name, value in vars(config).items():
        if not any(word in name for word in _WORDS) or any(word in name for word in _OTHERS):
            continue
        if value is None:
            found = [k for _, k in kept]
        elif type(value) is int:
            found = [value * k // n for n, k in kept if n > 0 and value % n == 0 and k != n]
        else:
            continue
        if distinct := list(dict.fromkeys(found)):
            choices[name] = distinct
    # Classes that derive the size of a head from the width take another number of heads if they are told it.
    if type(getattr(config, "head_dim", None)) is not int and head_dim is not None:
        choices["head_dim"] = [head_dim]
    names = list(choices)
    for changed in range(len(names), -1, -1):
        for some in itertools.combinations(names, changed):
            for values in itertools.product(*(choices[name] for name in some)):
                yield dict(zip(some, values, strict=True))


def _shapes(small: nn.Module, changes: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """The shapes of a new model of the class with another configuration."""
    config = copy.deepcopy(small.config)
    try:
        for name, value in changes.items():
            setattr(config, name, value)
        with torch.device("meta"):
            other = type(small)(config)
    except Exception:  # a combination that the class does not accept
        return {}
    return {name: tuple(t.shape) for name, t in other.state_dict().items()}


def _refuse(reason: str, *args: Any, **options: Any) -> None:
    raise ArgumentError(
        f"from_pretrained() could not read it: {reason}. sk.save_submodel() writes any submodel"
    )
