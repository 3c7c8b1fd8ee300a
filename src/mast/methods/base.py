"""What a method is: a way to estimate the gradient of f_D. All share the loop x <- x - step_size h.

A method is a dataclass of its options. `bind` gives it a problem and a seed, `start` makes its
state, and `advance` takes steps. Everything random is a function of (seed, step), and everything
else is in the state, so a run can be cut and continued anywhere with the same bits. Below are the numbers
that its statements need, gathered from a problem: constants, regime, and the gap.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from mast.errors import ArgumentError, MastError, NoGuaranteeError, NotExactError
from mast.objectives import Objective, Quadratic
from mast.problem import AbstractProblem, Nodes, Problem
from mast.randomness import Key
from mast.sketches import Draw, Sampled, Sketch
from mast.support.checks import Array
from mast.theory import Guarantee
from mast.theory.guarantee import NO_STATEMENT

EXACT = "the gap is exact"
SHARP = "the gap is f_D^inf - E f_S^inf, which is sharper and exact here"
BOUND = "the gap is not known: Theorem 1's upper bound of it is used"
LOWER = "f^inf is replaced by a lower bound of f, so the gap is an upper bound"
SKIPPED = "the gap was not computed, so there is a step size but no bound"
ABSENT = "the gap could not be bounded, so there is a step size but no bound"
#: f_D^inf - f^inf or what stands for it, None if that is not known; and which of them it is
Gap = tuple[float | None, str]
ESTIMATED = "the sketch's constants are estimated from draws, L_max is the largest that was seen"


@dataclass
class State:
    """Where a run is. Subclasses add what their method remembers; every field is an array or a number."""

    x: Array
    gradients: int = 0  # of terms, computed so far; a sweep over the data counts each term once
    bytes: int = 0  # that travelled between server and nodes

    def copy(self) -> Self:
        """A copy that shares no array with this one."""
        return copy.deepcopy(self)


@dataclass
class Method(ABC):
    """An algorithm with its options. One file each in `mast.methods`."""

    #: what it is called in traces and checkpoints; the name of the class if it says nothing
    name: ClassVar[str]

    # given by `bind`
    problem: AbstractProblem = field(init=False, repr=False)
    seed: int = field(init=False, repr=False)

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def bind(self, problem: AbstractProblem, seed: int) -> Self:
        """This method on a problem, with a seed; checks the options against the problem."""
        bound = copy.copy(self)
        bound.problem = problem
        bound.seed = seed
        bound.prepare()
        return bound

    def prepare(self) -> None:  # noqa: B027
        """Check options and compute what all steps share; nothing by default."""

    def start(self, x0: Array) -> State:
        """The state before step 0."""
        return State(x0.copy())

    @abstractmethod
    def step(self, state: Any, t: int, step_size: float) -> None:
        """Step t, which changes the state."""

    def advance(self, state: State, t: int, step_sizes: Array) -> None:
        """Steps t, t+1, ...: as many as there are step sizes. Methods with a compiled loop replace this."""
        for offset, step_size in enumerate(step_sizes.tolist()):
            self.step(state, t + offset, step_size)

    def guarantee(self, regime: str | None = None, effort: str = "exact") -> Guarantee:
        """What theory promises for this method on its problem.

        The gap takes solving f and f_D; `effort` says how much of that is wanted (see `gap_of`).
        """
        raise NoGuaranteeError(f"there is no statement about {self.name!r}: choose the step size yourself")

    def default_step_size(self, steps: int, regime: str | None = None) -> float:
        """The largest step size that the statement of the regime allows; the sharpest one's if None."""
        return float(self.guarantee(regime, effort="none").max_step_size(T=max(steps, 1)))

    @classmethod
    def parameters(cls) -> dict[str, bool]:
        """The names of the options, and whether each has to be given because it has no default."""
        arguments = inspect.signature(cls).parameters.values()
        return {argument.name: argument.default is argument.empty for argument in arguments}

    def options(self) -> dict[str, Any]:
        """The options and their values."""
        return {name: getattr(self, name) for name in self.parameters()}

    @property
    def terms(self) -> int:
        """How many gradients of terms make one pass over the data."""
        return sum(p.objective.terms for p in self.problem.problems)

    def key(self, t: int, node: int = 0, index: int = 0) -> Key:
        """The key of one draw of step t."""
        return Key(self.seed, t, node, index)


