"""Where the sparsified weights enter: calls of modules.

While a module of the model is being called in training mode, the places where it and its
children look up their weights hold y = v + S(x - v) instead of the parameter; after the call, however
it ends, they hold the parameter again. y is a function of the parameter in autograd's graph, so
gradients become S'g wherever and whenever the graph is used: there is nothing to undo after the
forward pass, and between calls the model is the plain model in every respect (`state_dict`,
`copy.deepcopy`, `torch.save`, optimizers, exports).

Every module that has sketched weights, or slices, below it is watched, not just the root. So parts of the
model that are called by themselves are sparsified too, and so are the forward passes that activation
checkpointing repeats during backward(): they find the same y as the first time, or are refused.

The calls are intercepted in the slot that `nn.Module.compile` uses, which `__call__` consults and which is
left out when a module is copied or pickled: copies of the model are plain models. `torch.compile` around
the model would bypass the slot, or trace the draw into a constant, and is refused.

In the explicit form, inside ``with sk.sample(step)``, the parameters themselves hold y, and compiled models
work. Their memory is exchanged for that of y (x is never overwritten), and hooks turn each gradient that
arrives into S'g. The context has to cover backward(); what would go wrong silently is refused:

- `state_dict()` inside gives x, `copy.deepcopy` and pickling inside raise;
- backward() outside of the context, of a forward pass inside, raises;
- `optimizer.step()` inside, or any other change in place, raises: it would be lost.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from mast.errors import MastError
from mast.nn.slices import ModuleSizes, SlicedModel, Slices
from mast.nn.tensors.sparsified import (
    CachedWeight,
    SparsifiedWeights,
    adjoint,
    changed_since,
    in_backward,
)
from mast.nn.tensors.torch_private import compiler_callback, tree_leaves
from mast.nn.tensors.weights import Hook, Place, WatchedModel, Weight, find
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


# What a forward pass of the model computed with: a key, its slices, and the versions of what was sliced.
Pass = tuple[Key, SlicedModel | None, list[int]]


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
        self._last: Pass | None = None
        places = find(sk.model, sk.weights)
        sliced = set() if self.slices is None else self.slices.modules
        calls = {
            module: Call(module, own, self)
            for module in sk.model.modules()
            if (own := [place for below in module.modules() for place in places.get(below, ())])
            or not sliced.isdisjoint(module.modules())
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

    def refuse_late(self) -> None:
        """An error for a forward pass that is repeated with x, but was made with the y of a member."""
        if not torch.compiler.is_compiling() and in_backward():
            self.values.refuse_other_draws()

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
                self.values.begin_pass()
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
        again = in_backward() and self._last is not None and self._last[1] is not None
        if call.module is self.model or again:
            return self.slices.of(self.sk.draw())
        return None

    def _note(self, sliced: SlicedModel | None, held: list[Any]) -> None:
        """Remember this pass, and compare it with the one that it repeats, or that shares its draw."""
        versions = [t._version for t in held if isinstance(t, nn.Parameter)] if sliced is not None else []
        now, last = (self.values.drawn, sliced, versions), self._last
        if last is not None and sliced is not None and last[1] is not None and now != last:
            if in_backward():
                raise MastError(changed_since("the model"))
            if self.values.drawn == last[0]:
                self.values.changed_in.add(self.values.forward_pass)
        if not in_backward() and (sliced is not None or last is None or now[0] != last[0]):
            self._last = now  # what is recomputed is most often the whole model's, not that of a part

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
        active = calls.active
        if not active:
            calls.refuse_late()
        if not active or calls.nested():
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


# ---- the explicit form -----------------------------------------------------------------------------


@contextmanager
def sampled(watched: WatchedModel, values: SparsifiedWeights, key: Key) -> Iterator[None]:
    """With the parameters holding the y of a key, and their gradients multiplied by S'."""
    watched.check("sk.sample() cannot be used inside another, or")
    values.forward_pass += 1
    y = [values.current(number, key) for number in range(len(values.weights))]
    watched.sampling = watched.used = True
    try:
        with _exchanged(watched.model, values.weights, y):
            yield
    except BaseException:
        values.forget_all()
        raise
    finally:
        watched.sampling = False
        values.forget()


@contextmanager
def _exchanged(model: nn.Module, weights: Sequence[Weight], y: Sequence[CachedWeight]) -> Iterator[None]:
    parameters = [w.parameter for w in weights]
    originals, sparsified = [p.data for p in parameters], [each.numbers for each in y]
    hooks, closed = ExitStack(), False

    def hold(memory: list[Tensor], *_: Any) -> None:
        for p, tensor in zip(parameters, memory, strict=True):
            p.data = tensor

    def notice_late(g: Tensor) -> None:
        if closed:
            raise MastError("backward() of a forward pass inside sk.sample() must be called inside it too")

    def watch_backward(module: nn.Module, args: Any, output: Any) -> None:
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                leaf.register_hook(notice_late)  # type: ignore[no-untyped-call]

    try:
        hold(sparsified)
        for p, each in zip(parameters, y, strict=True):
            increment_version(p)  # autograd then refuses graphs of x inside the context
            if p.requires_grad:
                hooks.enter_context(p.register_hook(partial(adjoint, each.kept)))  # type: ignore[no-untyped-call]
        to_x, to_y = (_Uncopyable(partial(hold, memory)) for memory in (originals, sparsified))
        for module in model.modules():  # state_dict() gives x
            hooks.enter_context(module.register_state_dict_pre_hook(to_x))  # type: ignore[no-untyped-call]
            hooks.enter_context(module.register_state_dict_post_hook(to_y))  # type: ignore[no-untyped-call]
        hooks.enter_context(model.register_forward_hook(_Uncopyable(watch_backward)))
        torch.clear_autocast_cache()
        versions = [p._version for p in parameters]
        yield
        for w, p, version in zip(weights, parameters, versions, strict=True):
            if p._version != version:
                raise MastError(
                    f"the parameter {w.name!r} was changed inside sk.sample(): it holds sparsified weights "
                    "there, and the change is lost. Change parameters (optimizer.step()) after the context"
                )
    finally:
        closed = True
        hooks.close()
        hold(originals)
        for p in parameters:
            increment_version(p)  # and graphs of y outside of it
        torch.clear_autocast_cache()


class _Uncopyable(Hook):
    """A hook in a model inside sk.sample(), whose copy would hold sparsified weights as if they were x."""

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise MastError(
            "the model cannot be copied or pickled inside sk.sample(), where it holds sparsified weights: "
            "do it outside, or use sk.submodel()"
        )

    def __reduce__(self) -> NoReturn:
        self.__deepcopy__(None)
