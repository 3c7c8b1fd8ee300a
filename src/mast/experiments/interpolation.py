"""Interpolation: with the pretrained model v at the minimiser of f, DSGD converges linearly to it.

Part of the experiment `shift`. The sketch keeps a block of one of several partitions: then f_D is
exact, but does not split into blocks, so that away from v = x* DSGD has a noise floor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mast.experiments import style
from mast.experiments.cells import Cell, Done
from mast.experiments.datasets import Dataset, gaussian_start, logistic
from mast.experiments.findings import Claim, Figure, Plan
from mast.problem import Problem
from mast.run import minimize
from mast.sketches import Mixture, PermK

VERSION = 1
K, PARTITIONS = 4, 5
KAPPA = 100.0
DISTANCES = (0.0, 0.03, 0.3, 1.0)
EXACT = 1e-12  # a relative squared distance that only rounding explains
CHOICES = (
    f"Interpolation runs: DSGD with the step size of theory, on the smallest data set; the sketch keeps one "
    f"block, times K = {K}, of one of {PARTITIONS} partitions; x0 = v + N(0, I), anew for each seed.",
)


def several_partitions(K: int, partitions: int) -> Mixture:
    """One block of one of several fixed partitions: a uniform support of K times as many sketches.

    >>> several_partitions(2, 3).constants(10)
    Constants(L_D=2.0, mu_D=2.0, L_max=4.0)
    """
    return Mixture([PermK(K, seed=seed) for seed in range(partitions)])


def run(config: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """The squared distance to x_D* along one run of DSGD, and Theorem 2's bound on it."""
    f = logistic(dataset, config["kappa"])
    shift = (1 - config["distance"]) * f.minimizer()
    problem = Problem(f, several_partitions(config["K"], config["partitions"]), shift)
    x0 = problem.shift + gaussian_start(f.dim, config["seed"])
    steps = config["steps"]
    result = minimize(
        problem, "dsgd", steps, "theory", x0, config["seed"], trace=max(1, steps // 100), progress=False
    )
    assert result.guarantee is not None
    step, distance = result.trace["step"].to_numpy(), result.trace["dist_sq"].to_numpy()
    return {
        "step": step,
        "distance_sq": distance,
        "bound": np.asarray(result.guarantee.bound(result.step_size, step, r0sq=float(distance[0]))),
        "step_size": float(result.step_size),  # type: ignore[arg-type]
        "gap": problem.infimum() - f.infimum(),
    }


def cells(plan: Plan, experiment: str) -> list[Cell]:
    """One cell a distance and seed, on the smallest data set."""
    dataset = min(plan.datasets, key=lambda d: d.load()[0].nnz)
    seeds = plan.pick(fast=1, normal=3, full=10)
    steps = plan.pick(fast=6_000, normal=10_000, full=15_000)
    return [
        Cell(
            experiment,
            VERSION,
            run,
            {
                "K": K,
                "partitions": PARTITIONS,
                "distance": distance,
                "seed": seed,
                "kappa": KAPPA,
                "steps": steps,
            },
            dataset,
            cost=steps / 2_000,
        )
        for distance in DISTANCES
        for seed in range(seeds)
    ]


def configuration(runs: list[Done]) -> dict[str, Any]:
    """What the runs have in common."""
    return {
        "dataset": runs[0].cell.dataset.name,
        "K": K,
        "partitions": PARTITIONS,
        "distances": DISTANCES,
        "steps": runs[0]["steps"],
        "seeds": sorted({d["seed"] for d in runs}),
    }


def table(runs: list[Done]) -> Any:
    """One row a measured point."""
    import pandas

    parts = [
        pandas.DataFrame(
            {
                "dataset": d.cell.dataset.name,
                "relative_distance_of_v": d["distance"],
                "seed": d["seed"],
                "step": d["step"],
                "distance_sq": d["distance_sq"],
                "bound_of_distance_sq": d["bound"],
            }
        )
        for d in runs
    ]
    return pandas.concat(parts, ignore_index=True)


def claims(runs: list[Done]) -> list[Claim]:
    """Linear convergence at v = x*, a floor that grows with the distance elsewhere."""
    name = runs[0].cell.dataset.name
    ends = {
        s: np.array(
            [np.median(d["distance_sq"][-25:]) / d["distance_sq"][0] for d in runs if d["distance"] == s]
        )
        for s in DISTANCES
    }
    middle = [float(np.median(ends[s])) for s in DISTANCES]
    worst = max(
        float(
            np.max(
                np.mean([d["distance_sq"] for d in runs if d["distance"] == s], axis=0)
                / np.maximum(np.mean([d["bound"] for d in runs if d["distance"] == s], axis=0), 1e-25)
            )
        )
        for s in DISTANCES
    )
    return [
        Claim(
            "Interpolation: with v = x*, DSGD converges linearly to the exact solution",
            name,
            f"|x − x_D*|² at the end over its start at most {EXACT:g}",
            f"{middle[0]:.1e} ({ends[0.0].min():.1e} to {ends[0.0].max():.1e})",
            bool((ends[0.0] <= EXACT).all()),
        ),
        Claim(
            "Away from x*, DSGD stops at a distance that grows with the gap",
            name,
            "|x − x_D*|² at the end grows with |v − x*|",
            ", ".join(f"{s:g}: {m:.1e}" for s, m in zip(DISTANCES, middle, strict=True)),
            bool(np.all(np.diff(middle) > 0)),
        ),
        Claim(
            "Theorem 2 bounds the squared distance to x_D* all along",
            name,
            "largest ratio of the mean over seeds to the bound at most 1",
            f"{worst:.3g}",
            worst <= 1,
            source="theory",
        ),
    ]


COLOURS = dict(zip(DISTANCES, (style.BLUE, style.GREEN, style.ORANGE, style.VERMILION), strict=True))


def figure(runs: list[Done]) -> Figure:
    """Distances to the solution for several v."""
    return Figure(
        "interpolation",
        "Interpolation: DSGD with the pretrained model near x*",
        "Squared distance to x_D* of DSGD with the step size of theory, median and range over seeds; "
        "dashed: the bound of Theorem 2, whose last term is proportional to the gap.",
        lambda: draw(runs),
    )


def draw(runs: list[Done]) -> Any:
    """One frame."""
    with style.look():
        drawn, axes = style.frames(1, 1, width=7.2, height=3.9)
        ax = axes[0][0]
        for s in DISTANCES:
            mine = [d for d in runs if d["distance"] == s]
            label = "v = x*" if s == 0 else "v = 0" if s == 1 else f"|v − x*| = {s:g} |x*|"
            curves = np.array([d["distance_sq"] / d["distance_sq"][0] for d in mine])
            style.band(ax, mine[0]["step"], np.maximum(curves, 1e-30), COLOURS[s], label)
            bound = np.mean([d["bound"] / d["distance_sq"][0] for d in mine], axis=0)
            ax.plot(mine[0]["step"], np.maximum(bound, 1e-30), "--", color=COLOURS[s], linewidth=0.9)
        ax.set_yscale("log")
        ax.set_ylim(bottom=1e-31)
        ax.set_xlabel("Steps")
        ax.set_ylabel(r"$|x - x_D^\star|^2\,/\,|x^0 - x_D^\star|^2$")
        ax.set_title(f"DSGD on {runs[0].cell.dataset.name}")
        ax.legend(loc="lower left")
        return drawn
