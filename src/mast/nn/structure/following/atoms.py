"""Atoms: single entries along the dimensions of tensors, and which of them live or die together.

Each entry along each dimension of each parameter and buffer is one atom: row 3 of a weight is one, its column
5 is another. Running the model on an example shows which atoms belong to one unit; they are joined (a
union-find structure over arrays). What cannot be dropped is pinned, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

ANY = 0  # of a constant that fits beside any unit
WHOLE = 1  # of what is made of the model's input: it is there in every submodel


@dataclass(frozen=True)
class Dimension:
    """One dimension of one tensor, and where its atoms start."""

    tensor: str
    dim: int
    start: int
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
                    self.dimensions.append(Dimension(name, dim, count, size))
                    self._starts[name, dim] = count
                    count += size
        self.root = torch.arange(count)  # the smallest atom that each is joined with
        self.makes = torch.zeros(count, dtype=torch.bool)  # entries that make a unit, or act on it
        self.takes = torch.zeros(count, dtype=torch.bool)  # entries that take a unit, and carry its scale
        self._pins: list[tuple[Tensor, str]] = []

    def of(self, tensor: str, dim: int, size: int) -> Tensor:
        """The atoms along a dimension."""
        start = self._starts[tensor, dim]
        return torch.arange(start, start + size)

    def join(self, some: Tensor, others: Tensor) -> None:
        """Atoms at the same places of both arrays live or die together."""
        shape = np.broadcast_shapes(tuple(some.shape), tuple(others.shape))
        some, others = some.expand(shape), others.expand(shape)
        both = (some > ANY) & (others > ANY)
        a, b = self.root[some[both]], self.root[others[both]]
        different = a != b
        if not bool(different.any()):
            return
        pairs = np.unique(torch.stack([a[different], b[different]]).numpy(), axis=1)
        found, numbers = np.unique(pairs, return_inverse=True)
        roots, n = torch.from_numpy(found), len(found)
        graph = coo_array((np.ones(pairs.shape[1]), numbers.reshape(2, -1)), shape=(n, n))
        _, group = connected_components(graph, directed=False)
        groups = torch.from_numpy(group.astype(np.int64))
        smallest = torch.full((n,), len(self.root)).scatter_reduce(0, groups, roots, "amin")
        new = torch.arange(len(self.root))
        new[roots] = smallest[groups]
        self.root = new[self.root]

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
            for root in np.unique(self.root[atoms].numpy()).tolist():
                reasons.setdefault(root, reason)
        return reasons
