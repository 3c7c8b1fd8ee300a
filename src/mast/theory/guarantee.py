"""What a theorem promises, the largest step size, a bound and a plan; and checks of what it is given."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from mast.errors import ArgumentError, BiasedSketchError, NoGuaranteeError
from mast.support.checks import check_choice, check_int, check_nonnegative, check_number, check_positive
from mast.theory.plans import Array, fewest_iterations

ROUNDING = 1e-12
"""Relative slack in comparisons with a limit, so that a step size computed as the limit is not above it."""


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


# ---- what a statement may be given: messages say what would be right ---------------------------------------

NO_STATEMENT = {
    "local_steps": (
        "no theorem covers local steps: between two averages the nodes move along different functions, "
        "and the method is no longer gradient descent on f_D. Use local_steps=1 for a guarantee."
    ),
    "infinite_L_max": (
        "L_max is infinite: the sketch is unbounded (a Gaussian, for instance), and no step size is safe for "
        "every draw. Truncate the sketch so that L_max is finite, or run exact gradient descent on f_D with "
        "step size 1/(L_f L_D), which does not use L_max."
    ),
    "dependent_draws": (
        "no theorem covers draws that depend on those of the steps before: a window that moves with the step "
        "(Rolling) is unbiased at each step, and not independent of the last. Use independent draws for a "
        "guarantee, or choose the step size yourself."
    ),
    "biased_sketch": (
        "the statements that compare f_D with f (Theorem 1 and its kin) need E[S] = I. An unbiased sketch "
        "has E[S'S] >= I, that is L_D >= mu_D >= 1. Rescale the sketch (Bernoulli divides what it keeps by "
        "the keep probability), or give the constants of an unbiased one."
    ),
}
"""Why a case has no guarantee, by name: what a run can report where its guarantee is None."""


def unbiased(name: str, value: Any) -> float:
    """L_D, mu_D or L_max of an unbiased sketch: at least 1."""
    result = check_nonnegative(name, value) if name != "L_max" else bounded_sketch(name, value)
    if result < 1 - 1e-9:
        raise BiasedSketchError(f"{name} = {result:g} is below 1: {NO_STATEMENT['biased_sketch']}")
    return result


def bounded_sketch(name: str, value: Any) -> float:
    """L_max, which has to be finite."""
    if isinstance(value, int | float | np.floating) and value == math.inf:
        raise NoGuaranteeError(NO_STATEMENT["infinite_L_max"])
    return check_positive(name, value)


def always_kept(name: str, value: Any) -> float:
    """mu_D of a strongly convex f_D: above 0."""
    if check_number(name, value) == 0:
        raise NoGuaranteeError(
            f"{name} = 0: some coordinates are never kept, so f_D is not strongly convex. Use the regime "
            "'convex', or a sketch that keeps every coordinate at times."
        )
    return check_positive(name, value)


def strong_convexity(name: str, value: Any) -> float:
    """mu_f of a strongly convex f: above 0."""
    mu = check_number(name, value)
    if mu <= 0:
        hint = "Use the regime 'convex' for a function that is convex and no more"
        raise ArgumentError(f"{name} must be a positive number, got {value!r}. {hint}")
    return mu


def per_node(name: str, value: Any, M: int, check: Any = check_positive) -> Array:
    """One checked number per node; a single number stands for all M nodes."""
    if value is None:
        raise ArgumentError(f"{name} is missing: pass {name}=..., one value per node")
    array = np.asarray(value)
    if array.ndim > 1 or array.size not in (1, M):
        raise ArgumentError(f"{name} must have one value or {M} (one per node), and has shape {array.shape}")
    numeric = array.dtype.kind in "fiu" and array.size  # every check is a range: the extremes decide
    for entry in [array.min().item(), array.max().item()] if numeric else array.ravel().tolist():
        check(name, entry)
    return np.full(M, array, dtype=np.float64)


def check_count(name: str, value: Any, least: int, most: int | None = None) -> int:
    """A whole number within the limits; also as a float, such as the N that a division gives."""
    result = check_number(name, value)
    return check_int(name, int(result) if result.is_integer() else value, least, most)


def values(name: str, value: Any) -> Array:
    """A nonnegative number or an array of them, as a float array; infinity passes, NaN does not."""
    if value is None:
        raise ArgumentError(f"{name} is missing: pass {name}=...")
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"{name} must be a number or an array of numbers, not {value!r}") from None
    if np.isnan(array).any():
        raise ArgumentError(f"{name} holds NaN")
    if (array < 0).any():
        raise ArgumentError(f"{name} must not be negative, and holds {float(array.min()):g}")
    return array


def iteration_counts(value: Any) -> Array:
    """T, or several of them: finite and nonnegative."""
    array = values("T", value)
    if np.isinf(array).any():
        raise ArgumentError("T must be finite")
    return array


def regime_of(value: str, algorithm: str, without: dict[str, str] | None = None) -> str:
    """The regime, refused where the algorithm has no statement for it."""
    check_choice("regime", value, ("strongly_convex", "convex", "nonconvex"))
    if without and value in without:
        raise NoGuaranteeError(f"{algorithm} has no statement for the regime {value!r}: {without[value]}")
    return value


def combined(formula: str, value: float) -> float:
    """A product of constants, refused where it left the range of floating point."""
    if not 1e-300 < value < 1e300:
        raise ArgumentError(
            f"{formula} = {value:g} is outside the range of floating point: measure f in other units, "
            "so that its smoothness is nearer 1"
        )
    return value


def consistent(mu: float, limit: float, formula: str) -> None:
    """Refuse constants that no function has: strong convexity above the smoothness that bounds the step."""
    if mu * limit > 1 + 1e-9:
        raise ArgumentError(
            f"the strong convexity {mu:g} of f_D exceeds {formula} = {1 / limit:g}: "
            "no function and sketch have these constants"
        )
