"""From a plan to weights: which method solves it, and how."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from mast.arrays import Array
from mast.errors import ArgumentError, NotExactError
from mast.learn.copies import COPIES, Copies, copies_of, is_listed
from mast.learn.models import SampledAverage, Softmax, with_ones
from mast.learn.plan import FitPlan, Watch
from mast.learn.stochastic import Stream
from mast.objectives import LeastSquares, LinearModel, Logistic, Mean, Objective
from mast.objectives.newton import hessian_solver, newton_steps
from mast.problem import Problem
from mast.run import minimize
from mast.theory import Guarantee

SINGLE = ("gd", "agd", "dsgd", "dsgd_sampled", "l_svrdsg", "s_page")  #: methods with a step size of their own
OURS = ("auto", "exact", "sampled", "stochastic")  #: all but the last by Newton's method
LISTED = 50_000_000  #: a listed support is averaged if it takes at most so many products per sweep
SAMPLED_TOL = 2e-3  #: an average over draws is not worth a smaller tolerance; the last step squares it
FIRST_TOL = 0.05  #: of the fit to the first copy, where the fit to all of them starts
PASSES_TOL = 0.03  #: passes over the rows end when the average moves by less
MANY_ROWS = 100_000  #: more rows than this are passed over: a third of the time, f_D within 0.1 %
SUPPORT = 1000  #: draws that stand for a support which is too long, or not uniform
MEASUREMENTS = 20  #: how often a stochastic method looks whether it has converged
DENSE = 2000  #: up to this dimension Newton steps come from a dense Hessian, else from conjugate gradients
DENSE_WORK = 2e7  #: of a dense Hessian with a block for each two classes
ROUNDING = 1e-7  #: a relative error that rounding of values explains: no further step can be checked


@dataclass(frozen=True)
class Solution:
    """Where a solver stopped."""

    x: Array
    iterations: int
    converged: bool


@dataclass(frozen=True)
class Fit:
    """The weights, one row per output, and how they were found."""

    coef: Array
    intercept: Array
    method: str
    iterations: int
    converged: bool
    guarantee: Guarantee | None


def fit(plan: FitPlan, shift: Array, start: Array, intercept: Array, warm: bool) -> Fit:
    """Minimise f_D from a start, which may be warm; shift and start are (outputs, features)."""
    v, x0 = shift, start
    if plan.fit_intercept:
        v = np.column_stack([shift, np.zeros(plan.classes)])
        x0 = np.column_stack([start, intercept])
    guarantee = None
    if plan.method in OURS:
        found = None if plan.method == "stochastic" else _solve(plan, v.ravel(), x0.ravel(), warm)
        if found is None:
            return _passes(plan, shift, start, intercept)
        name, solution = found
    else:
        name = plan.method
        solution, guarantee = _run(plan, v.ravel(), x0.ravel())
    x = solution.x.reshape(plan.classes, -1)
    coef, b = (x[:, :-1], x[:, -1]) if plan.fit_intercept else (x, np.zeros(plan.classes))
    if plan.classes > 1:
        b = b - b.mean()  # a number that all classes share changes nothing
    return Fit(coef.copy(), b.copy(), name, solution.iterations, solution.converged, guarantee)


def _solve(plan: FitPlan, v: Array, x0: Array, warm: bool) -> tuple[str, Solution] | None:
    """Minimise f_D itself where it has an affordable exact form, else an average over sampled draws.

    None where there are so many rows that passes over them come as close in less time.
    """
    scale = _scale(plan)
    if plan.stand_ins is None and plan.classes == 1 and plan.method != "sampled":
        problem = plan.problem(v)
        if plan.method == "exact" or _affordable(problem):
            return "exact", newton_to(problem.exact, x0, plan.tol, plan.max_iter, scale, plan.verbose)
    many = plan.method == "auto" and plan.X.shape[0] > MANY_ROWS and plan.sketch.diagonal
    if many and not is_listed(plan.X, plan.sketch):
        return None
    copies = copies_of(plan.X, plan.sketch, plan.seed, plan.stand_ins, listing=plan.method != "sampled")
    if plan.method == "exact" and not copies.exact:
        raise NotExactError(
            f"f_D with {plan.sketch!r} has no short exact form here: use method='auto', which samples"
        )
    tol = plan.tol if copies.exact else max(plan.tol, SAMPLED_TOL)
    if copies.weights.size >= COPIES[0] and not warm:  # one copy is enough to come close
        first = _average(plan, Copies(copies.rows[: plan.X.shape[0]], np.ones(1), False), v)
        x0 = newton_to(first, x0, FIRST_TOL, plan.max_iter, scale, plan.verbose).x
    solution = newton_to(_average(plan, copies, v), x0, tol, plan.max_iter, scale, plan.verbose)
    return "exact" if copies.exact else "sampled", solution


def _passes(plan: FitPlan, shift: Array, start: Array, intercept: Array) -> Fit:
    """Passes over the rows until the average moves little."""
    stream = Stream(
        plan.sketch,
        plan.seed,
        plan.loss,
        plan.fit_intercept,
        plan.l2,
        shift,
        start,
        intercept,
        stand_ins=plan.stand_ins,
    )
    tol, scale = max(plan.tol, PASSES_TOL), _scale(plan)
    for number in range(1, plan.max_iter + 1):
        moved = stream.take(plan.X, plan.target, plan.weights)
        error = math.sqrt(moved / scale) if scale > 0 else 0.0
        if plan.verbose is not None:
            plan.verbose(f"pass {number}: the model moved by {error:.2g}")
        if error <= tol:
            break
    coef, b = stream.average()
    if plan.classes > 1:
        b = b - b.mean()
    return Fit(coef, b, "stochastic", number, error <= tol, None)


def _average(plan: FitPlan, copies: Copies, v: Array) -> Objective:
    """The average of the loss over copies, and the penalty's expectation."""
    rows = with_ones(copies.rows) if plan.fit_intercept else copies.rows
    if plan.classes == 1:
        loss = LeastSquares.loss if plan.loss == "squares" else Logistic.loss
        offsets = np.asarray(plan.data @ v) if v.any() else None
        return SampledAverage(
            loss, plan.target, plan.rates, rows, copies.weights, v, offsets, plan.penalty(v)
        )
    if not v.any():
        return plan.softmax(rows, copies.weights, plan.penalty(v))
    offsets = np.asarray(plan.data @ v.reshape(plan.classes, -1).T)
    offsets = np.tile(offsets, (copies.weights.size, 1))
    return plan.softmax(rows, copies.weights, plan.penalty(v), shift=v, offsets=offsets)


