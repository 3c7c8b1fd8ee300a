"""Methods: DSGD beside variance reduction, the distributed method and the baselines, on the same problems.

Beyond the paper, which states theorems about these methods and plots none of them. Each curve that
a theorem covers is drawn with its bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from mast.experiments import style
from mast.experiments.datasets import Dataset, logistic
from mast.experiments.experiment import (
    Claim,
    Experiment,
    Findings,
    Request,
    Results,
    median_and_range,
    trace_arrays,
)
from mast.experiments.interpolation import several_partitions
from mast.objectives import Logistic
from mast.problem import Nodes, Problem
from mast.run import minimize
from mast.sketches import PermK
from mast.support.cells import Cell, Done
from mast.support.checks import Array
from studies.command import main

KAPPA = 100.0
K, PARTITIONS, NODES = 4, 5, 4
POINTS = 120
REACHED = 1e-2


class Contender(NamedTuple):
    """A run: its problem (see `problem_of`), method, step size, length, and how it is drawn."""

    problem: str
    method: str
    step: tuple[str, float]  # a multiple of theory's step size, or of 1/L_f
    steps: int
    colour: str
    line: str = "-"
    options: Mapping[str, Any] = {}


RUNS = {
    "GD": Contender("partitions", "gd", ("theory", 1), 2_000, style.BLACK),
    "DSGD": Contender("partitions", "dsgd", ("theory", 1), 8_000, style.BLUE),
    "L-SVRDSG": Contender("partitions", "l_svrdsg", ("theory", 1), 8_000, style.GREEN),
    "L-SVRDSG, 10 γ": Contender("partitions", "l_svrdsg", ("theory", 10), 8_000, style.GREEN, "-."),
    "S-PAGE": Contender("partitions", "s_page", ("theory", 1), 3_000, style.ORANGE),
    "distributed, independent": Contender(
        "nodes", "distributed", ("theory", 1), 8_000, style.PINK, options={"coupling": "independent"}
    ),
    "distributed, disjoint": Contender(
        "nodes", "distributed", ("theory", 1), 8_000, style.VERMILION, options={"coupling": "disjoint"}
    ),
    "DSGD, one partition": Contender("one", "dsgd", ("theory", 1), 8_000, style.BLUE),
    "DCGD": Contender("one", "dcgd", ("L", 1 / K**2), 8_000, style.ORANGE),
    "GDCI": Contender("one", "gdci", ("L", 1 / K**2), 8_000, style.GREEN),
    "naive IST": Contender("copies", "ist_naive", ("L", NODES), 2_000, style.VERMILION),
    "naive IST, γ/4": Contender("copies", "ist_naive", ("L", NODES / 4), 2_000, style.BLACK, "--"),
}
COST = {"gd": 2, "l_svrdsg": 3, "s_page": 8, "ist_naive": 6}  # of a step, against DSGD's
BOUNDED = ("DSGD", "L-SVRDSG", "distributed, independent", "distributed, disjoint")
BASELINES = ("DSGD, one partition", "DCGD", "GDCI", "naive IST", "naive IST, γ/4")


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
    """One run: what its trace measures, f - f*, and the bound if there is one."""
    f = logistic(dataset, config["kappa"])
    problem = problem_of(config["problem"], dataset, config["kappa"])
    method, steps, (unit, factor) = config["method"], config["steps"], config["step"]
    options = {"seed": config["seed"], "progress": False, **config["options"]}
    start = minimize(problem, method, 0, **options) if unit == "theory" else None
    base = 1 / f.smoothness if start is None else start.step_size
    assert isinstance(base, float)
    # densely near the start, where averages over the run are made
    points = range(min(steps, 20) + 1), np.geomspace(1, steps, 2 * POINTS), np.linspace(0, steps, POINTS + 1)
    trace = np.concatenate(points).astype(int)
    result = minimize(problem, method, steps, factor * base, trace=trace, **options)
    Psi0 = None
    if method == "l_svrdsg" and isinstance(problem, Problem):
        p = 1 / (K * PARTITIONS)  # the method's default, 1/N
        r0sq = float(result.trace["dist_sq"].iloc[0])
        Psi0 = r0sq + 16 * (factor * base) ** 2 / p * spread_of_gradients(problem)
    of_run = trace_arrays(result, Psi0)
    return of_run | {"excess": of_run["loss"] - f.infimum()}


def spread_of_gradients(problem: Problem) -> float:
    """mean_i |grad f_Si(x0) - grad f_Si(x_D*)|² at x0 = v."""
    solution, x0 = problem.minimizer(), problem.shift
    total = 0.0
    for probability, draw in problem.sketch.support(problem.dim) or []:
        f_S = problem.at(draw)
        total += probability * float(np.sum((f_S.gradient(x0) - f_S.gradient(solution)) ** 2))
    return total


class Methods(Experiment):
    """All methods on the same problems; larger data sets are left to --dataset."""

    name = "methods"
    title = "Other methods on the same problems"
    datasets = ("a1a",)

    def cells(self, request: Request) -> list[Cell]:
        """One cell per run and seed."""
        seeds, shorter = request.pick(fast=1, normal=3, full=10), request.pick(fast=6, normal=1, full=1)
        (dataset,), cells = request.datasets, []
        for name, c in RUNS.items():
            steps, options = c.steps // shorter, dict(c.options)
            seconds = 5e-4 * steps * COST.get(c.method, 1)
            varied = {"seed": range(1 if c.method in ("gd", "ist_naive") else seeds)}
            fixed = {"problem": c.problem, "method": c.method, "options": options, "step": list(c.step)}
            cells += self.grid(run, dataset, seconds, varied, name=name, **fixed, steps=steps, kappa=KAPPA)
        return cells

    def findings(self, request: Request, results: Results) -> Findings:
        """Figures, numbers and claims."""
        return Findings(
            lead="The methods of the paper beyond plain DSGD, and three baselines that sketch the gradient "
            "only (DCGD), the iterate (GDCI), or train unscaled submodels (naive IST). Where f_D does "
            "not split into blocks, DSGD stops at a noise floor and variance reduction goes through it.",
            figures=[
                *results.figures(
                    "methods",
                    "Methods and their bounds",
                    f"f_D of one block (K = {K}) of one of {PARTITIONS} partitions. Left: the loss, each "
                    "method at the step size of its theorem, and L-SVRDSG at ten times that. Middle: "
                    "squared distances with the bounds of Theorems 2, 17 and 15 (dashed); the "
                    f"distributed method has its own f_D over {NODES} nodes. Right: "
                    "S-PAGE's squared gradients, averaged over the run, with the bound of Theorem 20.",
                    draw_methods,
                ),
                *results.figures(
                    "baselines",
                    "Baselines, on f and on f_D",
                    f"Perm-{K} with one partition. DSGD solves the MAST problem f_D; DCGD solves the "
                    "plain problem f; GDCI solves neither; naive IST stops at another point, the same "
                    "for both step sizes: a bias, not noise.",
                    draw_baselines,
                ),
            ],
            tables={"methods": method_table(results)},
            claims=results.claims(method_claims),
            choices=[
                "x0 = 0, condition number 100, the whole data set. DCGD and GDCI have no statement here: "
                "they run at 1/(L_f K²), DSGD's limit; naive IST at M/L_f and M/(4 L_f), M nodes that each "
                "hold all rows.",
                "L-SVRDSG: all N sketches at a refresh, which comes with probability 1/N; S-PAGE: its "
                "default batches.",
                "Larger data sets are left out by default, because a step of these methods sweeps over all "
                "rows; --dataset runs them on any.",
            ],
        )


def method_table(results: Results) -> Any:
    """One row per measured point."""
    measured = ("step", "passes", "excess", "gap", "gradient_sq", "distance_sq", "bound")
    return results.frame(run="name", step_size="step_size", seed="seed", **{name: name for name in measured})


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


def method_claims(results: Results) -> Iterator[Claim]:
    """What theory and the paper's text say of these methods."""
    curves = {run: results.of(name=run) for run in RUNS}
    end = {run: ends(curve, "gap") for run, curve in curves.items()}
    middle = {run: float(np.median(values)) for run, values in end.items()}
    excess = {run: float(np.median(ends(curves[run], "excess"))) for run in BASELINES}
    worst = {
        run: float(np.max(curves[run].mean("distance_sq") / np.maximum(curves[run].mean("bound"), 1e-20)))
        for run in BOUNDED
    }
    page = curves["S-PAGE"]
    averaged = np.mean([running_mean(d) for d in page], axis=0)
    worst["S-PAGE"] = float(np.max(averaged[1:] / page.mean("bound")[1:]))
    independent, disjoint = (curves[f"distributed, {kind}"] for kind in ("independent", "disjoint"))
    rounds = [float(np.median([first_below(d, REACHED) for d in c])) for c in (disjoint, independent)]
    sizes = [c[0]["step_size"] for c in (disjoint, independent)]
    bias = [float(end[run][0]) for run in ("naive IST", "naive IST, γ/4")]
    yield Claim(
        "Every curve lies below the bound of its theorem",
        "largest ratio of the mean over seeds to the bound at most 1",
        [["run", "largest ratio"], *([run, f"{value:.3g}"] for run, value in worst.items())],
        max(worst.values()) <= 1,
        source="theory",
    )
    yield Claim(
        "Variance reduction removes the noise floor of DSGD",
        "final relative gap of L-SVRDSG (ten times its theory's step size) below a tenth of DSGD's",
        f"{middle['L-SVRDSG, 10 γ']:.1e} against {median_and_range(end['DSGD'], '.1e')}",
        middle["L-SVRDSG, 10 γ"] < 0.1 * middle["DSGD"],
        source="beyond",
    )
    yield Claim(
        "Nodes with disjoint blocks may take longer steps than independent ones, and are faster",
        f"larger step size of theory, and fewer rounds until the relative gap is {REACHED:g}",
        f"step sizes {sizes[0]:.3g} and {sizes[1]:.3g}; rounds {rounds[0]:.0f} and {rounds[1]:.0f}",
        sizes[0] > sizes[1] and rounds[0] < rounds[1],
        source="beyond",
    )
    yield Claim(
        "DSGD solves the MAST problem, and not the plain one",
        "relative gap on f_D below 1e-6, on f above 1e-3",
        f"{middle['DSGD, one partition']:.1e} on f_D, {excess['DSGD, one partition']:.1e} on f",
        middle["DSGD, one partition"] < 1e-6 and excess["DSGD, one partition"] > 1e-3,
    )
    yield Claim(
        "Sketching the gradient only (DCGD) solves the plain problem, and not the MAST problem",
        "relative gap on f below 1e-6, on f_D above 1e-3",
        f"{excess['DCGD']:.1e} on f, {middle['DCGD']:.1e} on f_D",
        excess["DCGD"] < 1e-6 and middle["DCGD"] > 1e-3,
        source="beyond",
    )
    yield Claim(
        "Sketching the iterates (GDCI) stops at a neighbourhood of neither solution",
        "relative gaps on f and on f_D above 1e-3",
        f"{excess['GDCI']:.2g} on f, {middle['GDCI']:.2g} on f_D",
        excess["GDCI"] > 1e-3 and middle["GDCI"] > 1e-3,
    )
    yield Claim(
        "Naive independent subnetwork training is biased: unscaled submodels lead elsewhere",
        "its relative gap on f_D stays above 1e-3, and is the same (to 1 %) with a quarter of the step size",
        f"f_D: {bias[0]:.3g} and {bias[1]:.3g}; f: {excess['naive IST']:.3g}",
        min(bias) > 1e-3 and abs(bias[0] - bias[1]) <= 0.01 * bias[0],
    )


