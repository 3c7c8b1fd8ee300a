"""What a sketch does to a few coordinates: exact laws, for expectations that need no sampling.

The mean of a function of one row of data needs the law of S on that row's non-zeros only,
however many coordinates there are. `LocalLaw` is that law for every row at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mast.arrays import Array, Indices
from mast.sketches.units import Kind, Units

#: for each value that an entry takes, its probability and the value itself, by coordinate
Atoms = list[tuple[Array, Array]]


class LocalLaw(NamedTuple):
    """Units of coordinates that live or die together, and the law of the survivors among any few of them.

    Either the units are independent (`keep` is given), or every set of units of one size is alike
    (`patterns` is given): ``patterns(m)[r]`` is the probability that of m units exactly a given set of
    r survives.
    """

    labels: Indices  #: the unit of each coordinate; -1 for one that always survives, times 1
    scales: Array  #: what a unit is multiplied with if it survives
    keep: Array | None = None
    patterns: Callable[[int], Array] | None = None


def local_law(units: Units) -> LocalLaw | None:
    """The law of a sketch that is given as arrays; None where one of K units survives (see `separable`)."""
    count = units.scales.size
    if units.kind is Kind.MASK:
        keep = units.thresholds / 2.0**32
        always = (keep == 1) & (units.scales == 1)
        return LocalLaw(np.where(always[units.unit_of], -1, units.unit_of), units.scales, keep=keep)
    if units.kind is Kind.SUBSET:
        sizes = {units.k: 1.0}
    elif units.kind is Kind.REDRAWN:
        sizes = _redrawn_sizes(count, units.k)
    else:
        return None
    return LocalLaw(units.unit_of, units.scales, patterns=lambda m: _patterns(count, sizes, m))


def marginals(units: Units) -> Atoms:
    """The two values that each entry of the diagonal takes, with their probabilities."""
    if units.kind is Kind.MASK:
        keep = units.thresholds / 2.0**32
    else:
        share = {Kind.ALL: 1.0, Kind.SUBSET: units.k / units.scales.size}.get(units.kind, 1.0 / units.k)
        keep = np.full(units.scales.size, share)
    kept, scales = keep[units.unit_of], units.scales[units.unit_of]
    atoms = [(kept, scales)]
    if (kept < 1).any():
        atoms.append((1 - kept, np.zeros(kept.size)))
    return atoms


def _patterns(count: int, sizes: dict[int, float], m: int) -> Array:
    """P(of m units exactly a given r survive), where a uniform subset survives whose size has this law."""
    out = np.zeros(m + 1)
    for size, weight in sizes.items():
        for r in range(m + 1):
            p = weight
            for a in range(r):
                p *= max(size - a, 0) / (count - a)
            for b in range(m - r):
                p *= max(count - size - b, 0) / (count - r - b)
            out[r] += p
    return out


class MomentForm(NamedTuple):
    """E[c c'] without a d x d matrix: ``share m m'``, plus ``extra[u]`` within unit u."""

    share: float
    m: Array
    labels: Indices
    extra: Array


def moment_form(units: Units) -> MomentForm:
    """The second moments of a sketch that is given as arrays."""
    labels, scales, count = units.unit_of, units.scales, units.scales.size
    ones = np.ones(labels.size)
    if units.kind is Kind.MASK:
        keep = units.thresholds / 2.0**32
        return MomentForm(1.0, (keep * scales)[labels], labels, keep * (1 - keep) * scales**2)
    if units.kind is Kind.ALL:
        return MomentForm(1.0, scales[labels], labels, np.zeros(count))
    if units.kind is Kind.BLOCK or count == 1:
        return MomentForm(0.0, ones, labels, scales**2 / units.k)
    sizes = {units.k: 1.0} if units.kind is Kind.SUBSET else _redrawn_sizes(count, units.k)
    together = sum(w * q * (q - 1) for q, w in sizes.items()) / (count * (count - 1))
    alone = sum(w * q for q, w in sizes.items()) / count
    share = float(scales[0]) ** 2 * together
    return MomentForm(share, ones, labels, scales**2 * alone - share)


def _redrawn_sizes(count: int, k: int) -> dict[int, float]:
    """The law of the size of a uniform block, `count` units being cut into k blocks."""
    small, larger = divmod(count, k)
    return {small: (k - larger) / k, small + 1: larger / k}
