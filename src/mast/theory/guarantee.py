"""What a theorem promises: the largest step size, the bound, and a plan that reaches a target."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from mast.errors import ArgumentError, NoGuaranteeError
from mast.support.checks import check_number, check_positive
from mast.theory.arguments import ROUNDING, Array, iteration_counts, values


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A step size and a number of iterations after which the bounded quantity is at most `target`."""

    step_size: float
    iterations: int
    target: float


class Start:
    """What is known of the start of a run; a statement takes what it uses and leaves the rest."""

    MEANING: ClassVar = {
        "r0sq": "the squared distance from x0 to x_D*",
        "delta0": "f_D(x0) - f_D^inf",
        "Psi0": "the statement's Lyapunov function at the start",
        "D0": "mean_i |grad f_Si(x0) - grad f_Si(x_D*)|²",
        "sigma_sq": "mean_i |grad f_Si(x_D*)|²",
    }

    def __init__(self, **known: Any) -> None:
        unknown = sorted(set(known) - set(self.MEANING))
        if unknown:
            raise ArgumentError(
                f"no statement uses {', '.join(unknown)}; known are {', '.join(self.MEANING)}"
            )
        self.known = {name: values(name, value) for name, value in known.items() if value is not None}

    def __contains__(self, name: str) -> bool:
        return name in self.known

    def __getitem__(self, name: str) -> Array:
        if name not in self.known:
            meaning = self.MEANING[name]
            raise ArgumentError(f"{name} is missing: this statement uses it. Pass {name}= {meaning}")
        return self.known[name]

    def one(self, name: str) -> float:
        """The named value as one number, for a plan."""
        value = self[name]
        if value.size != 1 or not np.isfinite(value).all():
            raise ArgumentError(f"a plan needs one finite {name}, not {value}")
        return float(value.reshape(()))

    def positive(self, name: str) -> float:
        """The named value as one number above 0, for a plan that aims at a share of it."""
        value = self.one(name)
        if value <= 0:
            raise ArgumentError(
                f"{name} must be positive to plan for a share of it: at {name} = 0 the run has arrived"
            )
        return value


@dataclass(frozen=True, kw_only=True, repr=False)
class Guarantee(ABC):
    """One statement with its constants filled in.

    Attributes
    ----------
    algorithm, regime : the method and the class of f the statement is about.
    statement : which theorem or corollary, in words.
    assumptions : what has to hold for it.
    quantity : what `bound` bounds.
    limit_formula, bound_formula : the mathematics, g being the step size.
    constants : the numbers the formulas were filled in with.
    """

    algorithm: str
    regime: str
    statement: str
    assumptions: tuple[str, ...]
    quantity: str
    limit_formula: str
    bound_formula: str
    constants: Mapping[str, float] = field(default_factory=dict)
    limit: float = math.inf
    """The largest step size, where that is the same for runs of any length."""
    noise: float | None = 0.0
    """The constant of the last term of the bound; None while `noise_needs` is not known."""
    noise_needs: str = "gap"

    def max_step_size(self, T: Any = None) -> Any:
        """The largest step size the statement allows, for a run of T iterations where that matters.

        A float; an array where T is an array and the limit depends on it.
        """
        counts = None if T is None else iteration_counts(T)
        if self._limit_depends_on_T:
            if counts is None:
                raise ArgumentError(
                    f"the step size of this statement depends on the length of the run "
                    f"({self.limit_formula}): call max_step_size(T=...)"
                )
            if (counts < 1).any():
                raise ArgumentError("T must be 1 or more: a run without iterations has no step size")
        with np.errstate(all="ignore"):
            return plain(self._limit(counts))

    def bound(self, step_size: Any, T: Any, **known: Any) -> Any:
        """What the statement promises after T iterations: `quantity` is at most this.

        Scalars give a float; arrays broadcast. A step size above the limit gives infinity, for which
        `why` has the reason. Of what is known of the start (r0sq, delta0, Psi0, D0 and sigma_sq), what the
        statement does not use is ignored.
        """
        steps, counts, start = values("step_size", step_size), iteration_counts(T), Start(**known)
        with np.errstate(all="ignore"):
            inside = self._value(steps, counts, start)
            allowed = steps <= self._limit(counts) * (1 + ROUNDING)
            result = np.where(allowed, inside, self._beyond(steps, counts, start))
        return plain(np.where(np.isnan(result), np.inf, result))

    def plan(self, *, delta: Any = None, eps: Any = None, **known: Any) -> Plan:
        """A step size and a number of iterations that bring `quantity` to a target.

        The target is 2 delta times the start (r0sq, or Psi0 where the statement uses that) for convex f,
        eps² for non-convex f; `Plan.target` holds it.
        """
        start = Start(**known)
        with np.errstate(all="ignore"):
            if self.regime == "nonconvex":
                return self._plan(check_positive("eps", eps), start)
            return self._plan(check_number("delta", delta, above=0, below=1), start)

    def why(self, step_size: float, T: float | None = None) -> str:
        """Whether the statement allows this step size, and the reason, as a sentence."""
        step, limit = float(step_size), self.max_step_size(T)
        run = f" for T = {T:g}" if self._limit_depends_on_T and T is not None else ""
        if step <= limit * (1 + ROUNDING):
            return f"step size {step:.4g} is within the limit {self.limit_formula} = {limit:.4g}{run}"
        return (
            f"step size {step:.4g} is {step / limit if limit else math.inf:.3g} times the limit "
            f"{self.limit_formula} = {limit:.4g}{run}; {self._beyond_words}"
        )

    _beyond_words: ClassVar[str] = "above it the statement promises nothing, and the bound is infinite"
    _limit_depends_on_T: ClassVar[bool] = False

    _noise_hint: ClassVar[str] = ""

    @property
    def _noise(self) -> float:
        if self.noise is None:
            raise ArgumentError(
                f"{self.noise_needs} is missing: the step size does not need it, the bound and the plan do. "
                f"Pass {self.noise_needs}= when making the guarantee{self._noise_hint}"
            )
        return self.noise

    def _limit(self, T: Array | None) -> Array:
        """The largest step size, one for each T."""
        return np.asarray(self.limit)

    @abstractmethod
    def _value(self, step: Array, T: Array, start: Start) -> Array:
        """The bound where the step size is allowed."""

    def _beyond(self, step: Array, T: Array, start: Start) -> Array:
        """The bound where the step size is above the limit."""
        return np.full(np.broadcast_shapes(step.shape, T.shape), np.inf)

    @abstractmethod
    def _plan(self, aim: float, start: Start) -> Plan:
        """The plan for delta = aim, or for eps = aim."""

    def _settle(self, step: Callable[[int], float], needed: float, target: float, start: Start) -> Plan:
        """The closed form's T as a whole number, raised where rounding left the bound above the target."""
        if not math.isfinite(needed):
            raise NoGuaranteeError(f"a target of {target:g} takes more iterations than a float can count")
        iterations = max(1, math.ceil(needed))
        for _ in range(100):
            size = step(iterations)
            bound = self._value(np.asarray(size), np.asarray(float(iterations)), start)
            if size > 0 and float(bound) <= target:
                return Plan(step_size=size, iterations=iterations, target=target)
            iterations += max(1, iterations >> 50)
        raise NoGuaranteeError(f"a target of {target:g} is below what floating point resolves here")

    def _search(self, target: float, start: Start) -> Plan:
        """The fewest iterations for which some allowed step size meets the target."""
        step, iterations = fewest_iterations(
            lambda steps, T: self._value(steps, np.asarray(T), start),
            lambda T: float(self._limit(np.asarray(T))),
            target,
        )
        return Plan(step_size=step, iterations=iterations, target=target)

    def __repr__(self) -> str:
        return f"<Guarantee of {self.algorithm}, {self.regime}: {self.limit_formula}; {self.statement}>"

    def _facts(self) -> dict[str, str]:
        return {
            "statement": self.statement,
            "step size": self.limit_formula,
            "promises": f"{self.quantity} <= {self.bound_formula}",
            "constants": ", ".join(f"{name} = {value:.4g}" for name, value in self.constants.items()),
        }

    def _repr_html_(self) -> str:
        from mast.support.cards import card  # the theory needs nothing but the standard library

        facts = self._facts() | {"assumes": "; ".join(self.assumptions)}
        return card(f"Guarantee of {self.algorithm}, {self.regime.replace('_', ' ')}", facts)

    def __str__(self) -> str:
        facts = [*self._facts().items(), *(("assumes", words) for words in self.assumptions)]
        return "\n".join(
            [f"{self.algorithm}, {self.regime}", *(f"  {name:<12}{text}" for name, text in facts)]
        )


