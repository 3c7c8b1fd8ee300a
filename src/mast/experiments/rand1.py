"""Rand-1: exact gradient descent and DSGD on a1a, at 1, 10, 20 and 50 times the step size of theory.

The paper's figure, and beside it what decides it: coordinate j is stable while
g d² phi_j'' < 2, so the limit can be predicted, and a sweep over step sizes shows where it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mast.arrays import Array, Indices
from mast.experiments import rand1_figure
from mast.experiments.cells import Cell, Done
from mast.experiments.datasets import Dataset, logistic
from mast.experiments.findings import Claim, Experiment, Figure, Findings, Plan
from mast.experiments.separable import Coordinates, drawn, losses, units
from mast.methods import guarantee
from mast.problem import Problem
from mast.sketches import RandK

NAME, VERSION = "rand1", 1
KAPPA = 1000.0
MULTIPLES = (1, 10, 20, 50)  # of g0 = 1/(L_f L_max)
TARGET = 1e-2  # the relative gap that tells fast from slow
ROUNDING = 1e-14  # of a loss: gaps below it are zero
STALLED = 1e-3  # a relative gap above this, at a time when others are far below
SWEEP = tuple(round(float(m), 3) for m in np.geomspace(1, 60, 37))


def stops_of(steps: int) -> Indices:
    """The steps at which the loss is measured: 0, and evenly on a logarithmic scale."""
    return np.unique(np.concatenate([[0], np.geomspace(1, steps, 160)]).astype(np.int64))


def descend(config: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """f_D - f_D^inf along DSGD (one row a seed) or along exact gradient descent (one row)."""
    f = logistic(dataset, config["kappa"])
    problem = Problem(f, RandK(1))
    d, infimum = problem.dim, problem.infimum()
    phi = Coordinates.of(f)
    stops = stops_of(config["steps"])
    if config["method"] == "gd":
        stops = stops[stops <= config["steps"] // d]
        step_size = 1 / problem.smoothness
        values = phi.path(np.zeros(d), step_size * d, int(stops[-1]))
        gaps = values[stops].mean(axis=1)[None] - infimum
        limit, bound = step_size, np.full(stops.size, np.inf)
    else:
        known = guarantee(problem, "dsgd")
        limit = float(known.max_step_size())
        step_size = config["multiple"] * limit
        counts = [drawn(d, seed, stops) for seed in range(config["seeds"])]
        values = phi.path(np.zeros(d), step_size * d**2, int(max(c.max() for c in counts)))
        gaps = np.array([losses(values, c) for c in counts]) - infimum
        r0sq = float(np.sum(problem.minimizer() ** 2))
        bound = np.asarray(known.bound(step_size, stops, r0sq=r0sq)) * problem.smoothness / 2
    curvatures = {
        "anywhere": phi.largest_curvatures(),
        "at_solution": phi.curvatures(d * problem.minimizer()),
    }
    return {
        "stops": stops,
        "gaps": gaps,
        "bound": bound,
        "step_size": step_size,
        "d": d,
        **{
            f"stable_{where}": 2 / (float(c.max()) * d**2) * (f.smoothness * d**2)
            for where, c in curvatures.items()
        },
    }


def end_of_run(config: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """The relative gap after one run of DSGD with some multiple of g0."""
    f = logistic(dataset, config["kappa"])
    problem = Problem(f, RandK(1))
    d, infimum = problem.dim, problem.infimum()
    phi = Coordinates.of(f)
    counts = drawn(d, config["seed"], np.array([config["steps"]]))[0]
    gap = float(phi.end(np.zeros(d), config["multiple"] / f.smoothness, counts).mean()) - infimum
    return {"relative_gap": gap / (problem.value(np.zeros(d)) - infimum)}


def length(dataset: Dataset) -> int:
    """Steps of DSGD: 8,000 for each coordinate, fewer where there are many or their losses are costly."""
    f = logistic(dataset, KAPPA)
    units(f.dim)  # refuses what cannot be drawn, before anything is computed
    groups = Coordinates.of(f).owner.size
    return int(f.dim * max(50, min(8_000, 3_000_000 // f.dim, 500_000_000 // max(groups, 1))))


def cells(plan: Plan) -> list[Cell]:
    """Exact descent, the four curves of the figure, and the sweep over step sizes."""
    seeds = plan.pick(fast=5, normal=10, full=100)
    made = []
    for dataset in plan.datasets:
        base = {"kappa": KAPPA, "steps": length(dataset)}
        made.append(Cell(NAME, VERSION, descend, {**base, "method": "gd"}, dataset))
        made += [
            Cell(
                NAME,
                VERSION,
                descend,
                {**base, "method": "dsgd", "multiple": m, "seeds": seeds},
                dataset,
                3.0,
            )
            for m in MULTIPLES
        ]
        made += [
            Cell(NAME, VERSION, end_of_run, {**base, "multiple": m, "seed": 0}, dataset, 0.5)
            for m in (SWEEP[::4] if plan.effort == "fast" else SWEEP)
        ]
    return made


def curves(done: list[Done], name: str | None = None) -> list[Done]:
    """The cells that are curves, of one data set or of all."""
    return [d for d in done if d.cell.compute is descend and name in (None, d.cell.dataset.name)]


def find(done: list[Done], name: str, method: str, multiple: int = 0) -> Done:
    """One curve."""
    return next(
        d
        for d in curves(done, name)
        if d["method"] == method and (method == "gd" or d["multiple"] == multiple)
    )


def figure_curves(done: list[Done], name: str) -> dict[int, Done]:
    """The curves by their multiple of g0; exact descent is 0."""
    return {0: find(done, name, "gd"), **{m: find(done, name, "dsgd", m) for m in MULTIPLES}}


def swept(done: list[Done], name: str) -> tuple[Array, Array]:
    """Multiples of g0, and the relative gap at the end of each one's run."""
    mine = [d for d in done if d.cell.compute is end_of_run and d.cell.dataset.name == name]
    mine.sort(key=lambda d: d["multiple"])
    return np.array([d["multiple"] for d in mine]), np.array([d["relative_gap"] for d in mine])


