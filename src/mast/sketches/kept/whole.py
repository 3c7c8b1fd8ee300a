"""Forms that say something of every entry: all of them are kept, or those whose mask is true."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mast.arrays import Indices
from mast.sketches.kept.base import Kept, add_all


class Everything(Kept):
    """All entries are kept, times one scale or times scales that broadcast to the tensor's shape."""

    __slots__ = ("scales",)

    def __init__(self, shape: Sequence[int], scales: Any = 1.0) -> None:
        self.shape = tuple(shape)
        self.count = math.prod(self.shape)
        self.scales = scales

    @property
    def entries(self) -> Any:
        """All."""
        return ...

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """That of the tensor."""
        return self.shape

    @property
    def factors(self) -> Any:
        """One scale, or as many as there are entries."""
        return self.scales if isinstance(self.scales, float) else self.scales.reshape(self._scale_shape)

    @property
    def _scale_shape(self) -> tuple[int, ...]:
        return self.shape if math.prod(self.scales.shape) == self.count else tuple(self.scales.shape)

    def add(self, x: Any, values: Any, factor: float = 1.0) -> None:
        """Tensors add without a temporary one."""
        self.check(x)
        add_all(x, values, factor)


class Mask(Kept):
    """Entries whose mask is true are kept, all times the same scale."""

    __slots__ = ("mask", "scales")

    def __init__(self, shape: Sequence[int], mask: Any, scale: float) -> None:
        self.shape = tuple(shape)
        self.mask = mask  # of an array or tensor, in any shape of that size
        self.scales = scale

    @property
    def count(self) -> int:  # type: ignore[override]
        """How many are true; counting takes a pass."""
        return int(self.mask.sum())

    @property
    def entries(self) -> Any:
        """The mask itself."""
        return self.mask.reshape(self.shape)

    @property
    def factors(self) -> float:
        """The one scale."""
        return self.scales

    @property
    def positions(self) -> Indices:
        """Where the mask is true."""
        mask = self.mask if isinstance(self.mask, np.ndarray) else self.mask.cpu().numpy()
        return np.flatnonzero(mask)