def plain(result: Any) -> Any:
    """A float for a single number, else the array."""
    return float(result) if np.ndim(result) == 0 else result


def decay(rate: Array, T: Array) -> Array:
    """(1 - rate)^T without loss for small rates; 1 at T = 0."""
    return np.where(T == 0, 1.0, np.exp(T * np.log1p(-np.minimum(rate, 1.0))))


# ---- plans without a closed form ------------------------------------------------------------------------

MOST_ITERATIONS = 2**200


def best_step_size(value: Callable[[Array], Array], limit: float) -> tuple[float, float]:
    """The step size in (0, limit] with the smallest bound, and that bound.

    A logarithmic grid over thirty decades below the limit, then rounds that zoom in on the
    best point. The bounds here have one valley, so the zoom ends at its bottom.

    >>> step, least = best_step_size(lambda g: 1 / g + 4 * g, limit=10.0)
    >>> round(step, 6), round(least, 6)
    (0.5, 4.0)
    """
    steps = limit * np.logspace(-30, 0, 481)
    for _ in range(10):
        steps = steps[steps > 0]
        bounds = np.nan_to_num(value(steps), nan=np.inf)
        best = int(np.argmin(bounds))
        step, least = float(steps[best]), float(bounds[best])
        low, high = steps[max(best - 1, 0)], steps[min(best + 1, len(steps) - 1)]
        steps = np.geomspace(low, high, 33)
    return step, least


def fewest_iterations(
    value: Callable[[Array, float], Array], limit: Callable[[float], float], target: float
) -> tuple[float, int]:
    """The smallest T for which some allowed step size brings the bound to the target, with that step size.

    The best bound falls as T grows, so T is doubled until the target is met and then bisected.

    >>> fewest_iterations(lambda g, T: 1 / (g * T) + 4 * g, limit=lambda T: 10.0, target=0.5)[1]
    64
    """

    def attempt(T: int) -> tuple[float, float]:
        return best_step_size(lambda steps: value(steps, float(T)), limit(float(T)))

    low, high = 0, 1
    step, least = attempt(high)
    while not least <= target:
        low, high = high, 2 * high
        if high > MOST_ITERATIONS:
            raise NoGuaranteeError(f"no plan with fewer than 2^200 iterations reaches {target:g}")
        step, least = attempt(high)
    while high - low > 1 + (high >> 50):
        middle = (low + high) // 2
        candidate, least = attempt(middle)
        if least <= target:
            high, step = middle, candidate
        else:
            low = middle
    return step, high
