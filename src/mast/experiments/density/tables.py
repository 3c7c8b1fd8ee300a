"""Tables of the accuracy-density curves: one row per contender, density and seed; areas under the curves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mast.cells import Done
from mast.experiments.density.curves import MAGNITUDES, STRUCTURES, area, curves, from_scratch, ways
from mast.experiments.density.finetuning import changes
from mast.experiments.density.linear import blocks
from mast.experiments.experiment import Results

LABELS = {
    "scratch": "trained at each density",
    "plain_magnitude": "plain, pruned by magnitude",
    "plain_random": "plain, at random",
    "plain_unscaled": "plain, at random, no scale",
    "dropout_random": "dropout, at random",
    "fixed_random": "MAST keep 50 %, at random",
    "sparser_random": "MAST keep 20 %, at random",
    "mixture_random": "MAST mixture, at random",
    "nested": "nested subsets, in order",
    "dropout_magnitude": "dropout, pruned by magnitude",
    "fixed_magnitude": "MAST keep 50 %, pruned by magnitude",
    "sparser_magnitude": "MAST keep 20 %, pruned by magnitude",
    "mixture_magnitude": "MAST mixture, pruned by magnitude",
    "matched": "MAST at each density, at random",
    "one_model": "MAST for 25 %, at random",
}
ONLY_LINEAR = ("matched", "one_model")
LINEAR = {"plain": "plain_random", "fixed": "one_model", "magnitude": "plain_magnitude"}


def best_scope(done: Done, structure: str) -> str:
    """The kind of magnitude pruning with the best validation score: within layers, or over all of them."""
    return max(
        MAGNITUDES[structure], key=lambda way: float(np.max(done.result[f"validation_{structure}_{way}"]))
    )


def used_ways(done: Done) -> Iterator[tuple[str, str, str]]:
    """(structure, contender, name in the cell) of every curve that a cell holds and that is shown."""
    contender = done["contender"]
    for structure in done["structures"]:
        if contender == "nested":
            yield structure, "nested", f"{structure}_nested"
            continue
        best = best_scope(done, structure)
        for way in ways(contender, structure):
            if not way.startswith("magnitude"):
                yield structure, f"{contender}_{way}", f"{structure}_{way}"
            elif way == best:
                yield structure, f"{contender}_magnitude", f"{structure}_{way}"


def curve_table(results: Results) -> Any:
    """Mean, quartiles and worst over draws, for each data set, structure, contender, density and seed."""
    import pandas

    rows = []
    for d in results.of(curves):
        for structure, contender, way in used_ways(d):
            for seed, by_density in zip(d["seeds"], d[way], strict=True):
                for density, scores in zip(d["densities"], by_density, strict=True):
                    rows.append(_row(d, structure, contender, density, seed, scores))
    for d in results.of(from_scratch):
        for structure in STRUCTURES if d["density"] == 1 else [d["structure"]]:
            for seed, score in zip(d["seeds"], d["accuracy"], strict=True):
                rows.append(_row(d, structure, "scratch", d["density"], seed, [score]))
    for d in results.of(blocks):
        for model in ("plain", "matched", "fixed", "magnitude", "scratch"):
            contender = LINEAR.get(model, model)
            rows.append(_row(d, "linear", contender, 1 / d["K"], d["permutation"], d[model]))
    return pandas.DataFrame(rows)


def _row(d: Done, structure: str, contender: str, density: float, seed: int, scores: Any) -> dict[str, Any]:
    low, middle, high = np.quantile(scores, [0.25, 0.5, 0.75])
    return {
        "dataset": d.cell.dataset.name,
        "structure": structure,
        "contender": contender,
        "density": density,
        "seed": seed,
        "draws": len(scores),
        "mean": float(np.mean(scores)),
        "lower_quartile": float(low),
        "median": float(middle),
        "upper_quartile": float(high),
        "worst": float(np.min(scores)),
    }


def area_table(table: Any) -> Any:
    """The area under each curve, for each seed: of the mean over draws, and of the worst draw."""
    import pandas

    keys = ["dataset", "structure", "contender", "seed"]
    rows = []
    for values, part in table.groupby(keys, sort=False):
        part = part.sort_values("density")
        areas = {
            name: float(area(part["density"].to_numpy(), part[column].to_numpy()))
            for name, column in (("area", "mean"), ("area_worst", "worst"))
        }
        rows.append(dict(zip(keys, values, strict=True)) | areas)
    return pandas.DataFrame(rows)


def summary(areas: Any) -> Any:
    """Mean and range over seeds, one row per contender."""
    grouped = areas.groupby(["dataset", "structure", "contender"], sort=False)
    out = grouped["area"].agg(["mean", "min", "max", "size"])
    out.columns = ["area", "lowest_seed", "highest_seed", "seeds"]
    out["area_of_worst_draw"] = grouped["area_worst"].mean()
    return out.reset_index()


def rate_table(results: Results) -> Any:
    """The learning rates that were chosen, with the validation scores of the whole grid."""
    import pandas

    rows = []
    for d in (*results.of(curves), *results.of(from_scratch), *results.of(changes)):
        for name in [name.removeprefix("rate_") for name in d.result if name.startswith("rate_")]:
            if d.cell.compute is from_scratch:
                contender = f"scratch {d['structure']} {d['density']:g}"
            else:
                kind = d["contender"] if d.cell.compute is curves else f"fine-tuning {d['kind']}"
                contender = f"{kind} {name}"
            scores = " ".join(f"{s:.3f}" for s in d[f"validation_{name}"])
            grid = " ".join(f"{r:g}" for r in d["rates"])
            rows.append((d.cell.dataset.name, contender, d[f"rate_{name}"], grid, scores))
    return pandas.DataFrame(rows, columns=["dataset", "contender", "rate", "grid", "validation_scores"])


def change_table(results: Results) -> Any:
    """Fine-tuning: accuracies for each share of the change that is kept, contender and seed."""
    import pandas

    rows = []
    for d in results.of(changes):
        if d["kind"] == "full":
            columns = [(0.0, "before", "before"), (1.0, "full", "full_1")]
            columns += [(q, "random", f"random_{q:g}") for q in d["changed"]]
            columns += [(q, "magnitude", _better_scope(d, q)) for q in d["changed"]]
        else:
            way = "random" if d["kind"] == "mast" else "full"
            columns = [(q, d["kind"], f"{way}_{q:g}") for q in d["changed"]]
        for density, contender, name in columns:
            for seed, scores in zip(d["seeds"], d[name], strict=True):
                rows.append(_row(d, "weights", contender, density, seed, np.atleast_1d(scores)))
    return pandas.DataFrame(rows)


def _better_scope(d: Done, density: float) -> str:
    names = [f"magnitude_{scope}_{density:g}" for scope in ("layer", "global")]
    return max(names, key=lambda name: float(np.max(d.result[f"validation_{name}"])))
