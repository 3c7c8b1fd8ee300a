"""Unit spaces: which slices of which tensors belong to the same hidden units.

While the graph of a model is walked, dimensions of tensors that must be cut alike are joined into one
`Joint` (a union-find structure); what remains apart at the end becomes a `Space`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from mast.errors import ArgumentError


class Role(Enum):
    """What a tensor does with the units along one of its dimensions."""

    PRODUCES = "produces"  # rows of a weight, a bias, an affine norm and its statistics
    CONSUMES = "consumes"  # columns of a weight: the outgoing weights, which carry the scale


@dataclass(frozen=True)
class Axis:
    """One dimension of one tensor: unit u owns the entries offset + u*run .. offset + (u+1)*run - 1 of it."""

    tensor: str
    dim: int
    run: int = 1
    offset: int = 0
    role: Role = Role.PRODUCES


@dataclass(frozen=True)
class Space:
    """Units that live or die one by one, each with all of its slices. Named by its first producer."""

    name: str
    units: int
    producers: tuple[Axis, ...]
    consumers: tuple[Axis, ...]
    modules: tuple[tuple[str, int], ...] = ()  # norms that are told their channels, and how many a unit has
    keep: float | None = None  # a keep probability of its own

    @property
    def axes(self) -> tuple[Axis, ...]:
        """All of its slices."""
        return self.producers + self.consumers


class Joint:
    """Dimensions that have to be cut alike, as far as is known."""

    def __init__(self, size: int) -> None:
        self.size = size  # entries at the finest grain: features, channels, heads
        self.block = 1  # entries that live or die together, because of grouped norms
        self.axes: dict[Axis, None] = {}  # runs are those of one entry
        self.modules: dict[tuple[str, int], None] = {}  # norms, and how many of their channels an entry has
        self.pinned: list[str] = []  # why no unit can be dropped
        self.refused: list[str] = []  # why the model is refused, unless this is pinned by the user
        self._into: Joint | None = None

    def root(self) -> Joint:
        """The joint that this one has become part of."""
        joint = self
        while joint._into is not None:
            joint = joint._into
        return joint

    def pin(self, reason: str) -> None:
        """Keep all units, always."""
        pinned = self.root().pinned
        if reason not in pinned:
            pinned.append(reason)

    def refuse(self, reason: str) -> None:
        """No unit can be dropped, and the user should hear of it."""
        refused = self.root().refused
        if reason not in refused:
            refused.append(reason)

    def coarsen(self, block: int) -> None:
        """Runs of this many entries live or die together."""
        root = self.root()
        root.block = math.lcm(root.block, block)

    def add(self, axis: Axis) -> None:
        """The joint cuts this dimension too."""
        self.root().axes[axis] = None

    def join(self, other: Joint, where: str) -> None:
        """Both are one."""
        mine, theirs = self.root(), other.root()
        if mine is theirs:
            return
        if mine.size != theirs.size:
            raise ArgumentError(
                f"{where} brings together {mine.size} and {theirs.size} units, which cannot be cut alike"
            )
        mine.block = math.lcm(mine.block, theirs.block)
        mine.axes |= theirs.axes
        mine.modules |= theirs.modules
        mine.pinned += [reason for reason in theirs.pinned if reason not in mine.pinned]
        mine.refused += [reason for reason in theirs.refused if reason not in mine.refused]
        theirs._into = mine

    def units(self) -> int:
        """How many there are."""
        root = self.root()
        return root.size // root.block


@dataclass
class Ledger:
    """The joints of all tensor dimensions that were met."""

    dimensions: dict[tuple[str, int], tuple[Joint, int]] = field(default_factory=dict)  # with the run
    joints: list[Joint] = field(default_factory=list)

    def fresh(self, size: int) -> Joint:
        """Units of which nothing is known yet."""
        joint = Joint(size)
        self.joints.append(joint)
        return joint

    def attach(
        self, joint: Joint, tensor: str, dim: int, role: Role, where: str, run: int = 1, offset: int = 0
    ) -> None:
        """The units of `joint` lie along this dimension; tensors that are used twice join their spaces."""
        known = self.dimensions.get((tensor, dim))
        if known is not None:
            before, own = known
            if own != run:
                before.pin(f"{tensor} is used in two places with runs of {own} and {run} entries a unit")
                joint.pin(f"{tensor} is used in two places with runs of {own} and {run} entries a unit")
                return
            before.join(joint, where)
        else:
            self.dimensions[tensor, dim] = (joint, run)
        joint.add(Axis(tensor, dim, run, offset, role))

    def pin_dimension(self, tensor: str, dim: int, size: int, reason: str) -> None:
        """No entry along this dimension can be dropped."""
        if (tensor, dim) not in self.dimensions:
            self.dimensions[tensor, dim] = (self.fresh(size), 1)
        self.dimensions[tensor, dim][0].pin(reason)

    def roots(self) -> list[Joint]:
        """The joints that are left, each once."""
        return list(dict.fromkeys(joint.root() for joint in self.joints))
