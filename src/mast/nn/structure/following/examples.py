"""Examples of a model's input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mast.errors import ArgumentError


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
