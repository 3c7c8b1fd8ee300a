"""The steps of `dsgd_sampled`, compiled: a few dozen nanoseconds each, proportional to what is kept.

The loops change x in place. They take tuples, made by `compiled_loop` and unpacked in their first lines:
a linear model as CSR arrays, labels and rates (the weights of its terms), the number of its loss, its two
penalties, the shift v and A v; the fields of `UnitArrays` of `mast.sketches.compiled`; and the two words of
the seed, the first step, the step sizes, and the sides of the rectangle on which rows are chosen.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, uint64

from mast.randomness import EXACT_SHUFFLE, ROUNDS, Purpose
from mast.sketches.compiled import draw_units, stream_of
from mast.support.philox import block, feistel_element, shuffled_in

_BATCH = int(Purpose.BATCH)
_MASK = int(Purpose.MASK)
_EXACT = EXACT_SHUFFLE
_ROUNDS = ROUNDS


@njit(forceinline=True)
def slope(loss: Any, margin: Any, label: Any) -> Any:
    """The derivative of the loss in a_i'x: logistic (0), squares (1)."""
    if loss == 1:
        return margin - label
    z = label * margin
    # stable for both signs: -label / (1 + exp(z))
    if z > 0:
        e = math.exp(-z)
        return -label * e / (1 + e)
    return -label / (1 + math.exp(z))


@njit(forceinline=True)
def penalty_slope(l2: Any, weight: Any, y: Any) -> Any:
    """The derivative of l2/2 y² + weight y²/(1 + y²)."""
    result = l2 * y
    if weight != 0.0:
        q = 1 + y * y
        result += 2 * weight * y / (q * q)
    return result


@njit(forceinline=True)
def choose_rows(stream: Any, n: Any, a: Any, b: Any, rows: Any) -> None:
    """The first elements of a keyed permutation of the n rows."""
    for m in range(rows.size):
        rows[m] = shuffled_in(stream, n, m) if n <= _EXACT else feistel_element(stream, n, a, b, _ROUNDS, m)


@njit(cache=True)
def sampled_steps(terms: Any, units: Any, steps: Any, x: Any) -> None:
    """One sketch and a minibatch of rows per step."""
    indptr, indices, data, labels, rates, loss, l2, weight, shift, base = terms
    kind, k, unit_of, members, start, scales, thresholds = units
    seed, t0, step_sizes, batch_size, a, b = steps
    n = labels.size
    order = np.arange(scales.size)
    kept = np.empty(scales.size, dtype=np.int64)
    c = np.zeros(scales.size)  # the diagonal of S, by unit; zero again after each step
    rows = np.empty(batch_size, dtype=np.int64)
    factors = np.empty(batch_size)
    for s in range(step_sizes.size):
        t, g = t0 + s, step_sizes[s]
        choose_rows(stream_of(seed, t, 0, _BATCH, 0), n, a, b, rows)
        count = draw_units(kind, k, thresholds, seed, t, 0, order, kept)
        for m in range(count):
            c[kept[m]] = scales[kept[m]]
        for r in range(batch_size):
            i = rows[r]
            margin = base[i]
            for p in range(indptr[i], indptr[i + 1]):
                j = indices[p]
                scale = c[unit_of[j]]
                if scale != 0.0:
                    margin += scale * data[p] * (x[j] - shift[j])
            factors[r] = g * rates[i] * n / batch_size * slope(loss, margin, labels[i])
        if l2 != 0.0 or weight != 0.0:
            for m in range(count):
                unit = kept[m]
                scale = c[unit]
                for q in range(start[unit], start[unit + 1]):
                    j = members[q]
                    y = shift[j] + scale * (x[j] - shift[j])
                    x[j] -= g * scale * penalty_slope(l2, weight, y)
        for r in range(batch_size):
            i = rows[r]
            for p in range(indptr[i], indptr[i + 1]):
                j = indices[p]
                scale = c[unit_of[j]]
                if scale != 0.0:
                    x[j] -= factors[r] * scale * data[p]
        for m in range(count):
            c[kept[m]] = 0.0


