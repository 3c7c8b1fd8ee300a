"""The problem f_D(x) = E f(v + S(x - v)): an objective, a sketch and a shift; and the mean of several."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from mast.errors import ArgumentError, NotExactError, SupportTooLargeError
from mast.objectives import Objective, Sketched, mean
from mast.objectives.base import SketchedGradients
from mast.randomness import Key, Purpose
from mast.sketches import Draw, Sketch
from mast.sketches.composed import components
from mast.support.cards import card
from mast.support.checks import Array, Indices, check_int, check_list, frozen, vector

CHEAP = 1_000_000  #: an exact f_D that takes more losses than this is not computed by the way


@dataclass(frozen=True)
class Estimate:
    """A Monte Carlo estimate of f_D and its gradient, with standard errors."""

    value: float
    value_stderr: float
    gradient: Array
    gradient_stderr: Array
    samples: int


class AbstractProblem(ABC):
    """What one problem and the mean of several have in common."""

    dim: int
    shift: Array

    @property
    @abstractmethod
    def exact(self) -> Objective:
        """f_D as an objective of its own; `NotExactError` if no exact form is known."""

    @property
    @abstractmethod
    def problems(self) -> list[Problem]:
        """The problems whose mean this is."""

    @property
    @abstractmethod
    def smoothness(self) -> float:
        """f_D is at least this smooth."""

    @property
    @abstractmethod
    def strong_convexity(self) -> float:
        """f_D is at least this strongly convex; 0 if that is not known."""

    @cached_property
    def cheap(self) -> bool:
        """Whether f_D has an exact form that takes no patience."""
        try:
            return self.exact.work <= CHEAP
        except NotExactError:
            return False

    def value(self, x: ArrayLike) -> float:
        """f_D(x), exactly."""
        return self.exact.value(self._point(x))

    def gradient(self, x: ArrayLike) -> Array:
        """The gradient of f_D at x, exactly."""
        return self.exact.gradient(self._point(x))

    def value_and_gradient(self, x: ArrayLike) -> tuple[float, Array]:
        """f_D(x) and its gradient, exactly."""
        return self.exact.value_and_gradient(self._point(x))

    def minimizer(self) -> Array:
        """x_D*, a minimiser of f_D, to machine precision; coordinates that no draw keeps are at the shift."""
        x = self.exact.minimizer()
        if self.shift.any():
            squares = [p.sketch.expected_square(p.dim) for p in self.problems]
            dropped = [(e if e.ndim == 1 else np.diag(e)) == 0 for e in squares]
            x = np.where(np.logical_and.reduce(dropped), self.shift, x)
        return x

    def infimum(self) -> float:
        """f_D^inf."""
        return self.exact.infimum()

    def estimate(self, x: ArrayLike, samples: int = 1000, seed: int = 0) -> Estimate:
        """A Monte Carlo estimate of value and gradient from independent draws; always available."""
        # means and standard errors by Welford's running update: memory for one sample only
        x = self._point(x)
        samples = check_int("samples", samples)
        if samples < 2:
            raise ArgumentError(f"an estimate with a standard error needs at least 2 samples, got {samples}")
        value_mean = value_m2 = 0.0
        gradient_mean, gradient_m2 = np.zeros(x.size), np.zeros(x.size)
        root = Key(seed).child(0, Purpose.ESTIMATE).seed  # not the draws of a run with this seed
        for i in range(samples):
            value, gradient = 0.0, np.zeros(x.size)
            for node, problem in enumerate(self.problems):
                # the node is in the step, so that also Perm-K draws are independent across nodes
                draw = problem.sketch.sample(problem.dim, Key(root, step=node, index=i))
                term, slope = problem.at(draw).value_and_gradient(x)
                value += term / len(self.problems)
                gradient += slope / len(self.problems)
            off, offs = value - value_mean, gradient - gradient_mean
            value_mean += off / (i + 1)
            gradient_mean += offs / (i + 1)
            value_m2 += off * (value - value_mean)
            gradient_m2 += offs * (gradient - gradient_mean)
        scale = 1 / (samples * (samples - 1))
        return Estimate(
            value_mean, math.sqrt(value_m2 * scale), gradient_mean, np.sqrt(gradient_m2 * scale), samples
        )

    def _point(self, x: ArrayLike) -> Array:
        return vector("x", x, self.dim, finite=False)


class Problem(AbstractProblem):
    """f_D(x) = E f(v + S(x - v)).

    Parameters
    ----------
    objective
        f.
    sketch
        The distribution of S.
    shift
        v, a pretrained model; 0 if None.

    Values and gradients are exact, or there is an error that names `estimate`.

    >>> import mast
    >>> f = mast.Quadratic([[2.0, 1.0], [1.0, 2.0]], [3.0, 3.0])
    >>> problem = mast.Problem(f, mast.Bernoulli(0.5))
    >>> f.minimizer(), problem.minimizer()
    (array([1., 1.]), array([0.6, 0.6]))
    >>> round(problem.infimum(), 12)
    -1.8
    """

    def __init__(self, objective: Objective, sketch: Sketch, shift: ArrayLike | None = None) -> None:
        if not isinstance(objective, Objective):
            raise ArgumentError(f"the first argument must be an objective, got {type(objective).__name__}")
        if not isinstance(sketch, Sketch):
            raise ArgumentError(f"the second argument must be a sketch, got {type(sketch).__name__}")
        self.objective = objective
        self.sketch = sketch
        self.dim = objective.dim
        sketch.check(self.dim)
        self.shift: Array = frozen(
            np.zeros(self.dim) if shift is None else vector("shift", shift, self.dim).copy()
        )

    @cached_property
    def exact(self) -> Objective:
        """f_D in closed form, or as the mean over the parts of a mixture, or over the sketch's support."""
        closed = self.objective.sketched(self.sketch, self.shift)
        if closed is not None:
            return closed
        parts = components(self.sketch)
        if parts is not None:
            exact = [Problem(self.objective, sketch, self.shift).exact for _, sketch in parts]
            return mean(exact, [weight for weight, _ in parts])
        try:
            support, reason = self.sketch.support(self.dim), "its support is infinite; use"
        except SupportTooLargeError as error:
            support, reason = None, f"{error}, or use"
        if support is None:
            kind = f"{type(self.objective).__name__} with {self.sketch!r}"
            raise NotExactError(f"no exact f_D is known for {kind}: {reason} estimate(x, samples=...)")
        return mean([self.at(draw) for _, draw in support], [probability for probability, _ in support])

    @property
    def problems(self) -> list[Problem]:
        """A list of this problem alone."""
        return [self]

    # ---- bounds (Lemmas 1 and 3) -------------------------------------------------------

    @property
    def smoothness(self) -> float:
        """L_D L_f: f_D is at least this smooth."""
        return self.sketch.constants(self.dim).L_D * self.objective.smoothness

    @property
    def strong_convexity(self) -> float:
        """mu_D mu_f: f_D is at least this strongly convex."""
        return self.sketch.constants(self.dim).mu_D * self.objective.strong_convexity

    # ---- one draw, many draws ----------------------------------------------------------

    def draw(self, seed: int = 0, step: int = 0, node: int = 0, index: int = 0) -> Draw:
        """The S of these numbers."""
        return self.sketch.draw(self.dim, seed, step, node, index)

    def sketched_gradient(self, x: Array, draw: Draw, rows: Indices | None = None) -> Array:
        """The gradient of f_S at x, where the draw keeps coordinates.

        With `rows`, f is the mean of those of its terms.
        """
        return self._sketched_gradients.gradient(x, draw, rows)

    def sketched_difference(self, x: Array, w: Array, draw: Draw) -> Array:
        """The gradient of f_S at x less that at w, where the draw keeps coordinates."""
        return self._sketched_gradients.difference(x, w, draw)

    @cached_property
    def _sketched_gradients(self) -> SketchedGradients:
        return self.objective.sketched_gradients(self.shift)

    def at(self, draw: Draw) -> Sketched:
        """f_S(x) = f(v + S(x - v)) for one draw, as an objective."""
        return Sketched(self.objective, draw, self.shift)

    def sparsified(self, x: ArrayLike, draw: Draw) -> Array:
        """The sparsified model v + S(x - v)."""
        return self.at(draw).sparsified(x)

    def __repr__(self) -> str:
        shift = "no shift" if not self.shift.any() else f"a shift of length {np.linalg.norm(self.shift):.4g}"
        return (
            f"<Problem: {type(self.objective).__name__} in {self.dim} dimensions, {self.sketch!r}, {shift}>"
        )

    def _repr_html_(self) -> str:
        length = float(np.linalg.norm(self.shift))
        facts = {
            "objective": f"{type(self.objective).__name__} in {self.dim:,} dimensions",
            "sketch": repr(self.sketch),
            "shift v": f"a point of length {length:.4g}" if length else "0",
        }
        return card("Problem: min E f(v + S(x - v))", facts)