class SingleMethod(Method):
    """A method for one problem."""

    problem: Problem

    def bind(self, problem: AbstractProblem, seed: int) -> Self:
        """Refuse several nodes."""
        if isinstance(problem, Nodes):
            raise ArgumentError(f'{self.name!r} is for a single Problem; for Nodes use "distributed"')
        return super().bind(problem, seed)

    def draw(self, t: int, index: int = 0) -> Draw:
        """The sketch of step t."""
        return self.problem.sketch.sample(self.problem.dim, self.key(t, index=index))


def scatter(d: int, draw: Draw, values: Array) -> Array:
    """A sketched gradient, given on the kept coordinates, as a vector of all coordinates."""
    full = np.zeros(d)
    draw.place(full, values)
    return full


def make(method: str | Method, options: Mapping[str, Any]) -> Method:
    """A method by its name and options, or the one that was made already.

    An unknown name or option is refused with what is known, and so is an option without a default that
    is not given.
    """
    from mast.methods import METHODS  # the list of all, which are made of what is here

    if isinstance(method, Method):
        if options:
            raise ArgumentError(
                f"{', '.join(options)}: give the options of a method to its constructor, "
                f"{type(method).__name__}(...), or pass its name"
            )
        return method
    if isinstance(method, type) and issubclass(method, Method):
        raise ArgumentError(f"pass a method, {method.__name__}(...) with its options, not its class")
    if not isinstance(method, str) or method not in METHODS:
        raise ArgumentError(f"unknown method {method!r}; the methods are {', '.join(METHODS)}")
    known = METHODS[method].parameters()
    unknown = sorted(set(options) - set(known))
    if unknown:
        takes = ", ".join(known) or "none"
        raise ArgumentError(f"{method} has no option {', '.join(unknown)}; its options are: {takes}")
    missing = [name for name, required in known.items() if required and name not in options]
    if missing:
        raise ArgumentError(f"{method} needs a value for {', '.join(missing)}: pass {missing[0]}=...")
    return METHODS[method](**options)


# ---- the numbers that statements need ----------------------------------------------------------------------


def constants_of(problem: Problem) -> dict[str, Any]:
    """L_f, mu_f, L_D, mu_D and L_max, by the names that the statements take."""
    f = problem.objective
    c = problem.sketch.constants(problem.dim)
    return {
        "L_f": f.smoothness,
        "mu_f": f.strong_convexity,
        "L_D": c.L_D,
        "mu_D": c.mu_D,
        "L_max": c.L_max,
    }


def annotated(guarantee: Guarantee, problem: AbstractProblem, gap_source: str = EXACT) -> Guarantee:
    """The guarantee with a word on where its gap, and estimated constants, come from."""
    notes = [] if gap_source == EXACT else [gap_source]
    if any(p.sketch.constants(p.dim).estimated for p in problem.problems):
        notes.append(ESTIMATED)
    deviation = max(deviation_of(p.sketch, p.dim) for p in problem.problems)
    if deviation:
        notes.append(
            f"f_D is the mean over a list of draws, whose mean S is off I by up to {deviation:.3g}; "
            "the constants are those of the list"
        )
    return replace(guarantee, assumptions=(*guarantee.assumptions, *notes))


def deviation_of(sketch: Sketch, dim: int) -> float:
    """How far the mean of a list of draws is from I: the largest entry of the difference."""
    if not isinstance(sketch, Sampled):
        return 0.0
    off = float(np.abs(sketch.mean(dim) - 1).max())
    return off if off > 1e-9 else 0.0


