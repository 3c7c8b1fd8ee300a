"""Federations of clients of different size: every scheme in one engine, at equal bytes.

The rule that decides which scheme is best was written before the run that it decides. Ours is
"mast_balanced", one scheme for the whole model and for every capacity: it was thought of after earlier runs,
in which "mast_nested" was ours, and was tried out on digits and features with the seeds and rows that choose
rates. A first form had the usual start; judged on features, its whole model was behind that of FedAvg, and
only then was the start tried, again with the rows and seeds that choose. A row is a data set, a split of the
labels and a capacity (1 is the whole model), at equal bytes. It holds if the mean of ours over seeds is at
least that of the best of the rivals, and is marked as outside the spread of the seeds if the worst seed of
ours is above the best seed of that rival. The whole model's row uses the rate that was chosen for the whole
model, the others the rate that was chosen for the mean over all capacities; this is so for every scheme.

A sixth rival came later, when the runs of the others were known, because it is what one would do without any
scheme: a model for each size, which FedAvg trains with all clients that can hold it, each with a rate of its
own, all five together for the bytes of one scheme. A model of one size that gets all of these bytes is shown
beside it, without a claim: it is what to compare with if one size is enough.

Ours becomes the scheme that `mast.federated.server_for` assumes if no row of a data set with more than 1,000
test rows goes to a rival by more than the spread of its own seeds. The normal runs decided this; full ones of
features, run later, are ones in which "mast_nested" is ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from mast.distributed import scheme_of
from mast.errors import ArgumentError
from mast.experiments import style
from mast.experiments.datasets import Dataset
from mast.experiments.experiment import Claim, Experiment, Figure, Findings, Request, Results
from mast.support.cells import Cell, Done
from mast.support.checks import Array, Indices
from studies.density.data import find
from studies.federated.cells import (
    ALONE,
    CALIBRATED,
    CAPACITIES,
    DRAWS,
    LEFT_OUT,
    OURS,
    RIVALS,
    SECONDS,
    SHARED,
    SPLITS,
    USES,
    effort,
    shares,
    tuned,
)

COLOURS = {
    "fedavg": style.BLACK,
    SHARED: style.BLACK,
    "heterofl": style.SKY,
    "fjord": style.ORANGE,
    "fedrolex": style.GREEN,
    "federated_dropout": style.GREY,
    "mast_balanced": style.MAST,
    "mast_nested": style.YELLOW,
    "mast_fixed": style.PINK,
    "mast_random": style.ERM,
}
OUR_SCHEME = "mast_balanced"
PUBLISHED = ("fedrolex", "heterofl", "federated_dropout")  # best first, in the paper of FedRolex
SPLIT_NAMES = {"iid": "IID", "dirichlet": "non-IID"}
SHOWN = (1.0, 0.25, 0.0625)  # capacities in the figures


class FederatedSchemes(Experiment):
    """Which scheme gives which model for the same bytes."""

    name = "federated"
    title = "Clients of different size: accuracy against bytes"
    # In 1, one seed chose the rates, and some of these diverged with others; in 2, the mean of schemes whose
    # submodels are scaled counted a client by 1/scale instead of 1; in 3, the search for the whole model's
    # rate could end on a small hill (FjORD on images had .185 at a rate of 0.03, for want of a look at 1).
    version = 4

    def find(self, effort: str, dataset: str | None, data_dir: Path | None) -> tuple[Dataset, ...]:
        """Digits, and CIFAR-10 features where they are there; digits as images, and images, by name."""
        if dataset is not None and dataset not in SECONDS:
            raise ArgumentError(f"the federations run on {', '.join(SECONDS)}, not on {dataset!r}")
        return tuple(d for d in find(effort, dataset, data_dir) if d.name in SECONDS)

    def cells(self, request: Request) -> list[Cell]:
        """One per scheme, split and data set."""
        made = []
        for data in request.datasets:
            common = effort(request, data.name)
            seconds = (8 + len(common["seeds"])) * SECONDS[data.name]
            ours = [scheme for scheme in OURS if "images" not in data.name or scheme not in LEFT_OUT]
            varied = {"split": SPLITS, "scheme": (*RIVALS, *ours)}
            made += self.grid(tuned, data, seconds, varied, **common)
            whole = {"split": SPLITS, "scheme": ["fedavg"]}
            budget = common["megabytes"]
            shared = common | {"of": SHARED, "megabytes": budget / len(CAPACITIES)}
            made += self.grid(tuned, data, seconds / 4, whole | {"size": CAPACITIES}, **shared)
            quick = "images" not in data.name
            if quick and request.pick(fast=False, normal=True, full=True):
                alone = common | {"of": ALONE}
                made += self.grid(tuned, data, seconds / 2, whole | {"size": CAPACITIES[1:]}, **alone)
        return made

    def findings(self, request: Request, results: Results) -> Findings:
        """Tables, figures, and who wins where."""
        table, curves = end_table(results), curve_table(results)
        figures = [
            Figure(
                f"federated_{name}_{axis}",
                f"{name}: accuracy against {words}",
                "Means over seeds; bands go from the lowest to the highest seed. Capacity 1 is the whole "
                "model.",
                partial(draw_schemes, curves[curves["dataset"] == name], axis, label),
            )
            for name in results.datasets
            for axis, words, label in (
                ("megabytes", "megabytes sent", "Megabytes, both ways, all clients"),
                ("operations", "the clients' operations", "Operations of all clients"),
            )
        ]
        return Findings(
            lead="Clients that can hold 1, 1/2, 1/4, 1/8 and 1/16 of the hidden units train one model. "
            "Every scheme sends the same number of bytes. Which whole model comes out, and which one for "
            "each capacity?",
            figures=figures,
            tables={
                "federated_by_seed": table,
                "federated": scheme_summary(table),
                "federated_curves": curves,
                "federated_rates": rate_table(results),
            },
            claims=list(scheme_claims(table)),
            choices=choices(request),
        )


def scheme_claims(table: Any) -> Iterator[Claim]:
    """One claim per row, and one about the published order; `table` has a row per seed."""
    for (dataset, split), part in table.groupby(["dataset", "split"], sort=False):
        for capacity, rows in part.groupby("capacity", sort=False):
            yield _ahead(str(dataset), SPLIT_NAMES[split], float(capacity), rows)
        yield _order(str(dataset), SPLIT_NAMES[split], part[part["capacity"] == 1])


def _ahead(dataset: str, split: str, capacity: float, rows: Any) -> Claim:
    by_seed = rows.pivot_table(index="seed", columns="scheme", values="accuracy")
    means = by_seed.mean()
    best = max((*RIVALS, SHARED), key=lambda name: float(means[name]))
    ours, theirs = by_seed[OUR_SCHEME], by_seed[best]
    what = "the whole model" if capacity == 1 else _part(capacity)
    apart = ours.min() > theirs.max() or theirs.min() > ours.max()
    spread = "within the spread of the seeds" if not apart else "outside the spread of the seeds"
    if len(ours) == 1:
        apart, spread = False, "one seed, whose spread is not known"
    return Claim(
        f"{split}, {what}: {_title(OUR_SCHEME)} is at or above every rival",
        "mean accuracy over seeds at equal bytes, minus that of the best rival, >= 0",
        f"{ours.mean():.3f} against {theirs.mean():.3f} of {_title(best)}, {spread}",
        bool(ours.mean() >= theirs.mean()),
        source="beyond",
        dataset=dataset,
        noise=not apart,
    )


def _order(dataset: str, split: str, rows: Any) -> Claim:
    means = rows.groupby("scheme")["accuracy"].mean()
    found = [float(means[name]) for name in PUBLISHED]
    return Claim(
        f"{split}, the whole model: FedRolex is above HeteroFL, and that above Federated Dropout, as "
        "published",
        "the order of mean accuracies",
        ", ".join(f"{_title(n)} {a:.3f}" for n, a in zip(PUBLISHED, found, strict=True)),
        found == sorted(found, reverse=True),
        source="beyond",
        dataset=dataset,
    )


def _part(capacity: float) -> str:
    return "whole model" if capacity == 1 else f"capacity 1/{round(1 / capacity)}"


def _title(scheme: str) -> str:
    return f"FedAvg, {scheme}" if scheme in (SHARED, ALONE) else scheme_of(scheme).title


@dataclass(frozen=True)
class Row:
    """A capacity of a scheme: accuracies (seeds, marks), and what all clients spent (marks)."""

    who: dict[str, Any]
    seeds: list[int]
    accuracy: Array
    clients: Array  # (seeds, clients)
    megabytes: Array
    operations: Array

    def by_seed(self) -> Iterator[dict[str, Any]]:
        """When all bytes are spent."""
        for seed, accuracy, clients in zip(self.seeds, self.accuracy[:, -1], self.clients, strict=True):
            end = {"accuracy": accuracy, "worst_client": clients.min(), "spread_over_clients": clients.std()}
            yield self.who | {"seed": seed} | end

    def by_mark(self) -> Iterator[dict[str, Any]]:
        """Along the run, over seeds."""
        for spent, operations, seen in zip(self.megabytes, self.operations, self.accuracy.T, strict=True):
            lowest = {"accuracy": seen.mean(), "lowest_seed": seen.min(), "highest_seed": seen.max()}
            yield self.who | {"megabytes": spent, "operations": operations} | lowest


def rows(results: Results) -> Iterator[Row]:
    """The schemes, and models of one size as if each set of them were a scheme."""
    for d in results.of(tuned, size=None):
        for c, capacity in enumerate(CAPACITIES):
            use = "whole" if capacity == 1 else "sizes"
            yield Row(
                _who(d, capacity, d["scheme"]),
                d["seeds"],
                d[f"{use}: accuracy"][:, :, c],
                d["sizes: clients"],
                d[f"{use}: bytes"].mean(axis=0) / 1e6,
                d[f"{use}: operations"].mean(axis=0),
            )
    for name, split, of in product(results.datasets, SPLITS, (SHARED, ALONE)):
        sized = results.of(tuned, name, split=split, of=of)
        clients = [d["whole: clients"][:, _with(d["size"], d["clients"])] for d in sized]
        for d in sized:
            together = sized if of == SHARED else [d]
            yield Row(
                _who(d, d["size"], of),
                d["seeds"],
                d["whole: accuracy"][:, :, 0],
                np.concatenate(clients, axis=1),
                sum(other["whole: bytes"].mean(axis=0) for other in together) / 1e6,
                sum(other["whole: operations"].mean(axis=0) for other in together),
            )


def _who(d: Done, capacity: float, scheme: str) -> dict[str, Any]:
    where = {"dataset": d.cell.dataset.name, "split": d["split"], "capacity": capacity}
    return where | {"scheme": scheme}


def _with(capacity: float, clients: int) -> Indices:
    """The clients of a capacity."""
    return np.flatnonzero(np.array(shares(clients)) == capacity)


def end_table(results: Results) -> Any:
    """A row per data set, split, capacity, scheme and seed, when all bytes are spent."""
    return pandas.DataFrame(row for one in rows(results) for row in one.by_seed())


def scheme_summary(table: Any) -> Any:
    """Mean and range over seeds, one row per data set, split, capacity and scheme."""
    grouped = table.groupby(["dataset", "split", "capacity", "scheme"], sort=False)
    out = grouped["accuracy"].agg(["mean", "min", "max"])
    out.columns = ["accuracy", "lowest_seed", "highest_seed"]
    out["worst_client"] = grouped["worst_client"].mean()
    out["spread_over_clients"] = grouped["spread_over_clients"].mean()
    return out.reset_index()


def curve_table(results: Results) -> Any:
    """Accuracy at each mark, against what was spent by then; means and ranges over seeds."""
    return pandas.DataFrame(row for one in rows(results) for row in one.by_mark())


def rate_table(results: Results) -> Any:
    """The rates that were chosen, and the validation scores of all that were tried."""
    return pandas.DataFrame(
        {"dataset": d.cell.dataset.name, "split": d["split"], "scheme": d.cell.config.get("of", d["scheme"])}
        | {"size": d.cell.config.get("size", 1.0), "use": use, "rate": d[f"{use}: rate"]}
        | {"tried": "; ".join(f"{r:g}: {score:.3f}" for r, score in d[f"{use}: tried"])}
        for d in results.of(tuned)
        for use in USES
        if f"{use}: rate" in d.result
    )


def draw_schemes(curves: Any, axis: str, label: str) -> Any:
    """A frame per split and capacity, a line per scheme."""
    figure, axes = style.frames(len(SPLITS), len(SHOWN), width=3.3, height=2.7, sharey="row")
    for row, split in zip(axes, SPLITS, strict=True):
        for ax, capacity in zip(row, SHOWN, strict=True):
            there = curves[(curves["split"] == split) & np.isclose(curves["capacity"], capacity)]
            for scheme, colour in COLOURS.items():
                line = there[there["scheme"] == scheme]
                if line.empty:  # left out on this data set
                    continue
                if scheme in OURS:
                    seeds = line["lowest_seed"], line["highest_seed"]
                    ax.fill_between(line[axis], *seeds, color=colour, alpha=0.18, linewidth=0)
                look = "o-" if scheme in OURS else "o:" if scheme == SHARED else "o--"
                ax.plot(line[axis], line["accuracy"], look, markersize=3, color=colour, label=_title(scheme))
            ax.set(title=f"{SPLIT_NAMES[split]}, {_part(capacity)}", xlabel=label)
        row[0].set_ylabel("Test accuracy")
    style.legend_below(figure, axes[0][0], columns=4)
    return figure


def choices(request: Request) -> list[str]:
    """What a reader has to know."""
    settings = effort(request, request.datasets[0].name)
    megabytes = ", ".join(f"{effort(request, d.name)['megabytes']} on {d.name}" for d in request.datasets)
    return [
        f"{settings['clients']} clients, every capacity equally often, {settings['participants']} per round "
        "(FedAvg: the same share of the clients that hold everything); "
        f"{settings['local_steps']} local steps with {settings['batch']} rows. Megabytes: {megabytes}.",
        "Non-IID: each class is dealt by a Dirichlet law of concentration 0.3.",
        "The clients' step size falls along a cosine of the bytes that are spent, and the server's is the "
        "same, so that the aggregation “mean” is the mean of the clients' weights.",
        "Rates are searched for on a ladder without ends, with two seeds of their own and on rows of no "
        "client, for two uses: the whole model, and the mean over all capacities.",
        "The submodel of a capacity is the largest prefix that it holds, or a random draw (mean over "
        f"{DRAWS}) where the scheme has no fixed one; of FedAvg, a prefix of the whole model.",
        "Random units and windows are scaled by 1/share in the model that is sent, and, with the aggregation "
        "“mean”, the scale is undone in what comes back; prefixes are not scaled.",
        "A client's accuracy is that of the submodel of its capacity, on test rows weighed by the client's "
        "own shares of the classes.",
        f"“{_title(SHARED)}”: a network of each size for all clients that can hold it, each for a fifth of "
        f"the bytes and with a rate of its own; “{_title(ALONE)}”: the same with all bytes for one size.",
        "MAST's balanced fronts start from weights that mast.nn.nodes.scale_fronts has scaled, all others "
        "from the usual ones.",
        f"BatchNorm statistics are taken anew from {CALIBRATED} training rows for every submodel.",
    ]
