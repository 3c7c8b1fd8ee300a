"""What each function and tensor method does with units."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mast.nn.structure import shapes
from mast.nn.structure.carried import Product, Size, Value, sizes_in
from mast.nn.structure.flow import Flow, FunctionRule
from mast.nn.structure.shapes import Arguments, Options, first, from_end


def entrywise(flow: Flow, where: str, args: Arguments, options: Options) -> Any:
    """One or several values, entry by entry; numbers are fine."""
    found = [a for a in (*args, *options.values()) if isinstance(a, Value)]
    sizes = sizes_in([args, options])
    for size in sizes:
        if size.changes:
            flow.refuse(where, size.value, "computes with the number of units, which differs in a submodel")
    if not found and sizes:
        return None  # a number
    return flow.join(where, found)


def multiply(flow: Flow, where: str, args: Arguments, options: Options) -> Any:
    """Entry by entry; lengths of dimensions are remembered, for a shape to be made of them."""
    if args and not options and all(isinstance(a, Size | Product) for a in args):
        return Product(tuple(sizes_in(args)))
    return entrywise(flow, where, args, options)


def spatial(dims: int) -> FunctionRule:
    """Pooling within each channel."""

    def rule(flow: Flow, where: str, args: Arguments, options: Options) -> Any:
        value = first(args, options)
        if value.joint is not None and (value.run != 1 or value.dim > -dims - 1):
            return flow.refuse(where, value, "acts along the dimension the units lie in")
        return value

    return rule


def interpolate(flow: Flow, where: str, args: Arguments, options: Options) -> Any:
    """Within each channel, whatever its number of dimensions is."""
    value = first(args, options)
    if value.joint is not None and (value.run != 1 or value.dim > -2):
        return flow.refuse(where, value, "acts along the dimension the units lie in")
    return value


def reduce(flow: Flow, where: str, args: Arguments, options: Options) -> Any:
    """Sums and means over other dimensions than that of the units."""
    value = first(args, options)
    dims = args[1] if len(args) > 1 else options.get("dim")
    keep = bool(args[2] if len(args) > 2 else options.get("keepdim", False))
    if value.joint is None:
        return Value(rank=value.rank if keep else None)
    listed = [] if isinstance(dims, bool) else [dims] if isinstance(dims, int) else list(dims or [])
    found = [from_end(value.rank, d) for d in listed]
    if not found or None in found:
        return flow.refuse(
            where, value, "reduces a value whose number of dimensions is not known: count from the end"
        )
    if value.dim in found or value.run != 1:
        return flow.refuse(where, value, "sums or averages over units")
    if keep:
        return value
    behind = sum(1 for d in found if d is not None and d > value.dim)
    return replace(
        value, dim=value.dim + behind, rank=None if value.rank is None else value.rank - len(found)
    )


def spread(flow: Flow, where: str, args: Arguments, options: Options) -> Any:
    """Variances and deviations: as `reduce`, with the correction in the place of `keepdim`."""
    named = {"keepdim": args[3]} if len(args) > 3 else {}
    return reduce(flow, where, args[:2], options | named)


def concatenate(flow: Flow, where: str, args: Arguments, options: Options) -> Any:
    """Along another dimension than that of the units, such as a class token before others."""
    listed = args[0] if args else options["tensors"]
    dim = args[1] if len(args) > 1 else options.get("dim", 0)
    values = [v for v in listed if isinstance(v, Value)]
    carrying = [v for v in values if v.joint is not None]
    ranks = {v.rank for v in values if v.rank is not None}
    along = from_end(ranks.pop() if len(ranks) == 1 else None, dim)
    if carrying and (along is None or any(along == v.dim for v in carrying)):
        return flow.without_rule(where, [values], {})
    return flow.join(where, values)


def get_item(flow: Flow, where: str, args: Arguments, options: Options) -> Any:
    """Tuples, shapes, and selections along other dimensions than that of the units."""
    of, index = args
    if isinstance(of, Size):
        return Size(of.value, index) if isinstance(index, int) and of.dim is None else of
    if isinstance(of, tuple | list):
        return of[index]
    if not isinstance(of, Value) or of.joint is None:
        return Value()
    return shapes.select(flow, where, of, index if isinstance(index, tuple) else (index,))


def size(flow: Flow, where: str, args: Arguments, options: Options) -> Any:
    """x.size() and x.size(dim)."""
    value = first(args, options)
    dim = args[1] if len(args) > 1 else options.get("dim")
    return Size(value, dim)


def attribute(flow: Flow, where: str, args: Arguments, options: Options) -> Any:
    """x.shape; other attributes say nothing of units."""
    value, name = args[0], args[1]
    if isinstance(value, Value) and name == "shape":
        return Size(value)
    if isinstance(value, Value) and name in (
        "dtype",
        "device",
        "ndim",
        "requires_grad",
        "is_cuda",
        "is_nested",
    ):
        return None
    return flow.without_rule(where, args, options)


def same(flow: Flow, where: str, args: Arguments, options: Options) -> Any:
    """x.contiguous(), x.to(dtype) and other no-ops."""
    return first(args, options)


def nothing(flow: Flow, where: str, args: Arguments, options: Options) -> Any:
    """Looks at a value and makes none."""
    return None


def linear(flow: Flow, where: str, args: Arguments, options: Options) -> Any:
    """F.linear with a parameter: as the module, but the parameter is not resized, so all units stay."""
    value = first(args, options)
    flow.pin(value, f"{where} is called as a function, with a weight that is no module's")
    return Value(rank=value.rank)


_BINARY = [
    operator.add, operator.iadd, operator.sub, operator.isub, operator.mul, operator.imul,
    operator.truediv, operator.itruediv, operator.pow, operator.neg,
    torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum,
    "add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_",
]  # fmt: skip
_UNARY = [
    "relu", "gelu", "silu", "mish", "elu", "celu", "selu", "leaky_relu", "rrelu", "relu6", "sigmoid",
    "logsigmoid",
    "tanh", "hardtanh", "hardswish", "hardsigmoid", "hardshrink", "softshrink", "softplus", "softsign",
    "tanhshrink",
    "threshold", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
    "relu_", "exp", "log", "abs", "neg", "sqrt", "square", "sin", "cos", "erf", "clamp", "pow", "sign",
    "rsqrt",
    "tanh_", "sigmoid_", "clamp_", "elu_", "leaky_relu_", "log1p", "expm1", "reciprocal",
]  # fmt: skip
_POOLS = [
    f"{kind}{n}d"
    for kind in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool")
    for n in (1, 2, 3)
]
_METHODS_THAT_KEEP = [
    "contiguous",
    "clone",
    "detach",
    "float",
    "double",
    "half",
    "to",
    "type_as",
    "requires_grad_",
]


def _rules() -> dict[Any, FunctionRule]:
    rules: dict[Any, FunctionRule] = dict.fromkeys(_BINARY, entrywise)
    for name in _UNARY:
        rules[name] = entrywise
        for home in (torch, F, Tensor):
            if hasattr(home, name):
                rules[getattr(home, name)] = entrywise
    for name in _POOLS:
        for home in (torch, F):
            if hasattr(home, name):
                rules[getattr(home, name)] = spatial(int(name[-2]))
    for names, rule in (
        (("flatten",), shapes.flatten),
        (("view", "reshape"), shapes.reshape),
        (("permute",), shapes.permute),
        (("unsqueeze",), shapes.unsqueeze),
        (("squeeze",), shapes.squeeze),
        (("transpose", "swapaxes"), shapes.transpose),
        (("mean", "sum", "amax", "amin"), reduce),
        (("var", "std"), spread),
        (("clone", "detach"), same),
    ):
        for name in names:
            rules[name] = rule
            if hasattr(torch, name):
                rules[getattr(torch, name)] = rule
    rules |= dict.fromkeys(_METHODS_THAT_KEEP, same)
    rules[operator.mul] = multiply
    rules |= {
        F.interpolate: interpolate,
        torch.cat: concatenate,
        torch.concat: concatenate,
        operator.getitem: get_item,
        getattr: attribute,
        "size": size,
        "dim": nothing,
        F.linear: linear,
    }
    return rules


RULES = _rules()
ENTRYWISE = frozenset(key for key, rule in RULES.items() if rule in (entrywise, multiply))