LOWEST = 1e-16


def draw_methods(results: Results) -> Any:
    """Losses; distances with bounds; S-PAGE's gradients with their bound."""
    figure, ((left, middle, right),) = style.frames(1, 3, width=4.6, height=4.0)
    for run in ("GD", "DSGD", "L-SVRDSG", "L-SVRDSG, 10 γ", "S-PAGE"):
        _curve(left, run, curve := results.of(name=run), curve.relative("gap"))
    left.set(title=f"{results.datasets[0]}: loss", ylabel=style.RELATIVE_GAP)
    for run in BOUNDED:
        _curve(middle, run, curve := results.of(name=run), curve.relative("distance_sq"))
        bound = np.mean([d["bound"] / d["distance_sq"][0] for d in curve], axis=0)
        middle.plot(curve[0]["step"], bound, "--", color=RUNS[run].colour, linewidth=0.9)
    middle.set(title="distance, and bounds", ylabel=style.RELATIVE_DISTANCE)
    page = results.of(name="S-PAGE")
    _curve(right, "S-PAGE", page, np.array([running_mean(d) for d in page]))
    step, bound = page[0]["step"][1:], page.mean("bound")[1:]
    right.plot(step, bound, "--", color=RUNS["S-PAGE"].colour, linewidth=0.9, label="bound")
    right.set(title="S-PAGE: mean squared gradient", ylabel=r"Mean over the run of $|\nabla f_D(x)|^2$")
    middle.set_ylim(bottom=1e-6)  # room for the legend
    for ax, place in ((left, "lower right"), (middle, "lower right"), (right, "upper right")):
        ax.set_xlabel("Steps")
        ax.legend(loc=place)
    return figure


def draw_baselines(results: Results) -> Any:
    """DSGD beside the baselines: what each does to f and to f_D."""
    figure, (row,) = style.frames(1, 2, width=5.2, height=3.9)
    for ax, what, title in zip(row, ("excess", "gap"), ("plain loss f", r"MAST loss $f_D$"), strict=True):
        for run in BASELINES:
            _curve(ax, run, curve := results.of(name=run), curve.relative(what))
        ax.set(title=f"{results.datasets[0]}: {title}", xlabel="Steps")
    row[0].set_ylabel(r"$(f(x) - f^\star)\,/\,(f(x^0) - f^\star)$")
    row[1].set_ylabel(style.RELATIVE_GAP)
    style.legend_below(figure, row[0], 5)
    return figure


def _curve(ax: Any, run: str, curve: Results, rows: Array) -> None:
    label = run.removesuffix(", one partition")
    style.band(ax, curve[0]["step"], np.maximum(rows, LOWEST), RUNS[run].colour, label, RUNS[run].line)
    ax.set_yscale("log")


if __name__ == "__main__":
    main("studies.methods.Methods")
