"""`keep_probabilities`: which coordinates to keep how often, so that sparsifying costs the least.

For quadratics and independent masks f_D(x) - f(x) = ½ sum_j H_jj (1/p_j - 1) u_j² with u = x - v. Under a
budget for the sum of the p_j it is smallest for p_j proportional to sqrt(H_jj) |u_j|, between a floor and 1.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from mast.errors import ArgumentError
from mast.problem import AbstractProblem, Nodes, Problem
from mast.support.checks import Array, check_number, vector

_MATRIX = 3000  # variables beyond which a Hessian is not made for its diagonal


def keep_probabilities(
    problem: AbstractProblem, x: ArrayLike, *, budget: float = 0.1, floor: float = 0.01
) -> Array:
    """The keep probabilities that fit the point x: p_j = clip(c sqrt(H_jj) |x_j - v_j|, floor, 1).

    The problem is convex in x for fixed p and in p for fixed x, so a few rounds that alternate with training
    make a model of which very little has to be kept.

    Parameters
    ----------
    problem
        Its objective gives the diagonal of the Hessian at x, its shift gives v; its sketch does not matter.
    x
        The point, such as the minimiser of f_D for the last probabilities.
    budget
        The mean of the probabilities: the expected share that is kept.
    floor
        The least probability. It bounds L_D by 1/floor; without one the best p is a selection.

    >>> import mast
    >>> f = mast.Quadratic([[4.0, 0.0], [0.0, 1.0]], [4.0, 1.0])
    >>> problem = mast.Problem(f, mast.Bernoulli(0.3))
    >>> keep = mast.keep_probabilities(problem, [1.0, 1.0], budget=0.3)
    >>> keep.round(12)
    array([0.4, 0.2])
    >>> mast.Problem(f, mast.Bernoulli(keep)).value([1.0, 1.0]) < problem.value([1.0, 1.0])
    True
    """
    if not isinstance(problem, Problem | Nodes):
        raise ArgumentError(f"keep_probabilities takes a Problem or Nodes, got {type(problem).__name__}")
    point = vector("x", x, problem.dim)
    f = problem.objective
    curvature = np.diag(f.hessian(point)) if problem.dim <= _MATRIX else f.curvature(point)[1]
    return allocate(np.sqrt(np.maximum(curvature, 0.0)) * np.abs(point - problem.shift), budget, floor)


def allocate(scores: Array, budget: float, floor: float) -> Array:
    """Probabilities ``clip(c * scores, floor, 1)`` whose mean is the budget; even ones if all scores are 0.

    >>> allocate(np.array([3.0, 1.0, 0.0, 100.0]), budget=0.5, floor=0.05)
    array([0.7125, 0.2375, 0.05  , 1.    ])
    """
    budget = check_number("budget", budget, above=0)
    floor = check_number("floor", floor, above=0)
    if not floor <= budget <= 1:
        raise ArgumentError(
            f"the budget lies between the floor and 1: got budget {budget:g}, floor {floor:g}"
        )
    scores = np.asarray(scores, dtype=np.float64)
    positive = scores[scores > 0]
    if not positive.size:
        return np.full(scores.shape, budget)
    scores, least = scores / positive.max(), positive.min() / positive.max()
    low, high = floor, 1 / max(least, 1e-300)  # at the floor everywhere; at 1 wherever it counts
    if np.clip(high * scores, floor, 1).mean() <= budget:
        low = high
    for _ in range(200):
        c = math.sqrt(low) * math.sqrt(high) if high > 2 * low else (low + high) / 2
        if not low < c < high:
            break
        low, high = (c, high) if np.clip(c * scores, floor, 1).mean() < budget else (low, c)
    result: Array = np.clip(low * scores, floor, 1)
    return result
