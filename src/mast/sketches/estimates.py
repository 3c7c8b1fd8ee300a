"""Moments of a sketch that states no law: over its support where that is short, else over seeded draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mast.errors import BiasedSketchError
from mast.randomness import Key, Purpose
from mast.sketches.draws import DiagonalDraw, Draw
from mast.support.checks import Array

if TYPE_CHECKING:
    from mast.sketches.base import Sketch

SUPPORT_LIMIT = 1 << 16  #: a support with more draws than this is not listed
ESTIMATE_DRAWS = 4096  #: the draws of an estimate; fewer in large dimensions
_ENTRIES = 1 << 24  # of all draws of an estimate together


class ListMoments(NamedTuple):
    """What is known of S from a list of draws."""

    mean: Array  # the diagonal of E[S]
    square: Array  # E[S'S]: its diagonal if all S are diagonal
    largest: float  # the largest eigenvalue of any S'S
    share: float  # of the coordinates that are kept
    draws: int  # 0 if they are the whole support

    def check_unbiased(self, sketch: Sketch) -> None:
        """Refuse a sketch that says it has E[S] = I, and has not."""
        off = float(np.abs(self.mean - 1).max())
        bound = 1e-9 * max(1.0, math.sqrt(self.largest))
        if self.draws:  # Bernstein's inequality: E c² <= max|c| E|c|; one false alarm in 10^9
            chances = math.log(2e9 * self.mean.size)
            most = math.sqrt(max(self.largest, 1.0))
            third = most * chances / (3 * self.draws)
            bound = third + math.sqrt(third**2 + 2 * most * chances / self.draws)
        if off > bound:
            source = f"the mean of {self.draws} draws" if self.draws else "its mean over its support"
            raise BiasedSketchError(
                f"{sketch!r} is biased: it says that E[S] is I, but {source} is off by {off:.3g}; scale what "
                "it keeps by the inverse of the probability to keep it, or set unbiased = False"
            )


def moments_of(sketch: Sketch, d: int) -> ListMoments:
    """The moments over the support, or an estimate; they are remembered."""
    known: dict[int, ListMoments] = vars(sketch).setdefault("_moments", {})
    if d not in known:
        known.clear()
        known[d] = _moments(sketch, d)
    return known[d]


def _moments(sketch: Sketch, d: int) -> ListMoments:
    mean, square = np.zeros(d), np.zeros(d if sketch.diagonal else (d, d))
    largest = share = total = 0.0
    draws = listed(sketch, d)
    for weight, draw in draws:
        if isinstance(draw, DiagonalDraw) and sketch.diagonal:
            squares = np.square(draw.scales)
            mean[draw.indices] += weight * draw.scales
            square[draw.indices] += weight * squares
            largest = max(largest, float(np.max(squares, initial=0.0)))
            share += weight * draw.indices.size / d
        else:
            S = draw.matrix()
            mean += weight * np.diag(S)
            square += weight * (S.T @ S)
            largest = max(largest, float(np.linalg.norm(S, 2) ** 2))
        total += weight
    return ListMoments(mean / total, square / total, largest, share / total, estimate_size(sketch, d))


def mean_over(sketch: Sketch, d: int, of: Callable[[Draw], Array]) -> Array:
    """The mean of a matrix that is made of each draw, over the support or estimated."""
    parts, total = np.zeros((d, d)), 0.0
    for weight, draw in listed(sketch, d):
        parts += weight * of(draw)
        total += weight
    return parts / total


def estimate_size(sketch: Sketch, d: int) -> int:
    """How many draws estimates are made of; 0 if the support is short enough to be exact."""
    size = sketch.support_size(d)
    return 0 if size is not None and size <= SUPPORT_LIMIT else min(ESTIMATE_DRAWS, max(64, _ENTRIES // d))


def listed(sketch: Sketch, d: int) -> Iterator[tuple[float, Draw]]:
    """The support with relative weights (the first is 1), or that many draws of one fixed seed."""
    n, outcomes = estimate_size(sketch, d), sketch.outcomes(d)
    if n or outcomes is None:
        seed = Key().child(0, Purpose.ESTIMATE).seed
        for index in range(n):
            yield 1.0, sketch.sample(d, Key(seed, index=index))
        return
    first = 0.0
    for probability, draw in outcomes:
        first = first or probability
        if probability > 0:
            yield probability / first, draw
