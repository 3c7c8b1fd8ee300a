"""Where the sparsified weights enter: calls of modules; inside sk.sample(), the parameters themselves.

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

import inspect
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.utils.hooks import RemovableHandle

from mast.errors import ArgumentError, MastError
from mast.nn.tensors.scaling import adjoint
from mast.nn.tensors.torch_private import FSDP_MARK, compiler_is_waiting, tree_leaves
from mast.nn.tensors.weights import Place, Weight, find
from mast.nn.values import Made, Values
from mast.randomness import Key
from mast.sketches.kept import Kept

_COMPILED = (
    "torch.compile around a model in the plain sparsified loop is refused: the compiled graph would miss the "
    "draws. Call forward and backward inside `with sk.sample(step):`, where compiled models work, or train "
    "without torch.compile and compile the finished model"
)


def _being_compiled() -> bool:
    """Whether torch.compile is tracing this call, or would trace the next function that is called."""
    return torch.compiler.is_compiling() or compiler_is_waiting()


# Of x within one draw, after which a loop without a torch optimizer is suspected: a step of SAM makes one,
# and central differences make two.
_MANY_CHANGES = 3


class Calls:
    """Intercepts the calls of a model's modules."""

    def __init__(
        self, owner: Any, model: nn.Module, weights: list[Weight], values: Values, key: Callable[[], Key]
    ) -> None:
        self.owner = owner  # the Sparsifier
        self.model = model
        self.weights = weights
        self.values = values
        self.key = key
        self.threads: set[int] = set()  # that are in a call of this model
        self.busy = False  # whether there are any
        self.sampling = False  # the explicit form is in use
        self.used = False  # a forward pass has begun since the draw last advanced
        self.count = 0  # of forward passes
        self.watched: list[tuple[nn.Module, Call]] = []
        self.guard: RemovableHandle | None = None
        self._turn = threading.Condition()
        self._replaced: tuple[list[Place], list[Any]] = ([], [])  # places that hold y, and what they held
        self._tree = _Tree(model)
        self._parameters = [weakref.ref(w.parameter) for w in weights]  # as they were at first

    @property
    def inside(self) -> bool:
        """Whether a call is under way in any thread, or the explicit form is in use."""
        return self.sampling or self.busy

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
                self.watched.append((module, Call(module, places, self)))
        for module, call in self.watched:
            module._compiled_call_impl = call
        self.guard = self.model.register_forward_pre_hook(_BypassGuard(self))

    def unwatch(self) -> None:
        """Stop, and leave no trace."""
        for module, call in self.watched:
            if module._compiled_call_impl is call:
                del module._compiled_call_impl
        self.watched = []
        if self.guard is not None:
            self.guard.remove()

    def check(self) -> None:
        """An error if calls of the model no longer come here, or parameters are in other modules now."""
        for module, call in self.watched:
            if module._compiled_call_impl is not call:
                raise MastError(
                    f"the {type(module).__name__} that was sparsified has been compiled since "
                    "(Module.compile), which disconnects it: train it without torch.compile, and compile "
                    "the finished model or submodel"
                )
        self._tree.check()
        if any(getattr(p(), FSDP_MARK, False) for p in self._parameters):
            raise MastError(
                "the model was wrapped in FullyShardedDataParallel after sparsify(): forward passes compute "
                "with flattened pieces of the weights, which no draw reaches. Use DistributedDataParallel, "
                "whose processes hold whole weights"
            )

    def enter(self, call: Call) -> None:
        """Put y into the places of a call. Threads that call the model at the same time share it."""
        with self._turn:
            self._turn.wait_for(lambda: not self.threads or call.among(self._replaced[0]))
            if not self.threads:
                if not self.used:
                    self.check()
                self.values.begin_pass()
                places = call.places
                self._replaced = (places, [place.get() for place in places])
            key, now = self.key(), torch.is_grad_enabled()
            y = [
                self.values.of(place.number, tensor, key)
                for place, tensor in zip(*self._replaced, strict=True)
            ]
            if now and self.values.changes >= _MANY_CHANGES:
                self.owner._notice_changes()
            if not self.threads or now:  # what was put without a graph serves no thread that needs one
                for place, value in zip(self._replaced[0], y, strict=True):
                    place.put(value)
            self.threads.add(threading.get_ident())
            self.busy = True
            self.used = True
            self.count += 1

    def leave(self) -> None:
        """Put back what the places held, when the last thread is done."""
        with self._turn:
            self.threads.discard(threading.get_ident())
            if not self.threads:
                self.busy = False
                for place, tensor in zip(*self._replaced, strict=True):
                    place.put(tensor)
                self._replaced = ([], [])
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
        if not calls.model.training or calls.nested():
            return self.module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        if _being_compiled():
            raise MastError(_COMPILED)
        calls.enter(self)
        try:
            return self.module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        finally:
            calls.leave()

    def among(self, places: list[Place]) -> bool:
        """Whether all places of this call are among others."""
        return {id(place) for place in self.places} <= {id(place) for place in places}

    # Recurrent layers, and other modules with a __getstate__ of their own, do copy the slot: as empty.

    def __deepcopy__(self, memo: Any) -> None:
        """Nothing."""

    def __reduce__(self) -> Any:
        return type(None), ()


