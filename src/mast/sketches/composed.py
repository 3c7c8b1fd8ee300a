"""Sketches made of others: a choice (Mixture), groups kept together (Grouped), some left alone (Except).

Groups of coordinates, coordinates beside an intercept, and the units of a network are all `Over` another
sketch: coordinate i has the entry ``labels[i]`` of that one's diagonal, or is always 1 (label -1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mast import randomness
from mast.errors import ArgumentError, NotDiagonalError
from mast.randomness import Key, Purpose
from mast.sketches.base import Sketch, extreme_eigenvalues, probabilities
from mast.sketches.draws import DiagonalDraw, Draw, MatrixDraw
from mast.sketches.independent import UnscaledBernoulli
from mast.sketches.laws import Constants, Law, members_of, over_members
from mast.sketches.perm_k import PermK, checked_blocks, labels_of
from mast.support.checks import Array, Indices, check_list, frozen


class Composed(Sketch):
    """A sketch made of others. If it chooses among `components`, its moments are the means of theirs."""

    def share(self, d: int) -> float:
        """The expected share of the coordinates that are kept."""
        parts = self._parts(d)
        return super().share(d) if parts is None else float(sum(w * sketch.share(d) for w, sketch in parts))

    def expected_square(self, d: int) -> Array:
        """E[S'S]."""
        parts = self._parts(d)
        if parts is None:
            return super().expected_square(d)
        squares = [(weight, sketch.expected_square(d)) for weight, sketch in parts]
        if not self.diagonal:
            squares = [(w, np.diag(square) if square.ndim == 1 else square) for w, square in squares]
        return np.asarray(sum(w * square for w, square in squares))

    def second_moment(self, d: int) -> Array:
        """E[c c']."""
        parts = self._parts(d)
        if parts is None:
            return super().second_moment(d)
        return np.asarray(sum(w * sketch.second_moment(d) for w, sketch in parts))

    def sandwich(self, H: Array) -> Array:
        """E[S'HS]."""
        parts = self._parts(H.shape[0])
        return super().sandwich(H) if parts is None else np.asarray(sum(w * s.sandwich(H) for w, s in parts))

    def _parts(self, d: int) -> list[tuple[float, Sketch]] | None:
        self.check(d)
        return components(self)


def components(sketch: Sketch) -> list[tuple[float, Sketch]] | None:
    """The (weight, sketch) pairs that a mixture, or one in other places, chooses from; else None."""
    if isinstance(sketch, Mixture):
        return sketch.components
    inner = components(sketch.sketch) if isinstance(sketch, Over) else None
    return None if inner is None else [(weight, replace_inner(sketch, part)) for weight, part in inner]


class Mixture(Composed):
    """Sketch i with probability weights[i] (uniform if no weights are given).

    First the sketch is drawn, then its S: one training run for several densities. Each component draws
    with a seed of its own, derived from the draw's, so that components, also nested ones, are independent
    of each other and of the choice.

    >>> import mast
    >>> mast.Mixture([mast.Bernoulli(0.5), mast.Bernoulli(0.25)], [0.5, 0.5]).constants(3)
    Constants(L_D=3.0, mu_D=3.0, L_max=16.0)
    """

    def __init__(self, sketches: Sequence[Sketch], weights: ArrayLike | None = None) -> None:
        self.sketches: list[Sketch] = check_list("sketches", sketches)
        if not self.sketches or not all(isinstance(s, Sketch) for s in self.sketches):
            raise ArgumentError("Mixture takes a list of at least one sketch")
        self.weights = probabilities("weights", weights, len(self.sketches))
        self.stride = math.lcm(*(sketch.stride for sketch in self.sketches))
        parts = [sketch for _, sketch in self.components]
        self.diagonal = all(sketch.diagonal for sketch in parts)
        self.unbiased = all(sketch.unbiased for sketch in parts)
        self.independent = all(sketch.independent for sketch in parts)

    @property
    def components(self) -> list[tuple[float, Sketch]]:
        """The sketches that have a positive weight, each with it."""
        return [(w, s) for w, s in zip(self.weights.tolist(), self.sketches, strict=True) if w > 0]

    def sample(self, d: int, key: Key) -> Draw:
        """The draw of the component that `key` chooses."""
        self.check(d)
        sketch, own = self.choose(key)
        return sketch.sample(d, own)

    def choose(self, key: Key) -> tuple[Sketch, Key]:
        """The component that `key` chooses, and the key that it draws with."""
        i = randomness.choice(key, Purpose.CHOICE, np.cumsum(self.weights))
        return self.sketches[i], key.child(i)

    def support_size(self, d: int) -> int | None:
        """The sum of the components' sizes."""
        sizes = [sketch.support_size(d) for _, sketch in self.components]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def outcomes(self, d: int) -> Iterator[tuple[float, Draw]] | None:
        """Those of all components."""
        parts = [(weight, sketch.outcomes(d)) for weight, sketch in self.components]
        if any(outcomes is None for _, outcomes in parts):
            return None
        return ((weight * p, draw) for weight, outcomes in parts for p, draw in outcomes or ())

    def check(self, d: int) -> int:
        """The dimension d, or an error if a component cannot be drawn in it."""
        for sketch in self.sketches:
            d = sketch.check(d)
        return d

    def constants(self, d: int) -> Constants:
        """The largest L_max of the components; L_D and mu_D are those of the mean of their E[S'S]."""
        most, least = extreme_eigenvalues(self.expected_square(d))
        inner = Constants.of_parts([sketch.constants(d) for _, sketch in self.components])
        return Constants(most, least, inner.L_max, inner.estimated, self.unbiased)

    def _at(self, density: float) -> Sketch:
        """Without scales where no component has them: what a network was trained with stays as it is."""
        scaled = any(sketch.unbiased for _, sketch in self.components)
        return super()._at(density) if scaled else UnscaledBernoulli(density)

    def mean(self, d: int) -> Array:
        """The mean of the components' means."""
        self.check(d)
        return np.asarray(sum(weight * sketch.mean(d) for weight, sketch in self.components))

    def label(self) -> str:
        """The components with their weights."""
        parts = ", ".join(f"{w:.4g} x {sketch.label()}" for w, sketch in self.components)
        return f"Mixture({parts})"


class Over(Composed):
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

    def place(self, d: int, draw: Draw) -> Draw:
        """A draw of `sketch` as one of this sketch."""
        return draw

    # ---- what follows ----------------------------------------------------------------------

    def check(self, d: int) -> int:
        """The dimension d, or an error if `sketch` cannot be drawn in it."""
        d = super().check(d)
        self.sketch.check(self.size(d))
        return d

    def sample(self, d: int, key: Key) -> Draw:
        """The draw of `sketch`, in its places."""
        return self.place(d, self.sketch.sample(self.size(d), key))

    def support_size(self, d: int) -> int | None:
        """That of `sketch`."""
        return self.sketch.support_size(self.size(d))

    def outcomes(self, d: int) -> Iterator[tuple[float, Draw]] | None:
        """Those of `sketch`, in their places."""
        inner = self.sketch.outcomes(self.size(d))
        return None if inner is None else ((p, self.place(d, draw)) for p, draw in inner)

    def law(self, d: int) -> Law | None:
        """That of `sketch`, with more coordinates to a unit, or some beside."""
        law, labels = self.sketch.law(self.size(d)), self.labels_in(d)
        return law if law is None or labels is None else law.over(labels, self.alone)

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
        return replace_inner(self, self.sketch.at(density))

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


def innermost(sketch: Sketch) -> Sketch:
    """The sketch that one made of another is made of in the end; any other as it is."""
    return innermost(sketch.sketch) if isinstance(sketch, Over) else sketch


def replace_inner(sketch: Sketch, inner: Sketch) -> Sketch:
    """Another sketch in the place of the one that `sketch` is made of; itself, if that is made of none."""
    if not isinstance(sketch, Over):
        return inner
    arguments: dict[str, Any] = sketch.arguments() | {"sketch": inner}
    return type(sketch)(**arguments)


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
        self._fixed_dim, self.groups = self.labels.size, int(self.labels.max()) + 1
        sketch.check(self.groups)
        self._members = members_of(self.labels, self.groups)

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

    def place(self, d: int, draw: Draw) -> Draw:
        """The draw over groups, on their members."""
        assert isinstance(draw, DiagonalDraw)
        return over_members(draw, *self._members)

    def label(self) -> str:
        """How many groups of what."""
        return f"Grouped({self.groups} groups) of {self.sketch.label()}"


class Except(Over):
    """Apply `sketch` to all coordinates but those in `kept`, which are always kept, times 1.

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

    def place(self, d: int, draw: Draw) -> Draw:
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
