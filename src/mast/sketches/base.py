"""What a sketch is: a distribution of random matrices S with E[S] = I, and one draw of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mast.arrays import Array, Indices, numbers
from mast.checks import whole
from mast.errors import ArgumentError, BiasedSketchError, NotDiagonalError, SupportTooLargeError
from mast.randomness import Key
from mast.sketches import laws
from mast.sketches.laws import Atoms, LocalLaw, MomentForm
from mast.sketches.units import Units

SUPPORT_LIMIT = 1 << 16  #: a support with more draws than this is not listed


@dataclass(frozen=True)
class Constants:
    """The numbers of a sketch that theory needs.

    `L_D` and `mu_D` are the largest and smallest eigenvalue of E[S'S]; `L_max` is the
    largest eigenvalue that S'S ever has, and may be infinite.
    """

    L_D: float
    mu_D: float
    L_max: float

    @property
    def kappa_D(self) -> float:
        """The condition number of E[S'S]."""
        return self.L_D / self.mu_D


class Draw(ABC):
    """One S. `apply(u)` is S u and `adjoint(r)` is S'r."""

    dim: int

    @abstractmethod
    def apply(self, u: ArrayLike) -> Array:
        """S u."""

    @abstractmethod
    def adjoint(self, r: ArrayLike) -> Array:
        """S'r."""

    @abstractmethod
    def matrix(self) -> Array:
        """S as a dense matrix."""


class DiagonalDraw(Draw):
    """A diagonal S: `scales` on the coordinates `indices` (ascending), 0 elsewhere."""

    __slots__ = ("dim", "indices", "scales")

    def __init__(self, dim: int, indices: Indices, scales: Array) -> None:
        self.dim = dim
        self.indices = indices
        self.scales = scales

    def apply(self, u: ArrayLike) -> Array:
        """S u; u may be float32 or float64, a vector or a matrix of columns."""
        u = _columns("u", u, self.dim)
        out = np.zeros_like(u)
        scales = self.scales.astype(u.dtype, copy=False)
        out[self.indices] = (u[self.indices].T * scales).T
        return out

    def adjoint(self, r: ArrayLike) -> Array:
        """S'r, which is S r."""
        return self.apply(r)

    def matrix(self) -> Array:
        """S as a dense matrix."""
        return np.diag(self.diagonal())

    def diagonal(self) -> Array:
        """The diagonal c of S as a dense vector."""
        c = np.zeros(self.dim)
        c[self.indices] = self.scales
        return c

    def __repr__(self) -> str:
        return f"<draw: keeps {self.indices.size} of {self.dim} coordinates>"


class MatrixDraw(Draw):
    """An S that is any matrix."""

    __slots__ = ("_matrix", "dim")

    def __init__(self, matrix: Array) -> None:
        self.dim = matrix.shape[0]
        self._matrix = matrix

    def apply(self, u: ArrayLike) -> Array:
        """S u."""
        return self._matrix @ _columns("u", u, self.dim)

    def adjoint(self, r: ArrayLike) -> Array:
        """S'r."""
        return self._matrix.T @ _columns("r", r, self.dim)

    def matrix(self) -> Array:
        """S itself."""
        return self._matrix

    @property
    def indices(self) -> Indices:
        """Only a diagonal S has them."""
        raise NotDiagonalError("this S is a general matrix: it has no kept indices; use matrix()")

    scales = indices

    def __repr__(self) -> str:
        return f"<draw: a {self.dim} x {self.dim} matrix>"


Support = list[tuple[float, Draw]]


class Sketch(ABC):
    """A distribution of S. Subclasses say how to draw and what their constants are.

    A new sketch is one file with a subclass that defines `sample`, `_constants`,
    `expected_square`, `second_moment`, `support_size`, `_support` and `_label`.
    """

    #: E[S] = I
    unbiased: bool = True
    #: every S is diagonal
    diagonal: bool = True

    # ---- what users call -------------------------------------------------------------

    def constants(self, d: int) -> Constants:
        """L_D, mu_D, L_max and kappa_D in dimension d."""
        self._check(d)
        if not self.unbiased:
            raise BiasedSketchError(
                f"{self!r} is biased (E[S] is not I), so no constants and no statement of the theory apply; "
                "divide by the keep probability to make it unbiased"
            )
        return self._constants(d)

    def draw(self, d: int, seed: int = 0, step: int = 0, node: int = 0, index: int = 0) -> Draw:
        """The S that belongs to these numbers: a pure function of them."""
        return self.sample(self._check(d), Key(seed, step, node, index))

    def support(self, d: int, limit: int = SUPPORT_LIMIT) -> Support | None:
        """All (probability, draw) pairs; None if there are infinitely many."""
        size = self.support_size(self._check(d))
        if size is None:
            return None
        if size > limit:
            raise SupportTooLargeError(
                f"the support of {self!r} in dimension {d} has {_magnitude(size)} draws, more than {limit}; "
                "sample from it with draw()"
            )
        return list(self._support(d))

    def mean(self, d: int) -> Array:
        """The diagonal of E[S]: ones, unless the sketch is biased."""
        return np.ones(self._check(d))

    # ---- what a sketch defines ---------------------------------------------------------

    @abstractmethod
    def sample(self, d: int, key: Key) -> Draw:
        """The draw that `key` names."""

    @abstractmethod
    def _constants(self, d: int) -> Constants: ...

    @abstractmethod
    def expected_square(self, d: int) -> Array:
        """E[S'S]: its diagonal if all S are diagonal, else the matrix."""

    @abstractmethod
    def second_moment(self, d: int) -> Array:
        """E[c c'], the matrix of second moments of a diagonal sketch's diagonal c."""

    @abstractmethod
    def support_size(self, d: int) -> int | None:
        """How many different S there are; None if infinitely many."""

    @abstractmethod
    def _support(self, d: int) -> Iterator[tuple[float, Draw]]: ...

    @abstractmethod
    def _label(self) -> str:
        """What the repr shows, such as ``Bernoulli(0.7): keeps 70 %``."""

    # ---- what follows from that --------------------------------------------------------

    def sandwich(self, H: Array) -> Array:
        """E[S'HS]: the Hessian of f_D when H is that of a quadratic f."""
        return H * self.second_moment(H.shape[0])

    def separable(self, d: int) -> tuple[Indices, int] | None:
        """The labels of a fixed partition, and K, if S keeps one of K blocks, uniformly, times K.

        The label -1 marks a coordinate that always survives, with scale 1.

        Then f_D splits into independent problems, one a block.
        """
        return None

    @property
    def stride(self) -> int:
        """Nodes whose numbers differ by a multiple of this draw independently of each other."""
        return 1

    def same_partition(self, other: Sketch) -> bool:
        """Whether nodes with this sketch and nodes with the other keep disjoint parts within a stride."""
        return False

    def units(self, d: int) -> Units | None:
        """The sketch as arrays for compiled loops; None if it has no such form."""
        return None

    def structure(self, d: int) -> Units | None:
        """The same arrays for statements about laws: also in dimensions too large for compiled loops."""
        return self.units(d)

    def local_law(self, d: int) -> LocalLaw | None:
        """The law of S on any few coordinates, in a form that can be enumerated; None if there is none."""
        units = self.structure(d)
        return None if units is None else laws.local_law(units)

    def marginals(self, d: int) -> Atoms | None:
        """The law of each single entry of a diagonal S; None if it takes infinitely, or very, many values."""
        units = self.structure(d)
        if units is not None:
            return laws.marginals(units)
        size = self.support_size(d)
        if not self.diagonal or size is None or size > SUPPORT_LIMIT or size * d > 1 << 24:
            return None
        draws = ((p, draw) for p, draw in self._support(d) if isinstance(draw, DiagonalDraw))
        return [(np.full(d, p), draw.diagonal()) for p, draw in draws]

    def moment_form(self, d: int) -> MomentForm | None:
        """E[c c'] of a diagonal sketch in a form that needs no d x d matrix; None if there is none."""
        units = self.structure(d)
        return None if units is None else laws.moment_form(units)

    def components(self) -> list[tuple[float, Sketch]] | None:
        """The (weight, sketch) pairs that this one chooses from, if it is a mixture; else None."""
        return None

    def _check(self, d: int) -> int:
        return whole("the dimension d", d, 1)

    def __repr__(self) -> str:
        return f"<{self._label()}>"


def everything(d: int) -> Indices:
    """All coordinates."""
    return np.arange(d, dtype=np.int64)


def percent(share: float) -> str:
    """A share as people write it: 0.7 is ``70 %``."""
    return f"{100 * share:.4g} %"


def _columns(name: str, value: ArrayLike, d: int) -> Array:
    array: Any = np.asarray(value)
    if array.dtype != np.float32:
        array = numbers(name, array, array.ndim, finite=False)
    if array.ndim not in (1, 2) or array.shape[0] != d:
        raise ArgumentError(f"{name} must have {d} entries, as the draw has, got shape {array.shape}")
    result: Array = array
    return result


def _magnitude(size: int) -> str:
    return (
        f"{size:,}" if size < 10**15 else f"about 10^{len(str(size)) - 1}" if size < 10**4000 else "too many"
    )
