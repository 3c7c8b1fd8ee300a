"""Who takes part in a round of the distributed method, with which key, and which weight its answer gets.

The estimate of the gradient is h = (1/M) sum_i w_i answer_i over the nodes that answered. Node i is invited
with the known probability q_i and, if invited, answers with probability r_i. Its weight is c_i = 1/q_i if
nobody drops out; `Dropouts` says what it is otherwise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mast import randomness
from mast.errors import ArgumentError
from mast.randomness import Key, Purpose
from mast.support.checks import Array, check_choice, check_int, vector

#: draws of the nodes of a round: independent; those of nodes 0, 1, ...; or node 0's for all of them
COUPLINGS = ("independent", "disjoint", "common")


@dataclass(frozen=True)
class Participation:
    """Who takes part in a round, with which weight and which key: all of it is a function of the seed.

    It knows nothing of the nodes' data, so that a server can have it without them.

    >>> participation = Participation(seed=0, nodes=4, participation=[1.0, 0.5, 0.5, 1.0])
    >>> participation.sample(0)
    {0: 1.0, 1: 2.0, 2: 2.0, 3: 1.0}
    >>> participation.key(5, 3)
    Key(seed=0, step=5, node=3, index=0)
    """

    seed: int
    nodes: int
    #: nodes this far apart draw independently, whatever their sketches
    stride: int = 1
    coupling: str = "independent"
    participation: Any = 1.0
    participants: int | None = None
    probabilities: Array = field(init=False, repr=False, compare=False)  #: one for each node

    def __post_init__(self) -> None:
        check_choice("coupling", self.coupling, COUPLINGS)
        probabilities = _probabilities(self.participation, self.nodes)
        if probabilities is None:
            raise ArgumentError(
                f"participation is one probability in (0, 1], or one for each of the {self.nodes} nodes; "
                "for m of the nodes pass participants=m"
            )
        object.__setattr__(self, "probabilities", probabilities)
        if self.participants is not None:
            count = check_int("participants", self.participants, 1, self.nodes)
            object.__setattr__(self, "participants", count)
            if (probabilities < 1).any():
                raise ArgumentError("give participation or participants, not both")

    def sample(self, t: int) -> dict[int, float]:
        """The nodes of round t, ascending, and the weight of each one's answer."""
        key = Key(self.seed, t)
        if self.participants is not None:
            chosen = randomness.permutation(key, Purpose.PARTICIPATION, self.nodes, 0, self.participants)
            return dict.fromkeys(np.sort(chosen).tolist(), self.nodes / self.participants)
        coins = randomness.uniforms(key, Purpose.PARTICIPATION, self.nodes)
        chosen = np.flatnonzero(coins < self.probabilities)
        return dict(zip(chosen.tolist(), (1 / self.probabilities[chosen]).tolist(), strict=True))

    def key(self, t: int, i: int) -> Key:
        """The key of node i's draw in round t; all that a node needs to rebuild its sketch."""
        if self.coupling == "independent" and self.stride * self.nodes >= 1 << 32:
            return Key(self.seed, t).child(i)  # more nodes than a key can number that far apart
        node = {"independent": i * self.stride, "disjoint": i, "common": 0}[self.coupling]
        return Key(self.seed, t, node)

    def submodel_key(self, draw: int, node: int) -> Key:
        """The key of a node's submodel that is scored: of another seed, so training never uses this draw."""
        return Key(Key(self.seed).child(0, Purpose.ESTIMATE).seed, draw, node)

    def identity(self) -> dict[str, str]:
        """What must agree for a checkpoint to continue a run."""
        return {
            "nodes": str(self.nodes),
            "seed": str(self.seed),
            "coupling": self.coupling,
            "participation": str(self.participants or self.probabilities.tolist()),
        }


def _probabilities(value: Any, nodes: int) -> Array | None:
    """One probability in (0, 1] per node, from one for all or one each; None if the value is neither."""
    try:
        p = np.atleast_1d(np.asarray(value, dtype=np.float64))
    except (TypeError, ValueError):
        return None
    fits = p.ndim == 1 and p.size in (1, nodes) and ((p > 0) & (p <= 1)).all()
    return np.broadcast_to(p, (nodes,)) if fits else None


