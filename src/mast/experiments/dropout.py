"""Dropout: the unbiased sketch, which scales what it keeps by 1/p, against the original, which does not.

The setup of `neural`, whose runs are used again. The loss is f at x, as in the paper; the original
dropout multiplies weights by p when it evaluates, and that loss, f at p x, is drawn too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from mast.experiments import neural, neural_figures, neural_runs, style
from mast.experiments.cells import Cell, Done
from mast.experiments.findings import Claim, Experiment, Figure, Findings, Plan
from mast.experiments.neural_data import find
from mast.experiments.neural_runs import Curve, curve

NAME, VERSION = "dropout", 2
KEEPS = (0.7, 0.9)
STEP_SIZES = (0.05, 0.5, 1.0)
KINDS = ("unbiased", "biased", "biased, times p")


def cells(plan: Plan) -> list[Cell]:
    """The runs of the original dropout, after those of `neural` with the same keep probabilities."""
    return [
        *neural_runs.cells(plan, KEEPS),
        *(
            neural_runs.run_cell(NAME, VERSION, plan, dataset, keep, seed, STEP_SIZES, scaled=False)
            for dataset in plan.datasets
            for keep in KEEPS
            for seed in range(neural_runs.seeds(plan))
        ),
    ]


def curve_of(done: Sequence[Done], name: str, kind: str, keep: float, step_size: float) -> Curve:
    """One of the three curves of a frame."""
    if kind != "biased, times p":
        return curve(done, name, keep, step_size, scaled=kind == "unbiased")
    mine = [d for d in done if d.cell.dataset.name == name and d["keep"] == keep and not d["scaled"]]
    place = mine[0]["step_sizes"].index(step_size)
    return Curve(mine[0]["round"].astype(float), np.array([d["loss_at_keep"][place] for d in mine]))


def findings(plan: Plan, done: list[Done]) -> Findings:
    """Figure, numbers and claims."""
    names = [dataset.name for dataset in plan.datasets]
    count = neural_runs.seeds(plan)
    over = f"Median over {count} seeds, with the range of all seeds" if count > 1 else "One seed"
    return Findings(
        lead=(
            "Sketches with the scale 1/p are unbiased; the original dropout keeps weights as they are, and "
            "so trains a smaller network than the one whose loss is measured. Same network, data, nodes and "
            "masks as in the neural experiment."
        ),
        figures=[
            Figure(
                f"dropout_{name}",
                f"Unbiased and original dropout ({name})",
                f"{over}. Unbiased and biased: f at x. Dotted: the biased runs evaluated as the original "
                "dropout does, with all weights multiplied by p.",
                lambda name=name: draw(done, name),  # type: ignore[misc]
            )
            for name in names
        ],
        tables={"dropout": neural.table(done), "dropout_levels": level_table(done, names)},
        claims=[claim for name in names for claim in claims(done, name)],
        choices=[
            "The setup is that of the neural experiment, whose choices stand there. Both kinds see "
            "the same masks.",
            "“Original” is UnscaledBernoulli: forward pass and gradient with the 0/1 mask, no scale. In "
            "exact arithmetic p times its iterates are those of the unbiased sketch with the step size p² γ, "
            "started at p times the start; so at p x the two differ in their step size only.",
            "The paper calls keep .7 the lower sparsity and .9 the higher; it is the other way round, and "
            "the claim is decided for what it names: keep .7 against keep .9.",
        ],
        configuration={
            "keep": list(KEEPS),
            "step_sizes": list(STEP_SIZES),
            "seeds": count,
            "nodes": neural_runs.NODES,
            "hidden": neural_runs.HIDDEN,
        },
    )


def claims(done: Sequence[Done], name: str) -> list[Claim]:
    """What the paper says of this figure, and what evaluation at p x changes."""
    level = {
        (kind, k, s): curve_of(done, name, kind, k, s).level
        for kind in KINDS
        for k in KEEPS
        for s in STEP_SIZES
    }
    noise = {
        (kind, k, s): float(np.median(curve_of(done, name, kind, k, s).fluctuations))
        for kind in KINDS[:2]
        for k in KEEPS
        for s in STEP_SIZES
    }
    grid = [(k, s) for k in KEEPS for s in STEP_SIZES]
    ratio = {(k, s): level["biased", k, s] / level["unbiased", k, s] for k, s in grid}
    fair = {(k, s): level["biased, times p", k, s] / level["unbiased", k, s] for k, s in grid}
    steps = [
        (noise[d, k, a], noise[d, k, b]) for d in KINDS[:2] for k in KEEPS for a, b in pairwise(STEP_SIZES)
    ]
    ordered = sum(b > a for a, b in steps)
    return [
        Claim(
            "The unbiased sketch reaches a lower loss than the original dropout, always",
            name,
            "lower median level at each of the six pairs of keep and step size",
            _said("biased over unbiased", ratio),
            all(r > 1 for r in ratio.values()),
        ),
        Claim(
            "The difference is larger at keep .7 than at keep .9",
            name,
            "the ratio of the levels is larger, at each of the three step sizes",
            _said("biased over unbiased", ratio),
            all(ratio[0.7, s] > ratio[0.9, s] for s in STEP_SIZES),
        ),
        Claim(
            "Longer steps make the loss of both fluctuate more",
            name,
            "deviation of log f from its trend in the last quarter, larger at the longer of neighbouring "
            "step sizes",
            f"{ordered} of {len(steps)} neighbours; "
            + "; ".join(
                f"{d}, keep {k:g}: " + ", ".join(f"{noise[d, k, s]:.2g}" for s in STEP_SIZES)
                for d in KINDS[:2]
                for k in KEEPS
            ),
            ordered == len(steps),
        ),
        Claim(
            "The unbiased sketch is lower also where the original dropout is evaluated as was meant, at p x",
            name,
            "lower median level at each of the six pairs of keep and step size",
            _said("biased at p x over unbiased", fair),
            all(r > 1 for r in fair.values()),
            source="beyond",
        ),
    ]


def _said(what: str, ratios: dict[tuple[float, float], float]) -> str:
    listed = "; ".join(
        f"keep {k:g}: " + ", ".join(f"{ratios[k, s]:.2f} (γ = {s:g})" for s in STEP_SIZES) for k in KEEPS
    )
    return f"{what}, {listed}"


def level_table(done: Sequence[Done], names: Sequence[str]) -> Any:
    """Where each curve ends."""
    import pandas

    rows = []
    for name in names:
        for kind in KINDS:
            for k in KEEPS:
                for s in STEP_SIZES:
                    c = curve_of(done, name, kind, k, s)
                    row = {"dataset": name, "kind": kind, "keep": k, "step_size": s, "level": c.level}
                    row |= {"lowest": c.levels.min(), "highest": c.levels.max()}
                    rows.append(row | {"fluctuation": float(np.median(c.fluctuations))})
    return pandas.DataFrame(rows)


LOOK = {
    "unbiased": (style.PINK, "-"),
    "biased": (style.VERMILION, "--"),
    "biased, times p": (style.GREY, ":"),
}


def draw(done: Sequence[Done], name: str) -> Any:
    """A row a keep probability, a column a step size."""
    with style.look():
        figure, axes = style.frames(
            len(KEEPS), len(STEP_SIZES), width=3.8, height=3.0, sharex=True, sharey=True
        )
        begin = 0.0
        for row, k in zip(axes, KEEPS, strict=True):
            for ax, s in zip(row, STEP_SIZES, strict=True):
                for kind, (colour, line) in LOOK.items():
                    c = curve_of(done, name, kind, k, s)
                    neural_figures.show(ax, c, colour, kind, line)
                    begin = max(begin, float(c.loss[:, 0].max()))
                ax.set_title(f"{name}: keep {k:g}, γ = {s:g}")
                neural_figures.log_losses(ax)
            row[0].set_ylabel("loss $f$ (S = I)")
        axes[0][0].set_ylim(top=neural_figures.CEILING * begin)
        for ax in axes[-1]:
            ax.set_xlabel("Rounds")
        style.legend_below(figure, axes[0][0], 3)
        return figure


EXPERIMENT = Experiment(
    name=NAME,
    title="Unbiased sketches and the original dropout",
    datasets=("digits",),
    fast_datasets=("digits",),
    cells=cells,
    findings=findings,
    find=find,
)