class _Tree:
    """Which modules and parameters a model has, so that later changes of its structure are noticed."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._homes = self._find_homes()
        self._remember()

    def _remember(self) -> None:
        self._children = [(m._modules, dict(m._modules)) for m in self._model.modules()]

    def _find_homes(self) -> dict[str, int]:
        """The module, by identity, that has a parameter of this name; parts may be compiled."""
        return {
            f"{prefix}.{name}".removeprefix(".").replace("_orig_mod.", ""): id(module)
            for prefix, module in self._model.named_modules()
            for name, p in module._parameters.items()
            if p is not None
        }

    def check(self) -> None:
        """An error if a parameter is new, or has moved; other modules without parameters are fine."""
        if all(now == then for now, then in self._children):
            return
        homes = self._find_homes()
        for name in [*homes, *self._homes]:
            if homes.get(name) != self._homes.get(name):
                known, there = name in self._homes, name in homes
                raise MastError(
                    f"the module of the parameter {name!r} was "
                    f"{'replaced' if known and there else 'removed' if known else 'added'} after sparsify(), "
                    "which knows nothing of it: call sk.remove() first, change the model, then call "
                    "sparsify() again"
                )
        self._remember()


class _BypassGuard:
    """A hook that refuses training calls which come around `Call`; in a copy of the model it is inert."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    def __call__(self, module: nn.Module, args: Any) -> None:
        if self.calls.model.training and not self.calls.nested():
            raise MastError(_COMPILED)

    def __deepcopy__(self, memo: Any) -> Any:
        # It takes anything, does nothing, and needs nothing but the standard library.
        return nullcontext().__exit__

    def __reduce__(self) -> Any:
        return getattr, (nullcontext(), "__exit__")


# ---- the explicit form -------------------------------------------------------------------------
#
# Inside ``with sk.sample(step)`` the parameters themselves hold y. Their memory is exchanged for that of y
# (x is never overwritten), and hooks turn each gradient that arrives into S'g. The context has to cover
# backward(); what would go wrong silently is refused:
#
# - `state_dict()` inside gives x, `copy.deepcopy` and pickling inside raise;
# - backward() outside of the context, of a forward pass inside, raises;
# - `optimizer.step()` inside, or any other change in place, raises: it would be lost.


