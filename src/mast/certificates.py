"""`certificate`: what can be promised of sparsified models that were not tried.

Two statements about f_S(x), the loss of one sparsified model. With independent masks (Efron and Stein):
Var f_S <= sum_j p_j (1 - p_j) E[D_j²], where D_j is the change of f_S when coordinate j is kept instead of
dropped. With any law: a new draw is worse than the worst of n independent ones with probability at most
1/(n + 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mast.arrays import Array, vector
from mast.checks import whole
from mast.errors import ArgumentError, NoGuaranteeError
from mast.objectives import LeastSquares, Objective, Quadratic
from mast.problem import Problem
from mast.randomness import Key, Purpose
from mast.sketches import DiagonalDraw
from mast.theory import NO_STATEMENT

ALL_DRAWS = 1024  #: a support up to this size is summed over


@dataclass(frozen=True)
class Certificate:
    """Of sparsified models v + S(x - v): the losses of n draws, and what follows for the next one."""

    draws: int
    mean: float  #: of f_S over the draws
    deviation: float  #: the standard deviation of f_S over the draws
    worst: float  #: the largest f_S of the draws
    #: Efron and Stein's, where masks are independent: exact for quadratics, least squares and small
    #: supports, else its mean is over the draws
    deviation_bound: float | None

    @property
    def chance_of_worse(self) -> float:
        """A new draw is worse than `worst` with at most this probability."""
        return 1 / (self.draws + 1)

    def __str__(self) -> str:
        bound = (
            "masks are not independent: no bound on the deviation"
            if self.deviation_bound is None
            else f"that of all draws at most {self.deviation_bound:.4g} (Efron and Stein)"
        )
        return (
            f"{self.draws} draws: mean {self.mean:.4g}, standard deviation {self.deviation:.4g}, {bound}; a "
            f"new draw is worse than {self.worst:.4g} with probability at most {self.chance_of_worse:.3g}"
        )


def certificate(problem: Problem, x: ArrayLike, *, draws: int = 100, seed: int = 0) -> Certificate:
    """What `draws` sparsified models say of all others.

    Parameters
    ----------
    problem
        Objective, sketch and shift.
    x
        The model.
    draws
        How many sparsified models are tried: 99 give a chance of 1 %.
    seed
        Of the draws; other ones than those of a run with this seed.

    >>> import mast
    >>> problem = mast.Problem(mast.Quadratic([[2.0, 1.0], [1.0, 2.0]], [3.0, 3.0]), mast.Bernoulli(0.5))
    >>> c = mast.certificate(problem, problem.minimizer(), draws=99)
    >>> print(c)
    99 draws: mean -1.527, standard deviation 1.165, that of all draws at most 1.138 (Efron and Stein);
    a new draw is worse than 0 with probability at most 0.01
    """
    if not isinstance(problem, Problem):
        raise ArgumentError(f"certificate takes a Problem, got {type(problem).__name__}")
    if not problem.sketch.independent:
        raise NoGuaranteeError(NO_STATEMENT["dependent_draws"])
    point = vector("x", x, problem.dim)
    draws = whole("draws", draws, 2)
    root = Key(seed).child(0, Purpose.ESTIMATE).seed
    made = [problem.sketch.sample(problem.dim, Key(root, step=i)) for i in range(draws)]
    losses = np.array([problem.at(draw).value(point) for draw in made])
    diagonal = [draw for draw in made if isinstance(draw, DiagonalDraw)]
    return Certificate(
        draws,
        float(losses.mean()),
        float(losses.std(ddof=1)),
        float(losses.max()),
        _efron_stein(problem, point, diagonal, losses),
    )


def _efron_stein(problem: Problem, x: Array, draws: list[DiagonalDraw], losses: Array) -> float | None:
    """The square root of sum_j p_j (1 - p_j) E[D_j²]; None where the coordinates are not independent."""
    law = problem.sketch.law(problem.dim)
    if law is None or law.sizes is not None or law.noise or law.pairs is not None:
        return None
    if law.labels is not None and np.bincount(law.unit_of[law.unit_of >= 0], minlength=1).max() > 1:
        return None  # groups of coordinates live or die together
    keep, scales = law.spread(law.keep), law.spread(law.scales)
    step = scales * (x - problem.shift)  # how far coordinate j moves if it is kept
    free = np.flatnonzero((keep < 1) & (step != 0))
    f, total = problem.objective, np.zeros(problem.dim)
    if isinstance(f, Quadratic | LeastSquares):
        # D_j = step_j (slope_j + H_jj step_j/2), slope_j the gradient where j is dropped
        H = f.hessian(x)
        curvature, moved = np.diag(H), keep * step
        slope = f.gradient(problem.shift) + H @ moved - curvature * moved
        spread = (H * H) @ (keep * (1 - keep) * step**2) - curvature**2 * keep * (1 - keep) * step**2
        total = step**2 * (np.square(slope + curvature * step / 2) + spread)
        return math.sqrt(float(np.sum((keep * (1 - keep) * total)[free])))
    size = problem.sketch.support_size(problem.dim)
    if size is not None and size <= ALL_DRAWS:  # the mean over all draws, not over those that were tried
        support = problem.sketch.support(problem.dim) or []
        weights = [probability for probability, _ in support]
        draws = [draw for _, draw in support if isinstance(draw, DiagonalDraw)]
        losses = np.array([problem.at(draw).value(x) for draw in draws])
    else:
        weights = [1 / len(draws)] * len(draws)
    for weight, draw, loss in zip(weights, draws, losses, strict=True):
        y, kept = problem.sparsified(x, draw), draw.diagonal() != 0
        total[free] += [
            weight * _change(f, y, j, -step[j] if kept[j] else step[j], loss) ** 2 for j in free.tolist()
        ]
    return math.sqrt(float(np.sum((keep * (1 - keep) * total)[free])))


def _change(f: Objective, y: Array, j: int, step: float, loss: float) -> float:
    """How f changes when coordinate j is kept instead of dropped, or the other way round."""
    other = y.copy()
    other[j] += step
    return f.value(other) - loss
