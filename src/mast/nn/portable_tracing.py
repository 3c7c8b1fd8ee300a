"""A model's forward pass as a list of calls: which modules and functions, in which order, on what."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import fx, nn

from mast.errors import ArgumentError
from mast.nn.portable_functions import ATTRIBUTES, FACTORIES, METHODS, name_of
from mast.nn.portable_modules import describe
from mast.nn.portable_program import Program
from mast.nn.portable_values import NAME, encode


def described(model: nn.Module) -> dict[str, Any]:
    """A model as JSON: a listed module, or its calls. What cannot be written is refused by name."""
    if isinstance(model, Program):  # it came from a file
        return model.mast_description
    for name, module in model.named_modules():
        _refuse_hidden(name, module)
    whole = describe(model, type(model).__name__)
    return whole if whole is not None else _graph(model)


def _refuse_hidden(name: str, module: nn.Module) -> None:
    """What changes a module's result and is not in its forward."""
    what = None
    if module._forward_hooks or module._forward_pre_hooks:
        what = "has forward hooks: remove them"
    elif nn.utils.parametrize.is_parametrized(module):
        what = "has parametrized weights: call torch.nn.utils.parametrize.remove_parametrizations first"
    elif not all(NAME.fullmatch(atom) for atom in name.split(".") if name):
        what = "has a name that is not made of letters, digits and underscores"
    if what:
        raise ArgumentError(
            f"the module {name or 'at the root'!r} ({type(module).__name__}) cannot be written to "
            f"a file, because it {what}"
        )


class _Tracer(fx.Tracer):
    """Stops at modules that files can name; arguments of forward that have defaults keep them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(autowrap_modules=(math,), autowrap_functions=FACTORIES)
        self._autowrap_search = [*self._autowrap_search, torch]
        # Before tracing: while it goes on, attributes of modules are stand-ins.
        self.leaves = {name: describe(m, name) for name, m in model.named_modules() if name}

    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        """Whether files can name it."""
        return self.leaves.get(qualified_name) is not None

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
        """A placeholder for each argument that has to be given."""
        parameters = list(inspect.signature(root_fn).parameters.values())[1:]
        args: list[Any] = [self.root]
        for p in parameters:
            if p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty:
                raise ArgumentError(
                    f"forward() of {type(self.root).__name__} takes {p}, and a model file needs "
                    "arguments with a name and a place"
                )
            if p.default is p.empty:
                args.append(self.create_proxy("placeholder", p.name, (), {}))
        return root_fn, args


def _graph(model: nn.Module) -> dict[str, Any]:
    tracer = _Tracer(model)
    try:
        graph = tracer.trace(model)
    except ArgumentError:
        raise
    except Exception as error:  # whatever the user's code says to a stand-in for a tensor
        where = _where(tracer, type(model).__name__)
        raise ArgumentError(
            f"the forward pass of {where} cannot be written to a file: it does not take the same way for all "
            f"inputs, or uses what torch.fx cannot follow ({_first_line(error)})"
        ) from error
    return _calls(graph, tracer, type(model).__name__)


def _calls(graph: fx.Graph, tracer: _Tracer, name: str) -> dict[str, Any]:
    numbers: dict[fx.Node, int] = {}
    inputs: list[str] = []
    calls: list[dict[str, Any]] = []
    output: Any = None
    tensors: list[str] = []
    for node in graph.nodes:
        if node.op == "output":
            output = _encoded(node, node.args[0], numbers, name)
            continue
        if node.op == "placeholder":
            inputs.append(str(node.target))
        else:
            calls.append(_call(node, numbers, name))
            tensors += [str(node.target)] * (node.op == "get_attr")
        numbers[node] = len(numbers)
    used = {str(node.target) for node in graph.nodes if node.op == "call_module"}
    return {
        "type": "graph",
        "inputs": inputs,
        "calls": calls,
        "output": output,
        "modules": {path: said for path, said in tracer.leaves.items() if path in used},
        "tensors": sorted(set(tensors)),
    }


def _call(node: fx.Node, numbers: dict[fx.Node, int], name: str) -> dict[str, Any]:
    said: dict[str, Any] = {"target": str(node.target)}
    if node.op == "call_function":
        known = name_of(node.target)
        if known is None:
            what = getattr(node.target, "__name__", repr(node.target))
            raise ArgumentError(
                f"{_owner(node, name)} calls the function {what}, which a model file cannot name"
            )
        if known == "attribute" and node.args[1] not in ATTRIBUTES:
            raise ArgumentError(
                f"{_owner(node, name)} reads the attribute {node.args[1]!r}, which a model file cannot name"
            )
        said = {"op": "function", "target": known}
    elif node.op == "call_method":
        if node.target not in METHODS:
            raise ArgumentError(
                f"{_owner(node, name)} calls the method {node.target}, which a model file cannot name"
            )
        said["op"] = "method"
    elif node.op == "get_attr":
        return said | {"op": "tensor"}
    else:
        said["op"] = "module"
    said["args"] = [_encoded(node, value, numbers, name) for value in node.args]
    if node.kwargs:
        said["kwargs"] = {k: _encoded(node, value, numbers, name) for k, value in node.kwargs.items()}
    return said


def _encoded(node: fx.Node, value: Any, numbers: dict[fx.Node, int], name: str) -> Any:
    try:
        return encode(value, numbers)
    except ArgumentError as error:
        raise ArgumentError(f"in {_owner(node, name)}: {error}") from None


def _owner(node: fx.Node, name: str) -> str:
    """The module in whose forward a node is, by name."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    if not stack:
        return f"the model ({name})"
    path, kind = stack[-1]
    return f"the module {path!r} ({getattr(kind, '__name__', kind)})"


def _where(tracer: fx.Tracer, name: str) -> str:
    stack = list(getattr(tracer, "module_stack", {}).values())
    return f"the module {stack[-1][0]!r} in {name}" if stack else name


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:120] or type(error).__name__
