"""What a method is: a way to estimate the gradient of f_D. All share the loop x <- x - step_size h.

A method is a dataclass of its options. `bind` gives it a problem and a seed, `start` makes its
state, and `advance` takes steps. Everything random is a function of (seed, step), and everything
else is in the state, so a run can be cut and continued anywhere with the same bits.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from mast.errors import ArgumentError, MastError, NoGuaranteeError, StepSizeWarning
from mast.problem import AbstractProblem, Nodes, Problem
from mast.randomness import Key
from mast.sketches import Draw
from mast.support.arrays import Array
from mast.support.checks import check_nonnegative, check_positive
from mast.theory import Guarantee

#: a number, "theory", or a function of the step
StepSize = float | str | Callable[[int], float]


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

    def step_sizes(
        self, step_size: StepSize, steps: int, regime: str | None = None
    ) -> tuple[Callable[[int, int], Array], float | Callable[[int], float]]:
        """The step sizes of steps t .. t+count-1 as a function of (t, count), and what was chosen."""
        if callable(step_size):
            rule = step_size
            if steps > 0:
                self._warn_above(check_nonnegative("the schedule's first step size", rule(0)), steps, regime)
            return lambda t, count: _sizes(rule, t, count), step_size
        if isinstance(step_size, str):
            if step_size != "theory":
                raise ArgumentError(f'step_size must be "theory", a number or a function, got {step_size!r}')
            size = self.default_step_size(steps, regime)
        else:
            size = check_positive("step_size", step_size)
            self._warn_above(size, steps, regime)
        return (lambda t, count: np.full(count, size)), size

    def _warn_above(self, size: float, steps: int, regime: str | None) -> None:
        """Say so if a step size is above what theory allows."""
        try:
            limit = self.default_step_size(steps, regime)
        except MastError:
            return  # there is no limit; the result's note says why
        if size > limit * (1 + 1e-9):
            text = f"step size {size:.4g} is {size / limit:.3g} times the limit {limit:.4g} of {self.name}"
            warnings.warn(f"{text}: the run has no guarantee", StepSizeWarning, stacklevel=4)

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


def _sizes(rule: Callable[[int], float], t: int, count: int) -> Array:
    return np.array(
        [check_nonnegative(f"the schedule's step size at step {t + i}", rule(t + i)) for i in range(count)]
    )


def spread(d: int, draw: Draw, values: Array) -> Array:
    """A sketched gradient, given on the kept coordinates, as a vector of all coordinates."""
    full = np.zeros(d)
    draw.place(full, values)
    return full
