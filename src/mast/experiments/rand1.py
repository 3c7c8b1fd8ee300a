"""Rand-1: exact gradient descent and DSGD on a1a, at 1, 10, 20 and 50 times the step size of theory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from mast.experiments import style
from mast.experiments.datasets import Dataset, logistic
from mast.experiments.experiment import (
    Claim,
    Experiment,
    Figure,
    Findings,
    Request,
    Results,
    median_and_range,
)
from mast.experiments.separable import CoordinateLosses, losses_at_stops, rand1_arrays, times_drawn
from mast.methods import guarantee
from mast.problem import Problem
from mast.sketches import RandK
from mast.support.cells import Cell, Done
from mast.support.checks import Array

KAPPA = 1000.0
MULTIPLES = (1, 10, 20, 50)  # of g0 = 1/(L_f L_max)
TARGET = 1e-2  # the relative gap that tells fast from slow
ROUNDING = 1e-14  # of a loss: gaps below it are zero
STALLED = 1e-3  # a relative gap above this, at a time when others are far below
SWEEP = tuple(round(float(m), 3) for m in np.geomspace(1, 60, 37))


def descend(config: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """f_D - f_D^inf along DSGD (one row per seed) or along exact gradient descent (one row)."""
    f = logistic(dataset, config["kappa"])
    problem = Problem(f, RandK(1))
    d, infimum = problem.dim, problem.infimum()
    phi = CoordinateLosses.of(f)
    stops = np.unique(np.concatenate([[0], np.geomspace(1, config["steps"], 160)]).astype(np.int64))
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
        counts = [times_drawn(d, seed, stops) for seed in range(config["seeds"])]
        values = phi.path(np.zeros(d), step_size * d**2, int(max(c.max() for c in counts)))
        gaps = np.array([losses_at_stops(values, c) for c in counts]) - infimum
        r0sq = float(np.sum(problem.minimizer() ** 2))
        bound = np.asarray(known.bound(step_size, stops, r0sq=r0sq)) * problem.smoothness / 2
    stable = {
        f"stable_{where}": 2 / (float(phi.curvatures(z).max()) * d**2) * (f.smoothness * d**2)
        for where, z in (("anywhere", np.zeros(d)), ("at_solution", d * problem.minimizer()))
    }
    return {"stops": stops, "gaps": gaps, "bound": bound, "step_size": step_size, "d": d, **stable}


def end_of_run(config: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """The relative gap after one run of DSGD with some multiple of g0."""
    f = logistic(dataset, config["kappa"])
    problem = Problem(f, RandK(1))
    d, infimum = problem.dim, problem.infimum()
    phi = CoordinateLosses.of(f)
    counts = times_drawn(d, config["seed"], np.array([config["steps"]]))
    path = phi.path(np.zeros(d), config["multiple"] / f.smoothness, int(counts.max()))
    gap = float(losses_at_stops(path, counts)[0]) - infimum
    return {"relative_gap": gap / (problem.value(np.zeros(d)) - infimum)}


def rand1_steps(dataset: Dataset) -> int:
    """Steps of DSGD: 8,000 for each coordinate, fewer where there are many or their losses are costly."""
    f = logistic(dataset, KAPPA)
    rand1_arrays(f.dim)  # refuses what cannot be drawn, before anything is computed
    groups = CoordinateLosses.of(f).owner.size
    return int(f.dim * max(50, min(8_000, 3_000_000 // f.dim, 500_000_000 // max(groups, 1))))


def rand1_curves(results: Results) -> dict[int, Done]:
    """The curves of one data set by their multiple of g0; exact descent is 0."""
    (exact,) = results.of(descend, method="gd")
    return {0: exact} | {m: results.of(descend, multiple=m)[0] for m in MULTIPLES}


def sweep_of(results: Results) -> tuple[Array, Array]:
    """Multiples of g0, and the relative gap at the end of each one's run, on one data set."""
    runs = sorted(results.of(end_of_run), key=lambda d: float(d["multiple"]))
    return np.array([d["multiple"] for d in runs]), np.array([d["relative_gap"] for d in runs])


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
    return np.where(reached.any(axis=1), curve["stops"][reached.argmax(axis=1)].astype(float), np.inf)


