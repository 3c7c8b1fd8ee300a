"""The graph of a model: a copy without values, walked by torch.fx, its known modules as leaves."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, fx, nn

from mast.errors import ArgumentError


def skeleton(model: nn.Module) -> nn.Module:
    """A copy whose parameters and buffers have shapes but no values (they are on the meta device).

    >>> import torch
    >>> skeleton(torch.nn.Linear(3, 2)).weight.device
    device(type='meta')
    """
    memo: dict[int, Any] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise ArgumentError(
                f"the parameter {name!r} has no shape yet: run one forward pass before sparsify()"
            )
        memo[id(p)] = nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=p.requires_grad)
    for _, b in model.named_buffers(remove_duplicate=False):
        memo[id(b)] = torch.empty_like(b, device="meta")
    bare = copy.deepcopy(model, memo)
    for name, module in bare.named_modules():
        own = [t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]
        if not all(isinstance(t, Tensor) and t.is_meta for t in own):
            raise ArgumentError(
                f"the module {name or 'at the root'!r} ({type(module).__name__}) makes its tensors anew "
                f"when it "
                "is copied, so its structure cannot be found"
            )
    return bare


def refuse_hooks(model: nn.Module) -> None:
    """An error for what a forward pass does and its graph does not show."""
    for name, module in model.named_modules():
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        own = [hook for hook in hooks if not isinstance(getattr(hook, "__self__", None), nullcontext)]
        if own or "forward" in vars(module):
            what = f"the module {name!r}" if name else "the model"
            raise ArgumentError(
                f"{what} ({type(module).__name__}) has {'a hook' if own else 'a forward() of its own'}, "
                "which torch.fx does not see: pass example= to sparsify(), and the model is run instead"
            )


def trace_both_modes(model: nn.Module, is_leaf: Callable[[nn.Module, str], bool]) -> fx.Graph:
    """The graph, which has to be the same in training and in eval mode."""
    modes = {module: module.training for module in model.modules()}
    try:
        graphs = [trace(model.train(training), is_leaf) for training in (False, True)]
    finally:
        for module, training in modes.items():
            module.training = training
    if _plan(graphs[0]) != _plan(graphs[1]):
        raise ArgumentError(
            f"forward() of the model ({type(model).__name__}) does something else in training mode than in "
            "eval mode: pass example= to sparsify(), and both are followed"
        )
    return graphs[1]


def _plan(graph: fx.Graph) -> list[Any]:
    """What a graph does: operations, what they are made of, and which tensors of the model they use."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    return [
        (node.op, str(node.target).rstrip("0123456789") if _is_constant(node) else node.target,
         [place[source] for source in node.all_input_nodes])
        for node in graph.nodes
    ]  # fmt: skip


def _is_constant(node: fx.Node) -> bool:
    """Whether it is a tensor that forward() makes of numbers, which torch.fx names anew each time."""
    return node.op == "get_attr" and str(node.target).startswith("_tensor_constant")


def trace(model: nn.Module, is_leaf: Callable[[nn.Module, str], bool]) -> fx.Graph:
    """The graph of the forward pass; an error that names the module where it cannot be followed."""
    tracer = _Tracer(is_leaf)
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(model.forward).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    try:
        return tracer.trace(model, concrete_args=defaults or None)
    except ArgumentError:
        raise
    except Exception as error:  # whatever the user's forward() does with a stand-in for a tensor
        name = tracer.path[-1] if tracer.path else ""
        module = model.get_submodule(name)
        what = f"the module {name!r}" if name else "the model"
        raise ArgumentError(
            f"the structure of {what} ({type(module).__name__}) cannot be followed by torch.fx: "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__}. Its forward() depends "
            f"on the values "
            "or sizes of its inputs; sketch single weights instead, or leave it out with "
            f"keep={{'{name + '.' if name else ''}*': 1}}"
        ) from error


class _Tracer(fx.Tracer):
    """Stops at the modules that have rules, and remembers where it is."""

    def __init__(self, is_leaf: Callable[[nn.Module, str], bool]) -> None:
        super().__init__()
        self._leaf = is_leaf
        self.path: list[str] = []

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Modules with a rule, and those of torch that are no containers."""
        return self._leaf(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """As usual, with the module's name at hand if it fails."""
        self.path.append(self.path_of_module(m))
        result = super().call_module(m, forward, args, kwargs)
        self.path.pop()  # not reached by an error: the path then leads to it
        return result
