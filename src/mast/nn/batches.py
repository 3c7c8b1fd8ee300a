"""Batches, in one form everywhere: what a model is called with, alone or in a pair with targets.

A batch is the inputs, or a pair ``(inputs, targets)``; a tuple or list of two is always the latter. Inputs
are a tensor, a tuple of positional arguments, or a dict of keyword arguments, whose ``labels`` are left out
where no loss is asked for. The output that counts is the model's tensor, or its ``.logits``, or its first
tensor of floating point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from mast.errors import ArgumentError, MastError
from mast.nn.units.dependencies.examples import Example, first_line, tensors_in

Loss = Callable[..., Tensor]
LABELS = "labels"
_BATCH = (
    "a batch is what the model is called with (a tensor, a tuple of arguments, or a dict of keyword "
    "arguments), or a pair of that and targets"
)


@dataclass(frozen=True)
class Batch:
    """One batch: the arguments of a call, and targets, if there are any.

    >>> import torch
    >>> batch = Batch.of(({"input": torch.ones(2, 3)}, torch.zeros(2)))
    >>> batch.call(nn.Linear(3, 4)).shape, batch.targets
    (torch.Size([2, 4]), tensor([0., 0.]))
    """

    inputs: Example
    targets: Any = None
    paired: bool = False  # whether there are targets

    @classmethod
    def of(cls, batch: Any) -> Batch:
        """From inputs, or from a pair of inputs and targets."""
        if isinstance(batch, Batch):
            return batch
        if isinstance(batch, tuple | list) and len(batch) == 2:
            return cls(_inputs(batch[0]), batch[1], True)
        return cls(_inputs(batch))

    def plain(self) -> Example:
        """The arguments without labels, as no loss is asked for."""
        options = {name: value for name, value in self.inputs.options.items() if name != LABELS}
        without = LABELS in self.inputs.options
        return replace(self.inputs, options=options, unlabelled=without, paired=self.paired)

    def call(self, model: nn.Module) -> Any:
        """What the model makes of the inputs, without labels, on the model's device."""
        return _called(self.plain(), model)

    def output(self, model: nn.Module) -> Tensor:
        """The tensor of the model's output that counts."""
        return output_of(self.call(model))

    def loss(self, model: nn.Module, loss: Loss | None) -> Tensor:
        """``loss(output, targets)``; without targets the labels are those, and without a loss the model's."""
        labels = self.inputs.options.get(LABELS)
        if loss is None:
            own = None if labels is None else _called(self.inputs, model)
            found = own.get("loss") if isinstance(own, Mapping) else getattr(own, "loss", None)
            if not isinstance(found, Tensor):
                raise ArgumentError(
                    "a loss is needed: pass loss=, a function of outputs and targets, with batches that are "
                    "pairs (inputs, targets), or dicts with labels for a model that returns its loss"
                )
            return _one_number(found)
        check_loss(loss)
        if not self.paired and labels is None:
            raise ArgumentError("a loss needs targets: batches have to be pairs (inputs, targets)")
        output = self.output(model)
        targets = self.targets if self.paired else labels
        targets = targets.to(output.device) if isinstance(targets, Tensor) else targets
        with _in_words("the loss of a batch cannot be computed"):
            found = loss(output, targets)
        return _one_number(found)


def check_loss(loss: Any) -> None:
    """An error for what is no loss; None stands for that of the model."""
    if loss is not None and not callable(loss):
        raise ArgumentError(f"a loss is a function of outputs and targets, got {loss!r}")


def _called(inputs: Example, model: nn.Module) -> Any:
    inputs = inputs.to(model)
    with _in_words("the model cannot be run on a batch"):
        return inputs.call(model)


@contextmanager
def _in_words(failure: str) -> Iterator[None]:
    """Whatever a user's model or loss raises, as an error that says what was tried."""
    try:
        yield
    except MastError:
        raise
    except Exception as error:
        raise ArgumentError(f"{failure}: {first_line(error)}") from error


def _one_number(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        kind = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ArgumentError(f"a loss has to return one number for the whole batch, as a tensor; got {kind}")
    if not loss.requires_grad:
        raise ArgumentError("the loss has no gradient: torch has to compute it from the model's outputs")
    return loss.reshape(())


def _inputs(inputs: Any) -> Example:
    if isinstance(inputs, PackedSequence) or not isinstance(inputs, Tensor | Mapping | tuple | list):
        if inputs is None or isinstance(inputs, str | int | float | np.ndarray):
            raise ArgumentError(f"{_BATCH}; got {type(inputs).__name__}")
        return Example((inputs,), {})  # an object of the user's own
    if isinstance(inputs, Mapping) and not all(isinstance(name, str) for name in inputs):
        raise ArgumentError(f"{_BATCH}; this dict has keys that are no names: {next(iter(inputs))!r}")
    return Example.of(inputs)


def output_of(output: Any) -> Tensor:
    """A tensor, or ``.logits``, or the first tensor of floating point in a tuple, dict or ModelOutput.

    >>> import torch
    >>> output_of((torch.tensor([1]), {"hidden": torch.ones(2)}))
    tensor([1., 1.])
    """
    if isinstance(output, Tensor):
        return output
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    found = next((t for t in tensors_in(output) if t.is_floating_point()), None)
    if found is None:
        raise ArgumentError(
            f"the model returns a {type(output).__name__} without a tensor of floating point: the output has "
            "to be a tensor, or to have .logits, or to hold such a tensor in a tuple or dict"
        )
    return found


def check_batches(what: str, batches: Any) -> Iterable[Any]:
    """The batches as they are; an error if they are no list or loader, but one batch, or none.

    ``X.split(32)`` is a tuple of batches; the pair ``(x, y)`` without a list around it is known by tensors
    that differ in type or dimensions.
    """
    one = isinstance(batches, Tensor | Mapping | str | np.ndarray) or _pair(batches)
    if one or not (hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")):
        raise ArgumentError(
            f"{what} needs batches in a list or a loader, such as [batch]; got "
            f"{'one ' if one else ''}{type(batches).__name__}"
        )
    return batches  # type: ignore[no-any-return]


def _pair(batches: Any) -> bool:
    """Whether this is surely one batch of inputs and targets."""
    if not (isinstance(batches, tuple) and len(batches) == 2):
        return False
    inputs, targets = batches
    if not isinstance(targets, Tensor):
        return False
    return not isinstance(inputs, Tensor) or (inputs.dtype, inputs.dim()) != (targets.dtype, targets.dim())


def run_batches(what: str, model: nn.Module, batches: Iterable[Any]) -> int:
    """Call the model with each batch; how many there were."""
    count = 0
    for batch in check_batches(what, batches):
        Batch.of(batch).call(model)
        count += 1
    return count


def with_first(what: str, batches: Iterable[Any] | None) -> tuple[Batch, Iterator[Batch], int]:
    """The first batch, all of them, and how many there are; each is made once."""
    batches = check_batches(what, batches)
    try:
        count = len(batches)  # type: ignore[arg-type]
    except TypeError:  # also of a loader of a stream, although it has a method for it
        batches = list(batches)
        count = len(batches)
    rest = iter(batches)
    first = next(rest, None)
    if first is None:
        raise ArgumentError(f"{what} needs at least one batch")
    example = Batch.of(first).plain()
    tensors = list(tensors_in((example.args, example.options)))
    if tensors and not any(t.numel() for t in tensors):
        raise ArgumentError(f"{what} needs batches with rows; the first one has none")
    return Batch.of(first), (Batch.of(batch) for batch in chain([first], rest)), count
