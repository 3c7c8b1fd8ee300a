"""The situations of the page "When to use MAST", the tables about them, and the rule that decides each claim.

The rules were written before the run that decides them. None of the claims is the paper's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas

from mast.experiments.experiment import Claim, Results
from mast.support.cells import Done
from mast.support.checks import Array
from studies.density.cells import DENSITIES, tuned
from studies.density.linear import blocks

LABELS = {
    "plain": "plain, weight decay tuned",
    "dropout": "dropout, keep and decay tuned",
    "mast": "MAST, keep and decay tuned",
    "noise": "noise on the weights, its size and decay tuned",
    "rolling": "MAST, rolling windows",
    "chances": "MAST, keep probabilities by size",
    "usual start": "MAST keep 20 %, usual start",
    "scaled start": "MAST keep 20 %, scale_start",
    "list": "MAST, list of masks",
    "nested": "MAST, nested sizes",
    "alone": "trained alone",
    "top share": "MAST, TopShare",
    "pruned once": "magnitude pruning, then trained on",
    "deltas": "MAST, 20 deltas of 5 %",
    "one delta": "one delta of 5 %, trained alone",
    "full": "full fine-tuning",
}
SITUATIONS = {
    "weights 0.5": "a random half of the weights is left",
    "weights 0.2": "a random fifth of the weights is left",
    "weights 0.2 longer": "a random fifth of the weights is left, four times the steps",
    "chances 0.2": "a fifth of the weights, each by its own chance",
    "start": "a random fifth of the weights is left: the start",
    "units 0.2": "a random fifth of the units is left",
    "packets 0.25": "a quarter of the packets of 16 units arrives",
    "list weights 0.2": "20 masks of 20 % of the weights are known",
    "list units 0.5": "5 masks of 50 % of the units are known",
    "list units 0.2": "5 masks of 20 % of the units are known",
    "list units 0.1": "5 masks of 10 % of the units are known",
    "size 1": "several sizes: all units",
    "size 0.5": "several sizes: 50 % of the units",
    "size 0.2": "several sizes: 20 % of the units",
    "size 0.1": "several sizes: 10 % of the units",
    "cut 0.2": "a chosen cut to 20 % of the weights",
    "deltas": "many small deltas to a pretrained network",
}


@dataclass(frozen=True)
class Goal:
    """What is claimed of one situation: how far ahead of the best rival ours is, and how good at least."""

    situation: str
    ours: str
    rivals: tuple[str, ...]
    lead: float = -0.01  # of mean accuracy; negative: that far behind at most
    least: Mapping[str, float] = field(default_factory=dict)  # accuracy, by data set


GOALS = (
    Goal("weights 0.5", "mast", ("plain", "dropout", "noise")),
    Goal("weights 0.2", "mast", ("plain", "dropout", "noise"), 0.05, {"digits": 0.8, "features": 0.7}),
    Goal("weights 0.2 longer", "mast", ("plain",), 0.05, {"digits": 0.8, "features": 0.7}),
    Goal("weights 0.2 longer", "mast", ("dropout", "noise")),
    Goal("chances 0.2", "chances", ("plain",)),
    Goal("start", "scaled start", ("usual start",), 0.1),
    Goal("units 0.2", "mast", ("plain", "dropout")),
    Goal("packets 0.25", "mast", ("plain", "dropout"), 0.03),
    Goal("list weights 0.2", "list", ("alone",)),
    *(Goal(f"list units {share:g}", "list", ("alone",)) for share in (0.5, 0.2, 0.1)),
    Goal("size 1", "nested", ("plain",), -0.015),
    *(Goal(f"size {share:g}", "nested", ("alone",), -0.015) for share in (0.5, 0.2, 0.1)),
    Goal("cut 0.2", "top share", ("pruned once",)),
    Goal("deltas", "deltas", ("full", "one delta")),
)


def situation_claims(table: Any) -> Iterator[Claim]:
    """One claim per goal and data set that the table can decide."""
    for dataset, part in table.groupby("dataset", sort=False):
        by_seed = part.pivot_table(index="seed", columns=["situation", "contender"], values="mean")
        for goal in GOALS:
            there = {name for situation, name in by_seed.columns if situation == goal.situation}
            rivals = tuple(name for name in goal.rivals if name in there)
            if goal.ours in there and rivals:
                yield _decided(replace(goal, rivals=rivals), str(dataset), by_seed[goal.situation])


def _decided(goal: Goal, dataset: str, by_seed: Any) -> Claim:
    """The mean over seeds of ours against that of the best rival, and against the least that is asked for."""
    ours = by_seed[goal.ours]
    best = max(goal.rivals, key=lambda name: by_seed[name].mean())
    ahead = ours - by_seed[best]
    least = goal.least.get(dataset, 0.0)
    words = SITUATIONS[goal.situation]
    who = " and ".join(LABELS[name] for name in goal.rivals)
    asked = f", and at least {least:g}" if least else ""
    side = f"at least {goal.lead:g} above" if goal.lead > 0 else f"at most {-goal.lead:g} below"
    return Claim(
        f"{words[0].upper()}{words[1:]}: {LABELS[goal.ours]} is {side} {who}{asked}",
        f"mean test accuracy over seeds minus that of the best of the others >= {goal.lead:g}{asked}",
        f"{ours.mean():.3f} against {by_seed[best].mean():.3f} of {LABELS[best]}; by seed "
        f"{ahead.min():+.3f} to {ahead.max():+.3f}",
        bool(ahead.mean() >= goal.lead and ours.mean() >= least),
        source="beyond",
        dataset=dataset,
    )


# ---- tables ---------------------------------------------------------------------------------------


def situation_table(results: Results) -> Any:
    """Mean and worst over the submodels, for each data set, situation, contender and seed."""
    rows = [
        {
            "dataset": d.cell.dataset.name,
            "situation": situation,
            "contender": d["kind"],
            "seed": seed,
            "submodels": len(scores),
            "mean": float(np.mean(scores)),
            "worst": float(np.min(scores)),
        }
        for d in results.of(tuned)
        for use in d["uses"]
        for situation, each in _situations(d, use)
        if situation in SITUATIONS
        for seed, scores in zip(d["seeds"], each, strict=True)
    ]
    table = pandas.DataFrame(rows)
    return table.sort_values("situation", key=lambda s: s.map(list(SITUATIONS).index), kind="stable")


def _situations(d: Done, use: str) -> Iterator[tuple[str, Array]]:
    """The situations that a use of a contender is for, with its scores (seeds, submodels) there."""
    scores, kind = d[f"{use}: scores"], d["kind"]
    if "situation" in d.cell.config:
        yield d["situation"], scores
    elif kind in ("scaled start", "usual start"):
        yield "start", scores
    elif kind == "nested":
        yield from ((f"size {share:g}", scores[:, [i]]) for i, share in enumerate(d["shares"]))
    elif kind in ("list", "alone"):
        yield f"list {d['structure']} {d['share']:g}", scores
        if kind == "alone" and d["structure"] == "units":
            yield f"size {d['share']:g}", scores
    elif kind in ("top share", "pruned once"):
        yield f"cut {d['share']:g}", scores
    elif kind in ("full", "deltas", "one delta"):
        yield "deltas", scores
    else:
        yield "size 1" if use == "whole" else use, scores


def situation_summary(table: Any) -> Any:
    """Mean and range over seeds, one row per situation and contender."""
    grouped = table.groupby(["dataset", "situation", "contender"], sort=False)
    out = grouped["mean"].agg(["mean", "min", "max", "size"])
    out.columns = ["accuracy", "lowest_seed", "highest_seed", "seeds"]
    out["worst_submodel"] = grouped["worst"].min()
    return out.reset_index()


CURVE_COLUMNS = (
    *("dataset", "chosen_for", "contender", "density", "seed"),
    *("mean", "lower_quartile", "upper_quartile", "worst"),
)


def curve_table(results: Results) -> Any:
    """Accuracy at every density of the networks that were chosen for one; and the blocks of linear models."""
    rows = [
        _row(d, use, d["kind"], density, seed, scores)
        for d in results.of(tuned)
        for use in d["uses"]
        if f"{use}: curves" in d.result
        and d["kind"] in ("plain", "dropout", "mast")
        and "situation" not in d.cell.config
        for seed, curve in zip(d["seeds"], d[f"{use}: curves"], strict=True)
        for density, scores in zip(DENSITIES, curve, strict=True)
    ]
    rows += [
        _row(d, "linear", model, 1 / d["K"], d["permutation"], d[model])
        for d in results.of(blocks)
        for model in ("plain", "matched", "one_model", "magnitude")
    ]
    return pandas.DataFrame(rows, columns=list(CURVE_COLUMNS))


def _row(d: Done, use: str, contender: str, density: float, seed: int, scores: Any) -> dict[str, Any]:
    low, high = np.quantile(scores, [0.25, 0.75])
    where = (d.cell.dataset.name, use, contender, density, seed)
    numbers = (float(np.mean(scores)), float(low), float(high), float(np.min(scores)))
    return dict(zip(CURVE_COLUMNS, (*where, *numbers), strict=True))


def setting_table(results: Results) -> Any:
    """The settings that were chosen, with the validation scores of all that were tried."""
    rows = []
    for d in results.of(tuned):
        for use in d["uses"]:
            chosen = {axis: d[f"{use}: {axis}"] for axis in d["axes"]}
            who = " ".join(
                str(d.cell.config[k])
                for k in ("kind", "structure", "share", "situation")
                if k in d.cell.config
            )
            tried = "; ".join(" ".join(f"{v:.3g}" for v in row) for row in d[f"{use}: tried"])
            rows.append(
                {"dataset": d.cell.dataset.name, "contender": who, "use": use} | chosen | {"tried": tried}
            )
    return pandas.DataFrame(rows)
