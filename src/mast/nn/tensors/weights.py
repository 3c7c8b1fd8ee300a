"""Sketched parameters: every place where a model looks them up, their numbers in keys, and their shift v."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from mast.errors import ArgumentError, MastError
from mast.support.arrays import Array

_DEEP = 3  # how many dicts and lists may lie around a parameter
#: what to do about a model that was changed under its sparsifier
AGAIN = "call sk.remove() first, change the model, then call sparsify() again"

#: what `where` may be: a pattern, patterns, or a function of a parameter's name and the parameter
Where = str | Sequence[str] | Callable[[str, nn.Parameter], bool]
#: what `calibrate` may be: batches; False, if there is nothing to say about their absence
Calibration = Iterable[Any] | Literal[False] | None
#: what a parameter's keep may be: one probability, or one for each entry
Keep = float | Array | Tensor
#: what a shift may be: nothing, "init", a model with the same parameters, or tensors by name
Shift = None | str | nn.Module | Mapping[str, Tensor]


@dataclass
class Place:
    """One place where a module finds a parameter: an attribute, or an entry of dicts and lists below one."""

    attributes: dict[str, Any]  # of the module
    path: tuple[Any, ...]  # the attribute's name, then keys
    number: int  # of the weight

    def get(self) -> Any:
        """What stands there now."""
        try:
            return self._container()[self.path[-1]]
        except (KeyError, IndexError):
            raise MastError(
                f"the sketched parameter {self.path[-1]!r} is no longer where it was when sparsify() was "
                f"called: its module was pruned, parametrized or sharded since; {AGAIN}"
            ) from None

    def put(self, value: Any) -> None:
        """Replace it."""
        self._container()[self.path[-1]] = value

    def _container(self) -> Any:
        container: Any = self.attributes
        for key in self.path[:-1]:
            container = container[key]
        return container


@dataclass
class Weight:
    """One sketched parameter."""

    name: str
    shape: torch.Size
    place: Place  # where its owner keeps it
    keep: float | Array | None = None  # its own keep probability, or one for each entry, if it has any

    @property
    def parameter(self) -> Tensor:
        """The parameter, looked up, because models may be given new ones."""
        return cast(Tensor, self.place.get())

    def check(self, tensor: Tensor) -> None:
        """An error if what stands for it now has another shape."""
        if tensor.shape != self.shape:
            raise MastError(
                f"the parameter {self.name!r} had the shape {tuple(self.shape)} when sparsify() was called "
                f"and has {tuple(tensor.shape)} now: {AGAIN}"
            )

    @cached_property
    def count(self) -> int:
        """How many coordinates it has."""
        return self.shape.numel()

    @cached_property
    def index(self) -> int:
        """The number that stands for its name in the key of a draw."""
        return name_index(self.name)


def name_index(name: str) -> int:
    """32 bits that stand for a parameter's name: part of the layout of draws.

    >>> name_index("fc.weight")
    4033983789
    """
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside of DistributedDataParallel; an error for what cannot be sparsified."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"the first argument must be an nn.Module, got {type(model).__name__}")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return unwrapped(model.module)
    if isinstance(model, nn.DataParallel):
        raise ArgumentError(
            "nn.DataParallel copies the model in every forward pass: use DistributedDataParallel"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise ArgumentError("a TorchScript module cannot be sparsified: pass the original nn.Module")
    for module in model.modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            raise ArgumentError(
                "FSDP shards parameters, so no process holds a whole weight to sketch: use "
                "DistributedDataParallel"
            )
        if type(module).__name__ == "OptimizedModule":
            raise ArgumentError("the model is compiled: sparsify the original; training then runs uncompiled")
    return model


def find(model: nn.Module, weights: Sequence[Weight]) -> dict[nn.Module, list[Place]]:
    """Every place that holds one of the weights, registered or in a plain attribute, by the module it is in.

    Recurrent layers keep a list of their parameters beside the registered ones, and so do some
    models; a tuple cannot be replaced, and is refused.
    """
    number = {id(w.parameter): i for i, w in enumerate(weights)}
    places: dict[nn.Module, list[Place]] = {}
    for owner_name, owner in model.named_modules():
        for name, value in vars(owner).items():
            if name in ("_modules", "_buffers", "_compiled_call_impl"):
                continue
            for path, p, replaceable in _inside((name,), value):
                if id(p) not in number:
                    continue
                if not replaceable:
                    raise ArgumentError(
                        f"the module {owner_name or 'at the root'!r} also keeps the parameter "
                        f"{weights[number[id(p)]].name!r} in its attribute {name!r}, in a tuple, where it "
                        "cannot be replaced: make that a list or an nn.ParameterList"
                    )
                places.setdefault(owner, []).append(Place(vars(owner), path, number[id(p)]))
    return places


def _inside(
    path: tuple[Any, ...], value: Any, replaceable: bool = True
) -> Iterator[tuple[tuple[Any, ...], Tensor, bool]]:
    """The tensors in an attribute, through dicts, lists and tuples, and whether each can be replaced."""
    if isinstance(value, Tensor):
        yield path, value, replaceable
    elif len(path) <= _DEEP and isinstance(value, dict | list | tuple):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in entries:
            if isinstance(item, Tensor | dict | list | tuple):
                yield from _inside((*path, key), item, not isinstance(value, tuple))


def registered(model: nn.Module) -> Iterator[tuple[Place, nn.Parameter]]:
    """Each parameter once, where it is registered first."""
    seen: set[int] = set()
    for module in model.modules():
        for name, p in module._parameters.items():
            if p is not None and id(p) not in seen:
                seen.add(id(p))
                yield Place(vars(module), ("_parameters", name), -1), p


def refuse_sharded(name: str, p: Tensor) -> None:
    """An error for a parameter of which this process holds a part only."""
    if hasattr(p, "device_mesh"):
        raise ArgumentError(
            f"the parameter {name!r} is a sharded DTensor (FSDP or tensor parallelism): each process holds "
            "a part of it, so a draw of the whole weight cannot be applied. Use DistributedDataParallel, "
            "whose processes hold whole weights"
        )


_SHIFT = 'shift is None, "init", a model, or a mapping from names to tensors'


def shifts_of(weights: Sequence[Weight], shift: Shift) -> dict[str, Tensor] | None:
    """v by name, checked, in copies that are where the weights are."""
    if shift is None:
        return None
    if isinstance(shift, str):
        if shift != "init":
            raise ArgumentError(f"{_SHIFT}, got {shift!r}")
        return {w.name: w.parameter.detach().clone() for w in weights}
    tensors = unwrapped(shift).state_dict() if isinstance(shift, nn.Module) else shift
    if not isinstance(tensors, Mapping):
        raise ArgumentError(f"{_SHIFT}, got {type(shift).__name__}")
    shifts = {}
    for w in weights:
        v = tensors.get(w.name)
        if not isinstance(v, Tensor):
            raise ArgumentError(f"the shift has no tensor for the sketched parameter {w.name!r}")
        if v.shape != w.shape:
            raise ArgumentError(
                f"the shift of {w.name!r} has shape {tuple(v.shape)}, the parameter {tuple(w.shape)}"
            )
        if not torch.isfinite(v).all():
            raise ArgumentError(f"the shift of {w.name!r} holds NaN or infinity")
        shifts[w.name] = v.detach().to(w.parameter, copy=True)
    return shifts