def stride_of(sketches: Sequence[Any]) -> int:
    """How far apart nodes with these sketches or capacities draw independently."""
    return math.lcm(*(sketch.stride for sketch in sketches))


# ---- nodes that do not answer ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Dropouts:
    """The weights of the answers in a round, by what is known of `answering`.

    - r_i, one for all or one each: c_i/r_i. Always unbiased, if dropping out does not depend on draw, data or
      point; a round without answers is part of it (h = 0).
    - "unknown": c_i invited/answered. Unbiased given who is invited and that somebody answers, if all drop
      out alike (all r_i equal and independent); a round without answers does not move x. With different r_i
      it is biased towards the reliable ones.
    - "always": c_i. Unbiased if nobody drops out; else client i's part is too short by r_i.

    Dropping out that is not random, such as that of a client that fails whenever its submodel is large, is
    corrected by no weight: the method then minimises another mean, that of `effective_weights`.

    >>> Dropouts("unknown", nodes=4).weights({0: 1.0, 1: 1.0, 3: 1.0}, answered=[0, 3])
    {0: 1.5, 3: 1.5}
    >>> Dropouts(0.5, nodes=4).weights({0: 1.0, 1: 1.0, 3: 1.0}, answered=[0, 3])
    {0: 2.0, 3: 2.0}
    """

    answering: Any
    nodes: int
    rates: Array | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        word = self.answering if isinstance(self.answering, str) else ""
        rates = _probabilities(1.0 if word == "always" else self.answering, self.nodes)
        if rates is None and word != "unknown":
            raise ArgumentError(
                '`answering` is "unknown", "always", or the probability in (0, 1] that an invited client '
                f"answers, one for all or one for each of the {self.nodes}; got {self.answering!r}"
            )
        object.__setattr__(self, "rates", rates)

    def weights(self, invited: Mapping[int, float], answered: Sequence[int]) -> dict[int, float]:
        """The weight of each answer; `invited` has the weights of `Participation.sample`."""
        strangers = sorted(set(answered) - set(invited))
        if strangers:
            raise ArgumentError(f"the nodes {strangers} answered, but were not invited")
        if self.rates is None:
            factor = len(invited) / len(answered) if answered else 0.0
            return {node: invited[node] * factor for node in answered}
        return {node: invited[node] / float(self.rates[node]) for node in answered}

    def estimates_gradient(self, invited: Collection[Any], answered: Collection[Any]) -> bool:
        """Whether the round's sum estimates the gradient: with unknown rates, no answers tell nothing."""
        return self.rates is not None or bool(answered) or not invited

    @property
    def label(self) -> str:
        """For checkpoints: the weights are part of what a run is."""
        return str(self.answering if isinstance(self.answering, str) else np.asarray(self.rates).tolist())


def effective_weights(answering: Any, rates: Sequence[float]) -> Array:
    """The mean weight E[w_i; i answers] of each client, all invited.

    Client i answers with probability rates[i], independently. All ones is unbiased; else the method
    minimises the mean of the f_i with these weights.

    For "unknown", rounds without answers do not count.

    >>> effective_weights("unknown", [0.5, 0.5, 0.5])
    array([1., 1., 1.])
    >>> effective_weights("always", [1.0, 0.5])
    array([1. , 0.5])
    >>> effective_weights("unknown", [1.0, 0.5])
    array([1.5, 0.5])
    """
    r = vector("rates", rates)
    dropouts = Dropouts(answering, r.size)
    if dropouts.rates is not None:
        return r / dropouts.rates

    def mean_factor(others: Array) -> float:
        """E[invited/answered] for a client that answers, over how many of the others do."""
        law = functools.reduce(np.convolve, [[1 - q, q] for q in others], np.ones(1))
        return float(np.sum(law * r.size / np.arange(1, r.size + 1)))

    somebody = 1 - np.prod(1 - r)
    return np.array([r[i] * mean_factor(np.delete(r, i)) / somebody for i in range(r.size)])
