"""Runs of `mast.minimize` in cells: what is kept of them, and what is read off their curves."""

from __future__ import annotations

from typing import Any

import numpy as np

from mast.arrays import Array
from mast.cells import Done
from mast.experiments.experiment import Results
from mast.plots import bound_along
from mast.problem import Problem
from mast.results import Result


def measured(result: Result, Psi0: float | None = None) -> dict[str, Any]:
    """The trace as arrays. The bound is infinite where the theorem says nothing.

    Psi0 is what the theorem starts from if that is not the loss at the start.
    """
    trace = result.trace
    return {
        "step": trace["step"].to_numpy(),
        "passes": trace["passes"].to_numpy(),
        "loss": trace["f"].to_numpy(),
        "gap": trace["f_D"].to_numpy() - result.infimum,
        "gradient_sq": trace["grad_sq"].to_numpy(),
        "distance_sq": trace["dist_sq"].to_numpy(),
        "bound": bound_along(result, Psi0),
        "step_size": result.step_size,
        "status": result.status,
    }


def ends(curve: Results, what: str) -> Array:
    """Where each seed settles: the median over the last tenth of the run, over its start."""
    last = curve[0]["step"] >= 0.9 * curve[0]["step"][-1]
    return np.array([np.median(d[what][last]) / d[what][0] for d in curve])


def running_mean(d: Done) -> Array:
    """The mean of |grad f_D|² over all steps so far, from the measured ones (trapezes); at 0, the first."""
    step, values = d["step"].astype(float), d["gradient_sq"]
    area = np.concatenate([[0.0], np.cumsum(np.diff(step) * (values[1:] + values[:-1]) / 2)])
    return np.asarray(np.where(step > 0, area / np.maximum(step, 1.0), values[0]))


def first_below(d: Done, target: float) -> float:
    """The first measured step at which the relative gap is below the target."""
    reached = np.flatnonzero(d["gap"] <= target * d["gap"][0])
    return float(d["step"][reached[0]]) if reached.size else np.inf


def spread_of_gradients(problem: Problem) -> float:
    """mean_i |grad f_Si(x0) - grad f_Si(x_D*)|² at x0 = v."""
    solution, x0 = problem.minimizer(), problem.shift
    total = 0.0
    for probability, draw in problem.sketch.support(problem.dim) or []:
        f_S = problem.at(draw)
        total += probability * float(np.sum((f_S.gradient(x0) - f_S.gradient(solution)) ** 2))
    return total
