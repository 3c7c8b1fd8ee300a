"""Over: a sketch whose coordinates are those of another one, shared, placed or left alone.

Groups of coordinates, coordinates beside an intercept, and the units of a network are all this: coordinate i
has the entry ``labels[i]`` of another sketch's diagonal, or is always 1 (label -1). Everything a sketch
knows of itself is said here once, in these terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mast.arrays import Array, Indices
from mast.errors import ArgumentError, NotDiagonalError
from mast.randomness import Key
from mast.sketches.base import Sketch
from mast.sketches.draws import Constants, Draw
from mast.sketches.laws import Law


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
        return law if law is None or labels is None else law.over(d, lambda: labels, self.alone)

    def components(self) -> list[tuple[float, Sketch]] | None:
        """Those of `sketch`, each in the same places."""
        inner = self.sketch.components()
        return None if inner is None else [(weight, self.over(sketch)) for weight, sketch in inner]

    def constants(self, d: int) -> Constants:
        """Those of `sketch`, and of a 1 where something is left alone."""
        if not self.unbiased:
            return super().constants(d)  # which refuses
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

    def _second_moment(self, d: int) -> Array:
        """That of `sketch`, in the places; beside a 1 stands the mean."""
        n, labels = self.size(d), self.labels_in(d)
        inner = self.sketch.second_moment(n)
        if labels is None:
            return inner
        if self.alone:
            mean = self.sketch.mean(n)
            inner = np.block([[inner, mean[:, None]], [mean[None, :], np.ones((1, 1))]])
        return inner[np.ix_(labels, labels)]

    def _placed(self, d: int, values: Array) -> Array:
        labels = self.labels_in(d)
        if labels is None:
            return values
        return (np.append(values, 1.0) if self.alone else values)[labels]

    def at(self, density: float) -> Sketch:
        """The same places with `sketch` at this density."""
        return self.over(self.sketch.at(density))

    @property
    def members(self) -> int | None:
        """Those of `sketch`."""
        return self.sketch.members

    def member_of(self, key: Key) -> int:
        """As `sketch` numbers them."""
        return self.sketch.member_of(key)

    def member_key(self, member: int) -> Key:
        """As `sketch` has it."""
        return self.sketch.member_key(member)

    @property
    def stride(self) -> int:
        """That of `sketch`."""
        return self.sketch.stride

    def same_partition(self, other: Sketch) -> bool:
        """As the sketches inside, if the places are the same and nothing is left alone."""
        return (
            isinstance(other, Over)
            and type(other) is type(self)
            and not self.alone
            and self.same_places(other)
            and self.sketch.same_partition(other.sketch)
        )

    def same_places(self, other: Over) -> bool:
        """Whether another sketch of this type has its coordinates in the same places."""
        return True

    def label(self) -> str:
        """The name of the type, around the label of `sketch`."""
        return f"{type(self).__name__}({self.sketch.label()})"
