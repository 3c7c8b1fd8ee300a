"""Atoms, single entries along the dimensions of tensors, and marks, the atoms of intermediate values.

Each entry along each dimension of each parameter and buffer is one atom: row 3 of a weight is one, its column
5 is another. Running the model on an example shows which atoms belong to one unit; they are joined (a
union-find structure over arrays). What cannot be dropped is pinned, with the reason.

The marks of a value are layers: arrays of the value's shape with an atom at each entry (expanded where it is
the same along a dimension, so they are small). An activation has a layer along its channels; a weight
has one along its rows and one along its columns. Operations that move entries move the layers in the same
way; operations that combine entries join the atoms that meet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

ANY = 0  # of a constant that fits beside any unit
WHOLE = 1  # of what is made of the model's input: it is there in every submodel


@dataclass(frozen=True)
class Dimension:
    """One dimension of one tensor."""

    tensor: str
    dim: int
    size: int


class Atoms:
    """The atoms of a model's tensors."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.dimensions: list[Dimension] = []
        self._starts: dict[tuple[str, int], int] = {}
        #: in how many dimensions a tensor has more than one entry
        self.ranks = {name: sum(size > 1 for size in t.shape) for name, t in tensors.items()}
        count = 2
        for name, tensor in tensors.items():
            for dim, size in enumerate(tensor.shape):
                if size > 1:
                    self.dimensions.append(Dimension(name, dim, size))
                    self._starts[name, dim] = count
                    count += size
        self.count = count
        self._parents = torch.arange(count)  # a smaller atom that each is joined with, or itself
        self.makes = torch.zeros(count, dtype=torch.bool)  # entries that make a unit, or act on it
        self.takes = torch.zeros(count, dtype=torch.bool)  # entries that take a unit, and carry its scale
        self._pins: list[tuple[Tensor, str]] = []
        #: of each length that constants were made with, the atoms that met it: there have to be as many
        self.met: list[list[Tensor]] = []

    def of(self, tensor: str, dim: int, size: int) -> Tensor:
        """The atoms along a dimension."""
        start = self._starts[tensor, dim]
        return torch.arange(start, start + size)

    def new_lengths(self, shape: Sequence[int]) -> dict[int, int]:
        """Numbers of the lengths of a constant, by dimension."""
        dims = [d for d, size in enumerate(shape) if size > 1]
        self.met += [[] for _ in dims]
        return {d: len(self.met) - len(dims) + i for i, d in enumerate(dims)}

    def roots(self, atoms: Tensor) -> Tensor:
        """The smallest atom that each is joined with."""
        found = self._parents[atoms]
        while not torch.equal(found, further := self._parents[found]):
            self._parents[atoms] = found = further
        return found

    def join(self, some: Tensor, others: Tensor) -> None:
        """Atoms at the same places of both arrays live or die together."""
        shape = np.broadcast_shapes(tuple(some.shape), tuple(others.shape))
        some, others = some.expand(shape), others.expand(shape)
        both = (some > ANY) & (others > ANY)
        a, b = self.roots(some[both]), self.roots(others[both])
        while bool((different := a != b).any()):
            a, b = a[different], b[different]
            # Each root goes below the smallest one that it meets; those that met several are not done yet.
            self._parents.scatter_reduce_(0, torch.maximum(a, b), torch.minimum(a, b), "amin")
            a, b = self.roots(a), self.roots(b)

    def pin(self, atoms: Tensor, reason: str) -> None:
        """They are there in every submodel."""
        found = np.unique(atoms.numpy())
        found = found[found > WHOLE]
        if len(found):
            self._pins.append((torch.from_numpy(found), reason))

    def pinned(self) -> dict[int, str]:
        """The reason for each root that is pinned: the first one."""
        reasons = {WHOLE: "they are combined with the model's input, or what became of it"}
        for atoms, reason in self._pins:
            for root in np.unique(self.roots(atoms).numpy()).tolist():
                reasons.setdefault(root, reason)
        return reasons


@dataclass
class Marks:
    """What is known of the entries of one value."""

    layers: list[Tensor] = field(default_factory=list)
    constant: bool = False  # made of numbers, such as zeros(): it fits beside any units
    weight: bool = False  # a parameter or buffer, or a part of one: the same numbers, moved at most
    #: dimensions along which only constants gave it its length, with the number of that length, if it has one
    loose: Mapping[int, int | None] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()  # of its dimensions where it meets other values: 1 where it is broadcast

    def moved(self, move: Callable[[Tensor], Tensor]) -> Marks:
        """The marks of the same value in another shape."""
        return Marks([move(layer) for layer in self.layers], self.constant, self.weight)

    def sized(self, *sizes: int) -> Marks:
        """The marks of a value that meets others with these sizes."""
        return replace(self, sizes=sizes, loose={})

    def led_by(self, ones: int) -> Marks:
        """The marks of a value that meets others of more dimensions."""
        loose = {d + ones: length for d, length in self.loose.items()}
        return replace(self, sizes=(1,) * ones + self.sizes, loose=loose)


@dataclass(eq=False)
class Cluster:
    """Layers of several parts that vary along common dimensions."""

    layer: Tensor
    spans: dict[int, set[int]]  # by the number of the part
    weight: bool = False  # of one weight, whose dimensions are units of their own even if reshaped into one


def narrowed(layer: Tensor) -> Tensor:
    """Without the repetitions of a dimension that a layer was expanded along."""
    for d in range(layer.dim()):
        if layer.stride(d) == 0 and layer.size(d) > 1:
            layer = layer.narrow(d, 0, 1)
    return layer


def repeating(layer: Tensor) -> Tensor:
    """The same layer, expanded along the dimensions where it does not vary."""
    own = narrowed(layer)
    for d in range(own.dim()):
        first = own.narrow(d, 0, 1)
        own = first if bool((own == first).all()) else own
    return own.expand(layer.shape)


def span(layer: Tensor) -> set[int]:
    """The dimensions along which a layer varies."""
    return {d for d, size in enumerate(layer.shape) if size > 1}


def inside(inner: Tensor, outer: Tensor) -> bool:
    """Whether a layer varies only along the last ones of several dimensions that the other varies along."""
    own, all_of = span(inner), span(outer)
    return own < all_of and max(all_of - own) < min(own)
