"""Sketches made of another one, whose coordinates are shared (Grouped), or placed beside others (Except).

Groups of coordinates, coordinates beside an intercept, and the units of a network are all this: coordinate i
has the entry ``labels[i]`` of another sketch's diagonal, or is always 1 (label -1). Everything a sketch
knows of itself is said here once, in these terms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mast.errors import ArgumentError, NotDiagonalError
from mast.randomness import Key
from mast.sketches.base import Sketch
from mast.sketches.constants import Constants
from mast.sketches.draws import DiagonalDraw, Draw, MatrixDraw
from mast.sketches.laws import Law, Members
from mast.sketches.perm_k import PermK, checked_blocks, labels_of
from mast.support.checks import Array, Indices, check_list, frozen


class Over(Sketch):
    """A sketch made of `sketch`. As it stands, coordinate for coordinate; subclasses say which is which."""

    alone = False  #: whether some coordinates are always 1

    def __init__(self, sketch: Sketch, *, diagonal: bool = True) -> None:
        kind = type(self).__name__
        if not isinstance(sketch, Sketch):
            raise ArgumentError(f"{kind} takes a sketch such as mast.Bernoulli(0.5), got {sketch!r}")
        if diagonal and not sketch.diagonal:
            raise NotDiagonalError(f"{kind} needs a diagonal sketch, {sketch!r} is not one")
        self.sketch = sketch
        self.unbiased, self.diagonal = sketch.unbiased, sketch.diagonal
        self.independent = sketch.independent
        self.members, self.stride = sketch.members, sketch.stride

    # ---- what a subclass says --------------------------------------------------------------

    def size(self, d: int) -> int:
        """The dimension of `sketch`."""
        return d

    def labels_in(self, d: int) -> Indices | None:
        """Which coordinate of `sketch` each has, -1 for one that is left alone; None if it is its own."""
        return None

    def spread(self, d: int, draw: Draw) -> Draw:
        """A draw of `sketch` as one of this sketch."""
        return draw

    def over(self, sketch: Sketch) -> Sketch:
        """Another sketch in the same places."""
        arguments: dict[str, Any] = self.arguments() | {"sketch": sketch}
        return type(self)(**arguments)

    # ---- what follows ----------------------------------------------------------------------

    def check(self, d: int) -> int:
        """The dimension d, or an error if `sketch` cannot be drawn in it."""
        d = super().check(d)
        self.sketch.check(self.size(d))
        return d

    def sample(self, d: int, key: Key) -> Draw:
        """The draw of `sketch`, spread."""
        return self.spread(d, self.sketch.sample(self.size(d), key))

    def support_size(self, d: int) -> int | None:
        """That of `sketch`."""
        return self.sketch.support_size(self.size(d))

    def outcomes(self, d: int) -> Iterator[tuple[float, Draw]] | None:
        """Those of `sketch`, spread."""
        inner = self.sketch.outcomes(self.size(d))
        return None if inner is None else ((p, self.spread(d, draw)) for p, draw in inner)

    def law(self, d: int) -> Law | None:
        """That of `sketch`, with more coordinates to a unit, or some beside."""
        law, labels = self.sketch.law(self.size(d)), self.labels_in(d)
        return law if law is None or labels is None else law.over(labels, self.alone)

    def components(self) -> list[tuple[float, Sketch]] | None:
        """Those of `sketch`, each in the same places."""
        inner = self.sketch.components()
        return None if inner is None else [(weight, self.over(sketch)) for weight, sketch in inner]

    def constants(self, d: int) -> Constants:
        """Those of `sketch`, and of a 1 where something is left alone."""
        inner = self.sketch.constants(self.size(super().check(d)))
        return Constants.of_parts([inner, Constants(1.0, 1.0, 1.0)]) if self.alone else inner

    def mean(self, d: int) -> Array:
        """That of `sketch`, in the places."""
        return self._placed(d, self.sketch.mean(self.size(d)))

    def expected_square(self, d: int) -> Array:
        """That of `sketch`, in the places."""
        if not self.diagonal:
            return super().expected_square(d)
        return self._placed(d, self.sketch.expected_square(self.size(d)))

    def _placed(self, d: int, values: Array) -> Array:
        labels = self.labels_in(d)
        if labels is None:
            return values
        return (np.append(values, 1.0) if self.alone else values)[labels]

    def at(self, density: float) -> Sketch:
        """The same places with `sketch` at this density."""
        return self.over(self.sketch.at(density))

    def member_of(self, key: Key) -> int:
        """As `sketch` numbers them."""
        return self.sketch.member_of(key)

    def label(self) -> str:
        """The name of the type, around the label of `sketch`."""
        return f"{type(self).__name__}({self.sketch.label()})"


def same_partition(one: Sketch, other: Sketch) -> bool:
    """Whether nodes with one sketch and nodes with the other keep disjoint parts within a stride.

    Of sketches made of others these decide, if the places are the same and nothing is left alone.
    """
    if not isinstance(one, Over):
        return isinstance(one, PermK) and one.same_partition(other)
    if not isinstance(other, Over) or type(other) is not type(one) or one.alone:
        return False
    mine, theirs = one.arguments(), other.arguments()
    places = all(np.array_equal(mine[name], theirs[name]) for name in mine if name != "sketch")
    return places and same_partition(one.sketch, other.sketch)


def replace_inner(sketch: Sketch, inner: Sketch) -> Sketch:
    """Another sketch in the place of the one that `sketch` is made of; itself, if that is made of none."""
    return sketch.over(inner) if isinstance(sketch, Over) else inner


class Grouped(Over):
    """Apply `sketch` to groups. It has the constants of its sketch over the groups.

    Parameters
    ----------
    sketch
        A diagonal sketch; its coordinates are the groups.
    groups
        One label per coordinate (equal labels are one group, numbered in sorted order), or a
        list of lists of coordinates that cover 0 .. d-1 exactly once.

    >>> import mast
    >>> pairs = mast.Grouped(mast.RandK(1), [0, 0, 1, 1])
    >>> pairs.draw(4).diagonal(), pairs.constants(4).L_D
    (array([0., 0., 2., 2.]), 2.0)
    """

    def __init__(self, sketch: Sketch, groups: Sequence[Any] | ArrayLike) -> None:
        super().__init__(sketch)
        self.labels = _labels(groups)
        self.fixed_dim, self.groups = self.labels.size, int(self.labels.max()) + 1
        sketch.check(self.groups)
        self._members = Members.of(self.labels, self.groups)

    def arguments(self) -> dict[str, Any]:
        """The sketch, and the labels of the groups."""
        return {"sketch": self.sketch, "groups": self.labels}

    def size(self, d: int) -> int:
        """The number of groups."""
        Sketch.check(self, d)
        return self.groups

    def labels_in(self, d: int) -> Indices:
        """The group of each coordinate."""
        return self.labels

    def spread(self, d: int, draw: Draw) -> Draw:
        """The draw over groups, on their members."""
        assert isinstance(draw, DiagonalDraw)
        return self._members.spread(draw)

    def label(self) -> str:
        """How many groups of what."""
        return f"Grouped({self.groups} groups) of {self.sketch.label()}"


class Except(Over):
    """Apply `sketch` to all coordinates but those in `kept`, which always survive, times 1.

    Parameters
    ----------
    sketch
        Any sketch; its coordinates are those that remain, in their order.
    kept
        The coordinates that are left alone; negative ones count from the end, so that ``[-1]`` is
        the last one in any dimension.

    >>> import mast
    >>> sketch = mast.Except(mast.RandK(1), [-1])
    >>> sketch.draw(4, seed=1).diagonal(), sketch.constants(4)
    (array([0., 3., 0., 1.]), Constants(L_D=3.0, mu_D=1.0, L_max=9.0))
    """

    alone = True

    def __init__(self, sketch: Sketch, kept: Sequence[int] | ArrayLike) -> None:
        super().__init__(sketch, diagonal=False)
        chosen = np.asarray(kept)
        if chosen.ndim != 1 or not (chosen.size and np.issubdtype(chosen.dtype, np.integer)):
            raise ArgumentError("kept must be a list of at least one coordinate (whole numbers)")
        self.kept: Indices = frozen(chosen.astype(np.int64))
        self._last: tuple[int, Indices, Indices] | None = None  # the last split, with its dimension

    def split(self, d: int) -> tuple[Indices, Indices]:
        """The coordinates that are left alone, and those that are sketched."""
        if self._last is None or self._last[0] != d:
            wrong = self.kept[(self.kept < -d) | (self.kept >= d)]
            if wrong.size:
                raise ArgumentError(f"coordinate {wrong[0]} is to be kept, but the dimension is {d}")
            free = np.zeros(d, dtype=bool)
            free[self.kept] = True
            if free.all():
                raise ArgumentError("every coordinate is left alone: use Identity() instead")
            self._last = d, frozen(np.flatnonzero(free)), frozen(np.flatnonzero(~free))
        return self._last[1:]

    def size(self, d: int) -> int:
        """How many coordinates are sketched."""
        return self.split(d)[1].size

    def labels_in(self, d: int) -> Indices:
        """The others, numbered in their order."""
        labels = np.full(d, -1, dtype=np.int64)
        rest = self.split(d)[1]
        labels[rest] = np.arange(rest.size)
        return labels

    def spread(self, d: int, draw: Draw) -> Draw:
        """The draw of the others in their places, and ones."""
        free, rest = self.split(d)
        if isinstance(draw, DiagonalDraw):
            indices = np.concatenate([rest[draw.indices], free])
            ascending = np.argsort(indices, kind="stable")
            scales = np.concatenate([draw.scales, np.ones(free.size)])
            return DiagonalDraw(d, indices[ascending], scales[ascending])
        S = np.eye(d)
        S[np.ix_(rest, rest)] = draw.matrix()
        return MatrixDraw(S)

    def label(self) -> str:
        """How many are left alone by what."""
        s = "s" * (self.kept.size > 1)
        return f"Except({self.kept.size} coordinate{s} left alone), {self.sketch.label()}"


def _labels(groups: Sequence[Any] | ArrayLike) -> Indices:
    """One group number per coordinate, from labels or from lists of members."""
    rows = check_list("groups", groups)
    if not rows:
        raise ArgumentError("there are no groups")
    if np.ndim(rows[0]) == 0:
        mixed = any(np.ndim(row) for row in rows) or None in rows
        labels = np.asarray(rows, dtype=object if mixed else None)
        if mixed or labels.ndim != 1 or (labels.dtype.kind == "f" and not np.isfinite(labels).all()):
            raise ArgumentError("groups must be one label per coordinate, or lists of coordinates")
        return frozen(np.unique(labels, return_inverse=True)[1].astype(np.int64))
    members = checked_blocks(rows)
    if any(block.size == 0 for block in members):
        raise ArgumentError("a group has no members")
    return frozen(labels_of(members))
