"""What an estimator fits, as objectives and as a problem; and which method finds the weights, and how."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from mast import randomness
from mast.errors import ArgumentError, NotExactError
from mast.learn.copies import COPIES, MANY_ROWS, Copies, copies_of
from mast.learn.gaussian import FeatureGaussian
from mast.learn.models import (
    FeatureRidge,
    InterceptLeastSquares,
    InterceptLogistic,
    SampledAverage,
    Softmax,
    class_solver,
    largest_eigenvalue,
    penalty_of,
    with_ones,
)
from mast.objectives import LeastSquares, LinearModel, Logistic, Mean, Objective
from mast.objectives.losses import SketchedRidge
from mast.objectives.newton import hessian_solver, newton_steps
from mast.problem import Problem
from mast.randomness import Key, Purpose
from mast.run import minimize
from mast.sketches import Except, Grouped, Sketch
from mast.support.arrays import Array
from mast.theory import Guarantee

SINGLE = ("gd", "agd", "dsgd", "dsgd_sampled", "l_svrdsg", "s_page")  #: methods with a step size of their own
OURS = ("auto", "exact", "sampled")  #: by Newton's method
BENDS = {"log": 0.25, "softmax": 0.5, "squares": 1.0}  #: the largest second derivative of each loss
LISTED = 50_000_000  #: a listed support is averaged if it takes at most so many products per sweep
SAMPLED_TOL = 2e-3  #: an average over draws is not worth a smaller tolerance; the last step squares it
FIRST_TOL = 0.05  #: of the fit to some rows, where the fit to all of them starts
COPY_TOL = 0.2  #: of the fit to the first copy, where the fit to all copies starts
FIRST_SHARE = 10  #: of very many rows, one in so many is fitted first
SUPPORT = 1000  #: draws that stand for a support which is too long, or not uniform
MEASUREMENTS = 20  #: how often a stochastic method looks whether it has converged
DENSE = 2000  #: up to this dimension Newton steps come from a dense Hessian, else from conjugate gradients
DENSE_WORK = 2e7  #: of a dense Hessian with a block for each two classes
DENSE_LONG = 300  #: up to this dimension it is quicker than conjugate gradients for any number of rows
ROUNDING = 1e-7  #: a relative error that rounding of values explains: no further step can be checked


@dataclass(frozen=True)
class FitPlan:
    """What is to be fitted: rows, targets, the sketch and the penalty, and how."""

    X: Any  # complete, unless there are stand-ins
    target: Array  # -1 and +1, numbers, or the numbers of the classes
    classes: int  # how many outputs: 1, or one for each of several classes
    loss: str  # "log", "softmax" or "squares"
    weights: Array | None
    shift: Array  # (outputs, features)
    sketch: Sketch
    stand_ins: FeatureGaussian | None
    kappa: float | None
    alpha: float | None
    fit_intercept: bool
    method: str
    max_iter: int
    tol: float
    seed: int
    verbose: Callable[[str], None] | None  # who is told of each iteration, if anybody

    def joined(self, coef: Array, intercept: Array) -> Array:
        """All weights as one vector: those of each output, and its intercept if there is one."""
        return (np.column_stack([coef, intercept]) if self.fit_intercept else coef).ravel()

    def parted(self, x: Array) -> tuple[Array, Array]:
        """The weights, one row per output, and the intercepts."""
        W, K = x.reshape(self.classes, -1), self.classes
        coef, b = (W[:, :-1].copy(), W[:, -1].copy()) if self.fit_intercept else (W.copy(), np.zeros(K))
        return coef, b - b.mean() if K > 1 else b  # a number that all classes share changes nothing

    def part(self, count: int) -> FitPlan:
        """The same for so many of the rows, drawn by the seed, with the same penalty."""
        order = randomness.permutation(Key(self.seed), Purpose.BATCH, self.X.shape[0])
        rows = np.sort(order[:count])
        weights = None if self.weights is None else self.weights[rows]
        return replace(
            self, X=self.X[rows], target=self.target[rows], weights=weights, kappa=None, alpha=self.l2
        )

    @cached_property
    def v(self) -> Array:
        """The shift of all weights."""
        return self.joined(self.shift, np.zeros(self.classes))

    @cached_property
    def scale(self) -> float:
        """The loss of the model that is 0: what errors are compared with."""
        if self.loss == "squares":
            return float(self.rates @ self.target**2) / 2
        return math.log(max(self.classes, 2))

    @cached_property
    def rates(self) -> Array:
        """What each row counts."""
        n = self.X.shape[0]
        return np.full(n, 1 / n) if self.weights is None else self.weights / self.weights.sum()

    @cached_property
    def L0(self) -> float:
        """The smoothness of the loss in the features, without a penalty."""
        X = self.X if self.stand_ins is None else np.where(np.isnan(self.X), self.stand_ins.mean, self.X)
        return BENDS[self.loss] * largest_eigenvalue(X, self.rates)

    @cached_property
    def l2(self) -> float:
        """alpha; or L0/(kappa - 1); or that of LogisticRegression's C = 1 and Ridge's alpha = 1: 1/n."""
        if self.alpha is not None:
            return self.alpha
        if self.kappa is None:
            return 1 / (self.X.shape[0] if self.weights is None else float(self.weights.sum()))
        return penalty_of(self.kappa, self.L0)

    @cached_property
    def data(self) -> Any:
        """The features, with ones if there is an intercept."""
        return with_ones(self.X) if self.fit_intercept else self.X

    @cached_property
    def all_outputs(self) -> Sketch:
        """The sketch of all weights: one draw for all outputs, which leaves intercepts alone."""
        sketch: Sketch = Except(self.sketch, [-1]) if self.fit_intercept else self.sketch
        if self.classes == 1:
            return sketch
        return Grouped(sketch, np.tile(np.arange(self.v.size // self.classes), self.classes))

    @cached_property
    def ridge(self) -> FeatureRidge:
        """The penalty of all outputs."""
        l2 = np.full(self.v.size // self.classes, self.l2)
        if self.fit_intercept:
            l2[-1] = 0.0
        return FeatureRidge(np.tile(l2, self.classes))

    @cached_property
    def penalty(self) -> SketchedRidge:
        """The expectation of the penalty; that of w itself where there are stand-ins."""
        if self.stand_ins is None:
            return self.ridge.sketched(self.all_outputs, self.v)
        return SketchedRidge(self.ridge.l2, np.ones(self.v.size), np.ones(self.v.size), self.v)

    def softmax(self, X: Any, weights: Array, penalty: SketchedRidge, **more: Any) -> Softmax:
        """f for several classes, on copies of the rows."""
        codes = np.tile(self.target.astype(np.intp), weights.size)
        return Softmax(X, codes, self.classes, np.outer(weights, self.rates).ravel(), penalty, **more)

    def problem(self) -> Problem:
        """f_D."""
        f: Objective
        squares = self.loss == "squares"
        if self.classes > 1:
            f = self.softmax(self.data, np.ones(1), self.ridge)
        elif self.fit_intercept:
            variant = InterceptLeastSquares if squares else InterceptLogistic
            f = variant(self.data, self.target, self.ridge, self.weights, lambda: self.L0)
        else:
            kind = LeastSquares if squares else Logistic
            f = kind(self.data, self.target, l2=self.l2, sample_weight=self.weights)
        return Problem(f, self.all_outputs, self.v)


# ---- methods --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """All weights as one vector, and how they were found."""

    x: Array
    iterations: int
    converged: bool
    method: str
    guarantee: Guarantee | None = None


def fit(plan: FitPlan, start: Array, intercept: Array, warm: bool) -> Fit:
    """Minimise f_D from a start, (outputs, features), which may be warm."""
    x0 = plan.joined(start, intercept)
    return _solve(plan, x0, warm) if plan.method in OURS else _run(plan, x0)


def _solve(plan: FitPlan, x0: Array, warm: bool) -> Fit:
    """Minimise f_D itself where it has an affordable exact form, else an average over sampled draws."""
    if plan.stand_ins is None and plan.classes == 1 and plan.method != "sampled":
        problem = plan.problem()
        if plan.method == "exact" or _affordable(problem):
            return newton_to(plan, problem.exact, x0, plan.tol, "exact")
        del problem  # it holds the rows
    return _fit_to_copies(plan, x0, plan.tol, warm)


def _fit_to_copies(plan: FitPlan, x0: Array, tol: float, warm: bool) -> Fit:
    """Minimise an average over draws; from a start that is not warm, first over some rows, or one copy."""
    n = plan.X.shape[0]
    if n > MANY_ROWS and not warm:
        x0, warm = _fit_to_copies(plan.part(n // FIRST_SHARE), x0, FIRST_TOL, False).x, True
    copies = copies_of(
        plan.X, plan.sketch, plan.seed, plan.stand_ins, plan.fit_intercept, listing=plan.method != "sampled"
    )
    if plan.method == "exact" and not copies.exact:
        raise NotExactError(
            f"f_D with {plan.sketch!r} has no short exact form here: use method='auto', which samples"
        )
    if copies.weights.size >= COPIES[0] and not warm:  # one copy is enough to come close
        first = _average(plan, Copies(copies.rows[:n], np.ones(1), False))
        x0 = newton_to(plan, first, x0, COPY_TOL, "sampled").x
    if copies.exact:
        return newton_to(plan, _average(plan, copies), x0, tol, "exact")
    return newton_to(plan, _average(plan, copies), x0, max(tol, SAMPLED_TOL), "sampled")


def _average(plan: FitPlan, copies: Copies) -> Objective:
    """The average of the loss over copies, and the penalty's expectation."""
    rows, v = copies.rows, plan.v
    if plan.classes == 1:
        loss = LeastSquares.loss if plan.loss == "squares" else Logistic.loss
        offsets = np.asarray(plan.data @ v) if v.any() else None
        return SampledAverage(loss, plan.target, plan.rates, rows, copies.weights, v, offsets, plan.penalty)
    if not v.any():
        return plan.softmax(rows, copies.weights, plan.penalty)
    offsets = np.tile(np.asarray(plan.data @ v.reshape(plan.classes, -1).T).T, copies.weights.size)
    return plan.softmax(rows, copies.weights, plan.penalty, shift=v, offsets=offsets)


