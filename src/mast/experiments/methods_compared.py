"""Methods: DSGD beside variance reduction, the distributed method and the baselines, on the same problems.

Beyond the paper, which states theorems about these methods and plots none of them. Each curve that
a theorem covers is drawn with its bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from mast.arrays import Array
from mast.experiments import methods_figures
from mast.experiments.cells import Cell, Done
from mast.experiments.datasets import Dataset, logistic
from mast.experiments.findings import Claim, Experiment, Figure, Findings, Plan
from mast.experiments.interpolation import several_partitions
from mast.objectives import Logistic
from mast.problem import Nodes, Problem
from mast.run import Result, minimize
from mast.sketches import PermK

NAME, VERSION = "methods", 1
KAPPA = 100.0
K, PARTITIONS, NODES = 4, 5, 4
POINTS = 120
REACHED = 1e-2

# name -> (problem, method, options, step size, steps); step sizes are multiples of theory's or of 1/L_f
RUNS: dict[str, tuple[str, str, dict[str, Any], tuple[str, float], int]] = {
    "GD": ("partitions", "gd", {}, ("theory", 1), 2_000),
    "DSGD": ("partitions", "dsgd", {}, ("theory", 1), 8_000),
    "L-SVRDSG": ("partitions", "l_svrdsg", {}, ("theory", 1), 8_000),
    "L-SVRDSG, 10 γ": ("partitions", "l_svrdsg", {}, ("theory", 10), 8_000),
    "S-PAGE": ("partitions", "s_page", {}, ("theory", 1), 3_000),
    "distributed, independent": ("nodes", "distributed", {"coupling": "independent"}, ("theory", 1), 8_000),
    "distributed, disjoint": ("nodes", "distributed", {"coupling": "disjoint"}, ("theory", 1), 8_000),
    "DSGD, one partition": ("one", "dsgd", {}, ("theory", 1), 8_000),
    "DCGD": ("one", "dcgd", {}, ("L", 1 / K**2), 8_000),
    "GDCI": ("one", "gdci", {}, ("L", 1 / K**2), 8_000),
    "naive IST": ("copies", "ist_naive", {}, ("L", NODES), 2_000),
    "naive IST, γ/4": ("copies", "ist_naive", {}, ("L", NODES / 4), 2_000),
}
COST = {"gd": 2, "l_svrdsg": 3, "s_page": 8, "ist_naive": 6}  # of a step, against DSGD's
BOUNDED = ("DSGD", "L-SVRDSG", "distributed, independent", "distributed, disjoint")
BASELINES = ("DSGD, one partition", "DCGD", "GDCI", "naive IST", "naive IST, γ/4")


def measured_steps(steps: int) -> list[int]:
    """Evenly spaced, and densely near the start, where averages over the run are made."""
    early = np.geomspace(1, steps, 2 * POINTS).astype(int).tolist()
    return sorted(
        {0, *range(min(steps, 20) + 1), *early, *np.linspace(0, steps, POINTS + 1).astype(int).tolist()}
    )


@lru_cache(maxsize=8)
def problem_of(kind: str, dataset: Dataset, kappa: float) -> Problem | Nodes:
    """The problems: one or several partitions, rows spread over nodes, or copies of all rows on each."""
    f = logistic(dataset, kappa)
    if kind == "partitions":
        return Problem(f, several_partitions(K, PARTITIONS))
    if kind == "one":
        return Problem(f, PermK(K))
    if kind == "copies":
        return Nodes([Problem(f, PermK(K)) for _ in range(NODES)])
    A, b = dataset.load()
    parts = [Logistic(A[i::NODES], b[i::NODES], l2=f.l2) for i in range(NODES)]
    return Nodes([Problem(part, PermK(K)) for part in parts])


def run(config: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """One run: f - f*, f_D - f_D^inf, squared gradients and distances, and the bound if there is one."""
    problem = problem_of(config["problem"], dataset, config["kappa"])
    f_star = logistic(dataset, config["kappa"]).infimum()
    steps, options = config["steps"], config["options"]
    unit, factor = config["step"]
    if unit == "theory":
        base = minimize(
            problem, config["method"], 0, "theory", trace=[0], progress=False, **options
        ).step_size
        assert isinstance(base, float)
    else:
        base = 1 / logistic(dataset, config["kappa"]).smoothness
    result = minimize(
        problem,
        config["method"],
        steps,
        factor * base,
        seed=config["seed"],
        trace=measured_steps(steps),
        progress=False,
        **options,
    )
    trace = result.trace
    return {
        "step": trace["step"].to_numpy(),
        "passes": trace["passes"].to_numpy(),
        "excess": trace["f"].to_numpy() - f_star,
        "gap": trace["f_D"].to_numpy() - result.infimum,
        "gradient_sq": trace["grad_sq"].to_numpy(),
        "distance_sq": trace["dist_sq"].to_numpy(),
        "bound": _bound(result, problem),
        "step_size": factor * base,
        "status": result.status,
    }


def _bound(result: Result, problem: Problem | Nodes) -> Array:
    """What the guarantee says along the run; infinite where it says nothing."""
    step = result.trace["step"].to_numpy()
    guarantee, size, start = result.guarantee, result.step_size, result.trace.iloc[0]
    nothing = np.full(step.size, np.inf)
    if guarantee is None or not isinstance(size, float):
        return nothing
    r0sq, delta0 = float(start["dist_sq"]), float(start["f_D"]) - result.infimum
    Psi0 = delta0
    if result.method == "l_svrdsg" and isinstance(problem, Problem):
        p = 1 / (K * PARTITIONS)  # the method's default, 1/N
        Psi0 = r0sq + 16 * size**2 / p * _spread_of_gradients(problem)
    with np.errstate(divide="ignore"):
        return np.asarray(guarantee.bound(size, step, r0sq=r0sq, delta0=delta0, Psi0=Psi0), dtype=np.float64)


def _spread_of_gradients(problem: Problem) -> float:
    """mean_i |grad f_Si(x0) - grad f_Si(x_D*)|² at x0 = v."""
    solution, x0 = problem.minimizer(), problem.shift
    total = 0.0
    for probability, draw in problem.sketch.support(problem.dim) or []:
        f_S = problem.at(draw)
        total += probability * float(np.sum((f_S.gradient(x0) - f_S.gradient(solution)) ** 2))
    return total


def cells(plan: Plan) -> list[Cell]:
    """One cell a data set, run and seed."""
    seeds, shorter = plan.pick(fast=1, normal=3, full=10), plan.pick(fast=6, normal=1, full=1)
    return [
        Cell(
            NAME,
            VERSION,
            run,
            {
                "name": name,
                "problem": kind,
                "method": method,
                "options": options,
                "step": list(step),
                "steps": steps // shorter,
                "seed": seed,
                "kappa": KAPPA,
            },
            dataset,
            cost=5e-4 * (steps // shorter) * COST.get(method, 1),
        )
        for dataset in plan.datasets
        for name, (kind, method, options, step, steps) in RUNS.items()
        for seed in range(1 if method in ("gd", "ist_naive") else seeds)
    ]


def select(done: list[Done], dataset: str, name: str) -> list[Done]:
    """The seeds of one run."""
    return [d for d in done if d.cell.dataset.name == dataset and d["name"] == name]


def ends(curve: list[Done], what: str) -> Array:
    """Where each seed settles: the median over the last tenth of the run, over its start."""
    last = curve[0]["step"] >= 0.9 * curve[0]["step"][-1]
    return np.array([np.median(d[what][last]) / d[what][0] for d in curve])


def _first_below(d: Done, target: float) -> float:
    """The first measured step at which the relative gap is below the target."""
    reached = np.flatnonzero(d["gap"] <= target * d["gap"][0])
    return float(d["step"][reached[0]]) if reached.size else np.inf


def findings(plan: Plan, done: list[Done]) -> Findings:
    """Figures, numbers and claims."""
    names = [dataset.name for dataset in plan.datasets]
    runs = {(data, name): select(done, data, name) for data in names for name in RUNS}
    return Findings(
        lead=(
            "The methods of the paper beyond plain DSGD, and three baselines that sketch the gradient "
            "only (DCGD), the iterate (GDCI), or train unscaled submodels (naive IST). Where f_D does "
            "not split into blocks, DSGD stops at a noise floor and variance reduction goes through it."
        ),
        figures=[
            *(
                Figure(
                    f"methods_{name}",
                    f"Methods and their bounds ({name})",
                    f"f_D of one block (K = {K}) of one of {PARTITIONS} partitions. Left: the loss, each "
                    "method at the step size of its theorem, and L-SVRDSG at ten times that. Middle: "
                    f"squared distances with the bounds of Theorems 2, 17 and 15 (dashed); the "
                    f"distributed method has its own f_D over {NODES} nodes. Right: "
                    "S-PAGE's squared gradients, averaged over the run, with the bound of Theorem 20.",
                    lambda name=name: methods_figures.methods(runs, name),  # type: ignore[misc]
                )
                for name in names
            ),
            *(
                Figure(
                    f"baselines_{name}",
                    f"Baselines, on f and on f_D ({name})",
                    f"Perm-{K} with one partition. DSGD solves the MAST problem f_D; DCGD solves the "
                    "plain problem f; GDCI solves neither; naive IST stops at another point, the same "
                    "for both step sizes: a bias, not noise.",
                    lambda name=name: methods_figures.baselines(runs, name),  # type: ignore[misc]
                )
                for name in names
            ),
        ],
        tables={"methods": table(done)},
        claims=[claim for name in names for claim in claims(runs, name)],
        choices=[
            "x0 = 0, condition number 100, the whole data set. DCGD and GDCI have no statement here: "
            "they run at 1/(L_f K²), DSGD's limit; naive IST at M/L_f and M/(4 L_f), M nodes that each "
            "hold all rows.",
            "L-SVRDSG: all N sketches at a refresh, which comes with probability 1/N; S-PAGE: its "
            "default batches.",
            "Larger data sets are left out by default, because a step of these methods sweeps over all rows; "
            "--dataset runs them on any.",
        ],
        configuration={
            "K": K,
            "partitions": PARTITIONS,
            "nodes": NODES,
            "kappa": KAPPA,
            "seeds": seeds_of(done),
        },
    )


def seeds_of(done: list[Done]) -> list[int]:
    """The seeds that were run."""
    return sorted({d["seed"] for d in done})


def table(done: list[Done]) -> Any:
    """One row a measured point."""
    import pandas

    columns = ("step", "passes", "excess", "gap", "gradient_sq", "distance_sq", "bound")
    parts = [
        pandas.DataFrame(
            {"dataset": d.cell.dataset.name, "run": d["name"], "step_size": d["step_size"], "seed": d["seed"]}
            | {name: d[name] for name in columns}
        )
        for d in done
    ]
    return pandas.concat(parts, ignore_index=True)


def claims(runs: dict[tuple[str, str], list[Done]], name: str) -> list[Claim]:
    """What theory and the paper's text say of these methods."""
    end = {run: ends(runs[name, run], "gap") for run in RUNS}
    excess = {run: ends(runs[name, run], "excess") for run in BASELINES}
    middle = {run: float(np.median(values)) for run, values in end.items()}
    worst = {}
    for run in BOUNDED:
        curve = runs[name, run]
        mean, bound = (np.mean([d[what] for d in curve], axis=0) for what in ("distance_sq", "bound"))
        worst[run] = float(np.max(mean / np.maximum(bound, 1e-20)))
    page = runs[name, "S-PAGE"]
    averaged = np.mean([methods_figures.running_mean(d) for d in page], axis=0)
    worst["S-PAGE"] = float(np.max(averaged[1:] / np.mean([d["bound"] for d in page], axis=0)[1:]))
    sizes = {run: runs[name, run][0]["step_size"] for run in RUNS}
    rounds = {
        run: float(np.median([_first_below(d, REACHED) for d in runs[name, run]])) for run in BOUNDED[2:]
    }
    bias = [float(end[run][0]) for run in ("naive IST", "naive IST, γ/4")]
    return [
        Claim(
            "Every curve lies below the bound of its theorem",
            name,
            "largest ratio of the mean over seeds to the bound at most 1",
            ", ".join(f"{run} {value:.3g}" for run, value in worst.items()),
            max(worst.values()) <= 1,
            source="theory",
        ),
        Claim(
            "Variance reduction removes the noise floor of DSGD",
            name,
            "final relative gap of L-SVRDSG (ten times its theory's step size) below a tenth of DSGD's",
            f"{middle['L-SVRDSG, 10 γ']:.1e} against {middle['DSGD']:.1e} ({end['DSGD'].min():.1e} to "
            f"{end['DSGD'].max():.1e})",
            middle["L-SVRDSG, 10 γ"] < 0.1 * middle["DSGD"],
            source="beyond",
        ),
        Claim(
            "Nodes with disjoint blocks may take longer steps than independent ones, and are faster",
            name,
            f"larger step size of theory, and fewer rounds until the relative gap is {REACHED:g}",
            f"step sizes {sizes['distributed, disjoint']:.3g} and "
            f"{sizes['distributed, independent']:.3g}; rounds {rounds['distributed, disjoint']:.0f} and "
            f"{rounds['distributed, independent']:.0f}",
            sizes["distributed, disjoint"] > sizes["distributed, independent"]
            and rounds["distributed, disjoint"] < rounds["distributed, independent"],
            source="beyond",
        ),
        Claim(
            "DSGD solves the MAST problem, and not the plain one",
            name,
            "relative gap on f_D below 1e-6, on f above 1e-3",
            f"{middle['DSGD, one partition']:.1e} on f_D, {np.median(excess['DSGD, one partition']):.1e} "
            "on f",
            middle["DSGD, one partition"] < 1e-6 and float(np.median(excess["DSGD, one partition"])) > 1e-3,
        ),
        Claim(
            "Sketching the gradient only (DCGD) solves the plain problem, and not the MAST problem",
            name,
            "relative gap on f below 1e-6, on f_D above 1e-3",
            f"{np.median(excess['DCGD']):.1e} on f, {middle['DCGD']:.1e} on f_D",
            float(np.median(excess["DCGD"])) < 1e-6 and middle["DCGD"] > 1e-3,
            source="beyond",
        ),
        Claim(
            "Sketching the iterates (GDCI) stops at a neighbourhood of neither solution",
            name,
            "relative gaps on f and on f_D above 1e-3",
            f"{np.median(excess['GDCI']):.2g} on f, {middle['GDCI']:.2g} on f_D",
            float(np.median(excess["GDCI"])) > 1e-3 and middle["GDCI"] > 1e-3,
        ),
        Claim(
            "Naive independent subnetwork training is biased: unscaled submodels lead elsewhere",
            name,
            "its relative gap on f_D stays above 1e-3, and is the same (to 1 %) with a quarter of the "
            "step size",
            f"f_D: {bias[0]:.3g} and {bias[1]:.3g}; f: {float(excess['naive IST'][0]):.3g}",
            min(bias) > 1e-3 and abs(bias[0] - bias[1]) <= 0.01 * bias[0],
        ),
    ]


EXPERIMENT = Experiment(
    name=NAME,
    title="Other methods on the same problems",
    datasets=("a1a",),
    cells=cells,
    findings=findings,
)
