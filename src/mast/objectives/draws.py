"""Gradients of a linear model for one draw: only the kept columns, or some rows of them, are touched.

Three ways to multiply with the kept columns share one interface (`forward`, `backward`,
and which `rows` they speak of): a submatrix made once, for draws that come back as the
blocks of a fixed partition do; compiled sweeps over the kept columns; and over given rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mast.arrays import Array, Indices
from mast.objectives.design import Design, _kernels
from mast.objectives.exact import signed
from mast.sketches import DiagonalDraw

if TYPE_CHECKING:
    from mast.objectives.linear import LinearModel

REMEMBERED = 2  #: submatrices are kept for draws that come back, up to this many times the data
FEW = 0.25  #: if the kept non-zeros are fewer than this share of the rows, only touched rows are visited


class Draws:
    """The gradients of f_S of one linear model, for many draws S."""

    def __init__(self, model: LinearModel) -> None:
        self.model = model
        self.signs = signed(model)
        self.offsets = model.loss.offsets(model.labels)
        self._base: tuple[Array | None, Array] = (None, self.offsets)
        self._submatrices: dict[int, tuple[Indices, Submatrix]] = {}
        self._pools: dict[int, list[NDArray[np.int64]]] = {}

    def gradient(
        self, x: Array, draw: DiagonalDraw, shift: Array, rows: Indices | None, minus: Array | None = None
    ) -> Array:
        """The gradient at x, less that at `minus` if it is given, on the kept coordinates."""
        model, kept, scales = self.model, draw.indices, draw.scales
        v = shift[kept]
        with self._columns(kept, rows) as columns:
            base = self.bases(shift)[columns.rows]
            signs = self.signs[columns.rows]
            y = v + scales * (x[kept] - v)
            slopes = self._slopes(columns, y - v, base, signs)
            own = model.penalty.gradient(y)
            if minus is not None:
                y = v + scales * (minus[kept] - v)
                slopes = slopes - self._slopes(columns, y - v, base, signs)
                own = own - model.penalty.gradient(y)
            slopes *= signs
            if model.weights is not None:
                slopes *= model.weights[columns.rows]
            gradient = columns.backward(slopes)
        gradient /= model.terms if rows is None else max(rows.size, 1)
        gradient += own
        gradient *= scales
        return gradient

    def _slopes(self, columns: Columns, t: Array, base: Array, signs: Array) -> Array:
        m = columns.forward(t)
        m *= signs
        m += base
        return self.model.loss.slope(m)

    def bases(self, shift: Array) -> Array:
        """The margins at the shift, remembered for a shift that cannot change."""
        if self._base[0] is not shift:
            bases = (
                self.offsets + self.signs * self.model.design.times(shift) if shift.any() else self.offsets
            )
            if shift.flags.writeable:
                return bases
            self._base = (shift, bases)
        return self._base[1]

    @contextmanager
    def _columns(self, kept: Indices, rows: Indices | None) -> Iterator[Columns]:
        design = self.model.design
        if rows is not None:
            with self._scratch(design.d) as position:
                position[kept] = np.arange(kept.size)
                try:
                    yield SomeRows(design, kept.size, rows, position)
                finally:
                    position[kept] = -1
            return
        if not kept.flags.writeable:  # so it is the same set whenever this array comes back
            yield self._submatrix(kept)
            return
        T = design.transposed
        entries = int((T.indptr[kept + 1] - T.indptr[kept]).sum())
        if entries >= FEW * design.n:
            yield AllRows(T, kept)
            return
        with self._scratch(design.n) as position:
            touched = np.empty(entries, dtype=np.int64)
            count = _kernels().touched_rows(T.indptr, T.indices, kept, position, touched)
            try:
                yield TouchedRows(T, kept, position, touched[:count])
            finally:
                position[touched[:count]] = -1

    def _submatrix(self, kept: Indices) -> Submatrix:
        found = self._submatrices.get(id(kept))
        if found is not None and found[0] is kept:
            return found[1]
        made = Submatrix(self.model.design, kept)
        held = sum(part.entries for _, part in self._submatrices.values())
        while self._submatrices and held + made.entries > REMEMBERED * max(self.model.design.csr.nnz, 1):
            held -= self._submatrices.pop(next(iter(self._submatrices)))[1].entries
        self._submatrices[id(kept)] = (kept, made)
        return made

    @contextmanager
    def _scratch(self, size: int) -> Iterator[NDArray[np.int64]]:
        """An array of -1, which the user leaves so: a fresh one would cost its whole length each time."""
        pool = self._pools.setdefault(size, [])
        try:
            position = pool.pop()
        except IndexError:
            position = np.full(size, -1, dtype=np.int64)
        yield position
        pool.append(position)


class Columns(ABC):
    """Products with the kept columns of the data, for the rows that matter."""

    rows: Any  #: which rows, as an index

    @abstractmethod
    def forward(self, t: Array) -> Array:
        """The kept columns times t, for those rows."""

    @abstractmethod
    def backward(self, r: Array) -> Array:
        """The transpose of that times r."""


class Submatrix(Columns):
    """A copy of the kept columns, without rows that have nothing there; products are SciPy's or BLAS."""

    def __init__(self, design: Design, kept: Indices) -> None:
        if not design.sparse:
            self.rows = slice(None)
            self.A: Any = np.ascontiguousarray(design.matrix[:, kept])
            self.T: Any = self.A.T
            self.entries = self.A.size
            return
        T = design.transposed[kept]
        self.rows = np.unique(T.indices).astype(np.int64)
        place = np.zeros(design.n, dtype=T.indices.dtype)
        place[self.rows] = np.arange(self.rows.size)
        T.indices[:] = place[T.indices]
        T.resize((kept.size, self.rows.size))
        self.T, self.A = T, T.T  # by columns, since the rows are short
        self.entries = int(T.nnz)

    def forward(self, t: Array) -> Array:
        """A t."""
        product: Array = self.A @ t
        return product

    def backward(self, r: Array) -> Array:
        """A'r."""
        product: Array = self.T @ r
        return product


