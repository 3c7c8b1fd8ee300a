"""Residual branches: what is added to a value that it was made of, found from the graph.

An addition x + f(x) has the branch f(x). It can be dropped whole if something at its end carries a scale:
the last
weight with its bias, the last affine norm, or a parameter that it is multiplied with.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from mast.errors import ArgumentError
from mast.nn.structure import functions, modules
from mast.nn.structure.finding import graph_of, own_keep
from mast.nn.tensors.torch_private import Conv, NormBase

_ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")
_PRODUCTS = (operator.mul, operator.imul, torch.mul, "mul", "mul_")
_QUOTIENTS = (operator.truediv, operator.itruediv, torch.div, "div", "div_")
# Modules that make 0 of 0, so that a branch whose last weight is 0 is 0.
_ZERO_STAYS = (
    nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.ReLU, nn.ReLU6, nn.LeakyReLU,
    nn.GELU,
    nn.SiLU, nn.Tanh, nn.ELU, nn.CELU, nn.SELU, nn.Mish, nn.Hardswish, nn.Hardshrink, nn.Softshrink,
    nn.Tanhshrink,
    nn.Softsign, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.Flatten,
)  # fmt: skip
_NAMES_WITH_ZERO = {
    "dropout", "dropout2d", "relu", "leaky_relu", "gelu", "silu", "tanh", "permute", "transpose",
    "contiguous",
    "view", "reshape", "flatten", "clone",
}  # fmt: skip
_FUNCTIONS_WITH_ZERO = frozenset(
    key
    for key in functions.RULES
    if (key if isinstance(key, str) else getattr(key, "__name__", "")).strip("_") in _NAMES_WITH_ZERO
)


@dataclass(frozen=True)
class Branch:
    """One branch, named by the first tensor that carries its scale."""

    scaled: tuple[str, ...]  # the tensors that are multiplied by the branch's scale
    addition: fx.Node | None = None  # where it joins; None inside of an encoder layer
    output: fx.Node | None = None
    trunk: fx.Node | None = None
    tail: fx.Node | None = None  # what carries the scale
    layer: str = ""  # the nn.TransformerEncoderLayer that it is in
    part: str = ""  # "attention" or "feedforward" of that
    keep: float | None = None

    @property
    def name(self) -> str:
        """Its name."""
        return self.scaled[0]


def find_branches(bare: nn.Module, keep: Mapping[str, float] | None = None) -> tuple[fx.Graph, list[Branch]]:
    """The graph of a model and its residual branches, in the order in which they are computed.

    >>> from torch import nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> [branch.scaled for branch in find_branches(layer)[1]]
    [('self_attn.out_proj.weight', 'self_attn.out_proj.bias'), ('linear2.weight', 'linear2.bias')]
    """
    graph = graph_of(bare, set())
    calls: dict[str, int] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            calls[str(node.target)] = calls.get(str(node.target), 0) + 1
    names = {id(t): name for name, t in reversed(list(bare.named_parameters()))}
    found: list[Branch] = []
    for node in graph.nodes:
        if node.op == "call_module":
            found += _of_encoders(bare, str(node.target), names)
        elif node.target in _ADDITIONS and len(node.all_input_nodes) == 2 and not node.kwargs:
            a, b = node.all_input_nodes
            if a in ancestors(b):
                found.append(_branch(bare, node, b, a, names))
            elif b in ancestors(a):
                found.append(_branch(bare, node, a, b, names))
    _no_tensor_twice(bare, found, calls)
    patterns = dict(keep or {})
    return graph, [replace(branch, keep=own_keep(branch.name, patterns)) for branch in found]


def ancestors(node: fx.Node) -> set[fx.Node]:
    """All that a node is made of."""
    found: set[fx.Node] = set()
    waiting = list(node.all_input_nodes)
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += one.all_input_nodes
    return found


def _branch(
    bare: nn.Module, addition: fx.Node, output: fx.Node, trunk: fx.Node, names: Mapping[int, str]
) -> Branch:
    node = output
    while True:
        if sum(1 for user in node.users if user.users or user.op == "output") > 1:
            raise ArgumentError(
                f"the end of a residual branch, {_where(bare, node)}, is used elsewhere too: it cannot be "
                f"dropped"
            )
        scaled = _tail(bare, node, names)
        if scaled:
            return Branch(scaled, addition, output, trunk, node)
        if not _zero_stays(bare, node):
            raise ArgumentError(
                f"a residual branch ends in {_where(bare, node)}, which carries no scale: it should end in "
                f"a linear "
                "layer, a convolution or an affine norm"
            )
        node = node.all_input_nodes[0]


def _tail(bare: nn.Module, node: fx.Node, names: Mapping[int, str]) -> tuple[str, ...]:
    """The tensors that scale what this node computes, if there are any."""
    if node.target in _PRODUCTS:
        direct = [a for a in node.all_input_nodes if a.op == "get_attr"]
        found = [_attribute(bare, str(a.target)) for a in direct]
        return tuple(names[id(t)] for t in found if id(t) in names)[:1]
    if node.op != "call_module":
        return ()
    module = bare.get_submodule(str(node.target))
    if isinstance(module, nn.MultiheadAttention):
        return _named(names, module.out_proj.weight, module.out_proj.bias)
    ends = nn.Linear | Conv | NormBase | nn.GroupNorm | nn.LayerNorm | nn.RMSNorm
    if isinstance(module, ends) and modules.rule_for(module) is not None:
        return _named(names, getattr(module, "weight", None), getattr(module, "bias", None))
    return ()


def _zero_stays(bare: nn.Module, node: fx.Node) -> bool:
    if node.target in _PRODUCTS or node.target in _QUOTIENTS:  # 0.1 * f(x), f(x) / 2
        numbers = [isinstance(a, int | float) for a in node.args]
        return numbers == [False, True] or (numbers == [True, False] and node.target in _PRODUCTS)
    if node.op == "call_module":
        return modules.kind(bare.get_submodule(str(node.target))) in _ZERO_STAYS
    if node.target is operator.getitem:
        return node.all_input_nodes[0].op == "call_module"
    return node.op in ("call_function", "call_method") and node.target in _FUNCTIONS_WITH_ZERO


def _of_encoders(bare: nn.Module, name: str, names: Mapping[int, str]) -> list[Branch]:
    """The branches inside of encoder layers, which are not looked into."""
    module = bare.get_submodule(name)
    inside: list[tuple[str, nn.TransformerEncoderLayer]] = []
    if isinstance(module, nn.TransformerEncoderLayer):
        inside = [(name, module)]
    elif isinstance(module, nn.TransformerEncoder):
        prefix = f"{name}." if name else ""
        inside = [(f"{prefix}layers.{i}", layer) for i, layer in enumerate(module.layers)]
    found = []
    for own, layer in inside:
        out, last = layer.self_attn.out_proj, layer.linear2
        found.append(Branch(_named(names, out.weight, out.bias), layer=own, part="attention"))
        found.append(Branch(_named(names, last.weight, last.bias), layer=own, part="feedforward"))
    return found


def _no_tensor_twice(bare: nn.Module, found: list[Branch], calls: Mapping[str, int]) -> None:
    """A weight at the end of a branch must not be used anywhere else: its scale would go there too."""
    uses: dict[int, int] = {}
    for name, module in bare.named_modules(remove_duplicate=True):
        for p in module._parameters.values():
            if p is not None:
                uses[id(p)] = uses.get(id(p), 0) + max(1, calls.get(name, 1))
    parameters = dict(bare.named_parameters())
    seen: set[str] = set()
    for branch in found:
        for name in branch.scaled:
            if name in seen or uses[id(parameters[name])] > 1:
                raise ArgumentError(
                    f"the parameter {name!r} ends a residual branch and is used in another place too, "
                    f"where its scale "
                    "would act as well"
                )
            seen.add(name)


def _named(names: Mapping[int, str], *tensors: Any) -> tuple[str, ...]:
    return tuple(names[id(t)] for t in tensors if isinstance(t, Tensor))


def _attribute(bare: nn.Module, target: str) -> Any:
    found: Any = bare
    for part in target.split("."):
        found = getattr(found, part)
    return found


def _where(bare: nn.Module, node: fx.Node) -> str:
    if node.op == "call_module":
        return modules.named(str(node.target), bare.get_submodule(str(node.target)))
    return f"{getattr(node.target, '__name__', node.target)}()"
