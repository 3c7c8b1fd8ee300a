"""Where the sparsified weights enter: calls of modules.

While a module of the model is being called in training mode, the places where it and its
children look up their weights hold y = v + S(x - v) instead of the parameter; after the call, however
it ends, they hold the parameter again. y is a function of the parameter in autograd's graph, so
gradients become S'g wherever and whenever the graph is used: there is nothing to undo after the
forward pass, and between calls the model is the plain model in every respect (`state_dict`,
`copy.deepcopy`, `torch.save`, optimizers, exports).

Every module that has sketched weights below it is watched, not just the root. So parts of the model that
are called by themselves are sparsified too, and so are the forward passes that activation
checkpointing repeats during backward(): they find the same y as the first time.

The calls are intercepted in the slot that `nn.Module.compile` uses, which `__call__` consults and which is
left out when a module is copied or pickled: copies of the model are plain models. `torch.compile` around
the model would bypass the slot, or trace the draw into a constant, and is refused; in the explicit form
(`sk.sample`), where parameters themselves hold y, it works.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from mast.errors import ArgumentError, MastError
from mast.nn.passes.slices import ModuleSizes, SlicedModel, Slices
from mast.nn.passes.values import SparsifiedWeights, changed_since
from mast.nn.tensors.torch_private import FSDP_MARK, compiler_is_waiting, in_backward
from mast.nn.tensors.weights import AGAIN, Place, Weight, find
from mast.randomness import Key

_COMPILED = (
    "torch.compile around a model in the plain sparsified loop is refused: the compiled graph would miss the "
    "draws. Call forward and backward inside `with sk.sample(step):`, where compiled models work, or train "
    "without torch.compile and compile the finished model"
)


def _being_compiled() -> bool:
    """Whether torch.compile is tracing this call, or would trace the next function that is called.

    Written into an `if` of its caller, the compiler would follow both halves of the condition.
    """
    return torch.compiler.is_compiling() or compiler_is_waiting()


# Of x within one draw, after which a loop without a torch optimizer is suspected: a step of SAM makes one,
# and central differences make two.
_MANY_CHANGES = 3


class LastPass(NamedTuple):
    """What the last forward pass of the model computed with."""

    key: Key
    sliced: SlicedModel | None
    versions: list[int]  # of the parameters that were sliced


class Calls:
    """Intercepts the calls of a model's modules."""

    def __init__(self, owner: Any, values: SparsifiedWeights, on_changes: Callable[[], None]) -> None:
        self.owner = owner  # the Sparsifier
        self.model: nn.Module = owner.model
        self.weights: list[Weight] = owner.weights
        self.values = values
        self.on_changes = on_changes  # called when x has changed again and again under one draw
        self.threads: set[int] = set()  # that are in a call of this model
        self.busy = False  # whether there are any
        self.sampling = False  # the explicit form is in use
        self.member: Any = None  # of a list, which is used in eval mode too
        self.used = False  # a forward pass has begun since the draw last advanced
        self.count = 0  # of forward passes
        self.watched: list[Call] = []
        self.guard: RemovableHandle | None = None
        self._turn = threading.Condition()
        self._replaced: tuple[list[Place], list[Any]] = ([], [])  # places that hold y, and what they held
        names = [w.name for w in self.weights]
        self._slices = None if owner.unit_map is None else Slices(self.model, owner.unit_map, names)
        self._sliced: SlicedModel | None = None  # the slices that the places hold, if it is slices
        self._sizes: ModuleSizes = []  # of modules, before they were told those of the slices
        self._last: LastPass | None = None
        self._homes = _homes(self.model)
        self._children = [(m._modules, dict(m._modules)) for m in self.model.modules()]
        self._parameters = [weakref.ref(w.parameter) for w in self.weights]  # as they were at first

    @property
    def inside(self) -> bool:
        """Whether a call is under way in any thread, or the explicit form is in use."""
        return self.sampling or self.busy

    @property
    def active(self) -> bool:
        """Whether forward passes compute with y: in training mode, and wherever a member was asked for."""
        return self.model.training or self.member is not None

    def refuse_inside(self, what: str) -> None:
        """An error that begins with these words, if a call is under way or the explicit form is in use."""
        if self.inside:
            raise MastError(f"{what} inside a forward pass or sk.sample(), where weights are sparsified")

    def nested(self) -> bool:
        """Whether this thread is in a call already, or the explicit form is in use."""
        if torch.compiler.is_compiling():  # which cannot ask for the thread
            return self.inside
        return self.sampling or threading.get_ident() in self.threads

    def watch(self) -> None:
        """Start."""
        for name, module in self.model.named_modules():
            if module._compiled_call_impl is not None:
                what = f"the module {name!r}" if name else "the model"
                raise ArgumentError(
                    f"{what} is compiled or already sparsified: call remove() on its sparsifier first; "
                    "sparsified training does not support torch.compile"
                )
        all_places = find(self.model, self.weights)
        for module in self.model.modules():
            places = [place for below in module.modules() for place in all_places.get(below, ())]
            if places:
                self.watched.append(Call(module, places, self))
        for call in self.watched:
            call.module._compiled_call_impl = call
        self.guard = self.model.register_forward_pre_hook(Hook(self._refuse_bypass))

    def _refuse_bypass(self, module: nn.Module, args: Any) -> None:
        """An error for a training call that comes around `Call`."""
        if self.active and not self.nested():
            raise MastError(_COMPILED)

    def unwatch(self) -> None:
        """Stop, and leave no trace."""
        for call in self.watched:
            if call.module._compiled_call_impl is call:
                del call.module._compiled_call_impl
        self.watched = []
        if self.guard is not None:
            self.guard.remove()

    def check(self) -> None:
        """An error if calls of the model no longer come here, or parameters are in other modules now."""
        for call in self.watched:
            if call.module._compiled_call_impl is not call:
                raise MastError(
                    f"the {type(call.module).__name__} that was sparsified has been compiled since "
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

    def enter(self, call: Call) -> None:
        """Put y into the places of a call. Threads that call the model at the same time share it."""
        with self._turn:
            sliced = self._slices_for(call)
            places = call.places if sliced is None else sliced.places
            self._turn.wait_for(lambda: not self.threads or self._hold(places))
            if not self.threads:
                if not self.used:
                    self.check()
                self.values.forward_pass += 1
                held = [place.get() for place in places]
                if sliced is not None and not sliced.fits(held):
                    sliced, places, held = None, call.places, [place.get() for place in call.places]
                self._replaced, self._sliced = (places, held), sliced
                self._note(sliced, held)
            now = torch.is_grad_enabled()
            y = self._values_of(*self._replaced)
            if now and len(self.values.changed_in) >= _MANY_CHANGES:
                self.on_changes()
            if not self.threads or now:  # what was put without a graph serves no thread that needs one
                for place, value in zip(self._replaced[0], y, strict=True):
                    place.put(value)
            if not self.threads and self._sliced is not None:
                self._sizes = self._sliced.shrink()
            self.threads.add(threading.get_ident())
            self.busy = True
            self.used = True
            self.count += 1

    def _slices_for(self, call: Call) -> SlicedModel | None:
        """What the whole model computes with, and a part of it that is computed again during backward()."""
        if self._slices is None or self.values.shift is not None:
            return None
        again = in_backward() and self._last is not None and self._last.sliced is not None
        if call.module is self.model or again:
            return self._slices.of(self.owner.draw())
        return None

    def _note(self, sliced: SlicedModel | None, held: list[Any]) -> None:
        """Remember this pass, and compare it with the one that it repeats, or that shares its draw."""
        versions = [t._version for t in held if isinstance(t, nn.Parameter)] if sliced is not None else []
        now, last = LastPass(self.owner.drawn, sliced, versions), self._last
        if last is not None and sliced is not None and last.sliced is not None and now != last:
            if in_backward():
                raise MastError(changed_since("the model"))
            if now.key == last.key:
                self.values.changed_in.add(self.values.forward_pass)
        if not in_backward():
            self._last = now

    def _values_of(self, places: list[Place], held: list[Any]) -> list[Any]:
        def masked(number: int, tensor: Any) -> Any:
            return self.values.of(number, tensor, self.owner.drawn)

        if self._sliced is not None:
            return self._sliced.values(held, masked)
        return [masked(place.number, tensor) for place, tensor in zip(places, held, strict=True)]

    def _hold(self, places: list[Place]) -> bool:
        """Whether all these places hold y already."""
        return {id(place) for place in places} <= {id(place) for place in self._replaced[0]}

    def leave(self) -> None:
        """Put back what the places held, when the last thread is done."""
        with self._turn:
            self.threads.discard(threading.get_ident())
            if not self.threads:
                self.busy = False
                for place, tensor in zip(*self._replaced, strict=True):
                    place.put(tensor)
                for attributes, name, size in self._sizes:
                    attributes[name] = size
                self._replaced, self._sliced, self._sizes = ([], []), None, []
                self._turn.notify_all()


class Call:
    """The call of one module."""

    def __init__(self, module: nn.Module, places: list[Place], calls: Calls) -> None:
        self.module = module
        self.places = places
        self.calls = calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the module does it, with y in its places if the model is in training mode."""
        calls = self.calls
        if not calls.active or calls.nested():
            return self.module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        if _being_compiled():
            raise MastError(_COMPILED)
        calls.enter(self)
        try:
            return self.module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        finally:
            calls.leave()

    # Recurrent layers, and other modules with a __getstate__ of their own, do copy the slot: as empty.

    def __deepcopy__(self, memo: Any) -> None:
        """Nothing."""

    def __reduce__(self) -> Any:
        return type(None), ()


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
