"""The dependency graph of a model: which slices of which tensors have to be dropped together.

A slice is one entry along one dimension of one parameter or buffer: row 3 of a weight is a slice, its column
5 is another. Running the model on an example shows which slices depend on each other; these are coupled (a
union-find structure over arrays). What is coupled is one unit. Slices that cannot be dropped are excluded,
with the reason.

Labels say which slices the entries of an intermediate value belong to: arrays of the value's shape, with the
number of a slice at each entry (expanded where it is the same along a dimension, so they are small). An
activation has one array, along its channels; a weight has one along its rows and one along its columns.
Operations that move entries move the arrays in the same way; operations that combine entries couple the
slices that meet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mast.nn.tensors.torch_private import tree_leaves

ANY = 0  # the label of a constant, which fits beside any unit
INPUT = 1  # the label of what is made of the model's input: it is in every submodel

Arguments = tuple[Any, ...]
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Dimension:
    """One dimension of one tensor, of more than one entry."""

    tensor: str
    dim: int
    size: int


class DependencyGraph:
    """The slices of a model's tensors, by number, and which of them belong to one unit.

    Row i of the weight a makes what column i of the weight b takes:

    >>> graph = DependencyGraph({"a": torch.empty(3, 2), "b": torch.empty(1, 3)})
    >>> rows, columns = graph.slices_of("a", 0, 3), graph.slices_of("b", 1, 3)
    >>> graph.couple(rows, columns)
    >>> rows, columns, graph.roots(columns)
    (tensor([2, 3, 4]), tensor([7, 8, 9]), tensor([2, 3, 4]))
    """

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
        self._parents = torch.arange(count)  # a smaller slice that each is coupled with, or itself
        self.produces = torch.zeros(count, dtype=torch.bool)  # slices that make a unit, or act on it
        self.consumes = torch.zeros(count, dtype=torch.bool)  # slices that take a unit, and carry its scale
        self._exclusions: list[tuple[Tensor, str]] = []
        #: of each length n that a constant such as zeros(n) was made with: the slices that lie along it. A
        #: submodel has to have equally many of each
        self.constant_lengths: list[list[Tensor]] = []

    def slices_of(self, tensor: str, dim: int, size: int) -> Tensor:
        """The slices along a dimension."""
        start = self._starts[tensor, dim]
        return torch.arange(start, start + size)

    def new_lengths(self, shape: Sequence[int]) -> dict[int, int]:
        """Numbers of the lengths of a constant, by dimension."""
        dims = [d for d, size in enumerate(shape) if size > 1]
        self.constant_lengths += [[] for _ in dims]
        return {d: len(self.constant_lengths) - len(dims) + i for i, d in enumerate(dims)}

    def roots(self, slices: Tensor) -> Tensor:
        """The smallest slice that each is coupled with: the same for all slices of one unit."""
        found = self._parents[slices]
        while not torch.equal(found, further := self._parents[found]):
            self._parents[slices] = found = further
        return found

    def couple(self, some: Tensor, others: Tensor) -> None:
        """Slices at the same places of both arrays are kept or dropped together."""
        shape = np.broadcast_shapes(tuple(some.shape), tuple(others.shape))
        some, others = some.expand(shape), others.expand(shape)
        both = (some > ANY) & (others > ANY)
        a, b = self.roots(some[both]), self.roots(others[both])
        while bool((different := a != b).any()):
            a, b = a[different], b[different]
            # Each root goes below the smallest one that it meets; those that met several are not done yet.
            self._parents.scatter_reduce_(0, torch.maximum(a, b), torch.minimum(a, b), "amin")
            a, b = self.roots(a), self.roots(b)

    def exclude(self, slices: Tensor, reason: str) -> None:
        """These slices cannot be dropped: they are in every submodel."""
        found = np.unique(slices.numpy())
        found = found[found > INPUT]
        if len(found):
            self._exclusions.append((torch.from_numpy(found), reason))

    def exclusions(self) -> dict[int, str]:
        """The first reason for each root that is excluded."""
        reasons = {INPUT: "they are combined with the model's input, or what became of it"}
        for slices, reason in self._exclusions:
            for root in np.unique(self.roots(slices).numpy()).tolist():
                reasons.setdefault(root, reason)
        return reasons


@dataclass
class Labels:
    """Which slices the entries of one value belong to."""

    arrays: list[Tensor] = field(default_factory=list)
    constant: bool = False  # made of numbers, such as zeros(): it fits beside any units
    weight: bool = False  # a parameter or buffer, or a part of one: the same numbers, moved at most
    #: dimensions along which only constants gave it its length, with the number of that length, if it has one
    constant_lengths: Mapping[int, int | None] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()  # of its dimensions where it meets other values: 1 where it is broadcast

    def moved(self, move: Callable[[Tensor], Tensor]) -> Labels:
        """The labels of the same value in another shape."""
        return Labels([move(array) for array in self.arrays], self.constant, self.weight)

    def with_sizes(self, *sizes: int) -> Labels:
        """The labels of a value that meets others with these sizes."""
        return replace(self, sizes=sizes, constant_lengths={})

    def with_leading(self, ones: int) -> Labels:
        """The labels of a value that meets others of more dimensions."""
        constant_lengths = {d + ones: length for d, length in self.constant_lengths.items()}
        return replace(self, sizes=(1,) * ones + self.sizes, constant_lengths=constant_lengths)


@dataclass(eq=False)
class Cluster:
    """Labels of several operands that vary along common dimensions, as one array."""

    array: Tensor
    spans: dict[int, set[int]]  # by the number of the operand: the dimensions along which it varies
    weight: bool = False  # of one weight, whose dimensions are units of their own even if reshaped into one


def unexpanded(array: Tensor) -> Tensor:
    """Without the repetitions of a dimension that an array was expanded along."""
    for d in range(array.dim()):
        if array.stride(d) == 0 and array.size(d) > 1:
            array = array.narrow(d, 0, 1)
    return array


def reexpanded(array: Tensor) -> Tensor:
    """The same array, expanded along the dimensions where it does not vary."""
    own = unexpanded(array)
    for d in range(own.dim()):
        first = own.narrow(d, 0, 1)
        own = first if bool((own == first).all()) else own
    return own.expand(array.shape)


def varying_dims(array: Tensor) -> set[int]:
    """The dimensions along which an array varies."""
    return {d for d, size in enumerate(array.shape) if size > 1}


def inside(inner: Tensor, outer: Tensor) -> bool:
    """Whether an array varies only along the last ones of several dimensions that the other varies along."""
    own, all_of = varying_dims(inner), varying_dims(outer)
    return own < all_of and max(all_of - own) < min(own)


def tensors(*of: Any) -> list[Tensor]:
    """The tensors among arguments or results, also in lists."""
    return [leaf for leaf in tree_leaves(of) if isinstance(leaf, Tensor)]
