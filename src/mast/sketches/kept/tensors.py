"""What is kept of each tensor of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mast.errors import ArgumentError
from mast.sketches.kept.base import Kept


class KeptTensors(Mapping[str, Kept]):
    """What a draw keeps of each tensor of a model, by name. Its values lie one after the other.

    >>> from mast.sketches.kept import Entries, Everything
    >>> draw = KeptTensors({"weight": Entries([6], np.array([1, 4]), 3.0), "bias": Everything([2])})
    >>> x = {"weight": np.arange(6.0), "bias": np.ones(2)}
    >>> draw.gather(x, np.empty(draw.count))
    array([1., 4., 1., 1.])
    """

    def __init__(self, kept: Mapping[str, Kept]) -> None:
        self._kept = dict(kept)
        counts = [kept.count for kept in self._kept.values()]
        stops = np.cumsum([0, *counts], dtype=np.int64).tolist()
        #: where the values of each tensor lie among all
        self.slices = {
            name: slice(a, b) for name, a, b in zip(self._kept, stops[:-1], stops[1:], strict=True)
        }
        self.count: int = stops[-1]  #: of all values

    def __getitem__(self, name: str) -> Kept:
        return self._kept[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, values: Any, name: str) -> Any:
        """The values of one tensor, in their shape."""
        return values[self.slices[name]].reshape(self._kept[name].kept_shape)

    def gather(self, tensors: Mapping[str, Any], out: Any) -> Any:
        """The kept entries of all tensors, one tensor after the other."""
        for name, kept in self._kept.items():
            kept.gather(tensors[name], out[self.slices[name]])
        return out

    def place(self, tensors: Mapping[str, Any], values: Any) -> None:
        """``x[kept] = values`` in every tensor."""
        for name, kept in self._kept.items():
            kept.place(tensors[name], values[self.slices[name]])

    def add(self, tensors: Mapping[str, Any], values: Any, factor: float = 1.0) -> None:
        """``x[kept] += factor * values`` in every tensor; nothing else is touched."""
        for name, kept in self._kept.items():
            kept.add(tensors[name], values[self.slices[name]], factor)

    def scale(self, values: Any) -> None:
        """The values of every tensor are multiplied by their scales, in place."""
        for name, kept in self._kept.items():
            kept.scale(values[self.slices[name]])

    def check(self, values: Any) -> None:
        """Refuse values that are not the kept entries, one after the other."""
        contiguous = values.flags.c_contiguous if isinstance(values, np.ndarray) else values.is_contiguous()
        if len(values.shape) != 1 or len(values) != self.count or not contiguous:
            raise ArgumentError(
                f"this draw keeps {self.count} values in one contiguous dimension, got shape "
                f"{tuple(values.shape)}"
            )
