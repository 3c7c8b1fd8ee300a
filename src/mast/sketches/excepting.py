"""Except: some coordinates are left alone, such as an intercept; the others are sketched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from mast.arrays import Indices, frozen
from mast.errors import ArgumentError
from mast.sketches.base import Sketch
from mast.sketches.draws import DiagonalDraw, Draw, MatrixDraw
from mast.sketches.over import Over


class Except(Over):
    """Apply `sketch` to all coordinates but those in `kept`, which always survive, times 1.

    Parameters
    ----------
    sketch
        Any sketch; its coordinates are those that remain, in their order.
    kept
        The coordinates that are left alone; negative ones count from the end, so that ``[-1]`` is
        the last one in any dimension.

    >>> import mast
    >>> sketch = mast.Except(mast.RandK(1), [-1])
    >>> sketch.draw(4, seed=1).diagonal(), sketch.constants(4)
    (array([0., 3., 0., 1.]), Constants(L_D=3.0, mu_D=1.0, L_max=9.0))
    """

    alone = True

    def __init__(self, sketch: Sketch, kept: Sequence[int] | ArrayLike) -> None:
        super().__init__(sketch, diagonal=False)
        chosen = np.asarray(kept)
        if chosen.ndim != 1 or not (chosen.size and np.issubdtype(chosen.dtype, np.integer)):
            raise ArgumentError("kept must be a list of at least one coordinate (whole numbers)")
        self.kept: Indices = frozen(chosen.astype(np.int64))
        self._last: tuple[int, Indices, Indices] | None = None  # the last split, with its dimension

    def split(self, d: int) -> tuple[Indices, Indices]:
        """The coordinates that are left alone, and those that are sketched."""
        if self._last is None or self._last[0] != d:
            wrong = self.kept[(self.kept < -d) | (self.kept >= d)]
            if wrong.size:
                raise ArgumentError(f"coordinate {wrong[0]} is to be kept, but the dimension is {d}")
            free = np.zeros(d, dtype=bool)
            free[self.kept] = True
            if free.all():
                raise ArgumentError("every coordinate is left alone: use Identity() instead")
            self._last = d, frozen(np.flatnonzero(free)), frozen(np.flatnonzero(~free))
        return self._last[1:]

    def size(self, d: int) -> int:
        """How many coordinates are sketched."""
        return self.split(d)[1].size

    def labels_in(self, d: int) -> Indices:
        """The others, numbered in their order."""
        labels = np.full(d, -1, dtype=np.int64)
        rest = self.split(d)[1]
        labels[rest] = np.arange(rest.size)
        return labels

    def spread(self, d: int, draw: Draw) -> Draw:
        """The draw of the others in their places, and ones."""
        free, rest = self.split(d)
        if isinstance(draw, DiagonalDraw):
            indices = np.concatenate([rest[draw.indices], free])
            ascending = np.argsort(indices, kind="stable")
            scales = np.concatenate([draw.scales, np.ones(free.size)])
            return DiagonalDraw(d, indices[ascending], scales[ascending])
        S = np.eye(d)
        S[np.ix_(rest, rest)] = draw.matrix()
        return MatrixDraw(S)

    def label(self) -> str:
        """How many are left alone by what."""
        s = "s" * (self.kept.size > 1)
        return f"Except({self.kept.size} coordinate{s} left alone), {self.sketch.label()}"
