"""Schemes for clients of different size, by the names that people know them by.

A scheme says what a client that can hold a share of the model is sent (a sketch), how the sketches of a round
depend on each other (the coupling), and how the server sums (the aggregation). The engine is one for all.

=====================  =======================================================  ==========  ===============
name                   what a client of capacity c holds                        coupling    aggregation
=====================  =======================================================  ==========  ===============
"fedavg"               everything; who cannot is left out                       -           mean
"federated_dropout"    another random share c in each round                     independent mean
"heterofl"             always the first c                                       -           mean
"fjord"                the first s, with s <= c drawn anew in each round        independent mean
"fedrolex"             a window of c, which moves on by one in each round       common      mean
"ist"                  one part of a random partition into 1/c parts            disjoint    mean
"mast_random"          as federated_dropout                                     independent unbiased
"mast_rolling"         as fedrolex, every client with a window of its own       independent unbiased
"mast_parts"           as ist                                                   disjoint    unbiased
"mast_fixed"           as heterofl                                              -           unbiased
"mast_nested"          as fjord                                                 independent unbiased
=====================  =======================================================  ==========  ===============

What theory says. With the unbiased sum, all answers together estimate the gradient of the mean of E f_i(S_i
x): the mean loss of the submodels that the clients hold. Where every client can hold every coordinate
("mast_random", "mast_parts") this is Theorem 5, 15 or 16, with one local step of plain SGD; windows of
several rounds depend on each other, so that none covers "mast_rolling". The fronts of "mast_fixed" and
"mast_nested" are biased sketches: the estimate is that of a gradient still, and DSGD for it converges, but
to the minimiser of this mean, and the theorems' constants do not describe it. No theorem covers a mean over
those who held a coordinate, which is the gradient of no function. One exception: if everybody takes part
and holds the same coordinates in each round, as with "heterofl" and "fedavg", n_j of M clients hold
coordinate j always, and the mean is the unbiased sum in the coordinates z_j = x_j sqrt(n_j / M).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mast.checks import choice, number
from mast.errors import ArgumentError
from mast.sketches import Identity, Mixture, Nested, PermK, RandK, Rolling, Sketch


@dataclass(frozen=True)
class Scheme:
    """What clients hold, and how the server sums. `scheme_of` makes one from its name."""

    name: str
    title: str
    sketch: Callable[[float, Sequence[float]], Sketch]  #: of a client's share, and of all shares
    aggregation: str = "mean"
    coupling: str = "independent"
    whole_only: bool = False  #: clients that cannot hold everything are left out

    def clients(self, shares: Sequence[float]) -> list[int]:
        """The numbers of the clients that can take part."""
        found = [i for i, share in enumerate(_checked(shares)) if share == 1 or not self.whole_only]
        if not found:
            raise ArgumentError(f"{self.title} needs a client that can hold the whole model")
        return found

    def sketches(self, shares: Sequence[float]) -> list[Sketch]:
        """One for each of `clients(shares)`; of networks, `mast.nn.nodes.capacities_of` makes capacities."""
        shares = _checked(shares)
        made = {share: self.sketch(share, sorted(set(shares))) for share in set(shares)}
        return [made[shares[i]] for i in self.clients(shares)]

    @property
    def options(self) -> dict[str, Any]:
        """What `mast.federated.server_for` has to know."""
        return {"aggregation": self.aggregation, "coupling": self.coupling}


def _checked(shares: Sequence[float]) -> list[float]:
    return [number("a client's share", share, above=0, most=1) for share in shares]


def _random(share: float, shares: Sequence[float]) -> Sketch:
    return RandK(float(share))


def _window(share: float, shares: Sequence[float]) -> Sketch:
    return Rolling(float(share))


def _part(share: float, shares: Sequence[float]) -> Sketch:
    return PermK(round(1 / min(shares)), redraw=True)


def _front(share: float, shares: Sequence[float]) -> Sketch:
    return Nested([share])


def _fronts(share: float, shares: Sequence[float]) -> Sketch:
    """Each front with the scale 1: a Nested sketch would scale by each client's own probabilities."""
    return Mixture([Nested([s]) for s in shares if s <= share])


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("fedavg", "FedAvg", lambda share, shares: Identity(), whole_only=True),
        Scheme("federated_dropout", "Federated Dropout", _random),
        Scheme("heterofl", "HeteroFL", _front),
        Scheme("fjord", "FjORD", _fronts),
        Scheme("fedrolex", "FedRolex", _window, coupling="common"),
        Scheme("ist", "independent subnet training", _part, coupling="disjoint"),
        Scheme("mast_random", "MAST, random units", _random, "unbiased"),
        Scheme("mast_rolling", "MAST, rolling windows", _window, "unbiased"),
        Scheme("mast_parts", "MAST, disjoint parts", _part, "unbiased", "disjoint"),
        Scheme("mast_fixed", "MAST, fixed fronts", _front, "unbiased"),
        Scheme("mast_nested", "MAST, nested fronts", _fronts, "unbiased"),
    )
}


def scheme_of(name: str) -> Scheme:
    """The scheme of a name.

    >>> scheme = scheme_of("fjord")
    >>> scheme.options
    {'aggregation': 'mean', 'coupling': 'independent'}
    >>> scheme_of("heterofl").sketches([1, 0.25])[1]
    <Nested(0.25): keeps 25 %, from the front of one order>
    """
    return SCHEMES[choice("scheme", name, SCHEMES)]
