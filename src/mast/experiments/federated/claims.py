"""The rule that decides which scheme is best. It was written before the run that it decides.

Ours is "mast_nested", one scheme for the whole model and for every capacity. A row is a data set, a split of
the labels and a capacity (1 is the whole model), at equal bytes. It holds if the mean of ours over seeds is
at least that of the best of the rivals, and is marked as outside the spread of the seeds if the worst seed of
ours is above the best seed of that rival. The whole model's row uses the rate that was chosen for the whole
model, the others the rate that was chosen for the mean over all capacities; this is so for every scheme.

Ours becomes the scheme that `mast.federated.server_for` assumes if no row of a data set with more than 1,000
test rows goes to a rival by more than the spread of its own seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mast.experiments.experiment import Claim
from mast.experiments.federated.cells import RIVALS
from mast.methods.distributed import scheme_of

OUR_SCHEME = "mast_nested"
PUBLISHED = ("fedrolex", "heterofl", "federated_dropout")  # best first, in the paper of FedRolex
SPLIT_NAMES = {"iid": "labels alike", "dirichlet": "labels uneven"}


def claims(table: Any) -> Iterator[Claim]:
    """One claim per row, and one about the published order; `table` has a row per seed."""
    for (dataset, split), part in table.groupby(["dataset", "split"], sort=False):
        for capacity, rows in part.groupby("capacity", sort=False):
            yield _ahead(str(dataset), SPLIT_NAMES[split], float(capacity), rows)
        yield _order(str(dataset), SPLIT_NAMES[split], part[part["capacity"] == 1])


def _ahead(dataset: str, split: str, capacity: float, rows: Any) -> Claim:
    by_seed = rows.pivot_table(index="seed", columns="scheme", values="accuracy")
    means = by_seed.mean()
    best = max(RIVALS, key=lambda name: float(means[name]))
    ours, theirs = by_seed[OUR_SCHEME], by_seed[best]
    what = "the whole model" if capacity == 1 else f"capacity 1/{round(1 / capacity)}"
    outside = "outside" if ours.min() > theirs.max() or theirs.min() > ours.max() else "within"
    return Claim(
        f"{split}, {what}: {scheme_of(OUR_SCHEME).title} is at or above every rival",
        "mean accuracy over seeds at equal bytes, minus that of the best rival, >= 0",
        f"{ours.mean():.3f} against {theirs.mean():.3f} of {scheme_of(best).title}, {outside} the spread of "
        "the seeds",
        bool(ours.mean() >= theirs.mean()),
        source="beyond",
        dataset=dataset,
        noise=outside == "within",
    )


def _order(dataset: str, split: str, rows: Any) -> Claim:
    means = rows.groupby("scheme")["accuracy"].mean()
    found = [float(means[name]) for name in PUBLISHED]
    return Claim(
        f"{split}, the whole model: FedRolex is above HeteroFL, and that above Federated Dropout, as "
        "published",
        "the order of mean accuracies",
        ", ".join(f"{scheme_of(n).title} {a:.3f}" for n, a in zip(PUBLISHED, found, strict=True)),
        found == sorted(found, reverse=True),
        source="beyond",
        dataset=dataset,
    )