def _affordable(problem: Problem) -> bool:
    """Whether an exact f_D takes no more losses than sampled copies would."""
    model, size = problem.objective, problem.sketch.support_size(problem.dim)
    assert isinstance(model, LinearModel)
    few = model.design.nnz <= math.log2(COPIES[1]) * model.terms  # entries per row, each kept or not
    if not (few or model.loss is LeastSquares.loss or (size is not None and size <= SUPPORT)):
        return False
    try:
        if not problem.cheap:
            return False
        f = problem.exact
    except NotExactError:
        return False
    if isinstance(f, Mean):
        return len(f.objectives) <= COPIES[1] and len(f.objectives) * model.design.nnz <= LISTED
    return f.work <= COPIES[1] * model.terms


def _run(plan: FitPlan, x0: Array) -> Fit:
    """A method by its name, with the step size that theory gives it."""
    if plan.method not in SINGLE:
        known = ", ".join([*OURS, *SINGLE])
        raise ArgumentError(f"unknown method {plan.method!r}; the methods are {known}")
    problem = plan.problem()
    at = problem.shift
    start = problem.gradient(at) if problem.cheap else problem.estimate(at, 2).gradient
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
    return Fit(result.x, max(result.steps, 1), converged, plan.method, result.guarantee)


def _options(problem: Problem, method: str) -> dict[str, Any]:
    """Variance reduction needs a short support of equal probabilities: else it works on a sample of it."""
    if method not in ("l_svrdsg", "s_page"):
        return {}
    size = problem.sketch.support_size(problem.dim)
    if size is None or size > SUPPORT:
        return {"support": SUPPORT}
    probabilities = [probability for probability, _ in problem.sketch.support(problem.dim) or []]
    return {} if np.ptp(probabilities) <= 1e-9 * max(probabilities) else {"support": SUPPORT}