class Rand1(Experiment):
    """The paper's figure of Rand-1, with a prediction of where it becomes unstable."""

    name = "rand1"
    title = "Rand-1 sketches and the limit of the step size"
    datasets = ("a1a",)

    def cells(self, request: Request) -> list[Cell]:
        """Exact descent, the four curves of the figure, and the sweep over step sizes."""
        seeds = request.pick(fast=5, normal=10, full=100)
        multiples = SWEEP[::4] if request.effort == "fast" else SWEEP
        (data,) = request.datasets
        base = {"kappa": KAPPA, "steps": rand1_steps(data)}
        return [
            self.cell(descend, base | {"method": "gd"}, data),
            *self.grid(descend, data, 3.0, {"multiple": MULTIPLES}, method="dsgd", seeds=seeds, **base),
            *self.grid(end_of_run, data, 0.5, {"multiple": multiples}, seed=0, **base),
        ]

    def findings(self, request: Request, results: Results) -> Findings:
        """Figure, numbers and claims."""
        first = results.of(descend, multiple=1)[0]
        sweeps = results.of(end_of_run).frame(
            multiple_of_g0=lambda d: [d["multiple"]], final_relative_gap="relative_gap"
        )
        return Findings(
            lead="One random coordinate per step, times d. Theory allows the step size g0 = 1/(L_f L_max) = "
            "1/(L_f d²) against 1/(L_f L_D) = 1/(L_f d) for exact gradient descent on f_D. On this "
            "problem ten times g0 is faster, twenty times stalls, fifty times ends above its start; the "
            "limit in between is predicted by the curvature of single coordinates.",
            figures=[
                Figure(
                    "rand1",
                    "DSGD with Rand-1 sketches",
                    f"Left: the loss by steps; a step of exact descent (GD) costs d = {first['d']} sketched "
                    "gradients. Middle: the same by sketched gradients computed, where GD and γ0 coincide. "
                    f"Medians and ranges over {first['seeds']} seeds; "
                    "the thin line is the bound of Theorem 2. Right: where runs of all step sizes end; a "
                    "coordinate is stable while g d² φ_j'' < 2, with the curvature φ_j'' at its largest "
                    "(dotted) or at the solution (dashed).",
                    partial(draw_rand1, results),
                )
            ],
            tables={"rand1": rand1_table(results), "rand1_sweep": sweeps},
            claims=results.claims(rand1_claims),
            choices=[
                "The whole data set, condition number 1000, x0 = 0; f_D^inf is exact.",
                "The loss of a Rand-1 run is computed from how often each coordinate was drawn, which gives "
                "the same curve as running it; a test compares the two.",
            ],
        )


def rand1_table(results: Results) -> Any:
    """One row per measured point of the figure's curves."""
    return results.of(descend).frame(
        "method",
        multiple_of_g0=lambda d: d.cell.config.get("multiple", np.nan),
        step_size="step_size",
        seed=lambda d: np.repeat(np.arange(len(d["gaps"])), d["stops"].size),
        step=lambda d: np.tile(d["stops"], len(d["gaps"])),
        sketched_gradients=lambda d: np.tile(
            d["stops"] * (d["d"] if d["method"] == "gd" else 1), len(d["gaps"])
        ),
        gap=lambda d: d["gaps"].ravel(),
        relative_gap=lambda d: (d["gaps"] / d["gaps"][:, :1]).ravel(),
        bound_of_gap=lambda d: np.tile(d["bound"], len(d["gaps"])),
    )


