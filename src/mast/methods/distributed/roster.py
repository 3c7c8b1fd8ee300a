"""Who takes part in a round of the distributed method, with which weight and which key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mast import randomness
from mast.arrays import Array, vector
from mast.checks import choice, whole
from mast.errors import ArgumentError
from mast.randomness import Key, Purpose


@dataclass(frozen=True)
class Roster:
    """Who takes part in a round, with which weight and which key: all of it is a function of the seed.

    It knows nothing of the nodes' data, so that a server can have it without them.

    >>> roster = Roster(seed=0, nodes=4, participation=[1.0, 0.5, 0.5, 1.0])
    >>> roster.taking_part(0)
    [(0, 1.0), (1, 2.0), (2, 2.0), (3, 1.0)]
    >>> roster.key(5, 3)
    Key(seed=0, step=5, node=3, index=0)
    """

    seed: int
    nodes: int
    #: nodes this far apart draw independently, whatever their sketches
    stride: int = 1
    coupling: str = "independent"
    participation: Any = 1.0
    participants: int | None = None
    shares: Array = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        choice("coupling", self.coupling, ("independent", "disjoint"))
        object.__setattr__(self, "shares", self._shares())
        if self.participants is not None:
            count = whole("participants", self.participants, 1, self.nodes)
            object.__setattr__(self, "participants", count)
            if (self.shares < 1).any():
                raise ArgumentError("give participation or participants, not both")

    def _shares(self) -> Array:
        """Each node's probability of taking part."""
        q = vector("participation", np.atleast_1d(self.participation))
        if q.size not in (1, self.nodes) or not ((q > 0) & (q <= 1)).all():
            raise ArgumentError(
                f"participation is one probability in (0, 1], or one for each of the {self.nodes} nodes; "
                "for m of the nodes pass participants=m"
            )
        return np.broadcast_to(q, (self.nodes,))

    def taking_part(self, t: int) -> list[tuple[int, float]]:
        """The nodes of round t, ascending, and the weight of each one's answer."""
        if self.participants is not None:
            key = Key(self.seed, t)
            chosen = randomness.permutation(key, Purpose.PARTICIPATION, self.nodes, 0, self.participants)
            return [(int(i), self.nodes / self.participants) for i in np.sort(chosen)]
        return [
            (i, 1 / q)
            for i, q in enumerate(self.shares.tolist())
            if q == 1 or randomness.uniform(Key(self.seed, t, i), Purpose.PARTICIPATION) < q
        ]

    def key(self, t: int, i: int) -> Key:
        """The key of node i's draw in round t; all that a node needs to rebuild its sketch."""
        if self.coupling == "independent" and self.stride * self.nodes >= 1 << 32:
            return Key(self.seed, t).child(i)  # more nodes than a key can number that far apart
        return Key(self.seed, t, i if self.coupling == "disjoint" else i * self.stride)


def submodel_key(seed: int, draw: int, node: int) -> Key:
    """The key of a node's submodel that is scored: a draw with another seed, which training never uses."""
    return Key(Key(seed).child(0, Purpose.ESTIMATE).seed, draw, node)


def stride_of(sketches: Sequence[Any]) -> int:
    """The stride of a roster for these sketches or capacities: nodes this far apart draw independently."""
    return math.lcm(*(sketch.stride for sketch in sketches))
