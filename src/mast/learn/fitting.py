"""From arrays to weights: which problem an estimator solves, and by which method."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mast.arrays import Array
from mast.errors import ArgumentError, MastError, NotExactError
from mast.learn.models import InterceptLeastSquares, InterceptLogistic, with_ones
from mast.learn.sampling import SampledAverage, sketched_copies
from mast.learn.solver import Solution, newton_to
from mast.methods import make
from mast.objectives import LeastSquares, LinearModel, Logistic, Mean
from mast.objectives.design import Design
from mast.problem import Problem
from mast.run import minimize
from mast.sketches import Except, Sketch
from mast.theory import Guarantee

SINGLE = ("gd", "agd", "dsgd", "dsgd_sampled", "l_svrdsg", "s_page")  #: methods with a step size of their own
LISTED = 50_000_000  #: a listed support is averaged if it takes at most so many products per sweep
GRAM = 500  #: up to this size a Gram matrix has its eigenvalues computed densely
FIRST = 2  #: sketched copies of the data that give the start for all of them
SAMPLED_TOL = 1e-4  #: an average over draws is not worth a smaller tolerance; the last step squares it
SUPPORT = 1000  #: draws that stand for a support which is too long, or not uniform
MEASUREMENTS = 20  #: how often a stochastic method looks whether it has converged


@dataclass(frozen=True)
class FitPlan:
    """What all targets of one fit share."""

    X: Any
    weights: Array | None
    sketch: Sketch
    squares: bool  # squared loss, else log-loss
    kappa: float | None
    alpha: float | None
    fit_intercept: bool
    method: str
    max_iter: int
    tol: float
    seed: int

    @cached_property
    def rates(self) -> Array:
        """What each row counts."""
        n = self.X.shape[0]
        return np.full(n, 1 / n) if self.weights is None else self.weights / self.weights.sum()

    @cached_property
    def L0(self) -> float:
        """The smoothness of the loss in the features, without a penalty."""
        bound = LeastSquares.loss.curvature_bound if self.squares else Logistic.loss.curvature_bound
        return bound * _largest_eigenvalue(Design(self.X), self.rates)

    @cached_property
    def l2(self) -> float:
        """alpha, or L0/(kappa - 1); where all features are 0 every l2 gives the same model, and this is 1."""
        if self.alpha is not None:
            return self.alpha
        assert self.kappa is not None
        return self.L0 / (self.kappa - 1) if self.L0 > 0 else 1.0

    @cached_property
    def data(self) -> Any:
        """The features, with ones if there is an intercept."""
        return with_ones(self.X) if self.fit_intercept else self.X

    @cached_property
    def copies(self) -> Design:
        """Sketched copies of the data, where f_D is averaged over draws; all targets share them."""
        return sketched_copies(self.data, self.full_sketch, self.seed)

    @cached_property
    def first_copies(self) -> Design:
        """The first few of them."""
        return Design(self.copies.matrix[: FIRST * self.X.shape[0]])

    @property
    def full_sketch(self) -> Sketch:
        """The sketch of all weights: the intercept is left alone."""
        return Except(self.sketch, [-1]) if self.fit_intercept else self.sketch

    def problem(self, target: Array, shift: Array) -> Problem:
        """f_D for one target; `shift` is that of the features."""
        if not self.fit_intercept:
            kind: type[Logistic] | type[LeastSquares] = LeastSquares if self.squares else Logistic
            model: LinearModel = kind(self.data, target, l2=self.l2, sample_weight=self.weights)
            return Problem(model, self.full_sketch, shift)
        variant = InterceptLeastSquares if self.squares else InterceptLogistic
        model = variant(self.data, target, self.l2, self.weights, self.L0)
        return Problem(model, self.full_sketch, np.append(shift, 0.0))


@dataclass(frozen=True)
class Fit:
    """The weights of one target, and how they were found."""

    coef: Array
    intercept: float
    method: str
    iterations: int
    converged: bool
    guarantee: Guarantee | None


def fit_target(plan: FitPlan, target: Array, shift: Array, start: Array, intercept: float) -> Fit:
    """Minimise f_D for one target, from a start."""
    problem = plan.problem(target, shift)
    x0 = np.append(start, intercept) if plan.fit_intercept else start
    if plan.method in ("auto", "exact", "sampled"):
        name, solution = _solve(problem, plan, x0, _scale(plan, target))
        guarantee = _guarantee(problem, "dsgd")
    else:
        name = plan.method
        solution, guarantee = _run(problem, plan, x0)
    x = solution.x
    coef, b = (x[:-1], float(x[-1])) if plan.fit_intercept else (x, 0.0)
    return Fit(coef.copy(), b, name, solution.iterations, solution.converged, guarantee)


def _solve(problem: Problem, plan: FitPlan, x0: Array, scale: float) -> tuple[str, Solution]:
    """Minimise f_D itself where it has an affordable exact form, else an average over sampled draws."""
    if plan.method == "exact" or (plan.method == "auto" and _affordable(problem)):
        return "exact", newton_to(problem.exact, x0, plan.tol, plan.max_iter, scale)
    tol = max(plan.tol, SAMPLED_TOL)
    average = SampledAverage(problem, plan.copies)
    if average.copies >= 4 * FIRST:  # a few copies are enough to come close
        few = SampledAverage(problem, plan.first_copies)
        x0 = newton_to(few, x0, tol, plan.max_iter, scale).x
    return "sampled", newton_to(average, x0, tol, plan.max_iter, scale)


def _largest_eigenvalue(design: Design, rates: Array) -> float:
    """The largest eigenvalue of X'WX: from the smaller Gram matrix where that is cheap, else by Lanczos."""
    if design.sparse and design.n <= min(GRAM, design.d):
        scaled = design.csr.multiply(np.sqrt(rates)[:, None]).tocsr()
        return max(float(np.linalg.eigvalsh((scaled @ scaled.T).toarray())[-1]), 0.0)
    if design.sparse and design.d <= GRAM:
        lengths = np.diff(design.csr.indptr).astype(float)
        if float(lengths @ lengths) <= 40 * lengths.sum():
            return max(float(np.linalg.eigvalsh(design.gram(rates))[-1]), 0.0)
    return design.largest_eigenvalue(rates)


def _affordable(problem: Problem) -> bool:
    try:
        f = problem.exact if problem.cheap else None
    except NotExactError:
        return False
    if isinstance(f, Mean):
        size = problem.objective.design.csr.nnz  # type: ignore[attr-defined]
        return len(f.objectives) * int(size) <= LISTED
    return f is not None


def _scale(plan: FitPlan, target: Array) -> float:
    """The loss of the model that is 0: what errors are compared with."""
    return float(plan.rates @ target**2) / 2 if plan.squares else math.log(2.0)


def _guarantee(problem: Problem, method: str) -> Guarantee | None:
    try:
        return make(method, {}).bind(problem, 0).guarantee(effort="none")
    except MastError:
        return None


def _run(problem: Problem, plan: FitPlan, x0: Array) -> tuple[Solution, Guarantee | None]:
    """A method by its name, with the step size that theory gives it."""
    if plan.method not in SINGLE:
        known = ", ".join(["auto", "exact", "sampled", *SINGLE])
        raise ArgumentError(f"unknown method {plan.method!r}; the methods are {known}")
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
        progress=False,
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