@njit(cache=True)
def masked_steps(terms: Any, units: Any, steps: Any, x: Any) -> None:
    """The same where every coordinate has a mask of its own: loops over whole vectors are fastest."""
    indptr, indices, data, labels, rates, loss, l2, weight, shift, base = terms
    _, _, _, _, _, scales, thresholds = units
    seed, t0, step_sizes, batch_size, a, b = steps
    n, d = labels.size, x.size
    rows = np.empty(batch_size, dtype=np.int64)
    factors = np.empty(batch_size)
    words = np.empty((d + 3) // 4 * 4, dtype=np.uint32)
    c = np.empty(d)
    for s in range(step_sizes.size):
        t, g = t0 + s, step_sizes[s]
        choose_rows(stream_of(seed, t, 0, _BATCH, 0), n, a, b, rows)
        stream = stream_of(seed, t, 0, _MASK, 0)
        for j in range(words.size // 4):
            w0, w1, w2, w3 = block(stream, j)
            words[4 * j] = w0
            words[4 * j + 1] = w1
            words[4 * j + 2] = w2
            words[4 * j + 3] = w3
        for j in range(d):
            c[j] = scales[j] if uint64(words[j]) < thresholds[j] else 0.0
        for r in range(batch_size):
            i = rows[r]
            margin = base[i]
            for p in range(indptr[i], indptr[i + 1]):
                j = indices[p]
                margin += c[j] * data[p] * (x[j] - shift[j])
            factors[r] = g * rates[i] * n / batch_size * slope(loss, margin, labels[i])
        if weight != 0.0:
            for j in range(d):
                x[j] -= g * c[j] * penalty_slope(l2, weight, shift[j] + c[j] * (x[j] - shift[j]))
        elif l2 != 0.0:
            for j in range(d):
                x[j] -= g * l2 * c[j] * (shift[j] + c[j] * (x[j] - shift[j]))
        for r in range(batch_size):
            i = rows[r]
            for p in range(indptr[i], indptr[i + 1]):
                j = indices[p]
                x[j] -= factors[r] * c[j] * data[p]


@njit(cache=True)
def averaged_steps(terms: Any, units: Any, steps: Any, x: Any) -> None:
    """A minibatch of rows per step, averaged over the K sketches that keep one unit each, times K.

    Row i sees a margin of its own for each unit it has a non-zero in; the factor K of S cancels
    against the probability 1/K.
    """
    indptr, indices, data, labels, rates, loss, l2, weight, shift, base = terms
    _, _, unit_of, _, _, scales, _ = units
    seed, t0, step_sizes, batch_size, a, b = steps
    n = labels.size
    rows = np.empty(batch_size, dtype=np.int64)
    margins, K = np.zeros(scales.size), scales[0]
    longest = 0
    for i in range(n):
        longest = max(longest, indptr[i + 1] - indptr[i])
    factors = np.empty((batch_size, longest))
    for s in range(step_sizes.size):
        t, g = t0 + s, step_sizes[s]
        choose_rows(stream_of(seed, t, 0, _BATCH, 0), n, a, b, rows)
        for r in range(batch_size):
            i = rows[r]
            first, last = indptr[i], indptr[i + 1]
            for p in range(first, last):
                margins[unit_of[indices[p]]] = 0.0
            for p in range(first, last):
                j = indices[p]
                margins[unit_of[j]] += data[p] * (x[j] - shift[j])
            for p in range(first, last):
                margin = base[i] + K * margins[unit_of[indices[p]]]
                factors[r, p - first] = (
                    g * rates[i] * n / batch_size * slope(loss, margin, labels[i]) * data[p]
                )
        if l2 != 0.0 or weight != 0.0:
            for j in range(x.size):
                x[j] -= g * penalty_slope(l2, weight, shift[j] + K * (x[j] - shift[j]))
        for r in range(batch_size):
            first = indptr[rows[r]]
            for p in range(first, indptr[rows[r] + 1]):
                x[indices[p]] -= factors[r, p - first]