def _affordable(problem: Problem) -> bool:
    """Whether an exact f_D takes no more losses than sampled copies would."""
    model, size = problem.objective, problem.sketch.support_size(problem.dim)
    assert isinstance(model, LinearModel)
    few = model.design.csr.nnz <= math.log2(COPIES[1]) * model.terms  # entries per row, each kept or not
    if not (few or model.loss is LeastSquares.loss or (size is not None and size <= SUPPORT)):
        return False
    try:
        f = problem.exact if problem.cheap else None
    except NotExactError:
        return False
    if f is None:
        return False
    if isinstance(f, Mean):
        return len(f.objectives) <= COPIES[1] and len(f.objectives) * model.design.csr.nnz <= LISTED
    return f.work <= COPIES[1] * model.terms


def _scale(plan: FitPlan) -> float:
    """The loss of the model that is 0: what errors are compared with."""
    if plan.loss == "squares":
        return float(plan.rates @ plan.target**2) / 2
    return math.log(max(plan.classes, 2))


def _run(plan: FitPlan, v: Array, x0: Array) -> tuple[Solution, Guarantee | None]:
    """A method by its name, with the step size that theory gives it."""
    if plan.method not in SINGLE:
        known = ", ".join([*OURS, *SINGLE])
        raise ArgumentError(f"unknown method {plan.method!r}; the methods are {known}")
    problem = plan.problem(v)
    start = problem.estimate(problem.shift, 2).gradient if not problem.cheap else None
    start = problem.gradient(problem.shift) if start is None else start
    result = minimize(
        problem,
        plan.method,
        steps=plan.max_iter,
        x0=x0,
        seed=plan.seed,
        trace=max(1, plan.max_iter // MEASUREMENTS),
        tol=(plan.tol * float(np.linalg.norm(start))) ** 2,
        progress=plan.verbose is not None,
        **_options(problem, plan.method),
    )
    converged = result.status == "converged"
    return Solution(result.x, max(result.steps, 1), converged), result.guarantee


def _options(problem: Problem, method: str) -> dict[str, Any]:
    """Variance reduction needs a short support of equal probabilities: else it works on a sample of it."""
    if method not in ("l_svrdsg", "s_page"):
        return {}
    size = problem.sketch.support_size(problem.dim)
    if size is None or size > SUPPORT:
        return {"support": SUPPORT}
    probabilities = [probability for probability, _ in problem.sketch.support(problem.dim) or []]
    return {} if np.ptp(probabilities) <= 1e-9 * max(probabilities) else {"support": SUPPORT}


def newton_to(
    f: Objective, x0: Array, tol: float, max_iter: int, scale: float, watch: Watch = None
) -> Solution:
    """Newton steps until one of them is small.

    A step p is small if ``sqrt(g'p / scale) <= tol`` with g the gradient: g'p is twice the decrease
    that is left, so this has no unit, whatever the units of the data. It is still taken, and
    Newton's method about doubles the digits that are right.
    """
    x = x0.copy()
    dense = not isinstance(f, Softmax) or f.dim**2 * f.terms / 2 <= DENSE_WORK
    solver = hessian_solver(f, DENSE if dense else 0)
    steps = newton_steps(f, x, solver, patience=sys.maxsize, scaled=False)
    for iteration, reached in enumerate(islice(steps, max_iter), start=1):
        x, promised = reached.x, reached.promised
        error = math.sqrt(max(promised, 0.0) / scale) if scale > 0 else 0.0
        if watch is not None:
            watch(f"iteration {iteration}: loss {reached.value:.6g}, error before it {error:.2g}")
        if not reached.moved:  # rounding, or a direction that leads nowhere
            return Solution(x, iteration, math.isfinite(promised) and error <= max(tol, ROUNDING))
        if error <= tol:
            return Solution(x, iteration, True)
    return Solution(x, max_iter, False)
