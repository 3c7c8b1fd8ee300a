"""A model made from a description: a plain module that runs a list of calls to named functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from mast.errors import ArgumentError, DataError
from mast.nn.portable_functions import FUNCTIONS, METHODS, call_method
from mast.nn.portable_modules import build
from mast.nn.portable_values import NAME, decode, fill, uses


def program_of(said: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    """The model of a description: a module of torch.nn, or a `Program`. Modules have no values yet."""
    return Program(said, tensors) if said["type"] == "graph" else build(said)


class Program(nn.Module):
    """Runs the calls of a model file. Its modules and tensors have the names they had in the original."""

    def __init__(self, said: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.mast_description = dict(said)
        self.mast_inputs: list[str] = [_name(n) for n in said["inputs"]]
        for path, module in said["modules"].items():
            holder, name = self._holder(path)
            holder.add_module(name, build(module))
        self.mast_own = set(said["tensors"])
        for path in [*self.mast_own, *(n for n in tensors if n not in self.mast_own and not self._has(n))]:
            self.mast_own.add(path)
            self._place(path, tensors[path])
        count = len(self.mast_inputs)
        self.mast_calls: list[tuple[str, str, Any, dict[str, Any], tuple[int, ...]]] = []
        for number, call in enumerate(said["calls"]):
            self.mast_calls.append((*self._checked(call, count + number), ()))
        self.mast_output = decode(said["output"], count + len(self.mast_calls))
        self._free_early(count)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """What the original computes in eval mode."""
        results = self._inputs(inputs, named)
        for op, target, args, kwargs, unneeded in self.mast_calls:
            args, kwargs = fill(args, results), fill(kwargs, results)
            if op == "module":
                result = self.get_submodule(target)(*args, **kwargs)
            elif op == "function":
                result = FUNCTIONS[target](*args, **kwargs)
            elif op == "method":
                result = call_method(target, *args, **kwargs)
            else:
                result = find(self, target)
            results.append(result)
            del result, args, kwargs
            for number in unneeded:
                results[number] = None
        return fill(self.mast_output, results)

    def _inputs(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        names = self.mast_inputs
        rest = names[len(inputs) :]
        if len(inputs) > len(names) or set(named) != set(rest):
            raise ArgumentError(
                f"the model takes {', '.join(names) or 'no inputs'}; it was given {len(inputs)} by place"
                + (f" and {', '.join(map(repr, named))} by name" if named else "")
            )
        return [*inputs, *(named[name] for name in rest)]

    def _checked(self, call: Mapping[str, Any], results: int) -> tuple[str, str, Any, dict[str, Any]]:
        op, target = call["op"], call["target"]
        known = {
            "module": self.mast_description["modules"],
            "function": FUNCTIONS,
            "method": METHODS,
            "tensor": self.mast_own,
        }
        if target not in known.get(op, ()):
            raise DataError(f"the file calls the {op} {target!r}, which files may not call")
        args = decode({"tuple": call.get("args", [])}, results)
        kwargs = decode({"dict": call.get("kwargs", {})}, results)
        return op, target, args, kwargs

    def _free_early(self, count: int) -> None:
        """Note with each call the results that nobody needs after it."""
        last = {number: count + len(self.mast_calls) for number in uses(self.mast_output)}
        for number in range(len(self.mast_calls) - 1, -1, -1):
            op, target, args, kwargs, _ = self.mast_calls[number]
            needed = uses(args) | uses(kwargs)
            done = tuple(sorted(n for n in needed if n not in last))
            last |= dict.fromkeys(done, number)
            if count + number not in last:
                done += (count + number,)
            self.mast_calls[number] = (op, target, args, kwargs, done)

    # ---- names ---------------------------------------------------------------------------

    def _holder(self, path: str) -> tuple[nn.Module, str]:
        """The module that holds what has this path, made if it is not there, and the last name."""
        *owners, name = path.split(".")
        holder: nn.Module = self
        for owner in owners:
            _name(owner)
            if owner not in holder._modules:
                holder.add_module(owner, nn.Module())
            inner = holder._modules[owner]
            if inner is None or type(inner) is not nn.Module:
                raise DataError(f"{path!r} lies inside a module that has no room for it")
            holder = inner
        return holder, _name(name)

    def _place(self, path: str, tensor: Tensor) -> None:
        holder, name = self._holder(path)
        if hasattr(holder, name):
            raise DataError(f"{path!r} is the name of something else")
        if isinstance(tensor, nn.Parameter):
            holder.register_parameter(name, tensor)
        else:
            holder.register_buffer(name, tensor)

    def _has(self, path: str) -> bool:
        """Whether a module of the file has a tensor of this name."""
        owner, _, name = path.rpartition(".")
        try:
            holder = self.get_submodule(owner)
        except AttributeError:
            return False
        return name in holder._parameters or name in holder._buffers


def find(model: nn.Module, path: str) -> Tensor:
    """The tensor with this path."""
    owner, _, name = path.rpartition(".")
    tensor = getattr(model.get_submodule(owner), name)
    if not isinstance(tensor, Tensor):
        raise ArgumentError(f"{path!r} is no tensor, so a model file cannot hold it")
    return tensor


def _name(name: Any) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name) or name.startswith("mast_"):
        raise DataError(f"{name!r} is no name that a file may use")
    return name
