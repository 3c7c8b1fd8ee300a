"""Gradients of a linear model for one draw: only the kept columns, or some rows of them, are touched.

There are three ways to multiply with the kept columns: a submatrix made once, for draws that come back
as the blocks of a fixed partition do; compiled sweeps over the kept columns; and sweeps over given rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from operator import matmul
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mast.objectives.design import Design, csr_arrays, kernels
from mast.sketches import DiagonalDraw
from mast.support.arrays import Array, Indices

if TYPE_CHECKING:
    from mast.objectives.linear import LinearModel

REMEMBERED = 2  #: submatrices are kept for draws that come back, up to this many times the data
FEW = 0.25  #: if the kept non-zeros are fewer than this share of the rows, only touched rows are visited


class KeptColumns(NamedTuple):
    """Products with the kept columns of the data, for the rows that matter."""

    rows: Any  #: which rows, as an index
    forward: Callable[[Array], Array]  #: the kept columns of those rows times a vector
    backward: Callable[[Array], Array]  #: the transpose of that times a vector
    entries: int = 0  #: how many numbers are held


class Draws:
    """The gradients of f_S of one linear model, for many draws S."""

    def __init__(self, model: LinearModel) -> None:
        self.model = model
        self._base: tuple[Array | None, Array] = (None, model.offsets(np.zeros(model.dim)))
        self._submatrices: dict[int, tuple[Indices, KeptColumns]] = {}
        self._pools: dict[int, list[NDArray[np.int64]]] = {}

    def gradient(
        self, x: Array, draw: DiagonalDraw, shift: Array, rows: Indices | None, minus: Array | None = None
    ) -> Array:
        """The gradient at x, less that at `minus` if it is given, on the kept coordinates."""
        model, kept, scales = self.model, draw.indices, draw.scales
        v = shift[kept]
        with self._columns(draw, rows) as columns:
            base = self.bases(shift)[columns.rows]
            signs = model.signs[columns.rows]
            y = v + scales * (x[kept] - v)
            slopes, penalty = self._slopes(columns, y - v, base, signs), model.penalty.gradient(y)
            if minus is not None:
                y = v + scales * (minus[kept] - v)
                slopes = slopes - self._slopes(columns, y - v, base, signs)
                penalty = penalty - model.penalty.gradient(y)
            slopes *= model.pulls[columns.rows]
            gradient = columns.backward(slopes)
        gradient /= model.terms if rows is None else max(rows.size, 1)
        gradient += penalty
        gradient *= scales
        return gradient

    def _slopes(self, columns: KeptColumns, t: Array, base: Array, signs: Array) -> Array:
        m = columns.forward(t)
        m *= signs
        m += base
        return self.model.loss.slope(m)

    def bases(self, shift: Array) -> Array:
        """The margins at the shift, remembered for a shift that cannot change."""
        if self._base[0] is not shift:
            bases = self.model.offsets(shift)
            if shift.flags.writeable:
                return bases
            self._base = (shift, bases)
        return self._base[1]

    @contextmanager
    def _columns(self, draw: DiagonalDraw, rows: Indices | None) -> Iterator[KeptColumns]:
        design, kept = self.model.design, draw.indices
        if rows is not None:
            position = self._scratch(design.d)
            position[kept] = np.arange(kept.size)
            lines = Lines(csr_arrays(design.csr), rows, position, kept.size)
            try:
                yield KeptColumns(rows, lines.gather, lines.scatter)
            finally:
                position[kept] = -1
                self._pools[design.d].append(position)
            return
        if draw.recurring:
            yield self._submatrix(kept)
            return
        T, lengths = self._transposed
        entries = int(lengths[kept].sum())
        if entries >= FEW * design.n:
            lines = Lines(T, kept, None, design.n)
            yield KeptColumns(slice(None), lines.scatter, lines.gather)
            return
        position = self._scratch(design.n)
        touched = np.empty(entries, dtype=np.int64)
        touched = touched[: kernels().touched_rows(T[0], T[1], kept, position, touched)]
        lines = Lines(T, kept, position, touched.size)
        try:
            yield KeptColumns(touched, lines.scatter, lines.gather)
        finally:
            position[touched] = -1
            self._pools[design.n].append(position)

    @cached_property
    def _transposed(self) -> tuple[tuple[Any, Any, Any], Indices]:
        """The transposed data as kernels take them, and how many non-zeros each column has."""
        T = self.model.design.transposed
        return csr_arrays(T), np.diff(T.indptr)

    def _submatrix(self, kept: Indices) -> KeptColumns:
        remembered = self._submatrices.get(id(kept))
        if remembered is not None and remembered[0] is kept:
            return remembered[1]
        columns = submatrix(self.model.design, kept)
        held = sum(part.entries for _, part in self._submatrices.values())
        while self._submatrices and held + columns.entries > REMEMBERED * max(self.model.design.csr.nnz, 1):
            held -= self._submatrices.pop(next(iter(self._submatrices)))[1].entries
        self._submatrices[id(kept)] = (kept, columns)
        return columns

    def _scratch(self, size: int) -> NDArray[np.int64]:
        """An array of -1, to be put back so: a fresh one would cost its whole length each time."""
        pool = self._pools.setdefault(size, [])
        try:
            return pool.pop()
        except IndexError:
            return np.full(size, -1, dtype=np.int64)


def submatrix(design: Design, kept: Indices) -> KeptColumns:
    """A copy of the kept columns, without rows that have nothing there; products are SciPy's or BLAS."""
    if not design.sparse:
        A = np.ascontiguousarray(design.matrix[:, kept])
        return KeptColumns(slice(None), partial(matmul, A), partial(matmul, A.T), A.size)
    T = design.transposed[kept]
    rows = np.unique(T.indices).astype(np.int64)
    place = np.zeros(design.n, dtype=T.indices.dtype)
    place[rows] = np.arange(rows.size)
    T.indices[:] = place[T.indices]
    T.resize((kept.size, rows.size))
    # its transpose goes by columns too, since the rows are short
    return KeptColumns(rows, partial(matmul, T.T), partial(matmul, T), int(T.nnz))


class Lines:
    """Some rows of a sparse matrix; `size` and `position` are those of the columns that count."""

    __slots__ = ("A", "lines", "position", "size")

    def __init__(self, A: tuple[Any, Any, Any], lines: Indices, position: Indices | None, size: int) -> None:
        self.A, self.lines, self.position, self.size = A, lines, position, size

    def gather(self, r: Array) -> Array:
        """The product of each line with a vector."""
        out = np.empty(self.lines.size)
        kernels().gather_lines(*self.A, self.lines, self.position, r, out)
        return out

    def scatter(self, t: Array) -> Array:
        """The sum of the lines, each times a number."""
        out = np.zeros(self.size)
        kernels().scatter_lines(*self.A, self.lines, self.position, t, out)
        return out
