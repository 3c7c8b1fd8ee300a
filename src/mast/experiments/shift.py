"""Shift: what a pretrained model v does. Loss, gap and sparsified accuracy against |v - x*| and density.

The paper argues it and never plots it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mast.experiments import style
from mast.experiments.accuracy import accuracy
from mast.experiments.datasets import Dataset, gaussian_start, halves, logistic
from mast.experiments.experiment import Claim, Experiment, Findings, Request, Results, small_table
from mast.experiments.interpolation import (
    INTERPOLATION_CHOICES,
    interpolation_cells,
    interpolation_claims,
    interpolation_figure,
    interpolation_table,
    shifted_run,
)
from mast.problem import Problem
from mast.sketches import PermK
from mast.support.cells import Cell
from mast.support.checks import Array
from mast.theory import problem_bounds

BLOCKS = (2, 4, 5, 10, 20)
DISTANCES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)  # |v - x*| over |x*|
KAPPA = 100.0
TEST_SHARE, SPLIT_SEED = 0.25, 0
NEAR = 0.03  # a pretrained model this close to x*, relative to |x*|


def solve(config: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """f(x_D*) - f(x*), the gap, Theorem 1's bounds and sparsified accuracies, for each distance of v."""
    f = logistic(dataset, config["kappa"], SPLIT_SEED, TEST_SHARE)
    A, b = halves(dataset, SPLIT_SEED, TEST_SHARE).test
    star, f_star = f.minimizer(), f.infimum()
    u = gaussian_start(star.size, config["seed"])
    direction = -star if config["toward"] == "zero" else u * (np.linalg.norm(star) / np.linalg.norm(u))
    rows = []
    for distance in config["distances"]:
        problem = Problem(f, PermK(config["K"], seed=config["seed"]), star + distance * direction)
        solution, v = problem.minimizer(), problem.shift
        c = problem.sketch.constants(f.dim)
        bounds = problem_bounds(L_f=f.smoothness, mu_f=f.strong_convexity, L_D=c.L_D, mu_D=c.mu_D)
        away = float(np.sum((star - v) ** 2)), float(np.sum((solution - v) ** 2))
        draws = [draw for _, draw in problem.sketch.support(f.dim) or []]
        low, high = bounds.value_at_solution(f_star, *away)
        rows.append(
            {
                "excess": f.value(solution) - f_star,
                "excess_bound": bounds.loss_at_solution(f_star, *away).upper - f_star,
                "gap": problem.infimum() - f_star,
                "gap_bound": high - f_star,
                "gap_lower": low - f_star,
                "moved": np.sqrt(away[1]),
                "distance": np.sqrt(away[0]),
                "accuracy_mast": [accuracy(A, b, problem.sparsified(solution, draw)) for draw in draws],
                "accuracy_erm": [accuracy(A, b, problem.sparsified(star, draw)) for draw in draws],
            }
        )
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    return {**columns, "f_star": f_star, "dense": accuracy(A, b, star)}


def measured(results: Results, K: int, what: str) -> Array:
    """For v on the way to 0: all seeds (rows; of accuracies, all blocks of each) and distances (columns)."""
    values = [d[what] for d in results.of(K=K, toward="zero")]
    return np.concatenate([v.T for v in values]) if what.startswith("accuracy") else np.array(values)