def observed_limit(multiples: Array, ends: Array) -> tuple[float, float]:
    """The last multiple that converges (before any that does not), and the next one."""
    bad = np.flatnonzero(ends > STALLED)
    first = int(bad[0]) if bad.size else multiples.size
    after = float(multiples[first]) if first < multiples.size else np.inf
    return (float(multiples[first - 1]) if first else 0.0), after


def steps_to(curve: Done, target: float) -> Array:
    """The first measured step at which each seed's relative gap is below the target."""
    relative = curve["gaps"] / curve["gaps"][:, :1]
    reached = relative <= target
    first = np.where(reached.any(axis=1), reached.argmax(axis=1), -1)
    return np.where(first >= 0, curve["stops"][first].astype(float), np.inf)


def findings(plan: Plan, done: list[Done]) -> Findings:
    """Figure, numbers and claims."""
    names = [dataset.name for dataset in plan.datasets]
    first = find(done, names[0], "dsgd", 1)
    return Findings(
        lead=(
            "One random coordinate a step, times d. Theory allows the step size g0 = 1/(L_f L_max) = "
            "1/(L_f d²) against 1/(L_f L_D) = 1/(L_f d) for exact gradient descent on f_D. On this "
            "problem ten times g0 is faster, twenty times stalls, fifty times ends above its start; the "
            "limit in between is predicted by the curvature of single coordinates."
        ),
        figures=[
            Figure(
                "rand1",
                "DSGD with Rand-1 sketches",
                f"Left: the loss by steps; a step of exact descent (GD) costs d = {first['d']} sketched "
                f"gradients. Middle: the same by sketched gradients computed, where GD and γ0 coincide. "
                f"Medians and ranges over {first['seeds']} seeds; "
                "the thin line is the bound of Theorem 2. Right: where runs of all step sizes end; a "
                "coordinate is stable while g d² φ_j'' < 2, with the curvature φ_j'' at its largest "
                "(dotted) or at the solution (dashed).",
                lambda: rand1_figure.draw(
                    {name: figure_curves(done, name) for name in names},
                    {name: swept(done, name) for name in names},
                ),
            )
        ],
        tables={"rand1": table(done), "rand1_sweep": sweep_table(done, names)},
        claims=[claim for name in names for claim in claims(done, name)],
        choices=[
            "The whole data set, condition number 1000, x0 = 0; f_D^inf is exact.",
            "The loss of a Rand-1 run is computed from how often each coordinate was drawn, which gives "
            "the same curve as running it; a test compares the two.",
        ],
        configuration={
            "kappa": KAPPA,
            "multiples": MULTIPLES,
            "sweep": [float(m) for m in swept(done, names[0])[0]],
            "seeds": first["seeds"],
            "steps": {name: find(done, name, "gd")["steps"] for name in names},
        },
    )


