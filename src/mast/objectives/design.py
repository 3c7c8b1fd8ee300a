"""The data matrix of a linear model: one observation per row; dense or sparse, checked once, then read."""

from __future__ import annotations

from functools import cache, cached_property
from types import ModuleType
from typing import Any

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