def rand1_claims(results: Results) -> Iterator[Claim]:
    """What the paper says of this figure, decided for one data set."""
    curve = rand1_curves(results)
    end = {m: curve[m]["gaps"][:, -1] / curve[m]["gaps"][:, 0] for m in MULTIPLES}
    ends = {m: median_and_range(values, ".2g") for m, values in end.items()}
    fast, slow = steps_to(curve[10], TARGET), steps_to(curve[1], TARGET)
    last, after = observed_limit(*sweep_of(results))
    one = curve[1]
    anywhere, solution = one["stable_anywhere"], one["stable_at_solution"]
    mean_ratio = float(np.max(one["gaps"].mean(axis=0) / np.maximum(one["bound"], ROUNDING)))
    half = int(np.searchsorted(one["stops"], one["stops"][-1] // 2))
    halfway = one["gaps"][:, half] / one["gaps"][:, 0]
    yield Claim(
        "With the step size of theory, DSGD converges to the exact minimum of f_D",
        "the gap never stops falling: at the end it is below a tenth of that at half time, or zero "
        "to rounding",
        f"relative gap at the end {ends[1]}, at half time {np.median(halfway):.2g}",
        bool(np.all((end[1] < 0.1 * halfway) | (one["gaps"][:, -1] < ROUNDING))),
    )
    yield Claim(
        "Ten times the step size of theory is faster",
        f"steps until the relative gap is {TARGET:g}: fewer at 10 g0 than at g0, for each seed",
        f"{np.median(fast):.3g} against {np.median(slow):.3g}, {np.median(slow / fast):.2g} times fewer",
        bool((fast < slow).all()),
    )
    yield Claim(
        "Twenty times the step size of theory stalls",
        f"relative gap at the end above {STALLED:g}, where 10 g0 is below it",
        f"20 g0: {ends[20]}; 10 g0: {ends[10]}",
        bool((end[20] > STALLED).all() and (end[10] < STALLED).all()),
    )
    yield Claim(
        "Fifty times the step size of theory derails: it ends above its start",
        "relative gap at the end above 1",
        ends[50],
        bool((end[50] > 1).all()),
    )
    yield Claim(
        "The limit of stability is predicted by the curvature of single coordinates",
        "the largest multiple of g0 that converges lies between the limit by the largest curvature "
        "of each coordinate and the limit by its curvature at the solution (within a step of the sweep)",
        f"predicted {anywhere:.3g} to {solution:.3g}, observed {last:.3g} to {after:.3g}",
        anywhere <= after and last <= solution,
        source="beyond",
    )
    yield Claim(
        "Theorem 2 (with gap 0) bounds the run with step size g0",
        "largest ratio of the mean gap over seeds to the bound at most 1",
        f"{mean_ratio:.3g}",
        mean_ratio <= 1,
        source="theory",
    )


COLOUR = {0: style.BLACK, 1: style.BLUE, 10: style.GREEN, 20: style.ORANGE, 50: style.VERMILION}


def draw_rand1(results: Results) -> Any:
    """Curves by steps and by sketched gradients, and where all step sizes end."""
    figure, ((left, middle, right),) = style.frames(1, 3, width=4.3, height=3.7)
    curves = rand1_curves(results)
    _curves(left, curves, by_gradients=False)
    _curves(middle, curves, by_gradients=True)
    left.set(ylabel=style.RELATIVE_GAP, title=f"{results.datasets[0]}: by steps")
    middle.set(ylabel=style.RELATIVE_GAP, title="by sketched gradients")
    _sweep(right, curves[1], *sweep_of(results))
    style.legend_below(figure, left, 6)
    return figure


def _curves(ax: Any, curves: dict[int, Done], by_gradients: bool) -> None:
    labels = {0: r"GD, $1/(L_f L_D)$", 1: r"DSGD, $\gamma_0$"}
    for m, colour in COLOUR.items():
        curve, label = curves[m], labels.get(m, rf"${m}\,\gamma_0$")
        x = curve["stops"] * (curve["d"] if m == 0 else 1) if by_gradients else curve["stops"] + 1
        relative = np.maximum(curve["gaps"] / curve["gaps"][:, :1], 1e-16)
        style.band(ax, x, relative, colour, label)
        if np.isfinite(curve["bound"]).all():
            bound = curve["bound"] / curve["gaps"][0, 0]
            ax.plot(x, bound, color=style.GREY, linewidth=0.8, label="bound")
    ax.set_yscale("log")
    if by_gradients:
        ax.set_xlabel("Sketched gradients computed")
        ax.ticklabel_format(axis="x", style="sci", scilimits=(0, 4), useMathText=True)
    else:
        ax.set(xscale="log", xlabel="Steps + 1")
    ax.axhline(1, color=style.GREY, linewidth=0.6)


def _sweep(ax: Any, one: Done, multiples: Array, ends: Array) -> None:
    ax.plot(multiples, np.maximum(ends, 1e-16), "o-", color=style.PINK, markersize=3)
    for key, line, side, points in (("anywhere", ":", "right", -3), ("at_solution", "--", "left", 3)):
        limit = one[f"stable_{key}"]
        ax.axvline(limit, color=style.BLACK, linestyle=line, linewidth=1.1)
        place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "xytext": (points, -2)}
        ax.annotate(f"{limit:.3g}", (limit, 1), **place, ha=side, va="top", fontsize=8)
    ax.set(xscale="log", yscale="log")
    ax.set_xticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    ax.minorticks_off()
    ax.set(xlabel=r"Step size, in multiples of $\gamma_0$", ylabel="Relative gap at the end")
    ax.set_title("predicted and observed limit")
