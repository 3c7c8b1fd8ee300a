"""Trajectory: DSGD with one data point a step, with one sketch or averaged over all, at three step sizes.

The paper's figure of the finite-sum MAST loss for Perm-10. The relative gap to the exact f_D^inf is
drawn, and over each curve that a theorem covers, its bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mast.arrays import Array
from mast.experiments import style
from mast.experiments.cells import Cell, Done
from mast.experiments.datasets import Dataset, gaussian_start, logistic
from mast.experiments.findings import Claim, Experiment, Figure, Findings, Plan
from mast.problem import Problem
from mast.run import minimize
from mast.sketches import PermK

NAME, VERSION = "trajectory", 1
K = 10
KAPPA = 100.0
SHRINK = (1, K, K**2)  # the plain step size is divided by these
ESTIMATORS = ("one", "all")  # sketches a step
POINTS = 120
SYMBOL = {"one": "f_{i,S}", "all": "f_{i,D}"}
STEP_LABEL = {1: "1/L", K: "1/(K L)", K**2: "1/(K² L)"}
NO_CONVERGENCE = 0.1  # a gap that stays above a tenth of its start
CLEARLY = 3.0  # times: above what seeds differ by


def measured_steps(steps: int) -> list[int]:
    """Evenly spaced, and some more near the start."""
    early = np.unique(np.geomspace(1, steps / POINTS, 12).astype(int))
    return sorted({0, *early.tolist(), *np.linspace(0, steps, POINTS + 1).astype(int).tolist()})


def run(config: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """One run: the gap to f_D^inf and the squared distance to x_D* along it, and the theorem's bound.

    The bound is infinite where the step size is above what the theorem allows.
    """
    f = logistic(dataset, config["kappa"])
    problem = Problem(f, PermK(config["K"], seed=config["partition"]))
    step_size = 1 / float(f.term_smoothness.max()) / config["shrink"]
    steps = config["steps"]
    result = minimize(
        problem,
        "dsgd_sampled",
        steps,
        step_size,
        gaussian_start(problem.dim, config["seed"]),
        config["seed"],
        sketches=config["sketches"],
        trace=measured_steps(steps),
        progress=False,
    )
    guarantee = result.guarantee
    assert guarantee is not None
    trace = result.trace
    distance = trace["dist_sq"].to_numpy()
    return {
        "step": trace["step"].to_numpy(),
        "gap": trace["f_D"].to_numpy() - result.infimum,
        "distance": distance,
        "bound": np.asarray(guarantee.bound(step_size, trace["step"].to_numpy(), r0sq=float(distance[0]))),
        "step_size": step_size,
        "limit": float(guarantee.max_step_size()),
        "smoothness": problem.smoothness,
        "status": result.status,
        "rows": f.terms,
    }


def length(dataset: Dataset) -> int:
    """Steps enough for the smallest step size: in proportion to K max L_fi / l2, to two digits."""
    f = logistic(dataset, KAPPA)
    needed = 7 * K * float(f.term_smoothness.max()) / f.strong_convexity
    return int(float(f"{min(max(needed, 20_000), 400_000):.1e}"))


def cells(plan: Plan) -> list[Cell]:
    """One cell a data set, estimator, step size and seed."""
    seeds = plan.pick(fast=3, normal=10, full=30)
    return [
        Cell(
            NAME,
            VERSION,
            run,
            {
                "K": K,
                "kappa": KAPPA,
                "partition": 0,
                "sketches": sketches,
                "shrink": shrink,
                "seed": seed,
                "steps": length(dataset),
            },
            dataset,
            cost=0.1 + 5e-6 * length(dataset),
        )
        for dataset in plan.datasets
        for sketches in ESTIMATORS
        for shrink in SHRINK
        for seed in range(seeds)
    ]


def select(done: list[Done], name: str, sketches: str, shrink: int) -> list[Done]:
    """The seeds of one curve."""
    return [
        d for d in done if d.cell.dataset.name == name and d["sketches"] == sketches and d["shrink"] == shrink
    ]


def relative(curve: list[Done]) -> Array:
    """The gap of each seed (row), divided by its start."""
    return np.array([d["gap"] / d["gap"][0] for d in curve])


def floors(curve: list[Done]) -> Array:
    """Where each seed's relative gap settles: its median over the last quarter of the run."""
    gaps = relative(curve)
    return np.median(gaps[:, -gaps.shape[1] // 4 :], axis=1)


def findings(plan: Plan, done: list[Done]) -> Findings:
    """Figure, numbers and claims."""
    names = [dataset.name for dataset in plan.datasets]
    seeds = sorted({d["seed"] for d in done})
    return Findings(
        lead=(
            "The MAST loss of logistic regression with Perm-10: each step sees one data point, and "
            "either one random sketch (f_{i,S}) or the average over all ten (f_{i,D}). The plain step "
            "size of SGD, 1/L with L = max L_fi, is too long for either; theory divides it by L_D = K "
            "for f_{i,D} and by L_max = K² for f_{i,S}."
        ),
        figures=[
            Figure(
                "trajectory",
                "Loss of DSGD with one data point a step",
                f"Median over {len(seeds)} seeds, with the range of all seeds. Thin lines are the bounds of "
                "Theorem 12 (on the distance, times L_f L_D/2), where the step size is within its limit.",
                lambda: draw(done, names),
            )
        ],
        tables={"trajectory": table(done), "trajectory_floors": floor_table(done, names)},
        claims=[claim for name in names for claim in claims(done, name)],
        choices=[
            "K = 10, one fixed partition (seed 0), condition number 100, x0 ~ N(0, I) anew for each "
            "seed; the gap is relative to its start and f_D^inf is exact.",
            "The floor of a run is the median of its relative gap over its last quarter; a claim speaks "
            "of the median floor over seeds, and the range is that of the seeds.",
            f"“No convergence” means a floor above {NO_CONVERGENCE}; “clearly” means a factor of "
            f"{CLEARLY:g}.",
        ],
        configuration={
            "K": K,
            "kappa": KAPPA,
            "seeds": seeds,
            "steps": {name: next(d["steps"] for d in done if d.cell.dataset.name == name) for name in names},
            "step_sizes": "1/max L_fi divided by 1, K, K²",
        },
    )


def table(done: list[Done]) -> Any:
    """One row a measured point."""
    import pandas

    parts = [
        pandas.DataFrame(
            {
                "dataset": d.cell.dataset.name,
                "sketches": d["sketches"],
                "shrink": d["shrink"],
                "step_size": d["step_size"],
                "seed": d["seed"],
                "step": d["step"],
                "passes": d["step"] / d["rows"],
                "gap": d["gap"],
                "relative_gap": d["gap"] / d["gap"][0],
                "distance_sq": d["distance"],
                "bound_of_distance_sq": d["bound"],
            }
        )
        for d in done
    ]
    return pandas.concat(parts, ignore_index=True)


def floor_table(done: list[Done], names: list[str]) -> Any:
    """Where each curve settles."""
    import pandas

    rows = []
    for name in names:
        for sketches in ESTIMATORS:
            for shrink in SHRINK:
                values = floors(select(done, name, sketches, shrink))
                row = {"dataset": name, "sketches": sketches, "shrink": shrink, "floor": np.median(values)}
                rows.append({**row, "lowest": values.min(), "highest": values.max()})
    return pandas.DataFrame(rows)


def claims(done: list[Done], name: str) -> list[Claim]:
    """What the paper says of this figure, decided for one data set."""
    floor = {(e, s): floors(select(done, name, e, s)) for e in ESTIMATORS for s in SHRINK}
    middle = {key: float(np.median(values)) for key, values in floor.items()}

    def said(sketches: str, shrink: int) -> str:
        values = floor[sketches, shrink]
        return f"{middle[sketches, shrink]:.2g} ({values.min():.2g} to {values.max():.2g})"

    added = {shrink: middle["one", shrink] / middle["all", shrink] for shrink in SHRINK}
    return [
        Claim(
            "Sampling sketches at the plain step size of SGD, the loss fluctuates around its start",
            name,
            f"floor of f_{{i,S}} at 1/L above {NO_CONVERGENCE}",
            said("one", 1),
            middle["one", 1] > NO_CONVERGENCE,
        ),
        Claim(
            "Averaging over sketches at the plain step size lowers the floor",
            name,
            f"floor of f_{{i,D}} at 1/L clearly below that of f_{{i,S}} (factor {CLEARLY:g})",
            f"{said('all', 1)} against {said('one', 1)}",
            middle["all", 1] * CLEARLY < middle["one", 1],
        ),
        Claim(
            "Averaging over sketches at the plain step size, there is still almost no convergence",
            name,
            f"floor of f_{{i,D}} at 1/L above {NO_CONVERGENCE}",
            said("all", 1),
            middle["all", 1] > NO_CONVERGENCE,
        ),
        Claim(
            "Dividing the step size by K makes f_{i,D} converge to a neighbourhood of the solution",
            name,
            f"floor of f_{{i,D}} at 1/(K L) clearly below that at 1/L, and below {NO_CONVERGENCE}",
            f"{said('all', K)} against {said('all', 1)}",
            middle["all", K] * CLEARLY < middle["all", 1] and middle["all", K] < NO_CONVERGENCE,
        ),
        Claim(
            "f_{i,S} needs the step size divided by K²: by K is not enough",
            name,
            "at 1/(K L) its floor is clearly above that of f_{i,D}, and at 1/(K² L) clearly lower than that",
            f"{said('one', K)} at 1/(K L), {said('one', K**2)} at 1/(K² L), f_{{i,D}} at 1/(K L) "
            f"{said('all', K)}",
            middle["one", K] > CLEARLY * middle["all", K]
            and middle["one", K**2] * CLEARLY < middle["one", K],
        ),
        Claim(
            "At the same step size, sampling sketches adds variance",
            name,
            "floor of f_{i,S} over that of f_{i,D} above 1, for each step size",
            ", ".join(f"{STEP_LABEL[shrink]}: {ratio:.3g}" for shrink, ratio in added.items()),
            all(ratio > 1 for ratio in added.values()),
        ),
        _bound_claim(done, name),
    ]


def _bound_claim(done: list[Done], name: str) -> Claim:
    worst, covered = 0.0, 0
    for sketches in ESTIMATORS:
        for shrink in SHRINK:
            curve = select(done, name, sketches, shrink)
            bound = np.mean([d["bound"] for d in curve], axis=0)
            if np.isfinite(bound).all():
                covered += 1
                worst = max(worst, float(np.max(np.mean([d["distance"] for d in curve], axis=0) / bound)))
    return Claim(
        "Theorem 12 bounds the squared distance to x_D* all along",
        name,
        "largest ratio of the mean over seeds to the bound at most 1",
        f"{worst:.3g} over {covered} curves that the theorem covers",
        covered > 0 and worst <= 1,
        source="theory",
    )


LINE = {1: ":", K: "--", K**2: "-"}
COLOUR = {"one": style.BLUE, "all": style.ORANGE}


def draw(done: list[Done], names: list[str]) -> Any:
    """A frame a data set."""
    with style.look():
        figure, axes = style.frames(1, len(names), width=4.6, height=3.9)
        for ax, name in zip(axes[0], names, strict=True):
            for sketches in ESTIMATORS:
                for shrink in SHRINK:
                    _curve(ax, select(done, name, sketches, shrink), sketches, shrink)
            ax.set_yscale("log")
            ax.set_title(name)
            ax.set_xlabel("Steps (one data point each)")
            ax.ticklabel_format(axis="x", style="sci", scilimits=(0, 4), useMathText=True)
        axes[0][0].set_ylabel(r"$(f_D(x) - f_D^{\inf})\,/\,(f_D(x^0) - f_D^{\inf})$")
        style.legend_below(figure, axes[0][0], 3)
        return figure


def _curve(ax: Any, curve: list[Done], sketches: str, shrink: int) -> None:
    colour, step = COLOUR[sketches], curve[0]["step"]
    label = f"${SYMBOL[sketches]}$, γ = {STEP_LABEL[shrink]}"
    style.band(ax, step, relative(curve), colour, label, LINE[shrink])
    bounds = [d["bound"] * d["smoothness"] / 2 / d["gap"][0] for d in curve]
    bound = np.mean(bounds, axis=0)
    if np.isfinite(bound).all():
        named = {"label": "bounds"} if (sketches, shrink) == ("all", K**2) else {}
        ax.plot(step, bound, color=style.GREY, linewidth=0.8, linestyle=LINE[shrink], **named)


EXPERIMENT = Experiment(
    name=NAME,
    title="The MAST loss along stochastic runs",
    datasets=("a5a", "a1a", "w8a"),
    cells=cells,
    findings=findings,
)
