"""The modules that a model file may name, each with the settings its constructor takes.

A module is written as its type's name and its settings, and made again by calling that type. Only the
listed types exist in files, compared exactly: a subclass may compute something else.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from mast.errors import ArgumentError, DataError
from mast.nn.portable_transformers import build_block, build_stack, describe_block, describe_stack
from mast.nn.portable_values import decode, encode
from mast.nn.structure.attention import HeadsAttention
from mast.nn.structure.dropped import NoAttention, Zeros

_CONV = "in_channels out_channels kernel_size stride padding dilation groups bias padding_mode"
_TRANSPOSED = (
    "in_channels out_channels kernel_size stride padding output_padding groups bias dilation padding_mode"
)
_NORM = "num_features eps momentum affine track_running_stats"
_MAX_POOL = "kernel_size stride padding dilation return_indices ceil_mode"
_RECURRENT = "input_size hidden_size num_layers bias batch_first dropout bidirectional"
#: type -> the names of its settings, which are attributes of the module as well
SETTINGS: dict[str, str] = {
    "Identity": "", "Linear": "in_features out_features bias",
    "Bilinear": "in1_features in2_features out_features bias",
    "Conv1d": _CONV, "Conv2d": _CONV, "Conv3d": _CONV,
    "ConvTranspose1d": _TRANSPOSED, "ConvTranspose2d": _TRANSPOSED, "ConvTranspose3d": _TRANSPOSED,
    "BatchNorm1d": _NORM, "BatchNorm2d": _NORM, "BatchNorm3d": _NORM,
    "InstanceNorm1d": _NORM, "InstanceNorm2d": _NORM, "InstanceNorm3d": _NORM,
    "LayerNorm": "normalized_shape eps elementwise_affine bias",
    "RMSNorm": "normalized_shape eps elementwise_affine",
    "GroupNorm": "num_groups num_channels eps affine",
    "LocalResponseNorm": "size alpha beta k",
    "Embedding": "num_embeddings embedding_dim padding_idx max_norm norm_type scale_grad_by_freq sparse",
    "ReLU": "inplace", "ReLU6": "inplace", "LeakyReLU": "negative_slope inplace", "ELU": "alpha inplace",
    "CELU": "alpha inplace", "SELU": "inplace", "GELU": "approximate", "SiLU": "inplace", "Mish": "inplace",
    "Tanh": "", "Sigmoid": "", "LogSigmoid": "", "Softsign": "", "Tanhshrink": "",
    "Softplus": "beta threshold",
    "Hardtanh": "min_val max_val inplace", "Hardswish": "inplace", "Hardsigmoid": "inplace",
    "Softshrink": "lambd", "Hardshrink": "lambd", "Threshold": "threshold value inplace", "GLU": "dim",
    "PReLU": "num_parameters", "Softmax": "dim", "LogSoftmax": "dim", "Softmax2d": "",
    "Flatten": "start_dim end_dim", "Unflatten": "dim unflattened_size",
    "Dropout": "p inplace", "Dropout1d": "p inplace", "Dropout2d": "p inplace", "Dropout3d": "p inplace",
    "AlphaDropout": "p inplace", "FeatureAlphaDropout": "p inplace",
    "MaxPool1d": _MAX_POOL, "MaxPool2d": _MAX_POOL, "MaxPool3d": _MAX_POOL,
    "AvgPool1d": "kernel_size stride padding ceil_mode count_include_pad",
    "AvgPool2d": "kernel_size stride padding ceil_mode count_include_pad divisor_override",
    "AvgPool3d": "kernel_size stride padding ceil_mode count_include_pad divisor_override",
    "AdaptiveAvgPool1d": "output_size", "AdaptiveAvgPool2d": "output_size",
    "AdaptiveAvgPool3d": "output_size",
    "AdaptiveMaxPool1d": "output_size return_indices", "AdaptiveMaxPool2d": "output_size return_indices",
    "ZeroPad2d": "padding", "ReflectionPad2d": "padding", "ReplicationPad2d": "padding",
    "ConstantPad1d": "padding value", "ConstantPad2d": "padding value",
    "Upsample": "size scale_factor mode align_corners", "PixelShuffle": "upscale_factor",
    "PixelUnshuffle": "downscale_factor", "ChannelShuffle": "groups",
    "RNN": _RECURRENT + " nonlinearity", "GRU": _RECURRENT, "LSTM": _RECURRENT + " proj_size",
    "MultiheadAttention": "embed_dim num_heads dropout bias add_bias_kv add_zero_attn kdim vdim batch_first",
    "HeadsAttention": "embed_dim head_dim kept all_heads dropout bias batch_first",
    "NoAttention": "batch_first",
    "Zeros": "",
}  # fmt: skip
_TYPES: dict[str, Callable[..., nn.Module]] = {
    name: getattr(nn, name) for name in SETTINGS if hasattr(nn, name)
} | {"HeadsAttention": HeadsAttention, "NoAttention": NoAttention, "Zeros": Zeros}
_NAMES = {kind: name for name, kind in _TYPES.items()}
#: settings that are not attributes of the same name
_DERIVED: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("MultiheadAttention", "bias"): lambda m: m.in_proj_bias is not None,
    ("HeadsAttention", "bias"): lambda m: m.in_proj_bias is not None,
    ("MultiheadAttention", "add_bias_kv"): lambda m: m.bias_k is not None,
}
#: settings that are written only if they are not the default, because some versions of torch lack them
_UNUSUAL: dict[str, dict[str, Callable[[Any], bool]]] = {
    **{
        name: {"bias": lambda m: m.affine and m.bias is None}
        for name in SETTINGS
        if name.startswith(("BatchNorm", "InstanceNorm", "GroupNorm"))
    },
    "Upsample": {"recompute_scale_factor": lambda m: m.recompute_scale_factor is not None},
}
_DEPTH = 50


def describe(module: nn.Module, name: str) -> dict[str, Any] | None:
    """A module as JSON, if it is of a listed type or made of such alone; `name` is for messages."""
    kind = type(module)
    if kind is nn.Sequential:
        parts = {part: describe(m, _joined(name, part)) for part, m in module.named_children()}
        return None if None in parts.values() else {"type": "Sequential", "parts": parts}
    if kind is nn.TransformerEncoderLayer:
        return describe_block(module, name, describe)
    if kind is nn.TransformerEncoder:
        return describe_stack(module, name, describe)
    if kind not in _NAMES:
        return None
    said: dict[str, Any] = {"type": _NAMES[kind], "settings": settings_of(module, name)}
    _check_inside(module, name, said)
    return said


def settings_of(module: nn.Module, name: str) -> dict[str, Any]:
    """What the constructor of a listed type takes to make this module again."""
    kind = _NAMES[type(module)]
    settings = {}
    unusual = [name for name, differs in _UNUSUAL.get(kind, {}).items() if differs(module)]
    for setting in [*SETTINGS[kind].split(), *unusual]:
        try:
            value = _DERIVED.get((kind, setting), lambda m, s=setting: getattr(m, s))(module)
        except (AttributeError, KeyError, TypeError):
            raise ArgumentError(
                f"the module {name!r} ({kind}) cannot be written to a file: its {setting} has been "
                "replaced by something that the constructor does not take"
            ) from None
        if setting == "bias" and not isinstance(value, bool):
            value = value is not None
        settings[setting] = encode(value, {})
    return settings


def build(said: Any, depth: int = 0) -> nn.Module:
    """The module that was described, without values: its tensors have shapes only."""
    if not isinstance(said, dict) or depth > _DEPTH:
        raise DataError(f"{str(said)[:60]!r} is no module")
    kind = said.get("type")
    if kind == "Sequential":
        sequence = nn.Sequential()
        for name, part in _mapping(said.get("parts")).items():
            sequence.add_module(name, build(part, depth + 1))
        return sequence
    if kind == "TransformerEncoderLayer":
        return build_block(said, build, depth)
    if kind == "TransformerEncoder":
        return build_stack(said, build, depth)
    if not isinstance(kind, str) or kind not in _TYPES:
        raise DataError(f"the file names a module of the type {kind!r}, which files may not hold")
    settings = _mapping(said.get("settings"))
    if set(settings) - set(_UNUSUAL.get(kind, {})) != set(SETTINGS[kind].split()):
        raise DataError(f"the settings of a {kind} do not fit: {sorted(settings)}")
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Initializing zero-element tensors")  # no unit was kept
            return _TYPES[kind](**{name: decode(value) for name, value in settings.items()}).eval()
    except (TypeError, ValueError, RuntimeError, AssertionError, OverflowError, NotImplementedError) as error:
        raise DataError(f"a {kind} with the settings {settings} cannot be made: {error}") from error


def _check_inside(module: nn.Module, name: str, said: Mapping[str, Any]) -> None:
    """Refuse a module whose parts were changed, so that its constructor would make others."""
    again = build(said)
    here, there = _inside(module, name), _inside(again, name)
    for part in [*here, *there]:
        if here.get(part) != there.get(part):
            raise ArgumentError(
                f"the module {part!r} inside {name!r} ({type(module).__name__}) was changed, so the whole "
                "cannot be made again from its settings and cannot be written to a file"
            )


def _inside(module: nn.Module, name: str) -> dict[str, Any]:
    """All modules inside, and the shapes of their tensors."""
    found: dict[str, Any] = {
        f"{name}.{part}": (type(m).__name__, settings_of(m, f"{name}.{part}") if type(m) in _NAMES else None)
        for part, m in module.named_modules()
        if part
    }
    return found | {f"{name}.{part}": tuple(t.shape) for part, t in module.state_dict().items()}


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError("the description of a module is damaged")
    return value


def _joined(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part