@contextmanager
def sampled(model: nn.Module, weights: list[Weight], made: list[Made]) -> Iterator[None]:
    """With the parameters holding y, and their gradients multiplied by S'."""
    parameters = [w.parameter for w in weights]
    originals = [p.data for p in parameters]
    handles: list[RemovableHandle] = []
    open_context = [True]
    try:
        for p, m in zip(parameters, made, strict=True):
            p.data = m.numbers
            increment_version(p)  # autograd then refuses graphs of x inside the context
            if p.requires_grad:
                handles.append(p.register_hook(_adjoint(m.kept)))  # type: ignore[no-untyped-call]
        to_x, to_y = _Exchange(parameters, originals), _Exchange(parameters, [m.numbers for m in made])
        for module in model.modules():
            handles.append(module.register_state_dict_pre_hook(to_x))  # type: ignore[no-untyped-call]
            handles.append(module.register_state_dict_post_hook(to_y))  # type: ignore[no-untyped-call]
        handles.append(model.register_forward_hook(_OutputGuard(open_context)))
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
        open_context[0] = False
        for handle in handles:
            handle.remove()
        for p, x in zip(parameters, originals, strict=True):
            p.data = x
            increment_version(p)  # and graphs of y outside of it
        torch.clear_autocast_cache()


def _adjoint(kept: Kept) -> Any:
    return lambda g: adjoint(kept, g)


class _Uncopyable:
    """Part of a model inside sk.sample(), whose copy would hold sparsified weights as if they were x."""

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise MastError(
            "the model cannot be copied or pickled inside sk.sample(), where it holds sparsified weights: "
            "do it outside, or use sk.submodel()"
        )

    def __reduce__(self) -> NoReturn:
        self.__deepcopy__(None)


class _Exchange(_Uncopyable):
    """A hook around `state_dict()` that gives the parameters other memory: x while it is made, then y."""

    def __init__(self, parameters: list[Tensor], memory: list[Tensor]) -> None:
        self.parameters, self.memory = parameters, memory

    def __call__(self, *_: Any) -> None:
        for p, tensor in zip(self.parameters, self.memory, strict=True):
            p.data = tensor


class _OutputGuard(_Uncopyable):
    """Marks what the model returns, so that a backward pass after the context is noticed."""

    def __init__(self, open_context: list[bool]) -> None:
        self.open_context = open_context

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                leaf.register_hook(self.check)  # type: ignore[no-untyped-call]

    def check(self, g: Tensor) -> None:
        """Called when a gradient arrives."""
        if not self.open_context[0]:
            raise MastError("backward() of a forward pass inside sk.sample() must be called inside it too")


# ---- activation checkpointing ----------------------------------------------------------------
#
# A checkpointed function is run again during backward(). Modules that it calls find the same y as before,
# because every call of a module is watched. A parameter that the function reads by itself (``self.weight``)
# is x by then: the gradient would be wrong without a sign of it, so modules that might do this are named
# in a warning.


def uses_checkpoints(module: nn.Module) -> bool:
    """Whether the module's own code, or a flag it carries, speaks of checkpoints."""
    return bool(getattr(module, "gradient_checkpointing", False)) or _in_source(type(module))


def reads_itself(module: nn.Module, sketched: set[int]) -> bool:
    """Whether the module owns a sketched parameter, which its code may read inside a checkpoint."""
    return any(id(p) in sketched for p in module._parameters.values() if p is not None)


def warn_of_checkpoints(model: nn.Module, sketched: set[int]) -> None:
    """One warning for each module whose checkpoints may read sketched parameters themselves."""
    for name, module in model.named_modules():
        if reads_itself(module, sketched) and _in_source(type(module)):
            warnings.warn(
                f"{name or 'the model'} ({type(module).__name__}) uses activation checkpointing and owns "
                "sketched parameters. If the checkpointed function reads them itself (self.weight), its "
                "recomputation sees x instead of y: let it call a module, leave them out with keep= or "
                "where=, or train with sk.sample(step)",
                stacklevel=4,
            )


def _in_source(kind: type[nn.Module]) -> bool:
    if kind.__module__.startswith(("torch.", "transformers.")):
        return False
    try:
        return "checkpoint(" in inspect.getsource(kind)
    except (OSError, TypeError):
        return False
