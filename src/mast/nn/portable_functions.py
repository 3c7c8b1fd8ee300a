"""The functions and methods that a model file may name. What is not in these lists is never called.

A file holds names only. Each stands for one function here, chosen because it computes a tensor (or a size)
from tensors and does nothing else: none reads files, runs code, or reaches into an object.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mast.errors import DataError

_OPERATORS = """
add sub mul truediv floordiv mod pow matmul neg pos abs invert and_ or_ xor lt le gt ge eq ne
iadd isub imul itruediv getitem
"""
_MATH = "sqrt exp log log2 ceil floor prod"
_TORCH = """
abs add addmm amax amin any all arange argmax argmin baddbmm bmm cat ceil chunk clamp clamp_max clamp_min
concat cos cosh cumsum diff div einsum eq erf exp expand_copy expm1 flatten flip floor floor_divide full
full_like gather ge gt hstack index_select isfinite isnan le lerp linspace log log10 log1p log2 log_softmax
logical_and logical_not logical_or logsumexp lt masked_fill matmul max maximum mean min minimum mm movedim
mul narrow ne neg norm ones ones_like outer permute pow prod reciprocal relu relu_ repeat_interleave reshape
roll round rsqrt sigmoid sign sin sinh softmax split sqrt square squeeze stack std sub sum swapaxes t tan tanh
tensordot tile topk transpose tril triu unbind unflatten unsqueeze var var_mean vstack where zeros zeros_like
_assert
"""
_FUNCTIONAL = """
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
alpha_dropout avg_pool1d avg_pool2d avg_pool3d batch_norm celu conv1d conv2d conv3d conv_transpose1d
conv_transpose2d conv_transpose3d cosine_similarity dropout dropout1d dropout2d dropout3d elu embedding
feature_alpha_dropout gelu glu group_norm hardsigmoid hardswish hardtanh instance_norm interpolate
layer_norm leaky_relu linear log_softmax logsigmoid max_pool1d max_pool2d max_pool3d mish normalize one_hot
pad pixel_shuffle pixel_unshuffle prelu relu relu6 rms_norm scaled_dot_product_attention selu sigmoid silu
softmax softmin softplus softshrink softsign tanh tanhshrink threshold unfold
"""
_METHODS = """
abs add add_ all amax amin any argmax argmin bfloat16 bmm bool ceil chunk clamp clamp_ clamp_max clamp_min
clone contiguous cos cumsum detach diff dim div div_ double eq exp expand expand_as flatten flip float floor
gather ge gt half index_select int le log log_softmax logical_not logsumexp long lt masked_fill masked_fill_
matmul max mean min mm movedim mul mul_ narrow ne neg new_full new_ones new_zeros norm numel permute pow prod
reciprocal relu relu_ repeat repeat_interleave reshape reshape_as roll round rsqrt select sigmoid sigmoid_
sign sin size softmax split sqrt square squeeze std sub sub_ sum swapaxes t tan tanh tanh_ tile to topk
transpose tril triu type_as unbind unflatten unfold unsqueeze var view view_as where
"""
ATTRIBUTES = frozenset({"shape", "ndim", "dtype", "device", "T", "mT"})

METHODS = frozenset(_METHODS.split())
#: functions of numbers that tracing has to see, because torch would evaluate them at once
FACTORIES: tuple[Callable[..., Any], ...] = (
    torch.arange,
    torch.zeros,
    torch.ones,
    torch.full,
    torch.linspace,
)


def _attribute(value: Any, name: str) -> Any:
    if not isinstance(value, Tensor) or name not in ATTRIBUTES:
        raise DataError(f"the file asks for the attribute {name!r} of a {type(value).__name__}: refused")
    return getattr(value, name)


def _listed() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    for prefix, module, names in (
        ("operator", operator, _OPERATORS),
        ("math", math, _MATH),
        ("torch", torch, _TORCH),
        ("functional", F, _FUNCTIONAL),
    ):
        found |= {
            f"{prefix}.{name}": getattr(module, name) for name in names.split() if hasattr(module, name)
        }
    return found | {"attribute": _attribute}


FUNCTIONS = _listed()
_NAMES: dict[Any, str] = {function: name for name, function in reversed(FUNCTIONS.items())} | {
    getattr: "attribute"
}


def name_of(function: Any) -> str | None:
    """The name that a file uses for a function, if it may.

    >>> name_of(torch.relu), name_of(torch.load)
    ('torch.relu', None)
    """
    try:
        return _NAMES.get(function)
    except TypeError:  # not hashable
        return None


def call_method(name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
    """One of the listed methods of a tensor or of its size."""
    if name not in METHODS or not isinstance(value, Tensor | torch.Size):
        raise DataError(f"the file calls the method {name!r} of a {type(value).__name__}: refused")
    return getattr(value, name)(*args, **kwargs)
