"""Sparsified versions of a linear model: v + S(x - v), drawn by the training sketch or at a density."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mast.arrays import Array, numbers
from mast.checks import whole
from mast.errors import ArgumentError
from mast.learn.missing import StandIns
from mast.sketches import DiagonalDraw, RandK, Sketch

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


class Versions(NamedTuple):
    """A batch of sparsified models."""

    coef: Array  #: (models, outputs, features)
    intercept: Array  #: (models, outputs)
    kept: Any  #: (models, features), whether a feature is kept; None where S is no mask


def versions(
    coef: Array,
    intercept: Array,
    shift: Array,
    sketch: Sketch,
    seed: int,
    draws: int,
    stand_ins: StandIns | None,
) -> Iterator[Versions]:
    """Sparsified models 0, 1, ... in batches: v + S(x - v), or weights that stand-ins have moved."""
    draws = whole("draws", draws, 1)
    outputs, d = coef.shape
    moved = (coef - shift).T
    step = max(1, ENTRIES // (outputs * d))
    for begin in range(0, draws, step):
        drawn = [sketch.draw(d, seed, i) for i in range(begin, min(begin + step, draws))]
        same = np.broadcast_to(intercept, (len(drawn), outputs))
        if stand_ins is None:
            yield Versions(np.stack([shift + draw.apply(moved).T for draw in drawn]), same, None)
            continue
        kept = np.stack([draw.diagonal() != 0 for draw in drawn if isinstance(draw, DiagonalDraw)])
        weights = stand_ins.sketch.apply_masks(kept, coef)
        yield Versions(weights, same + (coef - weights) @ stand_ins.mean, kept)


def outputs(X: Any, batch: Versions) -> Iterator[Array]:
    """X w + b for a batch of models: one array (rows, outputs) per model."""
    models, count, d = batch.coef.shape
    step = max(1, ENTRIES // max(X.shape[0] * count, 1))
    for begin in range(0, models, step):
        part = batch.coef[begin : begin + step]
        product = np.asarray(X @ part.reshape(-1, d).T)
        for i in range(part.shape[0]):
            yield product[:, i * count : (i + 1) * count] + batch.intercept[begin + i]
