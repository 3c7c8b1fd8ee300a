"""What a sketch is: a distribution of random matrices S with E[S] = I."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mast.errors import ArgumentError, NotDiagonalError, SupportTooLargeError
from mast.randomness import Key
from mast.sketches import estimates
from mast.sketches.draws import Draw
from mast.sketches.estimates import SUPPORT_LIMIT
from mast.sketches.laws import Constants, IndependentLaw, Law
from mast.support.checks import LARGE, Array, check_int, check_probability, frozen, refuse_too_large, vector


class Sketch(ABC):
    """A distribution of S. A new one is a subclass that defines `sample`; all else follows.

    Where it is known, the subclass says what S can be: `outcomes` lists its support, or `law` says how its
    coordinates are kept. Then all numbers below are exact; without either they are estimated from
    seeded draws, and ``constants(d).estimated`` is True. A method that knows better may be overridden.
    """

    #: E[S] = I
    unbiased: bool = True
    #: every S is diagonal
    diagonal: bool = True
    #: draws of different steps are independent
    independent: bool = True
    #: how many draws there are, if the sketch is a list of a few that have numbers
    members: int | None = None
    #: nodes whose numbers differ by a multiple of this draw independently of each other
    stride: int = 1
    _fixed_dim: int | None = None  # the only dimension in which it can be drawn, if there is one

    # ---- what a sketch defines ---------------------------------------------------------

    @abstractmethod
    def sample(self, d: int, key: Key) -> Draw:
        """The draw that `key` names: a function of d and the key, and of nothing else."""

    def outcomes(self, d: int) -> Iterable[tuple[float, Draw]] | None:
        """All (probability, draw) pairs, one after the other; None if they are infinitely many or unknown."""
        law = self.law(d)
        return None if law is None else law.outcomes()

    def law(self, d: int) -> Law | None:
        """How coordinates are kept, where that has a form which `Law` knows."""
        return None

    def check(self, d: int) -> int:
        """The dimension d, or an error if the sketch cannot be drawn in it."""
        d = check_int("the dimension d", d, 1)
        if self._fixed_dim not in (None, d):
            raise ArgumentError(f"{self!r} is for {self._fixed_dim} coordinates, but the dimension is {d}")
        return d

    def label(self) -> str:
        """What the repr shows, such as ``Bernoulli(0.7): keeps 70 %``."""
        values = {name: value for name, value in self.arguments().items() if np.ndim(value) == 0}
        named = ", ".join(f"{name}={value!r}" for name, value in values.items())
        return f"{type(self).__name__}({named}): keeps share(d) of d coordinates"

    # ---- what users call -------------------------------------------------------------

    def draw(self, d: int, seed: int = 0, step: int = 0, node: int = 0, index: int = 0) -> Draw:
        """The S that belongs to these numbers: a pure function of them."""
        law = self.law(d) if self.check(d) > LARGE else None
        if law is not None:
            drawn = d / 8 if isinstance(law, IndependentLaw) else 0.0  # one byte for each coordinate
            refuse_too_large(f"a draw of {self!r} in {d:,} dimensions", drawn + 2 * self.share(d) * d)
        return self.sample(d, Key(seed, step, node, index))

    def support(self, d: int, limit: int = SUPPORT_LIMIT) -> list[tuple[float, Draw]] | None:
        """All (probability, draw) pairs; None if there are infinitely many."""
        size, outcomes = self.support_size(self.check(d)), self.outcomes(d)
        if size is None or outcomes is None:
            return None
        if size > limit:
            many = f"{size:,}" if size < 10**15 else f"about 10^{int(math.log10(size))}"
            raise SupportTooLargeError(
                f"the support of {self!r} in dimension {d} has {many} draws, more than {limit}; "
                "sample from it with draw()"
            )
        return list(outcomes)

    def support_size(self, d: int) -> int | None:
        """How many different S there are; None if infinitely many. Beyond `SUPPORT_LIMIT` nobody counts."""
        outcomes, law = self.outcomes(self.check(d)), self.law(d)
        if outcomes is None:
            return None
        if self.members is not None:
            return self.members
        known = None if law is None else law.support_size()
        if known is not None:
            return known
        return sum(1 for _ in islice(outcomes, SUPPORT_LIMIT + 1))

    def constants(self, d: int) -> Constants:
        """L_D, mu_D, L_max and kappa_D in dimension d; `estimated` where neither law nor support is known.

        Their `unbiased` is False where E[S] is not I.
        """
        law = self.law(self.check(d))
        if law is not None:
            return law.constants()
        most, least = extreme_eigenvalues(self.expected_square(d))
        listed = estimates.moments_of(self, d)
        if not self.unbiased:
            return Constants(most, least, listed.largest, bool(listed.draws), unbiased=False)
        listed.check_unbiased(self)
        if not listed.draws:
            return Constants(most, least, listed.largest)
        return Constants(max(most, 1.0), max(least, 1.0), max(listed.largest, 1.0), estimated=True)

    def share(self, d: int) -> float:
        """The expected share of the coordinates that are kept.

        >>> import mast
        >>> mast.RandK(3).share(12), mast.Mixture([mast.Bernoulli(0.5), mast.Identity()]).share(12)
        (0.25, 0.75)
        """
        law = self.law(self.check(d))
        if not self.diagonal:
            raise NotDiagonalError(f"{self!r} is not diagonal: it mixes coordinates, it keeps no share")
        return estimates.moments_of(self, d).share if law is None else law.share()

    def at(self, density: float) -> Sketch:
        """A sketch of the same kind that keeps another share; Rand-K where the kind has no such member.

        For a mixture of sketches without scales it is the original dropout, which has none either.

        >>> import mast
        >>> mast.Bernoulli(0.7).at(0.5), mast.PermK(4).at(0.1)
        (<Bernoulli(0.5): keeps 50 %>, <PermK(10, seed=0): keeps 10 %, one of 10 blocks>)
        """
        from mast.sketches.independent import Identity

        density = check_probability("density", density)
        return Identity() if density == 1 else self._at(density)

    def _at(self, density: float) -> Sketch:
        from mast.sketches.subsets import RandK

        return RandK(density)

    # ---- moments -------------------------------------------------------------------------

    def mean(self, d: int) -> Array:
        """The diagonal of E[S]: ones, unless the sketch is biased."""
        self.check(d)
        refuse_too_large(f"the mean of {self!r} in {d:,} dimensions", d)
        if self.unbiased:
            return np.ones(d)
        law = self.law(d)
        return estimates.moments_of(self, d).mean if law is None else law.mean()

    def expected_square(self, d: int) -> Array:
        """E[S'S]: its diagonal if all S are diagonal, else the matrix."""
        law = self.law(self.check(d))
        return estimates.moments_of(self, d).square if law is None else law.expected_square()

    def second_moment(self, d: int) -> Array:
        """E[c c'], the matrix of second moments of a diagonal sketch's diagonal c."""
        d = self.check(d)
        refuse_too_large(f"the {d:,} x {d:,} matrix E[c c']", float(d) ** 2)
        if not self.diagonal:
            raise NotDiagonalError(
                f"E[c c'] exists for diagonal sketches, {self!r} is not one: use sandwich(H)"
            )
        law = self.law(d)
        return estimates.mean_over(self, d, _outer) if law is None else law.second_moment()

    def sandwich(self, H: Array) -> Array:
        """E[S'HS]: the Hessian of f_D when H is that of a quadratic f."""
        d = self.check(H.shape[0])
        if self.diagonal:
            return H * self.second_moment(d)
        return estimates.mean_over(self, d, lambda draw: draw.adjoint(H @ draw.matrix()))

    # ---- what two equal sketches have in common --------------------------------------------

    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments, as attributes of these names hold them: equal ones, equal draws.

        Where an argument is kept under another name, all public attributes are taken. Private ones may
        hold what they like.
        """
        names = list(inspect.signature(type(self)).parameters)
        held = {n: getattr(self, n, getattr(self, f"_{n}", _ABSENT)) for n in names}
        if any(value is _ABSENT for value in held.values()):
            public = {name: value for name, value in vars(self).items() if not name.startswith("_")}
            held = {name: value for name, value in held.items() if value is not _ABSENT} | public
        return held

    def __repr__(self) -> str:
        return f"<{self.label()}>"


_ABSENT = object()


def percent(share: float) -> str:
    """A share as people write it: 0.7 is ``70 %``."""
    return f"{100 * share:.4g} %"


def probabilities(name: str, weights: ArrayLike | None, n: int) -> Array:
    """Checked probabilities that sum to 1, n of them; uniform if None."""
    if weights is None:
        return frozen(np.full(n, 1 / n))
    w = vector(name, weights, n)
    if (w < 0).any():
        raise ArgumentError(f"{name} must not be negative, got {w.min()}")
    if abs(w.sum() - 1) > 1e-9:
        raise ArgumentError(f"{name} must sum to 1, got {w.sum():.12g}")
    return frozen(w / w.sum())


def extreme_eigenvalues(square: Array) -> tuple[float, float]:
    """The largest and the smallest eigenvalue of E[S'S], a matrix or the diagonal of one."""
    eigenvalues = square if square.ndim == 1 else np.linalg.eigvalsh(square)
    return float(eigenvalues.max()), max(float(eigenvalues.min()), 0.0)


def _outer(draw: Draw) -> Array:
    c = np.diag(draw.matrix())
    return np.outer(c, c)