def refuse_dependent(sketches: Sequence[Sketch]) -> None:
    """An error if draws of different steps depend on each other: no statement covers those."""
    if not all(sketch.independent for sketch in sketches):
        raise NoGuaranteeError(NO_STATEMENT["dependent_draws"])


def regime_of(problem: AbstractProblem, regime: str | None = None) -> str:
    """The regime asked for, or the strongest that holds."""
    if regime is not None:
        return regime
    if problem.strong_convexity > 0:
        return "strongly_convex"
    return "convex" if all(p.objective.convex for p in problem.problems) else "nonconvex"


def gap_of(problem: AbstractProblem, effort: str = "exact", sharp: bool = False) -> Gap:
    """f_D^inf - mean_i f_i^inf or what stands for it: exact where f_D is, else bounded by Theorem 1.

    `effort` is "exact", "quick" (exact only where that takes no patience) or "none".

    With `sharp` (DSGD with exact sketched gradients only), E f_S^inf takes the place of f^inf where
    it can be had: it is f_D^inf itself if f_D splits into blocks.
    """
    if effort == "none":
        return None, SKIPPED
    if sharp and isinstance(problem, Problem) and problem.objective.convex:
        law = problem.sketch.law(problem.dim)
        blocks = None if law is None else law.separable()
        if blocks is not None and (blocks[0] >= 0).all():  # a coordinate that always survives ties them
            return 0.0, SHARP
        if isinstance(problem.objective, Quadratic):
            lower = _mean_of_infima(problem, problem.objective)
            if lower is not None:
                return max(problem.infimum() - lower, 0.0), SHARP
    objectives = [p.objective for p in problem.problems]
    try:
        infima = [f.infimum() for f in objectives]
    except MastError:
        return None, ABSENT
    if not np.isfinite(infima).all():
        return None, ABSENT
    source = EXACT if all(f.infimum_exact for f in objectives) else LOWER
    if effort == "exact" or problem.cheap:
        with contextlib.suppress(NotExactError, ArgumentError):
            if problem.exact.infimum_exact:
                return max(problem.infimum() - float(np.mean(infima)), 0.0), source
    if not all(p.sketch.constants(p.dim).unbiased for p in problem.problems):
        return None, ABSENT  # Theorem 1 needs E[S] = I
    return _by_theorem_1(problem, infima)


def _by_theorem_1(problem: AbstractProblem, infima: list[float]) -> Gap:
    """f_D^inf <= f_D(x) <= f(x) + (L_D - 1) L_f/2 |x - v|² at any x, here at f's minimiser or at v."""
    total = 0.0
    for p, infimum in zip(problem.problems, infima, strict=True):
        L_D = p.sketch.constants(p.dim).L_D
        x = _best_known(p.objective, problem)
        distance = float(np.sum((x - p.shift) ** 2))
        total += p.objective.value(x) + (L_D - 1) * p.objective.smoothness / 2 * distance - infimum
    return max(total / len(problem.problems), 0.0), BOUND


def _best_known(objective: Objective, problem: AbstractProblem) -> Array:
    if len(problem.problems) == 1 and objective.convex:
        with contextlib.suppress(MastError):
            return objective.minimizer()
    return problem.shift


def _mean_of_infima(problem: Problem, objective: Quadratic) -> float | None:
    """E f_S^inf of a quadratic over a small support."""
    size = problem.sketch.support_size(problem.dim)
    if size is None or size > 256:
        return None
    g, f_v = objective.gradient(problem.shift), objective.value(problem.shift)
    total = 0.0
    for probability, draw in problem.sketch.support(problem.dim) or []:
        S = draw.matrix()
        infimum = Quadratic(S.T @ objective.H @ S, -(S.T @ g), f_v).infimum()  # in u = x - v
        if not math.isfinite(infimum):
            return None
        total += probability * infimum
    return total
