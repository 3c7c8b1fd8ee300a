"""Schemes for clients of different size, by the names that people know them by.

A scheme says what a client that can hold a share of the model is sent (a sketch), how the sketches of a round
depend on each other (the coupling), and how the server sums (the aggregation). The engine is one for all.
docs/studies/federated.md says what theory knows about each scheme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mast.errors import ArgumentError
from mast.sketches import Identity, Mixture, Nested, PermK, RandK, Rolling, Sketch
from mast.sketches.composed import Over, replace_inner
from mast.support.checks import check_choice, check_number


@dataclass(frozen=True)
class Scheme:
    """What clients hold, and how the server sums. `scheme_of` makes one from its name."""

    name: str
    title: str
    #: what is kept of the share: "everything", "random", "window", "part", "prefix", or prefixes of several
    #: sizes, "prefixes" or "balanced prefixes"
    holds: str
    aggregation: str = "mean"
    coupling: str = "independent"
    whole_only: bool = False  #: clients that cannot hold everything are left out
    scaled_start: bool = False  #: fresh weights are meant to go through `mast.nn.nodes.scale_prefixes` first

    def clients(self, shares: Sequence[float]) -> list[int]:
        """The numbers of the clients that can take part."""
        if not len(shares):
            raise ArgumentError("a scheme needs at least one client's share")
        found = [i for i, share in enumerate(_checked(shares)) if share == 1 or not self.whole_only]
        if not found:
            raise ArgumentError(f"{self.title} needs a client that can hold the whole model")
        return found

    def sketches(self, shares: Sequence[float]) -> list[Sketch]:
        """One for each of `clients(shares)`; of networks, `mast.nn.nodes.capacities_of` makes capacities."""
        shares = _checked(shares)
        made = {share: self.sketch(share, sorted(set(shares))) for share in set(shares)}
        return [made[shares[i]] for i in self.clients(shares)]

    def sketch(self, share: float, shares: Sequence[float]) -> Sketch:
        """What a client of a share is sent, where clients have these shares."""
        match self.holds:
            case "random":  # another share in each round
                return RandK(share)
            case "window":  # which moves on by one in each round
                return Rolling(share)
            case "part":  # of a random partition, the same for all
                # the smallest client can hold one part: 1/0.7 are two, not one
                return PermK(math.ceil(1 / min(shares) - 1e-9), redraw=True)
            case "prefix":  # always the first units
                return Nested([share])
            case "prefixes":  # another size in each round; one Nested would scale by its own probabilities
                return Mixture([Nested([s]) for s in shares if s <= share])
            case "balanced prefixes":  # the same, and every size sends as many values in the long run
                sizes = [s for s in shares if s <= share]
                chances = [1 / s / sum(1 / t for t in sizes) for s in sizes]
                return Mixture([Nested([s]) for s in sizes], chances)
        return Identity()

    def prefixes(self, shares: Sequence[float]) -> Nested:
        """The sizes of the prefixes that clients of these shares hold, with the chance of each in a round."""
        if "prefix" not in self.holds:
            raise ArgumentError(f"in {self.title} clients hold no prefixes, and all units count the same")
        chances: dict[float, float] = {}
        held = self.sketches(shares)
        for sketch in held:
            prefixes = sketch.components if isinstance(sketch, Mixture) else [(1.0, sketch)]
            for chance, prefix in prefixes:
                assert isinstance(prefix, Nested)
                (size,) = prefix.shares.tolist()
                chances[size] = chances.get(size, 0.0) + chance / len(held)
        return Nested(sorted(chances), [chances[size] for size in sorted(chances)])


def largest_prefix(sketch: Sketch) -> Sketch:
    """Of prefixes of several sizes the largest; any other sketch as it is.

    >>> largest_prefix(scheme_of("fjord").sketch(0.5, [0.25, 0.5, 1]))
    <Nested(0.5): keeps 50 %, the first ones>
    """
    if isinstance(sketch, Over):
        prefix = largest_prefix(sketch.sketch)
        return sketch if prefix is sketch.sketch else replace_inner(sketch, prefix)
    if isinstance(sketch, Mixture) and all(isinstance(prefix, Nested) for prefix in sketch.sketches):
        return max(sketch.sketches, key=lambda prefix: float(max(prefix.arguments()["shares"])))
    return sketch


def _checked(shares: Sequence[float]) -> list[float]:
    return [check_number("a client's share", share, above=0, most=1) for share in shares]


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("fedavg", "FedAvg", "everything", whole_only=True),
        Scheme("federated_dropout", "Federated Dropout", "random"),
        Scheme("heterofl", "HeteroFL", "prefix"),
        Scheme("fjord", "FjORD", "prefixes"),
        Scheme("fedrolex", "FedRolex", "window", coupling="common"),
        Scheme("ist", "independent subnet training", "part", coupling="disjoint"),
        Scheme("mast_random", "MAST, random units", "random", "unbiased"),
        Scheme("mast_rolling", "MAST, rolling windows", "window", "unbiased"),
        Scheme("mast_parts", "MAST, disjoint parts", "part", "unbiased", "disjoint"),
        Scheme("mast_fixed", "MAST, fixed prefixes", "prefix", "unbiased"),
        Scheme("mast_nested", "MAST, nested prefixes", "prefixes", "unbiased"),
        Scheme("mast_balanced", "MAST, balanced prefixes", "balanced prefixes", scaled_start=True),
    )
}


#: what `mast.federated.server_for` assumes where clients are given by their shares: the best for few bytes
DEFAULT = "mast_balanced"


def scheme_of(name: str) -> Scheme:
    """The scheme of a name.

    >>> scheme = scheme_of("fjord")
    >>> scheme.aggregation, scheme.coupling
    ('mean', 'independent')
    >>> scheme_of("heterofl").sketches([1, 0.25])[1]
    <Nested(0.25): keeps 25 %, the first ones>
    """
    return SCHEMES[check_choice("scheme", name, SCHEMES)]
