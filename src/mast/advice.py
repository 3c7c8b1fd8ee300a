"""Advice before training: what a sketch costs in step size and iterations, against plain training."""

from __future__ import annotations

import contextlib
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mast.errors import MastError
from mast.methods import make
from mast.objectives import LinearModel, Objective
from mast.problem import Problem
from mast.sketches import Constants, Identity, Sketch
from mast.support.checks import check_number

REGIMES = ("strongly_convex", "convex", "nonconvex")
METHODS = ("dsgd", "dsgd_sampled", "l_svrdsg", "s_page")


@dataclass(frozen=True)
class StatementAdvice:
    """What one statement says of one method."""

    method: str
    regime: str
    step_size: float  # the largest that is allowed
    rate: float | None  # by what the error is multiplied per step
    floor: float | None  # what the bound tends to at this step size
    planned_step_size: float | None  # for the target
    iterations: int | None  # with that step size
    gap: float | None  # that the statement used
    statement: str

    @property
    def above_target(self) -> bool:
        """Whether the largest step size ends above the target, so that a smaller one is planned."""
        return self.planned_step_size is not None and self.planned_step_size < 0.999 * self.step_size


@dataclass(frozen=True)
class ProblemAdvice:
    """The constants of a problem, what every statement says, and one sentence."""

    sketch: str
    constants: Constants
    L_f: float
    mu_f: float
    delta: float
    r0sq: float
    lines: list[StatementAdvice]
    sentence: str

    def as_dict(self) -> dict[str, Any]:
        """Everything as numbers and text, for JSON."""
        return asdict(self)


def advise(
    objective: Objective,
    sketch: Sketch,
    shift: ArrayLike | None = None,
    *,
    delta: float = 0.01,
    seed: int = 0,
) -> ProblemAdvice:
    """What theory says of training `objective` with `sketch`, from the shift (or 0).

    The target of `iterations` is a bound of 2 delta |x0 - x_D*|², on the squared distance (strongly
    convex) or on the excess value (convex); for non-convex statements |grad f_D|² <= delta |grad f_D(x0)|².

    >>> import mast
    >>> A, b = mast.data.load("a1a")
    >>> mast.advise(mast.Logistic(A, b, kappa=100), mast.Bernoulli(0.7)).sentence
    'dsgd, strongly convex: step size 0.000596 and 341,748 steps for the target; plain gradient...
    """
    delta = check_number("delta", delta, above=0, below=1)
    problem = Problem(objective, sketch, shift)
    plain = Problem(objective, Identity(), shift)
    constants = sketch.constants(problem.dim)
    start = _start(problem)
    lines = [_gradient_descent(plain, "plain gd", delta), _gradient_descent(problem, "gd", delta)]
    for method in METHODS:
        lines += [line for regime in REGIMES if (line := _line(method, problem, regime, delta, start, seed))]
    return ProblemAdvice(
        sketch.label(),
        constants,
        objective.smoothness,
        objective.strong_convexity,
        delta,
        start.get("r0sq", math.nan),
        lines,
        _sentence(problem, constants, lines),
    )


def _start(problem: Problem) -> dict[str, float]:
    """What is known of the start at the shift v: exact where f_D is cheap to solve, else bounds.

    At v itself f_D is f and its gradient is E[S]' times that of f; no value of f_D is below f^inf.
    """
    f, v, sketch = problem.objective, problem.shift, problem.sketch
    value, gradient = f.value_and_gradient(v)
    if sketch.diagonal:
        gradient = sketch.mean(problem.dim) * gradient
    known = {"grad0sq": float(gradient @ gradient)}
    try:
        lowest = problem.infimum() if problem.cheap else f.infimum()
        known["delta0"] = known["Psi0"] = max(value - lowest, 0.0)
        if problem.cheap:
            known["r0sq"] = float(np.sum((v - problem.minimizer()) ** 2))
        elif problem.strong_convexity > 0:
            known["r0sq"] = 2 * known["delta0"] / problem.strong_convexity
        # for convex f, mean |grad f_S(x0) - grad f_S(x_D*)|² is at most this
        known["D0"] = 2 * f.smoothness * problem.sketch.constants(problem.dim).L_max * known["delta0"]
    except MastError:
        pass
    return known


