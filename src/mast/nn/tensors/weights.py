"""Sketched parameters: every place where a model looks them up, and whether it is still the same model."""

from __future__ import annotations

import copy
import hashlib
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from mast.errors import ArgumentError, MastError
from mast.nn.tensors.torch_private import FSDP_MARK, tree_leaves
from mast.support.checks import Array

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


def deep_copy(model: nn.Module, memo: Mapping[int, Any] | None = None) -> nn.Module:
    """A copy. What a forward pass has left in modules, which torch does not copy, is there without its graph.

    >>> layer = nn.Linear(3, 2)
    >>> layer.seen = layer(torch.ones(3))
    >>> deep_copy(layer).seen.equal(layer.seen)
    True
    """
    leaves = (leaf for module in model.modules() for leaf in tree_leaves(vars(module)))
    left = {id(t): t.detach().clone() for t in leaves if isinstance(t, Tensor) and not t.is_leaf}
    return copy.deepcopy(model, left | dict(memo or {}))


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


class WatchedModel:
    """A sparsified model: whether it is in use, and whether it is still the one that was sparsified."""

    def __init__(self, model: nn.Module, weights: Sequence[Weight]) -> None:
        self.model, self.weights = model, weights
        self.busy = False  # a forward pass is under way, in any thread
        self.sampling = False  # the explicit form is in use
        self.used = False  # a forward pass has begun since the draw last advanced
        self._calls: Mapping[nn.Module, Any] = {}
        self._warned: set[str] = set()
        self._homes = _homes(model)
        self._children = [(m._modules, dict(m._modules)) for m in model.modules()]
        self._parameters = [weakref.ref(w.parameter) for w in weights]  # as they were at first

    @property
    def inside(self) -> bool:
        """Whether a call is under way in any thread, or the explicit form is in use."""
        return self.sampling or self.busy

    def refuse_inside(self, what: str) -> None:
        """An error that begins with these words, if a call is under way or the explicit form is in use."""
        if self.inside:
            raise MastError(f"{what} inside a forward pass or sk.sample(), where weights are sparsified")

    def refuse_removed(self, what: str) -> None:
        """An error that begins with these words, if the model was given back by `release`."""
        if not self._calls:
            raise MastError(f"{what} after sk.remove(), when the model is a plain one: call sparsify() again")

    def intercept(self, calls: Mapping[nn.Module, Any], guard: Callable[..., None]) -> None:
        """Let these be called instead of their modules, and the guard before each forward pass."""
        for name, module in self.model.named_modules():
            if module._compiled_call_impl is not None:
                what = f"the module {name!r}" if name else "the model"
                raise ArgumentError(
                    f"{what} is compiled or already sparsified: call remove() on its sparsifier first; "
                    "sparsified training does not support torch.compile"
                )
        self._calls = calls
        for module, call in calls.items():
            module._compiled_call_impl = call
        self._guard = self.model.register_forward_pre_hook(Hook(guard))

    def release(self) -> None:
        """Leave no trace in the model."""
        for module, call in self._calls.items():
            if module._compiled_call_impl is call:
                del module._compiled_call_impl
        self._calls = {}
        self._guard.remove()

    def plain_copy(self) -> nn.Module:
        """A copy of the model with the weights x and no trace of `sparsify`."""
        model = deep_copy(self.model)
        model._forward_pre_hooks.pop(self._guard.id, None)
        return model

    def check(self, what: str = "") -> None:
        """An error if the model was changed since; and, for `what`, if it is in use."""
        if what:
            self.refuse_inside(what)
        for module, call in self._calls.items():
            if module._compiled_call_impl is not call:
                raise MastError(
                    f"the {type(module).__name__} that was sparsified has been compiled since "
                    "(Module.compile), which disconnects it: train it without torch.compile, and compile "
                    "the finished model or submodel"
                )
        if any(now != then for now, then in self._children):
            self._check_tree()
        if any(getattr(p(), FSDP_MARK, False) for p in self._parameters):
            raise MastError(
                "the model was wrapped in FullyShardedDataParallel after sparsify(): forward passes compute "
                "with flattened pieces of the weights, which no draw reaches. Use DistributedDataParallel, "
                "whose processes hold whole weights"
            )
        for w in self.weights:
            w.check(w.parameter)

    def _check_tree(self) -> None:
        """An error if a parameter is new, or has moved; other modules without parameters are fine."""
        before, now = self._homes, _homes(self.model)
        for name in [*now, *before]:
            if now.get(name) != before.get(name):
                what = "added" if name not in before else "replaced" if name in now else "removed"
                raise MastError(
                    f"the module of the parameter {name!r} was {what} after sparsify(), which knows nothing "
                    f"of it: {AGAIN}"
                )
        self._children = [(m._modules, dict(m._modules)) for m in self.model.modules()]

    def warn_once(self, message: str) -> None:
        """A warning, the first time."""
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, stacklevel=4)


def _homes(model: nn.Module) -> dict[str, int]:
    """The module, by identity, that has a parameter of this name; parts may be compiled."""
    return {
        f"{prefix}.{name}".removeprefix(".").replace("_orig_mod.", ""): id(module)
        for prefix, module in model.named_modules()
        for name, p in module._parameters.items()
        if p is not None
    }


class Hook:
    """A hook of a module that does nothing in a copy of the model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        """What the function does."""
        return self.function(*args)

    def __deepcopy__(self, memo: Any) -> Any:
        # It takes anything, does nothing, and needs nothing but the standard library.
        return nullcontext().__exit__

    def __reduce__(self) -> Any:
        return getattr, (nullcontext(), "__exit__")


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