class AllRows(Columns):
    """Sweeps over the kept columns, with a margin for every row."""

    def __init__(self, T: Any, kept: Indices) -> None:
        self.T, self.kept = T, kept
        self.rows = slice(None)

    def forward(self, t: Array) -> Array:
        """Column by column into all rows."""
        out = np.zeros(self.T.shape[1])
        _kernels().add_columns(self.T.indptr, self.T.indices, self.T.data, self.kept, t, out)
        return out

    def backward(self, r: Array) -> Array:
        """One inner product a column."""
        out = np.empty(self.kept.size)
        _kernels().dot_columns(self.T.indptr, self.T.indices, self.T.data, self.kept, r, out)
        return out


class TouchedRows(Columns):
    """The same with a margin for the touched rows only."""

    def __init__(self, T: Any, kept: Indices, position: NDArray[np.int64], rows: Indices) -> None:
        self.T, self.kept, self.position, self.rows = T, kept, position, rows

    def forward(self, t: Array) -> Array:
        """Column by column into the touched rows."""
        out = np.zeros(self.rows.size)
        T = self.T
        _kernels().add_touched(T.indptr, T.indices, T.data, self.kept, self.position, t, out)
        return out

    def backward(self, r: Array) -> Array:
        """One inner product a column."""
        out = np.empty(self.kept.size)
        T = self.T
        _kernels().dot_touched(T.indptr, T.indices, T.data, self.kept, self.position, r, out)
        return out


class SomeRows(Columns):
    """A sweep over given rows, skipping what is not kept."""

    def __init__(self, design: Design, kept: int, rows: Indices, position: NDArray[np.int64]) -> None:
        self.A, self.kept, self.rows, self.position = design.csr, kept, rows, position

    def forward(self, t: Array) -> Array:
        """Row by row."""
        out = np.zeros(self.rows.size)
        A = self.A
        _kernels().add_rows(A.indptr, A.indices, A.data, self.rows, self.position, t, out)
        return out

    def backward(self, r: Array) -> Array:
        """Row by row into the kept columns."""
        out = np.zeros(self.kept)
        A = self.A
        _kernels().dot_rows(A.indptr, A.indices, A.data, self.rows, self.position, r, out)
        return out
