"""The data matrix of a linear model: one observation per row; dense or sparse, checked once, then read.

`Pairs` is the matrix block by block of its columns, as the closed forms of f_D need it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from mast.errors import ArgumentError, DataError
from mast.support.checks import (
    BLOCK,
    LARGEST_ENTRY,
    Array,
    Indices,
    csr,
    frozen,
    numbers,
    refuse_nonfinite,
    refuse_too_wide,
    row_blocks,
)

SMALL = 64  #: up to this size of the Gram matrix its eigenvalues are computed densely
OVERFLOW = "the entries of A are so large that their squares overflow: rescale the columns"
CACHED = 32  #: of a large matrix, blocks that are smaller by this stay in the cache
DENSE_SHARE = 0.15  #: a sparse matrix with more non-zeros than this is multiplied by BLAS for its Gram matrix
CHUNK = 1 << 15  #: pairs that are worked on at a time, so that they stay in the cache
MERGED_ENOUGH = 0.8  #: merging pays if it leaves at most this share of the pairs

#: makes weighted slopes of margins, given which pairs they belong to
PairSlope = Callable[[Array, slice], Array]


class Design:
    """A matrix of n rows and d columns with the few products that linear models need.

    Sparse input becomes CSR with sorted rows and no stored zeros, and products use SciPy with
    a stored transpose; dense input stays dense and products use BLAS. With ``copy=False`` a dense array
    is the caller's own, who does not change it.
    """

    def __init__(self, A: Any, copy: bool = True) -> None:
        import scipy.sparse

        self.sparse = bool(scipy.sparse.issparse(A))
        if self.sparse:  # it may be far wider than what it stores
            refuse_too_wide(A.shape[-1])
            self.matrix: Any = csr("A", A)
        else:
            dense = numbers("A", A, 2, finite=False)
            self.matrix = frozen(np.array(dense, order="C")) if copy else np.ascontiguousarray(dense)
            refuse_nonfinite("A", self.matrix, DataError)
        self.n, self.d = (int(size) for size in self.matrix.shape)
        if self.n == 0 or self.d == 0:
            raise ArgumentError(f"A needs at least one row and one column, got shape {self.matrix.shape}")
        values = self.matrix.data if self.sparse else self.matrix
        if max(values.max(initial=0.0), -values.min(initial=0.0)) > LARGEST_ENTRY:
            raise DataError(OVERFLOW)

    @cached_property
    def csr(self) -> Any:
        """The matrix as CSR, with rows sorted; the arrays that compiled kernels read."""
        import scipy.sparse

        return self.matrix if self.sparse else csr("A", scipy.sparse.csr_array(self.matrix))

    @cached_property
    def nnz(self) -> int:
        """How many entries are not 0."""
        return int(self.matrix.nnz) if self.sparse else int(np.count_nonzero(self.matrix))

    @cached_property
    def transposed(self) -> Any:
        """The transpose as CSR: what makes the backward product, and access by column, fast."""
        return self.csr.T.tocsr()

    def transpose_times(self, r: Array) -> Array:
        """A'r."""
        product: Array = self.transposed @ r if self.sparse else r @ self.matrix
        return product

    def dense_columns(self, columns: Indices) -> Array:
        """These columns as a dense matrix."""
        part = self.matrix[:, columns]
        return np.asarray(part.toarray() if self.sparse else part)

    @cached_property
    def row_squares(self) -> Array:
        """|a_i|² of each row."""
        if not self.sparse:
            return np.asarray(np.einsum("ij,ij->i", self.matrix, self.matrix))
        return np.asarray(self.csr.power(2) @ np.ones(self.d))

    def column_squares(self, weights: Array) -> Array:
        """The diagonal of A' diag(weights) A."""
        if not self.sparse:
            return np.asarray(np.einsum("ij,i,ij->j", self.matrix, weights, self.matrix, optimize=True))
        return np.asarray(self.csr.power(2).T @ weights)

    def gram(self, weights: Array) -> Array:
        """A' diag(weights) A as a dense d x d matrix."""
        if not self.sparse:
            return weighted_gram(self.matrix, weights)
        A = self.csr
        total = np.zeros((self.d, self.d))
        if A.nnz > DENSE_SHARE * self.n * self.d:
            step = max(1, (1 << 22) // self.d)
            for start in range(0, self.n, step):
                part = slice(start, start + step)
                total += weighted_gram(A[part].toarray(), weights[part])
            return total
        kernels().gram(csr_arrays(A), weights, total)
        return np.asarray(np.tril(total) + np.tril(total, -1).T)

    def largest_eigenvalue(self, weights: Array) -> float:
        """The largest eigenvalue of A' diag(weights) A, for weights >= 0, by Lanczos."""
        root = np.sqrt(weights)
        with np.errstate(over="ignore", invalid="ignore"):
            bound = float(self.row_squares @ weights)  # the trace
        if not np.isfinite(bound):
            raise DataError(OVERFLOW)
        if bound == 0.0:
            return 0.0
        if self.d <= SMALL:
            return float(np.linalg.eigvalsh(self.gram(weights))[-1])
        if self.n <= SMALL:
            dense = (self.matrix.toarray() if self.sparse else self.matrix) * root[:, None]
            return float(np.linalg.eigvalsh(dense @ dense.T)[-1])
        if self.d <= self.n:
            return _lanczos(lambda x: self.transpose_times(weights * (self.matrix @ x)), self.d)
        return _lanczos(lambda r: root * (self.matrix @ self.transpose_times(root * r)), self.n)


def _lanczos(product: Any, size: int) -> float:
    """The largest eigenvalue of a positive semidefinite matrix given by its products.

    The start vector is fixed and has no structure that data could be orthogonal to, so the
    result is the same in each run.
    """
    import inspect

    from scipy.sparse.linalg import LinearOperator, eigsh

    start = np.modf(np.arange(1.0, size + 1) * 0.6180339887498949)[0] + 0.25
    options: dict[str, Any] = {"v0": product(start) + start * 1e-3, "tol": 0.0, "ncv": min(size, 40)}
    if "rng" in inspect.signature(eigsh).parameters:
        options["rng"] = 0
    operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
    value, vectors = eigsh(operator, k=1, which="LA", maxiter=50 * size, **options)
    # a Ritz value is never above the truth, and below it by at most the residual: add that
    residual = float(np.linalg.norm(product(vectors[:, 0]) - value[0] * vectors[:, 0]))
    return float(value[0]) + min(residual, 1e-10 * float(value[0]))


def weighted_gram(A: Array, weights: Array) -> Array:
    """A' diag(weights) A of a dense matrix."""
    if A.size > BLOCK:
        parts = row_blocks(A.shape[0], CACHED * A.shape[1])
        return np.asarray(sum(weighted_gram(A[part], weights[part]) for part in parts))
    if (weights >= 0).all():
        scaled = A * np.sqrt(weights)[:, None]
        product: Array = scaled.T @ scaled  # one operand: BLAS does half of the work
        return product
    return np.asarray((A * weights[:, None]).T @ A)


def csr_arrays(A: Any) -> tuple[Any, Any, Any]:
    """A sparse matrix as compiled kernels take it."""
    return A.indptr, A.indices, A.data


@cache
def kernels() -> ModuleType:
    """The compiled kernels, imported when first needed: Numba takes a while to load."""
    from mast.objectives import kernels

    return kernels


# ---- the matrix block by block -----------------------------------------------------------------------------


class Blocks:
    """The columns, block by block: blocks that hold a column, the smaller ones first.

    Columns with the label -1 belong to no block.
    """

    def __init__(self, labels: Indices) -> None:
        names, numbers, sizes = np.unique(labels[labels >= 0], return_inverse=True, return_counts=True)
        rank = np.empty(names.size, dtype=np.int64)
        by_size = np.argsort(sizes, kind="stable")
        rank[by_size] = np.arange(names.size)
        self.labels = np.full(labels.size, -1, dtype=np.int64)  # renumbered
        self.labels[labels >= 0] = rank[numbers]
        self.free = np.flatnonzero(labels < 0)
        self.order = np.argsort(self.labels, kind="stable")[self.free.size :]
        self.sizes = sizes[by_size]
        self.start = np.concatenate([[0], np.cumsum(self.sizes)])
        self.count = int(names.size)


class BlockRun(NamedTuple):
    """The pairs and columns of successive blocks (in their order), with their part of B and its transpose."""

    pairs: slice
    columns: slice
    B: Any
    T: Any


class Pairs:
    """B: one row per pair and one column per coordinate, in the blocks' order, as an operator.

    Of sparse data B holds the pairs with a non-zero, block by block, equal ones merged where that pays; of
    dense data every row is a pair of each block, and products are BLAS. `factors` multiply the rows of the
    data, `context` says of each row which set of equal rows it belongs to, and `shares` are its weights.
    """

    def __init__(self, A: Any, factors: Array, blocks: Blocks, context: Indices, shares: Array) -> None:
        self.blocks, self.dense = blocks, isinstance(A, np.ndarray)
        n = A.shape[0]
        if self.dense:
            self.start = n * np.arange(blocks.count + 1)  #: where the pairs of each block begin
            self.touched = np.full(n, blocks.count, dtype=np.int64)  #: in how many blocks a row has entries
            self.B: Any = np.asfortranarray(A[:, blocks.order] * factors[:, None])
            self.context, self.weights = np.tile(context, blocks.count), np.tile(shares, blocks.count)
            return
        import scipy.sparse

        place = np.zeros(A.shape[1], dtype=A.indices.dtype)
        place[blocks.order] = np.arange(blocks.order.size)
        self.start, self.touched, rows, (indptr, indices, data) = kernels().pairs(
            csr_arrays(A), factors, blocks.labels, place, blocks.count
        )
        self.B = scipy.sparse.csr_array((data, indices, indptr), shape=(rows.size, blocks.order.size))
        self.context, self.weights = context[rows], shares[rows]
        if rows.size and context.size and int(context.max()) + 1 < n:
            self._merge()

    def _merge(self) -> None:
        """Replace equal pairs by one with their joint weight, if there are many."""
        B = self.B
        target, first = np.empty(B.shape[0], dtype=np.int64), np.empty(B.shape[0], dtype=np.int64)
        bits = B.indptr, B.indices, B.data.view(np.uint64)
        count = kernels().equal_rows(bits, self.context, target, first)
        if count > MERGED_ENOUGH * B.shape[0]:
            return
        first = first[:count]
        self.weights = sums_of(self.weights, target, count)
        self.context = self.context[first]
        self.start = np.searchsorted(first, self.start)
        self.B = B[first]

    @cached_property
    def parts(self) -> list[BlockRun]:
        """Blocks one by one if B is dense, else in runs with about a chunk of pairs each."""
        if self.dense:
            runs = zip(pairwise(self.start.tolist()), pairwise(self.blocks.start.tolist()), strict=True)
            spans = [(slice(*pairs), slice(*columns)) for pairs, columns in runs]
            return [BlockRun(*span, self.B[:, span[1]], self.B[:, span[1]].T) for span in spans]
        # both matrices share arrays, sorted by columns: the rows of B are too short for a loop over each
        T = self.B.T.tocsr()
        parts, first = [], 0
        for last in range(1, self.start.size):
            if self.start[last] - self.start[first] >= CHUNK or last == self.start.size - 1:
                pairs = slice(int(self.start[first]), int(self.start[last]))
                columns = slice(int(self.blocks.start[first]), int(self.blocks.start[last]))
                mirror = T[columns, pairs]
                parts.append(BlockRun(pairs, columns, mirror.T, mirror))
                first = last
        return parts

    def sweep(self, u: Array, slope: PairSlope) -> Array:
        """B' applied to what `slope` makes of B u, some blocks at a time: neither is ever whole."""
        out = np.empty(self.blocks.order.size)
        for pairs, columns, B, T in self.parts:
            out[columns] = T @ slope(B @ u[columns], pairs)
        return out

    def forward(self, u: Array) -> Array:
        """B u."""
        out = np.empty(self.context.size)
        for pairs, columns, B, _ in self.parts:
            out[pairs] = B @ u[columns]
        return out

    def backward(self, r: Array) -> Array:
        """B'r."""
        out = np.empty(self.blocks.order.size)
        for pairs, columns, _, T in self.parts:
            out[columns] = T @ r[pairs]
        return out

    def column_squares(self, weights: Array) -> Array:
        """The diagonal of B' diag(weights) B."""
        out = np.empty(self.blocks.order.size)
        for pairs, columns, _, T in self.parts:
            out[columns] = T**2 @ weights[pairs]
        return out

    def grams(self, weights: Array) -> Array:
        """All B_k' diag(weights) B_k, one after the other."""
        starts = np.concatenate([[0], np.cumsum(self.blocks.sizes**2)])
        out = np.zeros(int(starts[-1]))
        if self.dense:
            for k, (pairs, _, B, _) in enumerate(self.parts):
                out[starts[k] : starts[k + 1]] = weighted_gram(B, weights[pairs]).ravel()
        else:
            kernels().block_grams(csr_arrays(self.B), weights, (self.start, self.blocks.start, starts), out)
        return out


def sums_of(values: Array, groups: Indices, count: int) -> Array:
    """The sum of the values of each group."""
    out = np.zeros(count)
    kernels().grouped_sums(values, groups, out)
    return out