class Shift(Experiment):
    """What a pretrained model changes."""

    name = "shift"
    title = "Pretrained models: the shift"

    def cells(self, request: Request) -> list[Cell]:
        """One cell per data set, K, direction and seed; and the runs of the interpolation figure."""
        seeds = range(request.pick(fast=2, normal=5, full=20))
        varied = {"K": BLOCKS, "toward": ("zero", "random"), "seed": seeds}
        fixed = {"kappa": KAPPA, "distances": list(DISTANCES)}
        cells = [
            cell
            for data in request.datasets
            for cell in self.grid(solve, data, 0.1 + 3e-6 * data.load()[0].nnz, varied, **fixed)
        ]
        return cells + interpolation_cells(self, request)

    def findings(self, request: Request, results: Results) -> Findings:
        """Figures, numbers and claims."""
        solved, runs = results.of(solve), results.of(shifted_run)
        return Findings(
            lead="With a pretrained model v, only x − v is sketched. The closer v is to the minimiser x* of "
            "f, and the lighter the sparsification, the less MAST costs: the loss of its solution x_D* "
            "and the gap f_D^inf − f^inf fall with |v − x*|². At v = x* the gap is 0, every sketched "
            "loss has the same minimiser, and DSGD converges linearly to it.",
            figures=[
                *solved.figures(
                    "shift",
                    "The pretrained model's distance and the density",
                    "Above: v on the way from x* (left) to 0 (right end). Below: by density 1/K, for v at "
                    "three distances. Lines are medians over partitions with the range (accuracies: "
                    "quartiles over sparsified models); dotted lines are Theorem 1's upper bounds.",
                    draw_shift,
                ),
                interpolation_figure(runs),
            ],
            tables={"shift": shift_table(solved), "interpolation": interpolation_table(runs)},
            claims=[*solved.claims(shift_claims), *runs.claims(interpolation_claims)],
            choices=[
                "Perm-K with one fixed partition per seed, so that f_D and x_D* are exact; 75 % of the rows "
                "to train, condition number 100. Distances are in units of |x*|; 1 in the direction of 0 is "
                "v = 0.",
                "Besides the way to 0, random directions of the same lengths are measured; they are in the "
                "numbers and count for the bounds.",
                *INTERPOLATION_CHOICES,
            ],
        )


def shift_table(solved: Results) -> Any:
    """One row per data set, K, direction, seed and distance."""
    return solved.frame(
        "K",
        density=lambda d: 1 / d["K"],
        toward="toward",
        seed="seed",
        relative_distance="distances",
        **{n: n for n in ("distance", "excess", "excess_bound", "gap", "gap_lower", "gap_bound", "moved")},
        median_accuracy_mast=lambda d: np.median(d["accuracy_mast"], axis=1),
        median_accuracy_erm=lambda d: np.median(d["accuracy_erm"], axis=1),
        dense_accuracy="dense",
    )


def shift_claims(results: Results) -> Iterator[Claim]:
    """What Theorem 1 and the text around it say, decided for one data set."""
    f_star, dense = results[0]["f_star"], results[0]["dense"]
    rounding = 1e-12 * max(1.0, abs(f_star))
    above = max(
        float(np.max((d[what] - rounding) / np.maximum(d[f"{what}_bound"], rounding)))
        for d in results
        for what in ("excess", "gap")
    )
    below = min(float(np.min(d["gap"] - d["gap_lower"])) for d in results)
    at_star = max(float(np.abs(d["gap"][0])) for d in results)
    near, far = DISTANCES.index(NEAR), len(DISTANCES) - 1
    excess = {K: measured(results, K, "excess") for K in BLOCKS}
    falls = {K: excess[K][:, near] / excess[K][:, far] for K in BLOCKS}
    cost = {K: excess[K][:, far] / f_star for K in BLOCKS}
    medians = {K: float(np.median(cost[K])) for K in BLOCKS}
    closeness = max(float(np.max(d["moved"][1:] / d["distance"][1:])) for d in results.of(toward="zero"))
    median = {s: np.median(measured(results, BLOCKS[-1], "accuracy_mast")[:, s]) for s in (near, far)}
    yield Claim(
        "Theorem 1 bounds the loss f(x_D*) and the gap, from above and below",
        "largest ratio of measured to upper bound at most 1; gap minus lower bound not negative",
        f"{above:.3g}; {below:.2g} ({len(results) * len(DISTANCES)} problems)",
        above <= 1 and below >= -rounding,
        source="theory",
    )
    yield Claim(
        "With v = x* the gap is 0",
        "largest |f_D^inf − f^inf| at rounding level, 1e-12",
        f"{at_star:.1e} over {len(results)} problems",
        at_star <= rounding,
    )
    yield Claim(
        "A pretrained model close to x* gives a solution whose loss is close to the optimal one",
        f"f(x_D*) − f(x*) with v at {NEAR:g} |x*| from x* below 1 % of what it is with v = 0, for each K",
        small_table(
            "K",
            falls,
            median=[f"{np.median(r):.1e}" for r in falls.values()],
            largest=[f"{r.max():.1e}" for r in falls.values()],
        ),
        all(float(r.max()) < 0.01 for r in falls.values()),
    )
    yield Claim(
        "x_D* stays close to the pretrained model when that is close to x*",
        "|x_D* − v| at most |x* − v|, for v on the way to 0",
        f"largest ratio {closeness:.3g}",
        closeness <= 1,
    )
    yield Claim(
        "Light sparsification stays close to ERM, stronger costs more",
        "(f(x_D*) − f(x*))/f(x*) with v = 0 grows with K",
        small_table(
            "K",
            medians,
            median=[f"{m:.1%}" for m in medians.values()],
            lowest=[f"{cost[K].min():.1%}" for K in medians],
            highest=[f"{cost[K].max():.1%}" for K in medians],
        ),
        bool(np.all(np.diff(list(medians.values())) > 0)),
    )
    yield Claim(
        "Sparsified models around a good pretrained model are as accurate as the dense one",
        f"median accuracy at K = {BLOCKS[-1]} with v at {NEAR:g} |x*| at most 0.01 below the dense ERM's",
        f"{median[near]:.3f} against {dense:.3f} (v = 0: {median[far]:.3f})",
        bool(median[near] >= dense - 0.01),
        source="beyond",
    )