class Nodes(AbstractProblem):
    """The distributed problem: the mean of the nodes' problems. It has the same names as `Problem`.

    >>> import mast
    >>> left = mast.Problem(mast.Quadratic([[1.0]], [0.0]), mast.Identity())
    >>> right = mast.Problem(mast.Quadratic([[1.0]], [4.0]), mast.Bernoulli(0.5))
    >>> both = mast.Nodes([left, right])
    >>> both.minimizer().round(12), len(both)
    (array([1.33333333]), 2)
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self._problems = check_list("problems", problems)
        if not self._problems:
            raise ArgumentError("Nodes needs at least one problem")
        for i, problem in enumerate(self._problems):
            if not isinstance(problem, Problem):
                raise ArgumentError(f"node {i} must be a Problem, got {type(problem).__name__}")
            if problem.dim != self.problems[0].dim:
                raise ArgumentError(
                    f"node {i} has {problem.dim} variables, node 0 has {self.problems[0].dim}"
                )
            if not np.array_equal(problem.shift, self.problems[0].shift):
                raise ArgumentError(f"node {i} has another shift than node 0: all nodes share one v")
        self.dim = self.problems[0].dim
        self.shift = self.problems[0].shift

    @cached_property
    def exact(self) -> Objective:
        """The mean of the nodes' exact f_D."""
        return mean([p.exact for p in self.problems], np.full(len(self), 1 / len(self)))

    @cached_property
    def objective(self) -> Objective:
        """f, the mean of the nodes' objectives, without sketches."""
        return mean([p.objective for p in self.problems], np.full(len(self), 1 / len(self)))

    @property
    def problems(self) -> list[Problem]:
        """The nodes' problems."""
        return self._problems

    @property
    def smoothness(self) -> float:
        """The mean of L_Di L_fi."""
        return float(np.mean([p.smoothness for p in self.problems]))

    @property
    def strong_convexity(self) -> float:
        """The mean of mu_Di mu_fi, if every node is convex; else 0."""
        if not all(p.objective.convex for p in self.problems):
            return 0.0
        return float(np.mean([p.strong_convexity for p in self.problems]))

    def __len__(self) -> int:
        return len(self.problems)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.problems)

    def __getitem__(self, node: int) -> Problem:
        return self.problems[node]

    def __repr__(self) -> str:
        return f"<Nodes: {len(self)} problems in {self.dim} dimensions>"