def table(done: list[Done]) -> Any:
    """One row a measured point of the figure's curves."""
    import pandas

    parts = [
        pandas.DataFrame(
            {
                "dataset": d.cell.dataset.name,
                "method": d["method"],
                "multiple_of_g0": d.cell.config.get("multiple", np.nan),
                "step_size": d["step_size"],
                "seed": seed,
                "step": d["stops"],
                "sketched_gradients": d["stops"] * (d["d"] if d["method"] == "gd" else 1),
                "gap": gaps,
                "relative_gap": gaps / gaps[0],
                "bound_of_gap": d["bound"],
            }
        )
        for d in curves(done)
        for seed, gaps in enumerate(d["gaps"])
    ]
    return pandas.concat(parts, ignore_index=True)


def sweep_table(done: list[Done], names: list[str]) -> Any:
    """Where a run of each step size ends."""
    import pandas

    parts = []
    for name in names:
        multiples, ends = swept(done, name)
        parts.append(
            pandas.DataFrame({"dataset": name, "multiple_of_g0": multiples, "final_relative_gap": ends})
        )
    return pandas.concat(parts, ignore_index=True)


def claims(done: list[Done], name: str) -> list[Claim]:
    """What the paper says of this figure, decided."""
    curve = {m: find(done, name, "dsgd", m) for m in MULTIPLES}
    end = {m: d["gaps"][:, -1] / d["gaps"][:, 0] for m, d in curve.items()}
    fast, slow = steps_to(curve[10], TARGET), steps_to(curve[1], TARGET)
    last, after = observed_limit(*swept(done, name))
    anywhere, solution = curve[1]["stable_anywhere"], curve[1]["stable_at_solution"]
    mean_ratio = float(np.max(curve[1]["gaps"].mean(axis=0) / np.maximum(curve[1]["bound"], ROUNDING)))
    half = int(np.searchsorted(curve[1]["stops"], curve[1]["stops"][-1] // 2))
    halfway = curve[1]["gaps"][:, half] / curve[1]["gaps"][:, 0]

    def ends(m: int) -> str:
        return f"{np.median(end[m]):.2g} ({end[m].min():.2g} to {end[m].max():.2g})"

    return [
        Claim(
            "With the step size of theory, DSGD converges to the exact minimum of f_D",
            name,
            "the gap never stops falling: at the end it is below a tenth of that at half time, or zero "
            "to rounding",
            f"relative gap at the end {ends(1)}, at half time {np.median(halfway):.2g}",
            bool(np.all((end[1] < 0.1 * halfway) | (curve[1]["gaps"][:, -1] < ROUNDING))),
        ),
        Claim(
            "Ten times the step size of theory is faster",
            name,
            f"steps until the relative gap is {TARGET:g}: fewer at 10 g0 than at g0, for each seed",
            f"{np.median(fast):.3g} against {np.median(slow):.3g}, {np.median(slow / fast):.2g} times fewer",
            bool((fast < slow).all()),
        ),
        Claim(
            "Twenty times the step size of theory stalls",
            name,
            f"relative gap at the end above {STALLED:g}, where 10 g0 is below it",
            f"20 g0: {ends(20)}; 10 g0: {ends(10)}",
            bool((end[20] > STALLED).all() and (end[10] < STALLED).all()),
        ),
        Claim(
            "Fifty times the step size of theory derails: it ends above its start",
            name,
            "relative gap at the end above 1",
            ends(50),
            bool((end[50] > 1).all()),
        ),
        Claim(
            "The limit of stability is predicted by the curvature of single coordinates",
            name,
            "the largest multiple of g0 that converges lies between the limit by the largest curvature "
            "of each coordinate and the limit by its curvature at the solution (within a step of the sweep)",
            f"predicted {anywhere:.3g} to {solution:.3g}, observed {last:.3g} to {after:.3g}",
            anywhere <= after and last <= solution,
            source="beyond",
        ),
        Claim(
            "Theorem 2 (with gap 0) bounds the run with step size g0",
            name,
            "largest ratio of the mean gap over seeds to the bound at most 1",
            f"{mean_ratio:.3g}",
            mean_ratio <= 1,
            source="theory",
        ),
    ]


EXPERIMENT = Experiment(
    name=NAME,
    title="Rand-1 sketches and the limit of the step size",
    datasets=("a1a",),
    cells=cells,
    findings=findings,
)
