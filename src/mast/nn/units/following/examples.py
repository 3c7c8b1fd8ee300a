"""Examples of a model's input: those of a user, or guessed from the model's layers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mast.errors import ArgumentError
from mast.nn.tensors.torch_private import Conv, same_numbers_after
from mast.nn.units.resizing import with_values
from mast.randomness import Key, normal

BATCH, LENGTH = 3, 7
SIZES = (16, 32, 28, 8, 64, 96, 128, 224, 299)  # of images and series, the usual ones first


@dataclass(frozen=True)
class Example:
    """Arguments that a model can be called with.

    >>> import torch
    >>> Example.of(torch.ones(2, 3)).call(torch.nn.Linear(3, 4)).shape
    torch.Size([2, 4])
    """

    args: tuple[Any, ...]
    options: Mapping[str, Any]

    @classmethod
    def of(cls, batch: Any) -> Example:
        """From a tensor, a tuple or list of arguments, or keyword arguments in a mapping."""
        if isinstance(batch, Example):
            return batch
        if isinstance(batch, Tensor):
            return cls((batch,), {})
        if isinstance(batch, Mapping):
            return cls((), dict(batch))
        if isinstance(batch, tuple | list):
            return cls(tuple(batch), {})
        raise ArgumentError(
            "example must be what the model is called with: a tensor, a tuple of arguments, or a dict of "
            f"keyword arguments; got {type(batch).__name__}"
        )

    def call(self, model: Callable[..., Any]) -> Any:
        """What the model makes of it."""
        return model(*self.args, **self.options)

    def to(self, like: nn.Module, dtype: torch.dtype | None = None) -> Example:
        """On the device of a model; floating-point tensors in another type."""
        first = next(like.parameters(), None)
        device = None if first is None else first.device

        def moved(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.to(device=device, dtype=dtype if value.is_floating_point() else None)
            if isinstance(value, Mapping):
                return {key: moved(v) for key, v in value.items()}
            return type(value)(moved(v) for v in value) if type(value) in (list, tuple) else value

        return Example(moved(self.args), moved(dict(self.options)))


def first_line(error: Exception) -> str:
    """What an error of a user's model says, in one line."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def tensors_in(output: Any) -> Iterator[Tensor]:
    """The tensors of a model's output: in tuples, lists and mappings (ModelOutput is one), not in caches."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping | list | tuple):
        for value in output.values() if isinstance(output, Mapping) else output:
            yield from tensors_in(value)


def guess(model: nn.Module) -> list[Example]:
    """Examples that an MLP or a network for images of a usual size can be run on.

    The linear and convolutional layers say what the model may take; shapes are tried on a copy of it until
    one runs. A model that takes rows and sequences is followed with both, so that its submodels are right
    for both.

    >>> [tuple(example.args[0].shape) for example in guess(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()))]
    [(3, 1, 16, 16)]
    >>> [tuple(example.args[0].shape) for example in guess(nn.Linear(5, 2))]
    [(3, 5), (3, 7, 5)]
    """
    trial = copy.deepcopy(with_values(model))  # what it does leaves no trace in the model
    like = next((p for p in trial.parameters() if p.is_floating_point()), torch.empty(0))
    problem = "it has no linear or convolutional layer"
    for shapes in dict.fromkeys(_shapes(model)):
        found = []
        for shape in shapes:
            numbers = normal(Key(0, index=len(shape)), 0, math.prod(shape))  # always the same ones
            example = Example((torch.from_numpy(numbers).view(shape).to(like),), {})
            try:
                with torch.no_grad(), same_numbers_after():
                    for training in (True, False):
                        example.call(trial.train(training))
                found.append(example)
            except Exception as error:  # whatever a model does with an input that does not suit it
                problem = f"the last of those that were tried, {shape}, failed: {first_line(error)}"
        if found:
            return found
    raise ArgumentError(
        f"no input that the model ({type(model).__name__}) can be run on could be guessed from its layers "
        f"({problem}): pass example=, a batch as the model is called with"
    )


def _shapes(model: nn.Module) -> Iterator[tuple[tuple[int, ...], ...]]:
    """What the layers of a model take: rows and sequences of features, images of one size after the other."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            yield (BATCH, module.in_features), (BATCH, LENGTH, module.in_features)
        elif isinstance(module, Conv):
            dimensions = len(module.kernel_size)
            for size in SIZES if dimensions < 3 else SIZES[:4]:
                yield ((BATCH, module.in_channels, *[size] * dimensions),)
