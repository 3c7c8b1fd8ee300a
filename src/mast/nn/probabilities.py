"""`keep_probabilities`: which weights of a network to keep how often, from its inputs and their sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mast.allocation import allocate
from mast.errors import ArgumentError
from mast.nn.batches import run_batches
from mast.nn.costs import evaluated
from mast.nn.tensors.selection import choose
from mast.nn.tensors.torch_private import Conv
from mast.nn.tensors.weights import Where, unwrapped
from mast.nn.validation import sparsifier_of


def keep_probabilities(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    budget: float = 0.2,
    floor: float = 0.02,
    where: Where | None = None,
) -> dict[str, Tensor]:
    """Keep probabilities for every entry of the sketched weights: p = clip(c |W_ij - V_ij| |X_j|, floor, 1).

    |X_j| is the norm of input j over the batches; for a linear layer and squared loss the score is the square
    root of the curvature times the weight. Every weight gets the budget for itself. Modules other than linear
    and convolutional ones have |X_j| = 1.

    Parameters
    ----------
    model
        As it is, or sparsified; then its shift is V.
    batches
        Inputs, or pairs of inputs and targets; inputs are tensors, tuples of arguments, or dicts of keywords.
    budget, floor
        The mean of the probabilities of a weight, and the least of them.
    where
        Which parameters, as in `sparsify`.

    >>> import mast, torch
    >>> model = torch.nn.Linear(3, 1)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 2.0, 1.0]]))
    >>> mast.nn.keep_probabilities(model, [torch.tensor([[1.0, 1.0, 4.0]])], budget=0.35)["weight"]
    tensor([[0.1500, 0.3000, 0.6000]])
    """
    model = unwrapped(model)
    sk = sparsifier_of(model)
    weights = choose(model, where, {}).weights if sk is None else sk.weights
    shift = None if sk is None else sk.shift
    with _input_squares(model) as squares, evaluated(model):
        if not run_batches(model, batches):
            raise ArgumentError("keep_probabilities needs at least one batch")
    result = {}
    for w in weights:
        x = w.parameter.detach()
        score = (x if shift is None else x - shift[w.name].to(x)).abs().double().cpu()
        owner, _, kind = w.name.rpartition(".")
        if owner in squares and kind == "weight":
            score *= _along(model.get_submodule(owner), squares[owner].cpu().sqrt())
        if not bool(score.isfinite().all()):
            raise ArgumentError(f"{w.name!r}, or what it is given in the batches, holds NaN or infinity")
        p = allocate(score.reshape(-1).numpy(), budget, floor)
        result[w.name] = torch.from_numpy(p.reshape(x.shape)).to(x.device, torch.get_default_dtype())
    return result


@contextmanager
def _input_squares(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """The sum of squares of every input of linear and convolutional modules, by their names."""
    squares: dict[str, Tensor] = {}

    def see(name: str, module: Any, inputs: tuple[Any, ...]) -> None:
        x = inputs[0].detach().double()
        if not isinstance(module, nn.Linear):
            x = (x if x.dim() == module.weight.dim() else x[None]).movedim(1, -1)
        squares[name] = squares.get(name, 0) + x.flatten(0, -2).square().sum(0)

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear | Conv):
                stack.enter_context(module.register_forward_pre_hook(partial(see, name)))
        yield squares


def _along(module: Any, size: Tensor) -> Tensor:
    """The sizes of the inputs in a shape that fits the weight."""
    if isinstance(module, nn.Linear):
        return size
    spatial = [1] * (module.weight.dim() - 2)
    if module.transposed:
        return size.reshape(-1, 1, *spatial)
    outputs = module.out_channels // module.groups  # those of a group see its inputs only
    each = size.reshape(module.groups, -1).repeat_interleave(outputs, 0)
    return each.reshape(module.out_channels, -1, *spatial)
