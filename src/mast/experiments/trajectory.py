"""Trajectory: DSGD with one data point per step, and one sketch or the mean over all, at three step sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas

from mast.experiments import style
from mast.experiments.datasets import Dataset, gaussian_start, logistic
from mast.experiments.experiment import (
    Claim,
    Experiment,
    Figure,
    Findings,
    Request,
    Results,
    median_and_range,
    small_table,
    trace_arrays,
)
from mast.problem import Problem
from mast.run import minimize
from mast.sketches import PermK
from mast.support.cells import Cell
from mast.support.checks import Array

K = 10
KAPPA = 100.0
SHRINK = (1, K, K**2)  # the plain step size is divided by these
ESTIMATORS = ("one", "all")  # sketches per step
POINTS = 120
SYMBOL = {"one": "f_{i,S}", "all": "f_{i,D}"}
STEP_LABEL = {1: "1/L", K: "1/(K L)", K**2: "1/(K² L)"}
NO_CONVERGENCE = 0.1  # a gap that stays above a tenth of its start
CLEARLY = 3.0  # times: above what seeds differ by


def sampled_run(config: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """One run: the gap to f_D^inf and the squared distance to x_D* along it, and the theorem's bound.

    The bound is infinite where the step size is above what the theorem allows.
    """
    f = logistic(dataset, config["kappa"])
    problem = Problem(f, PermK(config["K"], seed=config["partition"]))
    step_size = 1 / float(f.term_smoothness.max()) / config["shrink"]
    steps, seed = config["steps"], config["seed"]
    early, evenly = np.geomspace(1, steps / POINTS, 12), np.linspace(0, steps, POINTS + 1)
    options = {"trace": np.concatenate([early, evenly]).astype(int), "sketches": config["sketches"]}
    x0 = gaussian_start(problem.dim, seed)
    result = minimize(problem, "dsgd_sampled", steps, step_size, x0, seed, progress=False, **options)
    return trace_arrays(result) | {"smoothness": problem.smoothness, "rows": f.terms}


def trajectory_steps(dataset: Dataset) -> int:
    """Steps enough for the smallest step size: in proportion to K max L_fi / l2, to two digits."""
    f = logistic(dataset, KAPPA)
    needed = 7 * K * float(f.term_smoothness.max()) / f.strong_convexity
    return int(float(f"{min(max(needed, 20_000), 400_000):.1e}"))


def floors(curve: Results) -> Array:
    """Where each seed's relative gap settles: its median over the last quarter of the run."""
    gaps = curve.relative("gap")
    return np.median(gaps[:, -gaps.shape[1] // 4 :], axis=1)


def trajectory_curves(results: Results) -> dict[tuple[str, int], Results]:
    """The seeds of each curve of one data set, by the sketches per step and the divisor of the step size."""
    return {(e, s): results.of(sketches=e, shrink=s) for e in ESTIMATORS for s in SHRINK}


class Trajectory(Experiment):
    """The paper's figure of the finite-sum MAST loss."""

    name = "trajectory"
    title = "The MAST loss along stochastic runs"

    def cells(self, request: Request) -> list[Cell]:
        """One cell per data set, estimator, step size and seed."""
        varied = {
            "sketches": ESTIMATORS,
            "shrink": SHRINK,
            "seed": range(request.pick(fast=3, normal=10, full=30)),
        }
        fixed = {"K": K, "kappa": KAPPA, "partition": 0}
        cells = []
        for data in request.datasets:
            steps = trajectory_steps(data)
            cells += self.grid(sampled_run, data, 0.1 + 5e-6 * steps, varied, steps=steps, **fixed)
        return cells

    def findings(self, request: Request, results: Results) -> Findings:
        """Figure, numbers and claims."""
        seeds = len(set(results.values("seed")))
        return Findings(
            lead="The MAST loss of logistic regression with Perm-10: each step sees one data point, and "
            "either one random sketch (f_{i,S}) or the average over all ten (f_{i,D}). The plain step "
            "size of SGD, 1/L with L = max L_fi, is too long for either; theory divides it by L_D = K "
            "for f_{i,D} and by L_max = K² for f_{i,S}.",
            figures=[
                Figure(
                    "trajectory",
                    "Loss of DSGD with one data point per step",
                    f"Median over {seeds} seeds, with the range of all seeds. Thin lines are the bounds "
                    "of Theorem 12 (on the distance, times L_f L_D/2), where the step size is within its "
                    "limit.",
                    partial(draw_trajectories, results),
                )
            ],
            tables={"trajectory": trajectory_table(results), "trajectory_floors": floor_table(results)},
            claims=results.claims(trajectory_claims),
            choices=[
                "K = 10, one fixed partition (seed 0), condition number 100, x0 ~ N(0, I) anew for each "
                "seed; the gap is relative to its start and f_D^inf is exact.",
                "The floor of a run is the median of its relative gap over its last quarter; a claim speaks "
                "of the median floor over seeds, and the range is that of the seeds.",
                f"“No convergence” means a floor above {NO_CONVERGENCE}; “clearly” means a factor of "
                f"{CLEARLY:g}.",
            ],
        )


def trajectory_table(results: Results) -> Any:
    """One row per measured point."""
    return results.frame(
        *("sketches", "shrink", "step_size", "seed", "step"),
        passes=lambda d: d["step"] / d["rows"],
        gap="gap",
        relative_gap=lambda d: d["gap"] / d["gap"][0],
        distance_sq="distance_sq",
        bound_of_distance_sq="bound",
    )


def floor_table(results: Results) -> Any:
    """Where each curve settles."""
    settled = {
        (name, *curve): floors(part)
        for name, of_data in results.by_dataset().items()
        for curve, part in trajectory_curves(of_data).items()
    }
    columns = ("dataset", "sketches", "shrink", "floor", "lowest", "highest")
    rows = [(*key, np.median(each), each.min(), each.max()) for key, each in settled.items()]
    return pandas.DataFrame(rows, columns=columns)


def trajectory_claims(results: Results) -> Iterator[Claim]:
    """What the paper says of this figure, decided for one data set."""
    curves = trajectory_curves(results)
    floor = {key: floors(curve) for key, curve in curves.items()}
    middle = {key: float(np.median(values)) for key, values in floor.items()}
    shown = {key: median_and_range(values, ".2g") for key, values in floor.items()}
    added = {shrink: middle["one", shrink] / middle["all", shrink] for shrink in SHRINK}
    yield Claim(
        "Sampling sketches at the plain step size of SGD, the loss fluctuates around its start",
        f"floor of f_{{i,S}} at 1/L above {NO_CONVERGENCE}",
        shown["one", 1],
        middle["one", 1] > NO_CONVERGENCE,
    )
    yield Claim(
        "Averaging over sketches at the plain step size lowers the floor",
        f"floor of f_{{i,D}} at 1/L clearly below that of f_{{i,S}} (factor {CLEARLY:g})",
        f"{shown['all', 1]} against {shown['one', 1]}",
        middle["all", 1] * CLEARLY < middle["one", 1],
    )
    yield Claim(
        "Averaging over sketches at the plain step size, there is still almost no convergence",
        f"floor of f_{{i,D}} at 1/L above {NO_CONVERGENCE}",
        shown["all", 1],
        middle["all", 1] > NO_CONVERGENCE,
    )
    yield Claim(
        "Dividing the step size by K makes f_{i,D} converge to a neighbourhood of the solution",
        f"floor of f_{{i,D}} at 1/(K L) clearly below that at 1/L, and below {NO_CONVERGENCE}",
        f"{shown['all', K]} against {shown['all', 1]}",
        middle["all", K] * CLEARLY < middle["all", 1] and middle["all", K] < NO_CONVERGENCE,
    )
    yield Claim(
        "f_{i,S} needs the step size divided by K²: by K is not enough",
        "at 1/(K L) its floor is clearly above that of f_{i,D}, and at 1/(K² L) clearly lower than that",
        f"{shown['one', K]} at 1/(K L), {shown['one', K**2]} at 1/(K² L), f_{{i,D}} at 1/(K L) "
        f"{shown['all', K]}",
        middle["one", K] > CLEARLY * middle["all", K] and middle["one", K**2] * CLEARLY < middle["one", K],
    )
    yield Claim(
        "At the same step size, sampling sketches adds variance",
        "floor of f_{i,S} over that of f_{i,D} above 1, for each step size",
        small_table(
            "step size", (STEP_LABEL[s] for s in added), ratio=[f"{ratio:.3g}" for ratio in added.values()]
        ),
        all(ratio > 1 for ratio in added.values()),
    )
    covered = [curve for curve in curves.values() if np.isfinite(curve.mean("bound")).all()]
    worst = max((float(np.max(c.mean("distance_sq") / c.mean("bound"))) for c in covered), default=0.0)
    yield Claim(
        "Theorem 12 bounds the squared distance to x_D* all along",
        "largest ratio of the mean over seeds to the bound at most 1",
        f"{worst:.3g} over {len(covered)} curves that the theorem covers",
        len(covered) > 0 and worst <= 1,
        source="theory",
    )


LINE = {1: ":", K: "--", K**2: "-"}
COLOUR = {"one": style.BLUE, "all": style.ORANGE}


def draw_trajectories(results: Results) -> Any:
    """One frame per data set."""
    figure, axes = style.frames(1, len(results.datasets), width=4.6, height=3.9)
    for ax, (name, part) in zip(axes[0], results.by_dataset().items(), strict=True):
        for (sketches, shrink), curve in trajectory_curves(part).items():
            _curve(ax, curve, sketches, shrink)
        ax.set(yscale="log", title=name, xlabel="Steps (one data point each)")
        ax.ticklabel_format(axis="x", style="sci", scilimits=(0, 4), useMathText=True)
    axes[0][0].set_ylabel(style.RELATIVE_GAP)
    style.legend_below(figure, axes[0][0], 3)
    return figure


def _curve(ax: Any, curve: Results, sketches: str, shrink: int) -> None:
    step, label = curve[0]["step"], f"${SYMBOL[sketches]}$, γ = {STEP_LABEL[shrink]}"
    style.band(ax, step, curve.relative("gap"), COLOUR[sketches], label, LINE[shrink])
    bound = np.mean([d["bound"] * d["smoothness"] / 2 / d["gap"][0] for d in curve], axis=0)
    if np.isfinite(bound).all():
        named = {"label": "bounds"} if (sketches, shrink) == ("all", K**2) else {}
        ax.plot(step, bound, color=style.GREY, linewidth=0.8, linestyle=LINE[shrink], **named)
