"""Sparsified versions of a linear model: v + S(x - v), drawn by the training sketch or at a density."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mast.arrays import Array, numbers
from mast.checks import whole
from mast.errors import ArgumentError
from mast.sketches import RandK, Sketch

ENTRIES = 8_000_000  #: weights, or outputs, that are held at a time


def at_density(sketch: Sketch, density: Any) -> Sketch:
    """The training sketch (None), or Rand-K that keeps this share: of its groups, if it has groups.

    >>> import mast
    >>> at_density(mast.PermK(4), 0.25)
    <RandK(0.25): keeps 25 %>
    """
    if density is None:
        return sketch
    share = float(numbers("density", np.atleast_1d(density), 1)[0]) if np.ndim(density) == 0 else np.nan
    if not 0 < share <= 1:
        raise ArgumentError(f"density is the share of features that is kept, in (0, 1], got {density!r}")
    return sketch.over(RandK(share))


def versions(coef: Array, shift: Array, sketch: Sketch, seed: int, draws: int) -> Iterator[Array]:
    """The weights of sparsified models 0, 1, ..., in batches: arrays (models, classes, features)."""
    draws = whole("draws", draws, 1)
    classes, d = coef.shape
    moved = (coef - shift).T
    step = max(1, ENTRIES // (classes * d))
    for begin in range(0, draws, step):
        span = range(begin, min(begin + step, draws))
        yield np.stack([shift + sketch.draw(d, seed, i).apply(moved).T for i in span])


def outputs(X: Any, coef: Array, intercept: Array) -> Iterator[Array]:
    """X w + b for a batch of models: one array (rows, classes) per model."""
    models, classes, d = coef.shape
    step = max(1, ENTRIES // max(X.shape[0] * classes, 1))
    for begin in range(0, models, step):
        part = coef[begin : begin + step]
        product = np.asarray(X @ part.reshape(-1, d).T)
        for i in range(part.shape[0]):
            yield product[:, i * classes : (i + 1) * classes] + intercept
