"""Interpolation: with the pretrained model v at the minimiser of f, DSGD converges linearly to it.

Part of the experiment `shift`. The sketch keeps a block of one of several partitions: then f_D is
exact, but does not split into blocks, so that away from v = x* DSGD has a noise floor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from mast.experiments import style
from mast.experiments.datasets import Dataset, gaussian_start, logistic
from mast.experiments.experiment import (
    Claim,
    Experiment,
    Figure,
    Request,
    Results,
    bound_claim,
    median_and_range,
    small_table,
    trace_arrays,
)
from mast.problem import Problem
from mast.run import minimize
from mast.sketches import Mixture, PermK
from mast.support.cells import Cell

K, PARTITIONS = 4, 5
KAPPA = 100.0
DISTANCES = (0.0, 0.03, 0.3, 1.0)
EXACT = 1e-12  # a relative squared distance that only rounding explains
INTERPOLATION_CHOICES = (
    f"Interpolation runs: DSGD with the step size of theory, on the smallest data set; the sketch keeps one "
    f"block, times K = {K}, of one of {PARTITIONS} partitions; x0 = v + N(0, I), anew for each seed.",
)


def several_partitions(K: int, partitions: int) -> Mixture:
    """One block of one of several fixed partitions: a uniform support of K times as many sketches.

    >>> several_partitions(2, 3).constants(10)
    Constants(L_D=2.0, mu_D=2.0, L_max=4.0)
    """
    return Mixture([PermK(K, seed=seed) for seed in range(partitions)])


def shifted_run(config: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """The squared distance to x_D* along one run of DSGD, and Theorem 2's bound on it."""
    f = logistic(dataset, config["kappa"])
    shift = (1 - config["distance"]) * f.minimizer()
    problem = Problem(f, several_partitions(config["K"], config["partitions"]), shift)
    x0 = problem.shift + gaussian_start(f.dim, config["seed"])
    steps = config["steps"]
    result = minimize(
        problem, "dsgd", steps, "theory", x0, config["seed"], trace=max(1, steps // 100), progress=False
    )
    return trace_arrays(result) | {"gap_of_f_D": problem.infimum() - f.infimum()}


def interpolation_cells(experiment: Experiment, request: Request) -> list[Cell]:
    """One cell per distance and seed, on the smallest data set."""
    data = min(request.datasets, key=lambda d: d.load()[0].nnz)
    steps = request.pick(fast=6_000, normal=10_000, full=15_000)
    varied = {"distance": DISTANCES, "seed": range(request.pick(fast=1, normal=3, full=10))}
    fixed = {"K": K, "partitions": PARTITIONS, "kappa": KAPPA, "steps": steps}
    return experiment.grid(shifted_run, data, steps / 2_000, varied, **fixed)


def interpolation_table(runs: Results) -> Any:
    """One row per measured point."""
    return runs.frame(
        relative_distance_of_v="distance",
        seed="seed",
        step="step",
        distance_sq="distance_sq",
        bound_of_distance_sq="bound",
    )


def interpolation_claims(runs: Results) -> Iterator[Claim]:
    """Linear convergence at v = x*, a floor that grows with the distance elsewhere."""
    curves = {s: runs.of(distance=s) for s in DISTANCES}
    ends = {
        s: np.array([np.median(d["distance_sq"][-25:]) / d["distance_sq"][0] for d in curve])
        for s, curve in curves.items()
    }
    middle = {s: float(np.median(values)) for s, values in ends.items()}
    worst = max(
        float(np.max(curve.mean("distance_sq") / np.maximum(curve.mean("bound"), 1e-25)))
        for curve in curves.values()
    )
    yield Claim(
        "Interpolation: with v = x*, DSGD converges linearly to the exact solution",
        f"|x − x_D*|² at the end over its start at most {EXACT:g}",
        median_and_range(ends[0.0], ".1e"),
        bool((ends[0.0] <= EXACT).all()),
    )
    yield Claim(
        "Away from x*, DSGD stops at a distance that grows with the gap",
        "|x − x_D*|² at the end grows with |v − x*|",
        small_table("|v − x*|/|x*|", middle, median=[f"{m:.1e}" for m in middle.values()]),
        bool(np.all(np.diff(list(middle.values())) > 0)),
    )
    yield bound_claim("Theorem 2 bounds the squared distance to x_D* all along", worst)


COLOURS = dict(zip(DISTANCES, (style.BLUE, style.GREEN, style.ORANGE, style.VERMILION), strict=True))


def interpolation_figure(runs: Results) -> Figure:
    """Distances to the solution for several v."""
    return Figure(
        "interpolation",
        "Interpolation: DSGD with the pretrained model near x*",
        "Squared distance to x_D* of DSGD with the step size of theory, median and range over seeds; "
        "dashed: the bound of Theorem 2, whose last term is proportional to the gap.",
        partial(draw_interpolation, runs),
    )


def draw_interpolation(runs: Results) -> Any:
    """One frame."""
    drawn, ((ax,),) = style.frames(1, 1, width=7.2, height=3.9)
    for s, colour in COLOURS.items():
        curve = runs.of(distance=s)
        label = "v = x*" if s == 0 else "v = 0" if s == 1 else f"|v − x*| = {s:g} |x*|"
        bounds = [np.maximum(d["bound"] / d["distance_sq"][0], 1e-30) for d in curve]
        style.band(ax, curve[0]["step"], np.maximum(curve.relative("distance_sq"), 1e-30), colour, label)
        ax.plot(curve[0]["step"], np.mean(bounds, axis=0), "--", color=colour, linewidth=0.9)
    ax.set_yscale("log")
    ax.set_ylim(bottom=1e-31)
    ax.set(xlabel="Steps", ylabel=style.RELATIVE_DISTANCE, title=f"DSGD on {runs.datasets[0]}")
    ax.legend(loc="lower left")
    return drawn
