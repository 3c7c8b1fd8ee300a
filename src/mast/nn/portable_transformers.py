"""Transformer blocks in model files: made of their parts, which in submodels are of other kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from mast.errors import ArgumentError, DataError
from mast.nn.portable_functions import FUNCTIONS, name_of

Describe = Callable[[nn.Module, str], dict[str, Any] | None]
Build = Callable[[Any, int], nn.Module]
_PARTS = ("self_attn", "linear1", "dropout", "linear2", "norm1", "norm2", "dropout1", "dropout2")


def describe_block(module: Any, name: str, describe: Describe) -> dict[str, Any] | None:
    """An `nn.TransformerEncoderLayer`: its parts, its activation, and the order of its norms."""
    parts = {part: describe(m, f"{name}.{part}") for part, m in module.named_children()}
    if None in parts.values() or not set(_PARTS) <= set(parts):
        return None
    said = {"type": "TransformerEncoderLayer", "parts": parts, "norm_first": bool(module.norm_first)}
    said["fused"] = int(module.activation_relu_or_gelu)
    if "activation" not in parts:
        said["activation"] = name_of(module.activation)
        if said["activation"] is None:
            raise ArgumentError(
                f"the module {name!r} (TransformerEncoderLayer) cannot be written to a file, which has no "
                f"name for its activation {module.activation!r}"
            )
    return said


def build_block(said: Mapping[str, Any], build: Build, depth: int) -> nn.Module:
    """The block of these parts."""
    parts = _mapping(said.get("parts"))
    if not set(_PARTS) <= set(parts) <= {*_PARTS, "activation"}:
        raise DataError("the parts of a TransformerEncoderLayer do not fit")
    with torch.device("meta"):
        block: Any = nn.TransformerEncoderLayer(1, 1, 1)
    for name in _PARTS:
        setattr(block, name, build(parts[name], depth + 1))
    block.norm_first = bool(said["norm_first"])
    block.activation_relu_or_gelu = int(said["fused"])
    block.activation = (
        build(parts["activation"], depth + 1) if "activation" in parts else FUNCTIONS[said["activation"]]
    )
    made: nn.Module = block.eval()
    return made


def describe_stack(module: Any, name: str, describe: Describe) -> dict[str, Any] | None:
    """An `nn.TransformerEncoder`: its blocks and its last norm."""
    layers = [describe(layer, f"{name}.layers.{i}") for i, layer in enumerate(module.layers)]
    norm = None if module.norm is None else describe(module.norm, f"{name}.norm")
    if not layers or None in layers or (norm is None) != (module.norm is None):
        return None
    return {
        "type": "TransformerEncoder",
        "parts": {str(i): layer for i, layer in enumerate(layers)},
        "norm": norm,
        "nested": bool(module.use_nested_tensor),
        "mask_check": bool(module.mask_check),
    }


def build_stack(said: Mapping[str, Any], build: Build, depth: int) -> nn.Module:
    """The stack of these blocks."""
    layers = [build(part, depth + 1) for part in _mapping(said.get("parts")).values()]
    if not layers or not all(isinstance(layer, nn.TransformerEncoderLayer) for layer in layers):
        raise DataError("a TransformerEncoder is made of TransformerEncoderLayers")
    norm = None if said.get("norm") is None else build(said["norm"], depth + 1)
    stack: Any = nn.TransformerEncoder(
        layers[0],  # type: ignore[arg-type]
        len(layers),
        norm,
        enable_nested_tensor=False,
        mask_check=bool(said.get("mask_check")),
    )
    stack.use_nested_tensor = bool(said.get("nested"))
    stack.layers = nn.ModuleList(layers)
    made: nn.Module = stack.eval()
    return made


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError("the description of a transformer is damaged")
    return value
