"""What is known of an intermediate value in a graph: the units it carries, or the size it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mast.nn.structure.spaces import Joint


@dataclass(frozen=True)
class Value:
    """What is known of an intermediate tensor. Dimensions are counted from the end, as in -1."""

    joint: Joint | None = None  # None: it carries no units that could be dropped
    dim: int = -1
    run: int | None = 1  # entries a unit; None: as many as there are after flattening
    rank: int | None = None
    parameter: str | None = None  # it is this parameter or buffer itself
    shape: tuple[int, ...] = ()  # of that
    floating: bool = True  # of that: tensors of whole numbers are not cut
    refused: str = ""  # it was made of units by something that has no rule
    gate: bool = False  # it has one entry where others have units, and acts on all of them alike

    def free(self, rank: int | None = None) -> Value:
        """A value without units."""
        return Value(rank=rank)


@dataclass(frozen=True)
class Size:
    """The length of one dimension of a value (or, with dim None, its whole shape)."""

    value: Value
    dim: int | None = None

    @property
    def changes(self) -> bool:
        """Whether a smaller model has another length here."""
        return self.value.joint is not None and (self.dim is None or self.of_units is not False)

    @property
    def of_units(self) -> bool | None:
        """Whether it is the dimension of the units; None if that is not known."""
        if self.dim is None or self.value.joint is None:
            return None
        if self.dim < 0:
            return self.dim == self.value.dim
        if self.value.rank is None:
            return False if self.dim == 0 else None
        return self.dim - self.value.rank == self.value.dim


@dataclass(frozen=True)
class Product:
    """Lengths of dimensions, multiplied: what x.view(b, c * h * w) flattens to."""

    sizes: tuple[Size, ...]


def values_in(tree: Any) -> list[Value]:
    """All values in nested lists, tuples and dicts."""
    if isinstance(tree, Value):
        return [tree]
    if isinstance(tree, list | tuple):
        return [v for item in tree for v in values_in(item)]
    if isinstance(tree, dict):
        return [v for item in tree.values() for v in values_in(item)]
    return []


def sizes_in(tree: Any) -> list[Size]:
    """All sizes in nested lists, tuples, dicts and products."""
    if isinstance(tree, Size):
        return [tree]
    if isinstance(tree, Product):
        return list(tree.sizes)
    if isinstance(tree, list | tuple):
        return [v for item in tree for v in sizes_in(item)]
    if isinstance(tree, dict):
        return [v for item in tree.values() for v in sizes_in(item)]
    return []
