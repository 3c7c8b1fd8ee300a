"""Dropout: the unbiased sketch, which scales what it keeps by 1/p, against the original, which does not.

The setup of `neural`, whose runs are used again. The loss is f at x, as in the paper; the original
dropout multiplies weights by p when it evaluates, and that loss, f at p x, is drawn too.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from typing import Any

import numpy as np
import pandas

from mast.experiments import style
from mast.experiments.experiment import Claim, Findings, Request, Results, Table
from mast.experiments.neural import runs
from mast.experiments.neural.runs import Curve, curve
from mast.experiments.neural.study import CEILING, Neural, log_losses, over_seeds, show
from mast.support.cells import Cell

KEEPS = (0.7, 0.9)
STEP_SIZES = (0.05, 0.5, 1.0)
KINDS = ("unbiased", "biased", "biased, times p")


class Dropout(Neural):
    """Unbiased sketches and the original dropout, with the runs of `neural` for the former."""

    name = "dropout"
    title = "Unbiased sketches and the original dropout"

    def cells(self, request: Request) -> list[Cell]:
        """The runs of the original dropout, after those of `neural` with the same keep probabilities."""
        unbiased = runs.training_cells(Neural(), request, KEEPS, runs.STEP_SIZES)
        return unbiased + runs.training_cells(self, request, KEEPS, STEP_SIZES, scaled=False)

    def findings(self, request: Request, results: Results) -> Findings:
        """Figure, numbers and claims."""
        return Findings(
            lead="Sketches with the scale 1/p are unbiased; the original dropout keeps weights as they are, "
            "and so trains a smaller network than the one whose loss is measured. Same network, data, nodes "
            "and masks as in the neural experiment.",
            figures=results.figures(
                "dropout",
                "Unbiased and original dropout",
                f"{over_seeds(request)}. Unbiased and biased: f at x. Dotted: biased runs "
                "evaluated as the original dropout does, with all weights multiplied by p.",
                draw_dropout,
            ),
            tables={"dropout": runs.loss_table(results), "dropout_levels": dropout_levels(results)},
            claims=results.claims(dropout_claims),
            choices=[
                "The setup is that of the neural experiment, whose choices stand there. Both kinds see "
                "the same masks.",
                "“Original” is UnscaledBernoulli: forward pass and gradient with the 0/1 mask, no scale. In "
                "exact arithmetic p times its iterates are those of the unbiased sketch with the step size "
                "p² γ, started at p times the start; so at p x the two differ in their step size only.",
                "The paper calls keep .7 the lower sparsity and .9 the higher; it is the other way round, "
                "and the claim is decided for what it names: keep .7 against keep .9.",
            ],
        )


def curve_of(results: Results, kind: str, keep: float, step_size: float) -> Curve:
    """One of the three curves of a frame."""
    measure = "loss_at_keep" if kind == "biased, times p" else "loss"
    return curve(results, keep, step_size, scaled=kind == "unbiased", measure=measure)


def dropout_claims(results: Results) -> Iterator[Claim]:
    """What the paper says of this figure, and what evaluation at p x changes."""
    grid = list(product(KEEPS, STEP_SIZES))
    curves = {(kind, k, s): curve_of(results, kind, k, s) for kind in KINDS for k, s in grid}
    level = {key: c.level for key, c in curves.items()}
    noise = {key: float(np.median(c.fluctuations)) for key, c in curves.items()}
    ratio = {(k, s): level["biased", k, s] / level["unbiased", k, s] for k, s in grid}
    fair = {(k, s): level["biased, times p", k, s] / level["unbiased", k, s] for k, s in grid}
    rows = list(product(KINDS[:2], KEEPS))
    steps = [noise[(*row, a)] < noise[(*row, b)] for row in rows for a, b in pairwise(STEP_SIZES)]
    yield Claim(
        "The unbiased sketch reaches a lower loss than the original dropout, always",
        "lower median level at each of the six pairs of keep and step size",
        _listed(ratio),
        all(r > 1 for r in ratio.values()),
    )
    yield Claim(
        "The difference is larger at keep .7 than at keep .9",
        "the ratio of the levels is larger, at each of the three step sizes",
        _listed(ratio),
        all(ratio[0.7, s] > ratio[0.9, s] for s in STEP_SIZES),
    )
    yield Claim(
        "Longer steps make the loss of both fluctuate more",
        "deviation of log f from its trend in the last quarter, larger at the longer of neighbouring "
        "step sizes",
        [
            ["step size", *(f"{s:g}" for s in STEP_SIZES)],
            *([f"{kind}, keep {k:g}", *(f"{noise[kind, k, s]:.2g}" for s in STEP_SIZES)] for kind, k in rows),
            ["neighbours in order", f"{sum(steps)} of {len(steps)}"],
        ],
        all(steps),
    )
    yield Claim(
        "The unbiased sketch is lower also where the original dropout is evaluated as was meant, at p x",
        "lower median level at each of the six pairs of keep and step size",
        _listed(fair),
        all(r > 1 for r in fair.values()),
        source="beyond",
    )


def _listed(ratios: dict[tuple[float, float], float]) -> Table:
    """Biased over unbiased."""
    return [
        ["step size", *(f"{s:g}" for s in STEP_SIZES)],
        *([f"ratio at keep {k:g}", *(f"{ratios[k, s]:.2f}" for s in STEP_SIZES)] for k in KEEPS),
    ]


def dropout_levels(results: Results) -> Any:
    """Where each curve ends."""
    (name,) = results.datasets
    return pandas.DataFrame(
        {"dataset": name, "kind": kind, "keep": k, "step_size": s} | curve_of(results, kind, k, s).summary()
        for kind, k, s in product(KINDS, KEEPS, STEP_SIZES)
    )


LOOK = {
    "unbiased": (style.PINK, "-"),
    "biased": (style.VERMILION, "--"),
    "biased, times p": (style.GREY, ":"),
}


def draw_dropout(results: Results) -> Any:
    """One row per keep probability, one column per step size."""
    shape = len(KEEPS), len(STEP_SIZES)
    figure, axes = style.frames(*shape, width=3.8, height=3.0, sharex=True, sharey=True)
    begin = 0.0
    for ax, (k, s) in zip(axes.flat, product(KEEPS, STEP_SIZES), strict=True):
        for kind, (colour, line) in LOOK.items():
            c = curve_of(results, kind, k, s)
            show(ax, c, colour, kind, line)
            begin = max(begin, float(c.loss[:, 0].max()))
        ax.set_title(f"{results.datasets[0]}: keep {k:g}, γ = {s:g}")
        log_losses(ax)
    axes[0][0].set_ylim(top=CEILING * begin)
    for row in axes:
        row[0].set_ylabel("Loss $f$ (S = I)")
    for ax in axes[-1]:
        ax.set_xlabel("Rounds")
    style.legend_below(figure, axes[0][0], 3)
    return figure
