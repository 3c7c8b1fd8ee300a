"""How linear models are fitted: what the parameters become for some rows, and which method finds weights."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from mast import randomness
from mast.errors import ArgumentError, NotExactError
from mast.learn.objectives import Softmax, class_solver
from mast.learn.risk import COPIES, MANY_ROWS, Copies, Risk, copies_of
from mast.objectives import LeastSquares, LinearModel, Mean, Objective
from mast.objectives.newton import Solver, hessian_solver, newton_steps
from mast.problem import Problem
from mast.randomness import Key, Purpose
from mast.run import minimize
from mast.sketches import Bernoulli, Grouped, Identity, Mixture, Sketch, parse
from mast.support.checks import Array, Indices, check_choice, numbers, refuse_too_wide
from mast.theory import Guarantee

#: one model for shares from nothing to three quarters: see docs/studies/tables.md
AUTO: Sketch = Mixture([Identity(), Bernoulli(0.75), Bernoulli(0.5)], [0.25, 0.25, 0.5])
SINGLE = ("gd", "agd", "dsgd", "dsgd_sampled", "l_svrdsg", "s_page")  #: methods with a step size of their own
NEWTON = ("auto", "exact", "sampled")  #: by Newton's method
LISTED = 50_000_000  #: a listed support is averaged if a sweep takes at most this number of products
SAMPLED_TOL = 2e-3  #: an average over draws is not worth a smaller tolerance; the last step squares it
FIRST_TOL = 0.05  #: of the fit to some rows, where the fit to all of them starts
COPY_TOL = 0.2  #: of the fit to the first copy, where the fit to all copies starts
FIRST_SHARE = 10  #: of very many rows, one in FIRST_SHARE is fitted first
SUPPORT = 1000  #: draws that stand for a support which is too long, or not uniform
MEASUREMENTS = 20  #: how often a stochastic method looks whether it has converged
DENSE = 2000  #: up to this dimension Newton steps come from a dense Hessian, else from conjugate gradients
DENSE_WORK = 2e7  #: of a dense Hessian with a block for each two classes
DENSE_LONG = 300  #: up to this dimension it is quicker than conjugate gradients for any number of rows
ROUNDING = 1e-7  #: a relative error that rounding of values explains: no further step can be checked


def resolve_sketch(sketch: Any, d: int, outputs: int, groups: Indices | None) -> Sketch:
    """The sketch of d features: the parameter may be None or a text, and draw columns of a table."""
    refuse_too_wide(d, outputs=outputs)
    if sketch is None:
        return Identity()
    given = sketch
    if isinstance(sketch, str):
        given = AUTO if sketch == "auto" else parse(sketch)
    if not isinstance(given, Sketch):
        raise ArgumentError(
            f'sketch must be "auto", None, a sketch, or a text such as "bernoulli:0.7"; got {sketch!r}'
        )
    found = deepcopy(given)  # sketches remember things: the parameter must not change
    if groups is not None and not isinstance(found, Identity):
        of_features = isinstance(found, Grouped) and found.labels.size == groups.size
        alone = groups.max() + 1 == groups.size  # each column has one feature
        found = found if of_features or alone else Grouped(found, groups)
    found.check(d)
    if not found.diagonal and d > 2000:
        raise ArgumentError(f"{found!r} is made of matrices, which in {d} dimensions are too large")
    return found


def resolve_missing(missing: str, X: Any, sketch: Sketch, shift: Any, method: str) -> str:
    """What becomes of missing cells: "conditional" or "scale"."""
    check_choice("missing", missing, ("auto", "conditional", "scale"))
    against = None
    if shift is not None:
        against = "there is a shift"
    elif method not in NEWTON:
        against = f"method is {method!r}"
    elif not sketch.diagonal or (not isinstance(sketch, Identity) and sketch.share(X.shape[1]) == 1):
        against = f"{sketch!r} drops no features"
    if missing == "conditional" and against:
        raise ArgumentError(f"missing='conditional' is impossible where {against}: use 'scale'")
    if missing == "auto":
        return "scale" if against or scipy.sparse.issparse(X) else "conditional"
    return missing


def resolve_shift(shift: Any, count: int, d: int, classes: Any) -> tuple[Array, Array]:
    """v as an array (outputs, features), and where the intercepts start."""
    zeros = np.zeros(count)
    if shift is None:
        return np.zeros((count, d)), zeros
    given = getattr(shift, "coef_", shift)
    if isinstance(given, str) or (given is shift and hasattr(shift, "fit")):
        raise ArgumentError(f"shift must be an array or a fitted linear model, got {shift!r}")
    v = np.atleast_2d(numbers("shift", given, np.ndim(given)))
    if v.shape != (count, d):
        wanted = f"({d},)" if count == 1 else f"({count}, {d})"
        raise ArgumentError(f"shift must have the shape {wanted}, one weight per feature; got {v.shape}")
    theirs = getattr(shift, "classes_", None)
    if theirs is not None and classes is not None and not np.array_equal(theirs, classes):
        raise ArgumentError(f"the shift knows the classes {list(theirs)}, here they are {list(classes)}")
    b = np.atleast_1d(np.asarray(getattr(shift, "intercept_", zeros), dtype=float))
    return v.copy(), b if b.shape == (count,) else zeros


# ---- weights ---------------------------------------------------------------------------------------------


class Solution(NamedTuple):
    """All weights as one vector, and how they were found."""

    x: Array
    iterations: int
    converged: bool
    method: str
    guarantee: Guarantee | None = None


@dataclass(frozen=True)
class LinearSolver:
    """Minimises f_D: Newton's method on f_D or on an average over draws, or the method of a theorem."""

    method: str
    max_iter: int
    tol: float
    seed: int
    report: Callable[[str], None] | None  #: who is told of each iteration, if anybody

    def solve(self, risk: Risk, x0: Array, warm: bool) -> Solution:
        """The solution from a start, which may be warm."""
        if self.method in SINGLE:
            return self._run(risk.problem(), x0)
        if self.method not in NEWTON:
            known = ", ".join([*NEWTON, *SINGLE])
            raise ArgumentError(f"unknown method {self.method!r}; the methods are {known}")
        if risk.gaussian is None and risk.outputs == 1 and self.method != "sampled":
            problem = risk.problem()
            if self.method == "exact" or _affordable(problem):
                return self._newton(risk, problem.exact, x0, self.tol, "exact")
            del problem  # it holds the rows
        return self._average(risk, x0, self.tol, warm)

    def _average(self, risk: Risk, x0: Array, tol: float, warm: bool) -> Solution:
        """Minimise an average over draws; a start that is not warm comes from some rows, or from one copy."""
        n = risk.X.shape[0]
        if n > MANY_ROWS and not warm:
            order = randomness.permutation(Key(self.seed), Purpose.BATCH, n)
            part = risk.subset(np.sort(order[: n // FIRST_SHARE]))
            x0, warm = self._average(part, x0, FIRST_TOL, False).x, True
        listing = self.method != "sampled"
        copies = copies_of(risk.rows, risk.sketch, self.seed, risk.gaussian, risk.fit_intercept, listing)
        if self.method == "exact" and not copies.exact:
            raise NotExactError(
                f"f_D with {risk.sketch!r} has no short exact form here: use method='auto', which samples"
            )
        if copies.weights.size >= COPIES[0] and not warm:  # one copy is enough to come close
            first = risk.average(Copies(copies.rows[:n], np.ones(1), False))
            x0 = self._newton(risk, first, x0, COPY_TOL, "sampled").x
        if copies.exact:
            return self._newton(risk, risk.average(copies), x0, tol, "exact")
        return self._newton(risk, risk.average(copies), x0, max(tol, SAMPLED_TOL), "sampled")

    def _newton(self, risk: Risk, f: Objective, x0: Array, tol: float, method: str) -> Solution:
        """Newton steps until one of them is small.

        A step p is small if ``sqrt(g'p / scale) <= tol`` with g the gradient: g'p is twice the decrease
        that is left, so this has no unit, whatever the units of the data. It is still taken, and
        Newton's method about doubles the digits that are right.
        """
        x = x0.copy()
        steps = newton_steps(f, x, _newton_solver(f), patience=sys.maxsize, scaled=False)
        for iteration, reached in enumerate(islice(steps, self.max_iter), start=1):
            x, promised = reached.x, reached.promised
            error = math.sqrt(max(promised, 0.0) / risk.scale) if risk.scale > 0 else 0.0
            if self.report is not None:
                self.report(f"iteration {iteration}: loss {reached.value:.6g}, error before it {error:.2g}")
            if not reached.moved:  # rounding, or a direction that leads nowhere
                return Solution(x, iteration, math.isfinite(promised) and error <= max(tol, ROUNDING), method)
            if error <= tol:
                return Solution(x, iteration, True, method)
        return Solution(x, self.max_iter, False, method)

    def _run(self, problem: Problem, x0: Array) -> Solution:
        """A method by its name, with the step size that theory gives it."""
        at = problem.shift
        start = problem.gradient(at) if problem.cheap else problem.estimate(at, 2).gradient
        result = minimize(
            problem,
            self.method,
            steps=self.max_iter,
            x0=x0,
            seed=self.seed,
            trace=max(1, self.max_iter // MEASUREMENTS),
            tol=(self.tol * float(np.linalg.norm(start))) ** 2,
            progress=self.report is not None,
            **_options(problem, self.method),
        )
        converged = result.status == "converged"
        return Solution(result.x, max(result.steps, 1), converged, self.method, result.guarantee)


def _newton_solver(f: Objective) -> Solver:
    """By the dense Hessian where that is affordable; else by conjugate gradients, with blocks of classes."""
    if not isinstance(f, Softmax):
        return hessian_solver(f, DENSE)
    if (f.terms > MANY_ROWS and f.dim <= DENSE_LONG) or f.dim**2 * f.terms / 2 <= DENSE_WORK:
        return hessian_solver(f, DENSE)
    return class_solver(f) if not f.design.sparse and f.design.d <= DENSE_LONG else hessian_solver(f, 0)


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


def _options(problem: Problem, method: str) -> dict[str, Any]:
    """Variance reduction needs a short support of equal probabilities: else it works on a sample of it."""
    if method not in ("l_svrdsg", "s_page"):
        return {}
    size = problem.sketch.support_size(problem.dim)
    if size is None or size > SUPPORT:
        return {"support": SUPPORT}
    probabilities = [probability for probability, _ in problem.sketch.support(problem.dim) or []]
    return {} if np.ptp(probabilities) <= 1e-9 * max(probabilities) else {"support": SUPPORT}
