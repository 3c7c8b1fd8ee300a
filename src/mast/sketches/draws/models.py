"""What a draw keeps of a model: of each of its tensors, or of each of its groups of units."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from mast.errors import ArgumentError
from mast.randomness import Key
from mast.sketches.draws.forms import Draw

D = TypeVar("D", bound=Draw)


class ModelDraw(dict[str, D], Generic[D]):
    """A draw by name, and the key that it was drawn with. The values of all lie one after the other.

    >>> from mast.sketches.draws import DiagonalDraw, FullDraw
    >>> draw = ModelDraw({"weight": DiagonalDraw([6], np.array([1, 4]), 3.0), "bias": FullDraw([2])})
    >>> x = {"weight": np.arange(6.0), "bias": np.ones(2)}
    >>> draw, draw.gather(x, np.empty(draw.count))
    (<draw: weight: 2 of 6, bias: 2 of 2>, array([1., 4., 1., 1.]))
    """

    def __init__(self, draws: Mapping[str, D], key: Key | None = None) -> None:
        super().__init__(draws)
        self.key = Key() if key is None else key

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where the values of each tensor lie among all."""
        stops = np.cumsum([0, *(draw.count for draw in self.values())], dtype=np.int64).tolist()
        return {name: slice(a, b) for name, a, b in zip(self, stops[:-1], stops[1:], strict=True)}

    @cached_property
    def count(self) -> int:
        """How many values there are."""
        return max((part.stop for part in self.slices.values()), default=0)

    @property
    def shares(self) -> dict[str, float]:
        """The share that is kept, by name."""
        return {name: draw.count / draw.dim for name, draw in self.items()}

    def of(self, values: Any, name: str) -> Any:
        """The values of one tensor, in their shape."""
        return values[self.slices[name]].reshape(self[name].kept_shape)

    def gather(self, tensors: Mapping[str, Any], out: Any) -> Any:
        """The kept entries of all tensors, one tensor after the other."""
        for name, draw in self.items():
            draw.gather(tensors[name], out[self.slices[name]])
        return out

    def place(self, tensors: Mapping[str, Any], values: Any) -> None:
        """``x[kept] = values`` in every tensor."""
        for name, draw in self.items():
            draw.place(tensors[name], values[self.slices[name]])

    def add(self, tensors: Mapping[str, Any], values: Any, factor: float = 1.0) -> None:
        """``x[kept] += factor * values`` in every tensor; nothing else is touched."""
        for name, draw in self.items():
            draw.add(tensors[name], values[self.slices[name]], factor)

    def scale(self, values: Any) -> None:
        """The values of every tensor are multiplied by their scales, in place."""
        for name, draw in self.items():
            draw.scale(values[self.slices[name]])

    def check(self, values: Any) -> None:
        """Refuse values that are not the kept entries, one after the other."""
        contiguous = values.flags.c_contiguous if isinstance(values, np.ndarray) else values.is_contiguous()
        if len(values.shape) != 1 or len(values) != self.count or not contiguous:
            raise ArgumentError(
                f"this draw keeps {self.count} values in one contiguous dimension, got shape "
                f"{tuple(values.shape)}"
            )

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}: {draw.count} of {draw.dim}" for name, draw in self.items())
        return f"<draw: {parts}>"
