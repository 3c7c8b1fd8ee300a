"""Tables of the study: a row per situation, contender and seed; curves; and all settings that were tried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mast.arrays import Array
from mast.cells import Done
from mast.experiments.density.cells import DENSITIES, tuned
from mast.experiments.density.linear import blocks
from mast.experiments.density.situations import SITUATIONS
from mast.experiments.experiment import Results


def situation_table(results: Results) -> Any:
    """Mean and worst over the submodels, for each data set, situation, contender and seed."""
    import pandas

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
    if kind in ("scaled start", "usual start"):
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


def summary(table: Any) -> Any:
    """Mean and range over seeds, one row per situation and contender."""
    grouped = table.groupby(["dataset", "situation", "contender"], sort=False)
    out = grouped["mean"].agg(["mean", "min", "max", "size"])
    out.columns = ["accuracy", "lowest_seed", "highest_seed", "seeds"]
    out["worst_submodel"] = grouped["worst"].min()
    return out.reset_index()


def curve_table(results: Results) -> Any:
    """Accuracy at every density of the networks that were chosen for one; and the blocks of linear models."""
    import pandas

    rows = [
        _row(d, use, d["kind"], density, seed, scores)
        for d in results.of(tuned)
        for use in d["uses"]
        if f"{use}: curves" in d.result and d["kind"] in ("plain", "dropout", "mast")
        for seed, curve in zip(d["seeds"], d[f"{use}: curves"], strict=True)
        for density, scores in zip(DENSITIES, curve, strict=True)
    ]
    rows += [
        _row(d, "linear", model, 1 / d["K"], d["permutation"], d[model])
        for d in results.of(blocks)
        for model in ("plain", "matched", "one_model", "magnitude")
    ]
    return pandas.DataFrame(rows)


def _row(d: Done, use: str, contender: str, density: float, seed: int, scores: Any) -> dict[str, Any]:
    low, high = np.quantile(scores, [0.25, 0.75])
    return {
        "dataset": d.cell.dataset.name,
        "chosen_for": use,
        "contender": contender,
        "density": density,
        "seed": seed,
        "mean": float(np.mean(scores)),
        "lower_quartile": float(low),
        "upper_quartile": float(high),
        "worst": float(np.min(scores)),
    }


def setting_table(results: Results) -> Any:
    """The settings that were chosen, with the validation scores of all that were tried."""
    import pandas

    rows = []
    for d in results.of(tuned):
        for use in d["uses"]:
            chosen = {axis: d[f"{use}: {axis}"] for axis in d["axes"]}
            who = " ".join(
                str(d.cell.config[k]) for k in ("kind", "structure", "share") if k in d.cell.config
            )
            tried = "; ".join(" ".join(f"{v:.3g}" for v in row) for row in d[f"{use}: tried"])
            rows.append(
                {"dataset": d.cell.dataset.name, "contender": who, "use": use} | chosen | {"tried": tried}
            )
    return pandas.DataFrame(rows)
