"""What server and nodes must have in common, as digests; and how far apart nodes draw independently."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mast import files
from mast.exchange.messages import VERSION
from mast.exchange.parts import Capacity
from mast.randomness import LAYOUT
from mast.sketches import Sketch


def digest_of_run(*parts: Any) -> int:
    """64 bits that stand for what server and nodes must share, and for the layout of keys.

    >>> digest_of_run("permk:4", [0.0, 1.0]) == digest_of_run("permk:4", [0.0, 2.0])
    False
    """
    return int(files.digest("exchange", VERSION, LAYOUT, *parts), 16)


def fingerprints_of(capacities: Mapping[int, Capacity]) -> dict[int, str]:
    """A digest of each node's capacity; nodes that share one cost nothing more."""
    known: dict[int, str] = {}
    for capacity in capacities.values():
        if id(capacity) not in known:
            known[id(capacity)] = capacity.fingerprint()
    return {node: known[id(capacity)] for node, capacity in capacities.items()}


def stride_of(capacities: Sequence[Capacity | Sketch]) -> int:
    """The stride of a roster for these capacities: nodes this far apart draw independently of each other."""
    return math.lcm(*(capacity.stride for capacity in capacities))
