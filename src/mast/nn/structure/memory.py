"""Which operations of a graph write to what they are given, and which results share memory with it."""

from __future__ import annotations

import operator
from typing import Any

from torch import fx, nn

from mast.nn.structure import functions, modules

_WRITING = (operator.iadd, operator.isub, operator.imul, operator.itruediv)
_VIEWS = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.Flatten)
# Functions whose results are always new; dropout gives its input back in eval mode.
_MAKING = frozenset(key for key in functions.ENTRYWISE if "dropout" not in str(getattr(key, "__name__", key)))


def in_place(bare: nn.Module, node: fx.Node) -> bool:
    """Whether a node writes to what it is given."""
    if node.op == "call_module":
        return bool(getattr(bare.get_submodule(str(node.target)), "inplace", False))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    written = node.target in _WRITING or (name.endswith("_") and not name.endswith("__"))
    return written or "out" in node.kwargs or any(v is True for v in _options(node))


def _options(node: fx.Node) -> list[Any]:
    """Arguments that may say inplace=True: as names, or by their place."""
    return [*node.kwargs.values(), *node.args[1:]]


def same_memory(bare: nn.Module, node: fx.Node) -> set[fx.Node]:
    """What may share memory with the inputs of a node."""
    found: set[fx.Node] = set()
    waiting = list(node.all_input_nodes)
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        found.add(one)
        module = one.op == "call_module" and modules.kind(bare.get_submodule(str(one.target)))
        views = module in _VIEWS if module else one.target not in _MAKING
        if views or in_place(bare, one):
            waiting += one.all_input_nodes
    return found
