"""Accuracy against density: one network cut to 100 % ... 5 %, trained with MAST and in other ways.

Every contender is the same network with the same training loop; they differ in what is random while they
are trained and in how they are cut. The ceiling is a network trained at each density by itself.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from mast.experiments import (
    density_cells,
    density_figures,
    density_finetuning,
    density_linear,
    density_tables,
)
from mast.experiments.cells import Cell, Done
from mast.experiments.density_cells import DENSITIES, KEEP, MIXED, NAME, RATES, SPARSER, TRAINED, recipe
from mast.experiments.density_choices import choices
from mast.experiments.density_claims import claims
from mast.experiments.density_data import Labelled, find
from mast.experiments.findings import Experiment, Figure, Findings, Plan


def cells(plan: Plan) -> list[Cell]:
    """Curves of networks, fine-tuning, and the linear case."""
    parts = (density_cells, density_finetuning, density_linear)
    return [cell for part in parts for cell in part.cells(plan)]


def findings(plan: Plan, done: list[Done]) -> Findings:
    """Figures, numbers and claims."""
    curves = density_tables.curve_table(done)
    areas = density_tables.area_table(curves)
    changed = density_tables.change_table(done)
    table = density_tables.summary(areas)
    tables = {
        "density_curves": curves,
        "density_areas": table,
        "density_areas_by_seed": areas,
        "density_rates": density_tables.rate_table(done),
        "density_finetuning": changed,
    }
    networks = [d for d in plan.datasets if isinstance(d, Labelled)]
    return Findings(
        lead=(
            "Train once, run sparse: is it worth it? One network is trained and then cut to a share of its "
            "weights, or of the units of each hidden layer. Plain training, dropout and MAST are compared on "
            "one axis with magnitude pruning and with networks that were trained at each density, which is "
            "the ceiling."
        ),
        figures=_figures(curves, table, changed),
        tables={name: frame for name, frame in tables.items() if len(frame)},
        claims=claims(curves, areas, changed),
        choices=choices(plan, networks, curves),
        configuration={
            "densities": DENSITIES,
            "trained_from_scratch_at": plan.pick(TRAINED, TRAINED, DENSITIES),
            "keep": [KEEP, SPARSER],
            "mixture": MIXED,
            "rates": {d.name: RATES[d.name] for d in networks},
            "recipes": {d.name: recipe(plan, d) for d in networks},
        },
    )


def _figures(curves: Any, table: Any, changed: Any) -> list[Figure]:
    found = []
    kinds = set(curves["structure"])
    for structure, words in (("weights", "single weights"), ("neurons", "whole hidden units")):
        if structure in kinds:
            found.append(
                Figure(
                    f"density_{structure}",
                    f"Accuracy against density, {words}",
                    "Mean over seeds. Bands are the quartiles over random draws; the lower row is the worst "
                    "draw. Squares are networks trained at that density alone.",
                    partial(density_figures.curves, curves, structure),
                )
            )
    if kinds & {"weights", "neurons"}:
        found += [
            Figure(
                "density_areas",
                "Area under each curve",
                "The mean accuracy over the logarithm of the density, from 5 % to 100 %. Dots are means over "
                "seeds, lines go from the lowest to the highest seed.",
                lambda: density_figures.areas(table),
            ),
            Figure(
                "density_pruning",
                "Magnitude pruning of differently trained networks",
                "Above single weights, below whole units. Mean over seeds.",
                lambda: density_figures.pruned(curves),
            ),
        ]
    if len(changed):
        found.append(
            Figure(
                "density_finetuning",
                "Sparse changes to a pretrained network",
                "A network that knows half of the classes is adapted to all of them, by changing a share of "
                "its weights. Bands are the range over seeds.",
                lambda: density_figures.changes(changed),
            )
        )
    if "linear" in kinds:
        found.append(
            Figure(
                "density_linear",
                "The linear case on the same axes",
                "Exact optima, cut to the blocks of random partitions. Bands are the quartiles over blocks.",
                lambda: density_figures.linear(curves),
            )
        )
    return found


EXPERIMENT = Experiment(
    name=NAME,
    title="Accuracy against density",
    datasets=(),
    cells=cells,
    findings=findings,
    find=find,
)
