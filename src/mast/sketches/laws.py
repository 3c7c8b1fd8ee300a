"""What a sketch does to its coordinates, as numbers: exact laws, for expectations that need no sampling.

A unit is a coordinate, a group of them, or a block of a fixed partition: its coordinates are kept or dropped
together. A law says how many units there are and how the kept ones are chosen; the support, moments,
constants and exact forms of f_D follow from it.

- `IndependentLaw`: each unit by itself, with its own probability.
- `SubsetLaw`: a uniform subset of the units, of one size or of several.
- `PairLaw`: neither; only single units and pairs of them are known.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from mast.sketches.constants import Constants
from mast.sketches.draws import DiagonalDraw
from mast.support.checks import Array, Indices, refuse_too_large


class Members(NamedTuple):
    """The coordinates of the units: those of unit u are ``order[start[u] : start[u + 1]]``."""

    order: Indices
    start: Indices

    @classmethod
    def of(cls, unit_of: Indices, units: int) -> Members:
        """From the unit of each coordinate."""
        start = np.concatenate([[0], np.cumsum(np.bincount(unit_of, minlength=units))])
        return cls(np.argsort(unit_of, kind="stable").astype(np.int64), start.astype(np.int64))

    def spread(self, draw: DiagonalDraw) -> DiagonalDraw:
        """A draw over units as one over their coordinates; it costs what it keeps."""
        first = self.start[draw.indices]
        sizes = self.start[draw.indices + 1] - first
        offsets = np.repeat(first - (np.cumsum(sizes) - sizes), sizes)
        indices = self.order[offsets + np.arange(offsets.size)]
        ascending = np.argsort(indices)
        return DiagonalDraw(self.order.size, indices[ascending], np.repeat(draw.scales, sizes)[ascending])


class MomentForm(NamedTuple):
    """E[c c'] without a d x d matrix: ``share m m'``, plus ``extra[u]`` within unit u."""

    share: float
    m: Array
    labels: Indices
    extra: Array


@dataclass(frozen=True, eq=False)
class Law(ABC):
    """Units of coordinates that are kept or dropped together: what all laws say."""

    dim: int
    units: int
    keep: float | Array  #: the probability that a unit is kept, one for all or one per unit
    scales: float | Array  #: what it is multiplied with then
    unbiased: bool = True
    labels: Callable[[], Indices] | None = None  #: makes `unit_of`; None: coordinate i is unit i
    alone: bool = False  #: whether some coordinates are in no unit (label -1): always kept, times 1

    def over(self, labels: Indices, alone: bool) -> Law:
        """The law of coordinates that have the entry of this one's at their label, or are left alone (-1)."""
        return replace(
            self,
            dim=labels.size,
            labels=lambda: np.append(self.unit_of, -1)[labels],
            alone=self.alone or alone,
        )

    @cached_property
    def unit_of(self) -> Indices:
        """The unit of each coordinate; -1 for one that is always kept, times 1."""
        return np.arange(self.dim, dtype=np.int64) if self.labels is None else self.labels()

    def spread(self, values: float | Array, alone: float = 1.0) -> Array:
        """Values of units as values of coordinates."""
        if self.labels is not None and np.ndim(values) == 0:  # there may be many more units than coordinates
            return np.where(self.unit_of < 0, alone, values).astype(np.float64, copy=False)
        per_unit = self.per_unit(values)
        if self.labels is None:
            return per_unit
        return (np.append(per_unit, alone) if self.alone else per_unit)[self.unit_of]

    def per_unit(self, values: float | Array) -> Array:
        """One value for each unit."""
        refuse_too_large(f"a value for each of {self.units:,} units", self.units)
        return np.full(self.units, values, dtype=np.float64)

    # ---- the support -----------------------------------------------------------------------

    def support_size(self) -> int | None:
        """How many sets of units may be kept; None if that is not known."""
        return None

    def outcomes(self) -> Iterator[tuple[float, DiagonalDraw]] | None:
        """All (probability, draw) pairs; None if there are infinitely many, or they are not known."""
        return self._listed()

    def _listed(self) -> Iterator[tuple[float, DiagonalDraw]]:
        scales = self.per_unit(self.scales)
        members = None if self.labels is None else Members.of(self.unit_of, self.units)
        for probability, kept in self._subsets():
            draw = DiagonalDraw(self.units, kept, scales[kept])
            yield probability, draw if members is None else members.spread(draw)

    def _subsets(self) -> Iterator[tuple[float, Indices]]:
        """The sets of units that may be kept, with their probabilities."""
        yield from ()

    # ---- moments ---------------------------------------------------------------------------

    def share(self) -> float:
        """The expected share of the coordinates that are kept."""
        if self.alone or (self.labels is not None and np.ndim(self.keep)):
            return float(self.spread(self.keep).mean())
        return float(np.mean(self.keep))

    def mean(self) -> Array:
        """E[c]."""
        return np.ones(self.dim) if self.unbiased else self.spread(self.keep * self.scales)

    def expected_square(self) -> Array:
        """E[c²]; an unbiased unit that has one scale has E[c²] = scale."""
        return self.spread(self.scales if self.unbiased else self.keep * np.square(self.scales))

    def second_moment(self) -> Array:
        """E[c c']."""
        unit, moment = self.unit_of, self._between_units()
        if self.labels is None:
            np.fill_diagonal(moment, self.expected_square())
            return moment
        return np.where(unit[:, None] == unit, self.expected_square()[:, None], moment)

    def _between_units(self) -> Array:
        """E[c_i c_j] for coordinates of different units; what is left alone is such a unit too."""
        moment, mean, alone = self._between(), self.mean(), self.unit_of < 0
        if self.alone:
            moment[alone], moment[:, alone] = mean, mean[:, None]
        return moment

    @abstractmethod
    def _between(self) -> Array:
        """E[c_i c_j] for coordinates of different units."""

    def constants(self) -> Constants:
        """L_D, mu_D and L_max."""
        square, largest = self._squares()
        own = Constants(float(np.max(square)), float(np.min(square)), largest, unbiased=self.unbiased)
        return Constants.of_parts([own, Constants(1.0, 1.0, 1.0)]) if self.alone else own

    def _squares(self) -> tuple[float | Array, float]:
        """E[c²] of the units, and the largest c² that there is."""
        if self.unbiased:
            return 1 / np.asarray(self.keep), 1 / float(np.min(self.keep)) ** 2
        return self.keep * np.square(self.scales), float(np.square(self.scales).max())

    def moment_form(self) -> MomentForm | None:
        """E[c c'] without a matrix; None where that, or coordinates that are left alone, do not fit in."""
        found = self._shared()
        if found is None:
            return None
        share, m, extra = found
        per_unit = self.per_unit(extra)
        if not self.alone:
            return MomentForm(share, self.spread(m), self.unit_of, per_unit)
        # One more unit holds what is left alone: `share m beside` has to be the mean of each other unit.
        ratio = np.atleast_1d(np.asarray(m, dtype=np.float64) if self.unbiased else np.ones(1))
        if share == 0.0 or np.ptp(ratio) > 1e-12 * abs(ratio[0]):
            return None
        beside = 1 / (share * float(ratio[0]))
        labels = np.where(self.unit_of < 0, self.units, self.unit_of)
        return MomentForm(share, self.spread(m, beside), labels, np.append(per_unit, 1 - share * beside**2))

    def _shared(self) -> tuple[float, float | Array, float | Array] | None:
        """E[c c'] of units as ``share m m'``, plus `extra` on the diagonal; None if it has no such form."""
        return None


@dataclass(frozen=True, eq=False)
class IndependentLaw(Law):
    """Every unit is kept by itself, with its probability; its scale may have a normal error."""

    noise: float = 0.0  #: the variance of that error

    def support_size(self) -> int:
        """Every subset of the units that may be dropped."""
        return 1 << int((self.per_unit(self.keep) < 1).sum())

    def outcomes(self) -> Iterator[tuple[float, DiagonalDraw]] | None:
        """All (probability, draw) pairs; None if there are infinitely many."""
        return None if self.noise else self._listed()

    def _subsets(self) -> Iterator[tuple[float, Indices]]:
        keep = self.per_unit(self.keep)
        free, mask = np.flatnonzero(keep < 1), np.ones(self.units, dtype=bool)
        for number in range(1 << free.size):
            mask[free] = number >> np.arange(free.size) & 1
            yield float(np.where(mask, keep, 1 - keep).prod()), np.flatnonzero(mask)

    def expected_square(self) -> Array:
        """E[c²]."""
        return self.spread(self.keep * (np.square(self.scales) + self.noise))

    def _between(self) -> Array:
        mean = self.mean()
        return np.outer(mean, mean)

    def _squares(self) -> tuple[float | Array, float]:
        square, largest = super()._squares()
        return (square + self.keep * self.noise, math.inf) if self.noise else (square, largest)

    def _shared(self) -> tuple[float, float | Array, float | Array]:
        extra = self.keep * (1 - self.keep) * np.square(self.scales) + self.keep * self.noise
        return 1.0, self.keep * self.scales, extra


@dataclass(frozen=True, eq=False)
class SubsetLaw(Law):
    """A uniform subset of the units is kept. `SubsetLaw.of` makes it unbiased."""

    sizes: Mapping[int, int] = field(default_factory=dict)  #: of equally likely sizes, how often each occurs

    @classmethod
    def of(cls, dim: int, units: int, sizes: Mapping[int, int], **options: Any) -> SubsetLaw:
        """The unbiased law under which the size of the subset is one of `sizes`."""
        times, total = sum(sizes.values()), sum(q * n for q, n in sizes.items())
        return cls(dim, units, total / (times * units), times * units / total, sizes=sizes, **options)

    def support_size(self) -> int:
        """Every subset of one of the sizes."""
        return sum(math.comb(self.units, size) for size in self.sizes)

    def _subsets(self) -> Iterator[tuple[float, Indices]]:
        times = sum(self.sizes.values())
        for size, number in self.sizes.items():
            for kept in combinations(range(self.units), size):
                yield number / (times * math.comb(self.units, size)), np.array(kept, dtype=np.int64)

    def _between(self) -> Array:
        """An exact fraction, rounded once."""
        n, times = self.units, sum(self.sizes.values())
        total = sum(q * number for q, number in self.sizes.items())
        pairs = sum(q * (q - 1) * number for q, number in self.sizes.items())
        return np.full((self.dim, self.dim), n * times * pairs / (total**2 * (n - 1)) if n > 1 else 1.0)

    def _squares(self) -> tuple[float | Array, float]:
        return float(self.scales), float(self.scales) ** 2

    def _shared(self) -> tuple[float, float | Array, float | Array]:
        times, n, scale = sum(self.sizes.values()), self.units, float(self.scales)
        weights = {q: number / times for q, number in self.sizes.items()}
        pairs = sum(w * q * (q - 1) for q, w in weights.items())
        single = sum(w * q for q, w in weights.items()) / n
        share = scale**2 * (pairs / (n * (n - 1))) if pairs else 0.0
        return share, 1.0, np.square(scale) * single - share

    def separable(self) -> tuple[Indices, int] | None:
        """The unit of each coordinate and K, if exactly one of K units is kept, times K."""
        return (self.unit_of, self.units) if set(self.sizes) == {1} else None

    def patterns(self, m: int) -> Array:
        """The probability that of m units exactly a given set of r is kept, for each r."""
        out = np.zeros(m + 1)
        for size, number in self.sizes.items():
            for r in range(m + 1):
                p = number / sum(self.sizes.values())
                for a in range(r):
                    p *= max(size - a, 0) / (self.units - a)
                for b in range(m - r):
                    p *= max(self.units - size - b, 0) / (self.units - r - b)
                out[r] += p
        return out


@dataclass(frozen=True, eq=False)
class PairLaw(Law):
    """Only single units and pairs of them are known: nested prefixes, and windows."""

    pairs: Callable[[], Array] = field(default=lambda: np.empty((0, 0)))  #: makes E[c_u c_v] of the units

    def outcomes(self) -> None:
        """Not known."""

    def second_moment(self) -> Array:
        """E[c c']."""
        return self._between_units()

    def _between(self) -> Array:
        unit = self.unit_of
        return self.pairs() if self.labels is None else self.pairs()[np.ix_(unit, unit)]
