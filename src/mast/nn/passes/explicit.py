"""The explicit form: `sk.sample(step)`.

Inside ``with sk.sample(step)`` the parameters themselves hold y. Their memory is exchanged for that of y
(x is never overwritten), and hooks turn each gradient that arrives into S'g. The context has to cover
backward(); what would go wrong silently is refused:

- `state_dict()` inside gives x, `copy.deepcopy` and pickling inside raise;
- backward() outside of the context, of a forward pass inside, raises;
- `optimizer.step()` inside, or any other change in place, raises: it would be lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from mast.errors import MastError
from mast.nn.tensors.sparsified import SparsifiedWeight, SparsifiedWeights, adjoint
from mast.nn.tensors.torch_private import tree_leaves
from mast.nn.tensors.weights import Hook, WatchedModel, Weight
from mast.randomness import Key


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
def _exchanged(model: nn.Module, weights: Sequence[Weight], y: Sequence[SparsifiedWeight]) -> Iterator[None]:
    parameters = [w.parameter for w in weights]
    originals, sparsified = [p.data for p in parameters], [each.numbers for each in y]
    hooks, closed = ExitStack(), False

    def hold(memory: list[Tensor], *_: Any) -> None:
        for p, tensor in zip(parameters, memory, strict=True):
            p.data = tensor

    def notice_late(g: Tensor) -> None:
        if closed:
            raise MastError("backward() of a forward pass inside sk.sample() must be called inside it too")

    def mark(module: nn.Module, args: Any, output: Any) -> None:
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
        hooks.enter_context(model.register_forward_hook(_Uncopyable(mark)))
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