def _gradient_descent(problem: Problem, name: str, delta: float) -> StatementAdvice:
    """Exact gradients: of f itself for plain training, of f_D else."""
    f = problem.objective
    size, mu = 1 / problem.smoothness, problem.strong_convexity
    regime = "strongly_convex" if mu > 0 else "convex" if f.convex else "nonconvex"
    statement = "gradient descent on an L_D L_f smooth function"
    rate = 1 - size * mu if mu else None
    iterations = math.ceil(math.log(1 / (2 * delta)) / -math.log(rate)) if rate and delta < 0.5 else None
    return StatementAdvice(name, regime, size, rate, 0.0, size, iterations, None, statement)


def _line(
    method: str, problem: Problem, regime: str, delta: float, start: dict[str, float], seed: int
) -> StatementAdvice | None:
    """One row of the table, or None where the method, the regime and the problem do not go together."""
    f = problem.objective
    if method == "dsgd_sampled" and not isinstance(f, LinearModel):
        return None
    if (regime == "strongly_convex" and f.strong_convexity == 0) or (regime == "convex" and not f.convex):
        return None
    try:
        bound = make(method, {}).bind(problem, seed)
        guarantee = bound.guarantee(regime, effort="quick")
    except MastError:
        return None
    nonconvex = regime == "nonconvex"
    # what the statement may use of the start; Psi0 of L-SVRDSG follows from r0sq and D0
    unused = {"grad0sq", "Psi0"} if guarantee.algorithm == "L-SVRDSG" else {"grad0sq"}
    known = {name: value for name, value in start.items() if name not in unused}
    planned = iterations = floor = None
    with contextlib.suppress(MastError):  # where there is no plan
        aim = {"eps": math.sqrt(delta * start["grad0sq"])} if nonconvex else {"delta": delta}
        plan = guarantee.plan(**aim, **known)
        planned, iterations = float(plan.step_size), plan.iterations
    size = float(guarantee.max_step_size(T=iterations or 1000))
    with contextlib.suppress(MastError):  # the bound of a non-convex statement depends on T itself
        floor = None if nonconvex else float(guarantee.bound(size, 1e15, **known))
    refresh = getattr(bound, "p", 2.0) / 2
    rate = 1 - min(size * problem.strong_convexity, refresh) if regime == "strongly_convex" else None
    gap = guarantee.constants.get("gap")
    return StatementAdvice(method, regime, size, rate, floor, planned, iterations, gap, guarantee.statement)


def _sentence(problem: Problem, c: Constants, lines: list[StatementAdvice]) -> str:
    """What the row of DSGD, in the strongest regime that holds, comes to; beside plain gradient descent."""
    if not math.isfinite(c.L_max):
        return (
            "this sketch is unbounded, so no step size is guaranteed for stochastic steps: use exact "
            f"gradient descent on f_D with 1/(L_f L_D) = {1 / problem.smoothness:.3g}, or a bounded sketch"
        )
    row = next((line for line in lines if line.method == "dsgd"), None)
    if row is None:
        return "no statement covers DSGD here"
    regime = row.regime.replace("_", " ")
    if row.iterations is None or row.planned_step_size is None:
        return f"dsgd, {regime}: step sizes up to {row.step_size:.3g}; there is no plan for the target"
    text = (
        f"dsgd, {regime}: step size {row.planned_step_size:.3g} and {row.iterations:,} steps for the target"
    )
    if lines[0].iterations is not None and lines[0].regime == row.regime:
        text += f"; plain gradient descent takes {lines[0].iterations:,}"
    if row.above_target:
        text += f". Step sizes up to {row.step_size:.3g} are allowed, but end above the target"
    return text