SHOWN = {2: style.SKY, 5: style.BLUE, 20: style.BLACK}
PLACES = {0.03: style.GREEN, 0.3: style.ORANGE, 1.0: style.VERMILION}
LABEL = {
    "excess": r"$f(x_D^\star) - f(x^\star)$",
    "gap": r"$f_D^{\inf} - f^{\inf}$",
    "accuracy": "Test accuracy, sparsified",
}


def draw_shift(results: Results) -> Any:
    """Loss, gap and accuracy: by distance above, by density below."""
    figure, axes = style.frames(2, 3, width=4.3, height=3.1)
    for row, show in zip(axes, (_by_distance, _by_density), strict=True):
        for ax, what in zip(row, LABEL, strict=True):
            show(ax, results, what)
            ax.set_ylabel(LABEL[what])
        row[0].plot([], [], ":", color=style.GREY, linewidth=1.1, label="bounds of Theorem 1")
        dense = row[2].axhline(results[0]["dense"], color=style.GREY, ls="--", linewidth=1)
        row[2].legend([dense], ["ERM, dense"])
    axes[0][0].legend(loc="upper left")
    axes[1][0].set_ylim(bottom=axes[1][0].get_ylim()[0] / 1e3)  # room for the legend
    axes[1][0].legend(loc="lower left")
    return figure


def _by_distance(ax: Any, results: Results, what: str) -> None:
    x = np.array(DISTANCES[1:])
    for K, colour in SHOWN.items():
        if what == "accuracy":
            style.quartiles(ax, x, list(measured(results, K, "accuracy_mast")[:, 1:].T), colour, f"K = {K}")
        else:
            style.band(ax, x, np.abs(measured(results, K, what)[:, 1:]), colour, f"K = {K}")
            bound = np.median(measured(results, K, f"{what}_bound")[:, 1:], axis=0)
            ax.plot(x, bound, ":", color=colour, linewidth=1.1)
            ax.set_yscale("log")
    ax.set(xscale="log", xlabel=r"$|v - x^\star|\,/\,|x^\star|$")


def _by_density(ax: Any, results: Results, what: str) -> None:
    x = np.array([1 / K for K in BLOCKS])
    for place, colour in PLACES.items():
        at = DISTANCES.index(place)
        label = f"|v − x*| = {place:g} |x*|" + (" (v = 0)" if place == 1 else "")
        if what == "accuracy":
            values = [measured(results, K, "accuracy_mast")[:, at] for K in BLOCKS]
            style.quartiles(ax, x, values, colour, label, "o-", markersize=3.5)
        else:
            curves = np.array([measured(results, K, what)[:, at] for K in BLOCKS]).T
            bound = [np.median(measured(results, K, f"{what}_bound")[:, at]) for K in BLOCKS]
            style.band(ax, x, np.abs(curves), colour, label, "o-", markersize=3.5)
            ax.plot(x, bound, ":", color=colour, linewidth=1.1)
            ax.set_yscale("log")
    ax.set_xscale("log")
    ax.set_xticks(x, [f"{100 / K:g}" for K in BLOCKS])
    ax.minorticks_off()
    ax.set_xlabel("Density (% of weights kept)")
