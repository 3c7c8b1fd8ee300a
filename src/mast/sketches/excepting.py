"""Except: some coordinates are left alone, such as an intercept; the others are sketched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from mast.arrays import Array, Indices, frozen
from mast.errors import ArgumentError
from mast.randomness import Key
from mast.sketches.base import Constants, DiagonalDraw, Draw, MatrixDraw, Sketch
from mast.sketches.laws import Atoms, LocalLaw, MomentForm
from mast.sketches.units import Kind, Units, units_of


class Except(Sketch):
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

    def __init__(self, sketch: Sketch, kept: Sequence[int] | ArrayLike) -> None:
        if not isinstance(sketch, Sketch):
            raise ArgumentError(f"Except takes a sketch first, got {type(sketch).__name__}")
        chosen = np.asarray(kept)
        if chosen.ndim != 1 or not (chosen.size and np.issubdtype(chosen.dtype, np.integer)):
            raise ArgumentError("kept must be a list of at least one coordinate (whole numbers)")
        self.sketch = sketch
        self.diagonal = sketch.diagonal
        self.kept: Indices = frozen(chosen.astype(np.int64))

    def split(self, d: int) -> tuple[Indices, Indices]:
        """The coordinates that are left alone, and those that are sketched."""
        d = super()._check(d)
        wrong = self.kept[(self.kept < -d) | (self.kept >= d)]
        if wrong.size:
            raise ArgumentError(f"coordinate {wrong[0]} is to be kept, but the dimension is {d}")
        free = np.zeros(d, dtype=bool)
        free[self.kept] = True
        if free.all():
            raise ArgumentError("every coordinate is left alone: use Identity() instead")
        return np.flatnonzero(free), np.flatnonzero(~free)

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        """As the sketch of the others."""
        return self.sketch.unbiased

    # ---- draws -------------------------------------------------------------------------

    def sample(self, d: int, key: Key) -> Draw:
        """The draw of the others, put in their places."""
        free, rest = self.split(d)
        return _placed(self.sketch.sample(rest.size, key), d, free, rest)

    def support_size(self, d: int) -> int | None:
        """That of the others."""
        return self.sketch.support_size(self.split(d)[1].size)

    def _support(self, d: int) -> Iterator[tuple[float, Draw]]:
        free, rest = self.split(d)
        for probability, draw in self.sketch._support(rest.size):
            yield probability, _placed(draw, d, free, rest)

    # ---- moments -----------------------------------------------------------------------

    def mean(self, d: int) -> Array:
        """That of the others, and ones."""
        rest = self.split(d)[1]
        return _filled(d, rest, self.sketch.mean(rest.size), 1.0)

    def _constants(self, d: int) -> Constants:
        inner = self.sketch._constants(self.split(d)[1].size)
        return Constants(max(inner.L_D, 1.0), min(inner.mu_D, 1.0), max(inner.L_max, 1.0))

    def expected_square(self, d: int) -> Array:
        """That of the others, and ones."""
        free, rest = self.split(d)
        inner = self.sketch.expected_square(rest.size)
        if inner.ndim == 1:
            return _filled(d, rest, inner, 1.0)
        return _bordered(d, free, rest, inner, np.zeros((rest.size, free.size)), np.eye(free.size))

    def second_moment(self, d: int) -> Array:
        """A kept coordinate is the constant 1."""
        free, rest = self.split(d)
        cross = np.repeat(self.sketch.mean(rest.size)[:, None], free.size, axis=1)
        inner = self.sketch.second_moment(rest.size)
        return _bordered(d, free, rest, inner, cross, np.ones((free.size, free.size)))

    def sandwich(self, H: Array) -> Array:
        """E[S'HS]: the others' own, times their mean beside a kept coordinate, H itself between two."""
        d = H.shape[0]
        free, rest = self.split(d)
        inner = self.sketch.sandwich(H[np.ix_(rest, rest)])
        cross = self.sketch.mean(rest.size)[:, None] * H[np.ix_(rest, free)]
        return _bordered(d, free, rest, inner, cross, H[np.ix_(free, free)])

    def moment_form(self, d: int) -> MomentForm | None:
        """The others', with one more unit; None where two units never survive together."""
        rest = self.split(d)[1]
        inner = self.sketch.moment_form(rest.size)
        if inner is None or inner.share == 0.0:
            return None
        ratio = inner.m / self.sketch.mean(rest.size)  # must be one number: then 1/(share ratio) fits beside
        if np.ptp(ratio) > 1e-12 * abs(ratio[0]):
            return None
        beside = 1 / (inner.share * float(ratio[0]))
        m = _filled(d, rest, inner.m, beside)
        labels = _filled(d, rest, inner.labels, inner.extra.size).astype(np.int64)
        return MomentForm(inner.share, m, labels, np.append(inner.extra, 1 - inner.share * beside**2))

    # ---- laws --------------------------------------------------------------------------

    def separable(self, d: int) -> tuple[Indices, int] | None:
        """That of the others; a coordinate that is left alone has the label -1."""
        rest = self.split(d)[1]
        inner = self.sketch.separable(rest.size)
        return None if inner is None else (_filled(d, rest, inner[0], -1).astype(np.int64), inner[1])

    def local_law(self, d: int) -> LocalLaw | None:
        """That of the others; a coordinate that is left alone has the label -1."""
        rest = self.split(d)[1]
        inner = self.sketch.local_law(rest.size)
        if inner is None:
            return None
        return inner._replace(labels=_filled(d, rest, inner.labels, -1).astype(np.int64))

    def marginals(self, d: int) -> Atoms | None:
        """Those of the others; a coordinate that is left alone is 1 whatever happens."""
        rest = self.split(d)[1]
        inner = self.sketch.marginals(rest.size)
        if inner is None:
            return None
        share = 1.0 / len(inner)
        return [(_filled(d, rest, p, share), _filled(d, rest, c, 1.0)) for p, c in inner]

    def components(self) -> list[tuple[float, Sketch]] | None:
        """Those of the sketch of the others, each with the same exceptions."""
        inner = self.sketch.components()
        return None if inner is None else [(w, Except(s, self.kept)) for w, s in inner]

    @property
    def stride(self) -> int:
        """That of the others."""
        return self.sketch.stride

    def units(self, d: int) -> Units | None:
        """For masks, one more unit that no mask drops; other kinds have no unit that is sure to survive."""
        rest = self.split(d)[1]
        inner = self.sketch.units(rest.size)
        if inner is None:
            return None
        if inner.kind is Kind.ALL:
            return units_of(Kind.ALL, np.zeros(d, dtype=np.int64), 1, np.ones(1), inner.k)
        if inner.kind is not Kind.MASK:
            return None
        count = inner.scales.size
        unit_of = _filled(d, rest, inner.unit_of, count).astype(np.int64)
        thresholds = np.append(inner.thresholds, np.uint64(1 << 32))
        return units_of(Kind.MASK, unit_of, count + 1, np.append(inner.scales, 1.0), inner.k, thresholds)

    def _check(self, d: int) -> int:
        self.sketch._check(self.split(d)[1].size)
        return d

    def _label(self) -> str:
        s = "s" * (self.kept.size > 1)
        return f"Except({self.kept.size} coordinate{s} left alone), {self.sketch._label()}"


def _filled(d: int, rest: Indices, values: Array | Indices, other: float) -> Array:
    out = np.full(d, float(other))
    out[rest] = values
    return out


def _bordered(d: int, free: Indices, rest: Indices, inner: Array, cross: Array, corner: Array) -> Array:
    out = np.empty((d, d))
    out[np.ix_(rest, rest)] = inner
    out[np.ix_(rest, free)] = cross
    out[np.ix_(free, rest)] = cross.T
    out[np.ix_(free, free)] = corner
    return out


def _placed(draw: Draw, d: int, free: Indices, rest: Indices) -> Draw:
    """A draw of the sketched coordinates as one of all."""
    if isinstance(draw, DiagonalDraw):
        indices = np.concatenate([rest[draw.indices], free])
        ascending = np.argsort(indices, kind="stable")
        scales = np.concatenate([draw.scales, np.ones(free.size)])
        return DiagonalDraw(d, indices[ascending], scales[ascending])
    between = np.zeros((rest.size, free.size))
    return MatrixDraw(_bordered(d, free, rest, draw.matrix(), between, np.eye(free.size)))
