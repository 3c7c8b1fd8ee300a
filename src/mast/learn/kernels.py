"""One pass of averaged implicit stochastic gradient descent over the rows of a table, compiled."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from mast.methods.kernels import slope


@njit(cache=True, nogil=True)
def pass_over(rows: Any, draws: Any, steps: Any, state: Any) -> None:
    """Each row once, with a draw of its own; changes `state` in place.

    The last coordinate of the state is the intercept, which is neither dropped nor penalised. `total` holds
    the sum of all points so far, each as often as the number of its step says; a coordinate is added
    when it changes, and `since` is the sum of the numbers at which it last was.
    """
    indptr, indices, data, targets, base, weights = rows
    scales, which = draws
    loss, curvature, first, sizes, metric, ridge, pull, intercept = steps
    x, total, since = state
    d, outputs = x.shape[0] - 1, x.shape[1]
    margins, slopes = np.empty(outputs), np.empty(outputs)
    for i in range(targets.size):
        t = first + i
        number = 0.5 * t * (t + 1)
        scale = scales[which[i]]
        for c in range(outputs):
            margins[c] = base[i, c] + x[d, c]
        norm = metric[d] if intercept else 0.0
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            z = scale[j] * data[p]
            norm += metric[j] * z * z
            for c in range(outputs):
                margins[c] += z * x[j, c]
        _slopes(loss, margins, targets[i], slopes)
        g = sizes[i]
        factor = g * weights[i] / (1 + g * weights[i] * curvature * norm)
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            if data[p] == 0.0:  # the penalty counts where a column is not 0
                continue
            step = factor * metric[j] * scale[j] * data[p]
            shrink = g * weights[i] * metric[j]
            for c in range(outputs):
                total[j, c] += x[j, c] * (number - since[j])
                x[j, c] = (x[j, c] - step * slopes[c] - shrink * pull[j, c]) / (1 + shrink * ridge[j])
            since[j] = number
        if intercept:
            for c in range(outputs):
                total[d, c] += x[d, c] * (number - since[d])
                x[d, c] -= factor * metric[d] * slopes[c]
            since[d] = number
    t = first + targets.size
    number = 0.5 * t * (t + 1)
    for j in range(d + 1):
        for c in range(outputs):
            total[j, c] += x[j, c] * (number - since[j])
        since[j] = number


@njit(forceinline=True)
def _slopes(loss: Any, margins: Any, target: Any, slopes: Any) -> None:
    """The derivatives of the loss: of one margin, or of softmax (2) for the class `target`."""
    if loss != 2:
        slopes[0] = slope(loss, margins[0], target)
        return
    top = margins.max()
    sum_ = 0.0
    for c in range(margins.size):
        slopes[c] = math.exp(margins[c] - top)
        sum_ += slopes[c]
    for c in range(margins.size):
        slopes[c] /= sum_
    slopes[int(target)] -= 1.0
