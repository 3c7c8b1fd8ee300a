"""Marks: which atoms each entry of an intermediate value belongs to.

The marks of a value are layers: arrays of the value's shape with an atom at each entry (expanded where it is
the same along a dimension, so they are small). An activation has a layer along its channels; a weight
has one along its rows and one along its columns. Operations that move entries move the layers in the same
way; operations that combine entries join the atoms that meet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mast.nn.structure.following.atoms import ANY, WHOLE, Atoms


@dataclass
class Marks:
    """What is known of the entries of one value."""

    layers: list[Tensor] = field(default_factory=list)
    constant: bool = False  # made of numbers, such as zeros(): it fits beside any units
    weight: bool = False  # a parameter or buffer, or a part of one: the same numbers, moved at most
    loose: frozenset[int] = frozenset()  # dimensions along which only constants gave it its length

    def moved(self, move: Callable[[Tensor], Tensor]) -> Marks:
        """The marks of the same value in another shape."""
        return Marks([move(layer) for layer in self.layers], self.constant, self.weight)


@dataclass
class Operand:
    """One of the values that an operation combines, with its dimensions as they meet the others'.

    `sizes` has 1 where a value is broadcast.
    """

    marks: Marks
    sizes: tuple[int, ...]


@dataclass(eq=False)
class _Cluster:
    """Layers of several parts that vary along common dimensions."""

    layer: Tensor
    spans: dict[int, set[int]]  # by the number of the part
    weight: bool = False  # of one weight, whose dimensions are units of their own even if reshaped into one


class Marking:
    """Operations on marks: they join and pin atoms."""

    def __init__(self, atoms: Atoms) -> None:
        self.atoms = atoms

    def where(self) -> str:
        """The present operation, for reasons; overridden by who knows."""
        return "an operation"

    # ---- layers ------------------------------------------------------------------------------

    def core(self, layer: Tensor) -> Tensor:
        """The layer's present roots, with length 1 along dimensions where they do not vary."""
        layer = self.atoms.root[_narrowed(layer)]
        for d in range(layer.dim()):
            if layer.size(d) > 1:
                top = layer.amax(d, keepdim=True)
                if bool(((layer == top) | (layer == ANY)).all()):
                    layer = top
        return layer

    def tidy(self, layers: Iterable[Tensor], shape: Sequence[int], reason: str = "") -> list[Tensor]:
        """The layers that still tell units apart; a unit that has lost its place among others is pinned."""
        found = []
        for layer in layers:
            core = self.core(layer)
            if core.numel() > 1:
                found.append(core.expand(shape))
            else:
                self.atoms.pin(core, reason or f"{self.where()} takes single ones apart")
        return found

    def fix(self, layer: Tensor, dims: Iterable[int], reason: str) -> Tensor:
        """What lies along these dimensions lives or dies together; if nothing else varies, it stays."""
        core = self.core(layer)
        for d in dims:
            if core.size(d) > 1:
                top = core.amax(d, keepdim=True)
                self.atoms.join(core, top)
                core = self.core(core)
        if core.numel() == 1:
            self.atoms.pin(core, reason)
        return core

    def fixed(self, marks: Marks, dims: Collection[int], shape: Sequence[int], reason: str) -> Marks:
        """The marks after all layers are fixed along these dimensions."""
        layers = []
        for layer in marks.layers:
            core = self.fix(layer, dims, reason)
            if core.numel() > 1:
                layers.append(core.expand(shape))
        return replace(marks, layers=layers)

    def pin(self, marks: Marks, reason: str) -> None:
        """All that is marked stays."""
        for layer in marks.layers:
            self.atoms.pin(self.core(layer), reason)

    def along(self, marks: Marks, dim: int) -> Tensor | None:
        """The atoms along one dimension, if they vary along it and no other."""
        for layer in marks.layers:
            core = self.core(layer)
            if core.size(dim) > 1 and core.numel() == core.size(dim):
                return core.reshape(-1)
        return None

    def without(self, marks: Marks, dim: int) -> Marks:
        """The layers that do not vary along a dimension, with length 1 there.

        Those of a weight are told apart by its own atoms.
        """
        distinct = _narrowed if marks.weight else self.core
        layers = [layer.narrow(dim, 0, 1) for layer in marks.layers if distinct(layer).size(dim) == 1]
        return replace(marks, layers=layers)

    # ---- combining ---------------------------------------------------------------------------

    def combine(self, parts: Sequence[Operand], shape: Sequence[int]) -> Marks:
        """Values that meet entry by entry, broadcast to this shape."""
        rank = len(shape)
        parts = [Operand(p.marks, (1,) * (rank - len(p.sizes)) + tuple(p.sizes)) for p in parts]
        clusters: list[_Cluster] = []
        for number, part in enumerate(parts):
            for layer in part.marks.layers:
                if part.marks.weight:
                    self.makes(layer)
                core = self.core(layer)
                if core.numel() == 1:
                    self.atoms.pin(core, f"{self.where()} takes single ones apart")
                    continue
                core = core.reshape((1,) * (rank - core.dim()) + tuple(core.shape))
                self._cluster(clusters, _Cluster(core, {number: span(core)}, part.marks.weight))
        layers = []
        for cluster in clusters:
            core = self._beside_whole(cluster, parts)
            if core.numel() > 1:
                layers.append(core.expand(tuple(shape)))
        loose = frozenset(
            d
            for d, size in enumerate(shape)
            if size > 1 and all(p.sizes[d] == 1 or p.marks.constant for p in parts)
        )
        return Marks(layers, constant=all(p.marks.constant for p in parts) and bool(parts), loose=loose)

    def makes(self, layer: Tensor) -> None:
        """These entries of a weight make units, or act on them."""
        self.atoms.makes[_narrowed(layer)] = True

    def _cluster(self, clusters: list[_Cluster], new: _Cluster) -> None:
        """Add a layer to the clusters, merging those that vary along the same dimensions."""
        for other in list(clusters):
            apart = new.weight and other.weight and new.spans.keys() == other.spans.keys()
            if span(other.layer) & span(new.layer) and not apart:
                clusters.remove(other)
                new = self._merged(other, new)
        if new.layer.numel() > 1:
            clusters.append(new)

    def _merged(self, a: _Cluster, b: _Cluster) -> _Cluster:
        within = f"{self.where()} acts on entries within units"
        if _inside(a.layer, b.layer):
            a, b = b, a
        if _inside(b.layer, a.layer):
            # A parameter per entry of a head, say: heads are the units, and the parameter stays.
            dims = span(b.layer)
            self.fix(b.layer, dims, within)
            layer = self.fix(a.layer, dims, within)
        else:
            self.atoms.join(a.layer, b.layer)
            layer = self.core(torch.where(a.layer > ANY, a.layer, b.layer))
        spans = {n: a.spans.get(n, set()) | b.spans.get(n, set()) for n in {*a.spans, *b.spans}}
        return _Cluster(layer, spans)

    def _beside_whole(self, cluster: _Cluster, parts: Sequence[Operand]) -> Tensor:
        """Along a dimension where another value has entries that stay, the cluster's stay as well."""
        core = cluster.layer
        for d in sorted(span(core), reverse=True):
            for number, part in enumerate(parts):
                if part.marks.constant or part.sizes[d] == 1 or d in cluster.spans.get(number, ()):
                    continue
                core = self.fix(core, [d], f"{self.where()} combines them with values that stay")
                break
        return core

    # ---- contracting -------------------------------------------------------------------------

    def contract(self, a: Marks, dim_a: int, b: Marks, dim_b: int) -> None:
        """Sums of products over one dimension of each: a weight takes units, or units are mixed."""
        if a.weight and not b.weight:
            a, dim_a, b, dim_b = b, dim_b, a, dim_a
        where = self.where()
        if b.weight and not a.weight:
            columns = self._own_atoms(b, dim_b)
            units = self.along(a, dim_a)
            if columns is None or units is None:
                if not a.constant and columns is not None:
                    self.atoms.pin(columns, f"{where} takes the model's input, or values that stay")
                    self.atoms.join(columns, torch.tensor(WHOLE))
                for layer in a.layers:
                    if self.core(layer).size(dim_a) > 1:
                        self.fix(layer, [dim_a], f"{where} mixes them")
                return
            self.atoms.join(units, columns)
            self.atoms.takes[columns] = True
            return
        for marks, dim in ((a, dim_a), (b, dim_b)):
            for layer in marks.layers:
                if self.core(layer).size(dim) > 1:
                    self.fix(layer, [dim], f"{where} sums over them")

    def _own_atoms(self, weight: Marks, dim: int) -> Tensor | None:
        """The atoms of a weight itself, not their roots, along one dimension."""
        for layer in weight.layers:
            layer = _narrowed(layer)
            others = [d for d in range(layer.dim()) if d != dim and layer.size(d) > 1]
            own = layer
            for d in others:
                own = own.narrow(d, 0, 1)
            if own.numel() > 1 and bool((own != own.reshape(-1)[0]).any()):
                if others and not bool((layer == own).all()):
                    self.fix(layer, others, f"{self.where()} mixes them")
                return own.reshape(-1)
        return None


def _narrowed(layer: Tensor) -> Tensor:
    """Without the repetitions of a dimension that a layer was expanded along."""
    for d in range(layer.dim()):
        if layer.stride(d) == 0 and layer.size(d) > 1:
            layer = layer.narrow(d, 0, 1)
    return layer


def repeating(layer: Tensor) -> Tensor:
    """The same layer, expanded along the dimensions where it does not vary."""
    own = _narrowed(layer)
    for d in range(own.dim()):
        first = own.narrow(d, 0, 1)
        own = first if bool((own == first).all()) else own
    return own.expand(layer.shape)


def span(layer: Tensor) -> set[int]:
    """The dimensions along which a layer varies."""
    return {d for d, size in enumerate(layer.shape) if size > 1}


def _inside(inner: Tensor, outer: Tensor) -> bool:
    """Whether a layer varies only along the last ones of several dimensions that the other varies along."""
    own, all_of = span(inner), span(outer)
    return own < all_of and max(all_of - own) < min(own)
