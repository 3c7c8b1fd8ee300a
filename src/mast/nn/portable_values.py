"""Arguments of calls as JSON: numbers, text, containers, slices, and the results of earlier calls."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mast.errors import ArgumentError, DataError

_DTYPES = {
    str(t).removeprefix("torch."): t
    for t in (
        torch.float16, torch.bfloat16, torch.float32, torch.float64,
        torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
    )
}  # fmt: skip
_FORMATS = {
    str(f).removeprefix("torch."): f
    for f in (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)
}
#: what a name in a file may look like, between dots
NAME = re.compile(r"\w+", re.ASCII)
_DEVICE = re.compile(r"(cpu|cuda|mps|xpu)(:\d{1,3})?")


class Result:
    """Stands for the result of an earlier call."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


def encode(value: Any, numbers: Mapping[Any, int]) -> Any:
    """A value as JSON; keys of `numbers` are the nodes that values may refer to.

    >>> encode((1, slice(None, 2), torch.float32), {})
    {'tuple': [1, {'slice': [None, 2, None]}, {'dtype': 'float32'}]}
    """
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, torch.fx.Node):
        return {"result": numbers[value]}
    if isinstance(value, list):
        return [encode(v, numbers) for v in value]
    if isinstance(value, tuple) and (type(value) in (tuple, torch.Size)):
        return {"tuple": [encode(v, numbers) for v in value]}
    if isinstance(value, dict) and all(isinstance(k, str) for k in value):
        return {"dict": {k: encode(v, numbers) for k, v in value.items()}}
    if isinstance(value, slice):
        return {"slice": [encode(v, numbers) for v in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"ellipsis": True}
    for kind, known in (("dtype", _DTYPES), ("format", _FORMATS)):
        for name, member in known.items():
            if value is member:
                return {kind: name}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    raise ArgumentError(
        f"the value {value!r} of type {type(value).__name__} cannot be written to a model file"
    )


def decode(said: Any, results: int = 0) -> Any:
    """The value; results of earlier calls, of which there are `results`, become `Result`s.

    >>> decode({'tuple': [1, {'slice': [None, 2, None]}, {'dtype': 'float32'}]})
    (1, slice(None, 2, None), torch.float32)
    """
    if said is None or isinstance(said, bool | int | float | str):
        return said
    if isinstance(said, list):
        return [decode(v, results) for v in said]
    if not isinstance(said, dict) or len(said) != 1:
        raise DataError(f"{said!r} is no value")
    ((kind, content),) = said.items()
    if kind == "result" and type(content) is int and 0 <= content < results:
        return Result(content)
    if kind == "float" and content in ("inf", "-inf", "nan"):
        return float(content)
    if kind == "tuple" and isinstance(content, list):
        return tuple(decode(v, results) for v in content)
    if kind == "dict" and isinstance(content, dict):
        return {k: decode(v, results) for k, v in content.items()}
    if kind == "slice" and isinstance(content, list) and len(content) == 3:
        return slice(*(decode(v, results) for v in content))
    if kind == "ellipsis":
        return Ellipsis
    if kind == "dtype" and content in _DTYPES:
        return _DTYPES[content]
    if kind == "format" and content in _FORMATS:
        return _FORMATS[content]
    if kind == "device" and isinstance(content, str) and _DEVICE.fullmatch(content):
        return torch.device(content)
    raise DataError(f"{said!r} is no value")


def fill(value: Any, results: Sequence[Any]) -> Any:
    """The value with the results of earlier calls in their places."""
    kind = type(value)
    if kind is Result:
        return results[value.number]
    if kind is tuple:
        return tuple([fill(v, results) for v in value])
    if kind is list:
        return [fill(v, results) for v in value]
    if kind is dict:
        return {k: fill(v, results) for k, v in value.items()}
    if kind is slice:
        return slice(*(fill(v, results) for v in (value.start, value.stop, value.step)))
    return value


def uses(value: Any) -> set[int]:
    """The numbers of the earlier calls whose results a value needs."""
    kind = type(value)
    if kind is Result:
        return {value.number}
    if kind in (tuple, list):
        return set().union(*map(uses, value))
    if kind is dict:
        return set().union(*map(uses, value.values()))
    if kind is slice:
        return uses((value.start, value.stop, value.step))
    return set()
