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
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from mast.errors import MastError
from mast.nn.passes.slices import ModuleSizes, SlicedModel, Slices
from mast.nn.tensors.sparsified import changed_since, in_backward
from mast.nn.tensors.torch_private import compiler_callback
from mast.nn.tensors.weights import Place, find
from mast.randomness import Key

if TYPE_CHECKING:
    from mast.nn.sparsifier import Sparsifier

_COMPILED = (
    "torch.compile around a model in the plain sparsified loop is refused: the compiled graph would miss the "
    "draws. Call forward and backward inside `with sk.sample(step):`, where compiled models work, or train "
    "without torch.compile and compile the finished model"
)


def _being_compiled() -> bool:
    """Whether torch.compile is tracing this call, or would trace the next function that is called.

    Written into an `if` of its caller, the compiler would follow both halves of the condition.
    """
    return torch.compiler.is_compiling() or callable(compiler_callback())


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

    def __init__(self, sk: Sparsifier) -> None:
        self.sk = sk  # alive as long as the model is, whose calls come here
        self.model, self.watched, self.values = sk.model, sk.watched, sk.values
        self.threads: set[int] = set()  # that are in a call of this model
        self.count = 0  # of forward passes
        self._turn = threading.Condition()
        self._replaced: tuple[list[Place], list[Any]] = ([], [])  # places that hold y, and what they held
        names = [w.name for w in sk.weights]
        self.slices = None if sk.unit_map is None else Slices(sk.model, sk.unit_map, names)
        self._sliced: SlicedModel | None = None  # the slices that the places hold, if it is slices
        self._sizes: ModuleSizes = []  # of modules, before they were told those of the slices
        self._last: LastPass | None = None
        places = find(sk.model, sk.weights)
        calls = {
            module: Call(module, own, self)
            for module in sk.model.modules()
            if (own := [place for below in module.modules() for place in places.get(below, ())])
        }
        sk.watched.intercept(calls, self._refuse_bypass)

    def _refuse_bypass(self, module: nn.Module, args: Any) -> None:
        """An error for a training call that comes around `Call`."""
        if self.active and not self.nested():
            raise MastError(_COMPILED)

    @property
    def active(self) -> bool:
        """Whether forward passes compute with y: in training mode, and wherever a member was asked for."""
        return self.model.training or self.values.member is not None

    def nested(self) -> bool:
        """Whether this thread is in a call already, or the explicit form is in use."""
        if torch.compiler.is_compiling():  # which cannot ask for the thread
            return self.watched.inside
        return self.watched.sampling or threading.get_ident() in self.threads

    def enter(self, call: Call) -> None:
        """Put y into the places of a call. Threads that call the model at the same time share it."""
        with self._turn:
            sliced = self._slices_for(call)
            places = call.places if sliced is None else sliced.places
            self._turn.wait_for(lambda: not self.threads or self._hold(places))
            if not self.threads:
                if not self.watched.used:
                    self.watched.check()
                self.values.forward_pass += 1
                held = [place.get() for place in places]
                if sliced is not None and not sliced.fits(held):
                    sliced, places, held = None, call.places, [place.get() for place in call.places]
                self._replaced, self._sliced = (places, held), sliced
                self._note(sliced, held)
            now = torch.is_grad_enabled()
            y = self._values_of(*self._replaced)
            if now and len(self.values.changed_in) >= _MANY_CHANGES:
                self.sk.optimizer_steps.notice_changes()
            if not self.threads or now:  # what was put without a graph serves no thread that needs one
                for place, value in zip(self._replaced[0], y, strict=True):
                    place.put(value)
            if not self.threads and self._sliced is not None:
                self._sizes = self._sliced.shrink()
            self.threads.add(threading.get_ident())
            self.watched.busy = self.watched.used = True
            self.count += 1

    def _slices_for(self, call: Call) -> SlicedModel | None:
        """What the whole model computes with, and a part of it that is computed again during backward()."""
        if self.slices is None or self.values.shift is not None:
            return None
        again = in_backward() and self._last is not None and self._last.sliced is not None
        if call.module is self.model or again:
            return self.slices.of(self.sk.draw())
        return None

    def _note(self, sliced: SlicedModel | None, held: list[Any]) -> None:
        """Remember this pass, and compare it with the one that it repeats, or that shares its draw."""
        versions = [t._version for t in held if isinstance(t, nn.Parameter)] if sliced is not None else []
        now, last = LastPass(self.values.drawn, sliced, versions), self._last
        if last is not None and sliced is not None and last.sliced is not None and now != last:
            if in_backward():
                raise MastError(changed_since("the model"))
            if now.key == last.key:
                self.values.changed_in.add(self.values.forward_pass)
        if not in_backward():
            self._last = now

    def _values_of(self, places: list[Place], held: list[Any]) -> list[Any]:
        if self._sliced is not None:
            return self._sliced.values(held, self.values.of)
        return [self.values.of(place.number, tensor) for place, tensor in zip(places, held, strict=True)]

    def _hold(self, places: list[Place]) -> bool:
        """Whether all these places hold y already."""
        return {id(place) for place in places} <= {id(place) for place in self._replaced[0]}

    def leave(self) -> None:
        """Put back what the places held, when the last thread is done."""
        with self._turn:
            self.threads.discard(threading.get_ident())
            if not self.threads:
                self.watched.busy = False
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
        return None

    def __reduce__(self) -> Any:
        return type(None), ()