def newton_to(plan: FitPlan, f: Objective, x0: Array, tol: float, method: str) -> Fit:
    """Newton steps until one of them is small.

    A step p is small if ``sqrt(g'p / scale) <= tol`` with g the gradient: g'p is twice the decrease
    that is left, so this has no unit, whatever the units of the data. It is still taken, and
    Newton's method about doubles the digits that are right.
    """
    x = x0.copy()
    long = f.terms > MANY_ROWS and f.dim <= DENSE_LONG
    dense = not isinstance(f, Softmax) or long or f.dim**2 * f.terms / 2 <= DENSE_WORK
    if isinstance(f, Softmax) and not dense and not f.design.sparse and f.design.d <= DENSE_LONG:
        solver = class_solver(f)
    else:
        solver = hessian_solver(f, DENSE if dense else 0)
    steps = newton_steps(f, x, solver, patience=sys.maxsize, scaled=False)
    for iteration, reached in enumerate(islice(steps, plan.max_iter), start=1):
        x, promised = reached.x, reached.promised
        error = math.sqrt(max(promised, 0.0) / plan.scale) if plan.scale > 0 else 0.0
        if plan.verbose is not None:
            plan.verbose(f"iteration {iteration}: loss {reached.value:.6g}, error before it {error:.2g}")
        if not reached.moved:  # rounding, or a direction that leads nowhere
            return Fit(x, iteration, math.isfinite(promised) and error <= max(tol, ROUNDING), method)
        if error <= tol:
            return Fit(x, iteration, True, method)
    return Fit(x, plan.max_iter, False, method)
