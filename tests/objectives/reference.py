"""What the compiled kernels compute, written to be read. Slow; tests compare the two.

Matrices here are dense arrays, and sums are taken as the formulas have them.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from mast.support.checks import Array, Indices

if TYPE_CHECKING:
    from mast.objectives.linear import LinearModel


def gram(A: Array, weights: Array) -> Array:
    """A' diag(weights) A."""
    total = np.zeros((A.shape[1], A.shape[1]))
    for row, w in zip(A, weights, strict=True):
        total += w * np.outer(row, row)
    return total


def pairs(A: Array, labels: Indices) -> dict[tuple[int, int], dict[int, float]]:
    """For each block and row with a non-zero there: the entries, by column. Blocks first, rows within."""
    entries_of: dict[tuple[int, int], dict[int, float]] = {}
    for k in range(int(labels.max()) + 1):
        for i, row in enumerate(A):
            entries = {j: float(row[j]) for j in np.flatnonzero(labels == k).tolist() if row[j] != 0}
            if entries:
                entries_of[k, i] = entries
    return entries_of


def equal_rows(rows: list[tuple[float, ...]]) -> list[int]:
    """The number of each row, equal rows having the same, numbered as they first occur."""
    numbers: dict[tuple[float, ...], int] = {}
    return [numbers.setdefault(row, len(numbers)) for row in rows]


def grouped_sums(values: Array, groups: Indices, count: int) -> Array:
    """The sum of the values of each group."""
    return np.array([values[groups == g].sum() for g in range(count)])


def cases(m: int) -> list[tuple[int, ...]]:
    """All fates of m units, in the order of the kernels: unit 0 changes fastest."""
    return [fate[::-1] for fate in product((0, 1), repeat=m)]


def subset_sums(base: float, t: Array) -> Array:
    """base plus the t of the units that survive, for all cases."""
    return np.array([base + sum(c * s for c, s in zip(fate, t, strict=True)) for fate in cases(t.size)])


def independent_weights(keep: Array) -> Array:
    """The probability of each case, each unit surviving by itself."""
    chances = [[p if c else 1 - p for c, p in zip(fate, keep, strict=True)] for fate in cases(keep.size)]
    return np.array([float(np.prod(chance)) for chance in chances])


def fold(work: Array, m: int) -> tuple[Array, Array, float]:
    """The sums of `work` over the cases in which two units survive, one unit survives, and over all."""
    fates = np.array(cases(m), dtype=float).reshape(1 << m, m)
    return fates.T @ (work[:, None] * fates), fates.T @ work, float(work.sum())


def sketched_gradient(
    model: LinearModel, x: Array, c: Array, shift: Array, rows: Indices | None = None
) -> Array:
    """The gradient of the mean of f_i(v + c (x - v)) over `rows`, or all, as a vector of all coordinates."""
    y = shift + c * (x - shift)
    A = model.design.csr.toarray()
    chosen = range(model.terms) if rows is None else rows.tolist()
    total = np.zeros(model.dim)
    for i in chosen:
        label = model.labels[i : i + 1]
        signs = model.loss.signs(label)
        slope = model.loss.slope(model.loss.margins(np.array([A[i] @ y]), label))[0]
        total += model.weights[i] * slope * signs[0] * A[i]
    return np.asarray(c * (total / len(chosen) + model.penalty.gradient(y)))
