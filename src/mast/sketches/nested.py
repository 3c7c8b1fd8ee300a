"""Nested: one order of the coordinates, and a prefix of it per draw. Slimmable and elastic networks.

With scale 1 this is ordered dropout (FjORD, slimmable networks, MatFormer): E[S] = diag(q), and the
statements about DSGD hold with L_D = q_max, mu_D = q_min, L_max = 1. With the scale 1/q_i it is unbiased, and
every statement about sketches covers it. Both are one problem in other coordinates, y_i = x_i / q_i.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mast import randomness
from mast.errors import ArgumentError, BiasedSketchError
from mast.randomness import Key, Purpose
from mast.sketches.base import Sketch, percent, probabilities
from mast.sketches.draws import DiagonalDraw, Draw
from mast.sketches.laws import Constants, Law
from mast.support.checks import Array, Indices, check_choice, check_probability, frozen, vector

_REMEMBERED = 1 << 22  # coordinates whose order is kept from draw to draw


class Nested(Sketch):
    """Keep the first ``round(share * d)`` coordinates of a fixed order; the share is drawn.

    What a small share keeps, a larger one keeps too. In a network one share holds for all layers; with a
    random order, layers with equally many units have the same one.

    Parameters
    ----------
    shares
        The shares to keep, ascending. The largest is 1; without it some coordinates are never kept, and the
        sketch is biased.
    weights
        The probability of each share; equal ones by default.
    order
        "first" keeps prefixes: coordinate 0 first. "random" keeps prefixes of a random order.
    seed
        Decides a random order.
    scaled
        Whether coordinate i is scaled by 1/q_i, q_i its probability to be kept, so that E[S] = I. Then the
        whole member is x / q, not x. Without the scale, what is kept stays as it is and the whole member is
        x: the way to make sizes of a pretrained network.

    >>> import mast
    >>> half = mast.Nested([0.5, 1.0])
    >>> [draw.diagonal() for _, draw in half.support(4)]
    [array([1., 1., 0., 0.]), array([1., 1., 2., 2.])]
    >>> half.constants(4), half.share(4)
    (Constants(L_D=2.0, mu_D=1.0, L_max=4.0), 0.75)
    >>> mast.Nested([0.5, 1.0], scaled=False).constants(4)
    Constants(L_D=1.0, mu_D=0.5, L_max=1.0, unbiased=False)
    """

    def __init__(
        self,
        shares: ArrayLike,
        weights: ArrayLike | None = None,
        *,
        order: str = "first",
        seed: int = 0,
        scaled: bool = True,
    ) -> None:
        self.shares: Array = frozen(vector("shares", shares))
        if not self.shares.size:
            raise ArgumentError("Nested needs at least one share, such as Nested([0.25, 0.5, 1.0])")
        if not ((self.shares > 0) & (self.shares <= 1)).all() or (np.diff(self.shares) <= 0).any():
            given = ", ".join(f"{share:g}" for share in self.shares)
            raise ArgumentError(f"shares must lie in (0, 1] and ascend, got {given}")
        self._uniform = weights is None
        self.weights = probabilities("weights", weights, self.shares.size)
        if (self.weights == 0).any():
            raise ArgumentError("a share with weight 0 is never drawn: leave it out")
        self.order = check_choice("order", order, ("first", "random"))
        self.seed, self.scaled = Key(seed).seed, bool(scaled)
        self.unbiased = bool(self.shares[-1] == 1 and (self.scaled or self.shares.size == 1))
        self.members = int(self.shares.size)
        self._orders: dict[int, Indices] = {}

    # ---- the order, and what a share keeps of it -----------------------------------------------

    def places(self, d: int) -> Indices:
        """The coordinates, in the order in which shares keep them."""
        if self.order == "first":
            return np.arange(self.check(d))
        if d not in self._orders:
            order = frozen(randomness.permutation(Key(self.seed), Purpose.PARTITION, self.check(d)))
            if sum(map(len, self._orders.values())) + d > _REMEMBERED:
                self._orders.clear()
            self._orders[d] = order
        return self._orders[d]

    def counts(self, d: int) -> list[int]:
        """How many coordinates each share keeps: at least one."""
        return [count_of(share, self.check(d)) for share in self.shares]

    def keep(self, d: int) -> Array:
        """q: the probability of each coordinate to be kept."""
        law = self.law(d)
        return law.per_coordinate(law.keep)

    def _by_place(self, d: int) -> tuple[Array, Array]:
        """Of the first coordinate of the order, of the second, ...: the probability to be kept; the scale."""
        m = self.shares.size
        tails = np.arange(m, -1, -1) / m if self._uniform else 1 - np.append(0, np.cumsum(self.weights))
        tails[-1] = 0.0  # what no share keeps
        q = np.repeat(tails, np.diff([0, *self.counts(d), d]))
        if not self.scaled:
            return q, (q > 0).astype(np.float64)
        return q, np.divide(1, q, out=np.zeros(d), where=q > 0)

    def prefix(self, d: int, share: float) -> DiagonalDraw:
        """What a share keeps, one of `shares` or another, with the scales of this sketch."""
        count = count_of(share, d)
        scales = self._by_place(d)[1][:count] if self.scaled else np.ones(count)
        places = self.places(d)[:count]
        if self.order == "random":
            ascending = np.argsort(places)
            places, scales = places[ascending], scales[ascending]
        return DiagonalDraw(d, places, scales)

    # ---- what a sketch says ------------------------------------------------------------------------

    def member_of(self, key: Key) -> int:
        """The number of the share that `key` draws."""
        return randomness.choice(key, Purpose.CHOICE, np.cumsum(self.weights))

    def sample(self, d: int, key: Key) -> Draw:
        """A prefix of the order."""
        return self.prefix(self.check(d), self.shares[self.member_of(key)])

    def outcomes(self, d: int) -> Iterator[tuple[float, Draw]]:
        """One draw for each share."""
        for weight, share in zip(self.weights.tolist(), self.shares, strict=True):
            yield weight, self.prefix(d, share)

    def law(self, d: int) -> Law:
        """Unit u is place u of the order; the more often kept of two is there whenever the other is."""
        q, scales = self._by_place(self.check(d))
        return Law(
            d, d, q, scales,
            unbiased=self.unbiased,
            labels=None if self.order == "first" else lambda: np.argsort(self.places(d)),
            pairs=lambda: np.minimum.outer(scales, scales) if self.unbiased else _together(q, scales),
        )  # fmt: skip

    def constants(self, d: int) -> Constants:
        """Scaled, the largest share has to be 1: a coordinate that is never kept has no scale."""
        if self.scaled and not self.unbiased:
            raise BiasedSketchError(
                f"{self!r} never keeps some coordinates, so no scale makes it unbiased: add the share 1, "
                "or take scaled=False"
            )
        return super().constants(d)

    def share(self, d: int) -> float:
        """The mean of the shares, as they are rounded in dimension d."""
        return float(self.weights @ np.array(self.counts(d))) / d

    def at(self, density: float) -> Sketch:
        """Always the prefix of this share of the same order, with the same scales."""
        return Prefix(self, check_probability("density", density))

    def arguments(self) -> dict[str, Any]:
        """What the constructor takes."""
        return {
            "shares": self.shares,
            "weights": None if self._uniform else self.weights,
            "order": self.order,
            "seed": self.seed,
            "scaled": self.scaled,
        }

    def label(self) -> str:
        """The shares."""
        return (
            f"Nested({', '.join(f'{share:g}' for share in self.shares)}): keeps "
            f"{' or '.join(percent(share) for share in self.shares)}, "
            f"{'the first ones' if self.order == 'first' else 'the first of a random order'}"
            f"{'' if self.scaled else ', not scaled'}"
        )


class Prefix(Sketch):
    """One share of a nested sketch, always. Without the other shares it is biased."""

    unbiased = False
    members = 1

    def __init__(self, nested: Nested, density: float) -> None:
        self.nested, self.density = nested, density

    def sample(self, d: int, key: Key) -> Draw:
        """A prefix of the order."""
        return self.nested.prefix(self.check(d), self.density)

    def outcomes(self, d: int) -> Iterator[tuple[float, Draw]]:
        """One draw."""
        yield 1.0, self.sample(d, Key())

    def at(self, density: float) -> Sketch:
        """Another share of the same order."""
        return self.nested.at(density)

    def label(self) -> str:
        """The share."""
        return f"Prefix({self.density:g}): keeps {percent(self.density)} of a nested order"


def _together(q: Array, scales: Array) -> Array:
    """E[c_u c_v]: the less often kept of two places is there only with the other."""
    return np.minimum.outer(q, q) * np.outer(scales, scales)


def count_of(share: float, d: int) -> int:
    """How many of d coordinates a share is: rounded, and at least one.

    >>> count_of(0.25, 8), count_of(0.01, 8)
    (2, 1)
    """
    return max(1, round(float(share) * d))
