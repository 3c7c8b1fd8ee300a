"""The page of the study, from its text (page.md) and its numbers: `python -m studies.federated.page`."""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import Any

import pandas

from mast.experiments import style
from mast.support import files

DOCS = Path(__file__).parents[2] / "docs"
NUMBERS = DOCS / "studies" / "federated" / "results.csv"
SPLITS = {"iid": "IID", "dirichlet": "non-IID"}
CAPACITIES = {1.0: "whole", 0.5: "1/2", 0.25: "1/4", 0.125: "1/8", 0.0625: "1/16"}
TITLES = {
    "fedavg": "FedAvg",
    "a model for each size": "FedAvg, one model per size",
    "federated_dropout": "Federated Dropout",
    "fedrolex": "FedRolex",
    "heterofl": "HeteroFL",
    "fjord": "FjORD",
    "mast_fixed": "MAST, fixed prefixes",
    "mast_nested": "MAST, nested prefixes",
    "mast_balanced": "MAST, balanced prefixes",
    "a model of this size only": "*FedAvg, this size only*",
}
NOT_COMPARED = "a model of this size only"  # all bytes for one size
GUIDE = {  # schemes of the guide's table, and their colours in its figure
    "fedavg": style.BLACK,
    "a model for each size": style.GREY,
    "heterofl": style.SKY,
    "fjord": style.ORANGE,
    "mast_balanced": style.MAST,
}


def page(results: Any) -> str:
    """The whole page."""
    parts = {f"{name}_{megabytes}": (name, megabytes) for name, megabytes in _runs(results)}
    tables = {key.replace("-", "_"): schemes(results, *part) for key, part in parts.items()}
    text = Path(__file__).with_name("page.md").read_text(encoding="utf-8")
    return Template(text).substitute(tables)


def schemes(results: Any, dataset: str, megabytes: int) -> str:
    """A table per split of the labels: a row per scheme, a column per capacity; bold is the best."""
    rows = results[(results["dataset"] == dataset) & (results["megabytes"] == megabytes)]
    return "\n".join(line for split in SPLITS for line in _split(rows[rows["split"] == split], split))


def guide(results: Any) -> str:
    """The table of the guide: five schemes, three capacities, both splits."""
    shown, chosen = (1.0, 0.25, 0.0625), results[(results["dataset"] == "features")]
    chosen = chosen[chosen["megabytes"] == 100].set_index(["scheme", "split", "capacity"])["accuracy"]
    head = [f"{SPLITS[split]}, {CAPACITIES[size]}" for split in SPLITS for size in shown]
    cells = {name: [chosen[name, split, size] for split in SPLITS for size in shown] for name in GUIDE}
    best = [max(column) for column in zip(*cells.values(), strict=True)]
    lines = [f"| | {' | '.join(head)} |", "|---|" + "---:|" * len(head)]
    lines += [f"| {TITLES[name]} | {' | '.join(map(_number, row, best))} |" for name, row in cells.items()]
    return "\n".join(lines)


def draw(results: Any) -> Any:
    """Accuracy against capacity, a frame per split, a line per scheme of the guide."""
    figure, axes = style.frames(1, len(SPLITS), width=4.2, height=3.0, sharey="row")
    chosen = results[(results["dataset"] == "features") & (results["megabytes"] == 100)]
    for ax, (split, title) in zip(axes.flat, SPLITS.items(), strict=True):
        for name, colour in GUIDE.items():
            line = chosen[(chosen["split"] == split) & (chosen["scheme"] == name)].sort_values("capacity")
            seeds = line["lowest_seed"], line["highest_seed"]
            ax.fill_between(line["capacity"], *seeds, color=colour, alpha=0.15, linewidth=0)
            ax.plot(line["capacity"], line["accuracy"], "o-", markersize=3, color=colour, label=TITLES[name])
        ax.set(title=title, xlabel="Share of the hidden units", xscale="log")
        ax.set_xticks(list(CAPACITIES), list(CAPACITIES.values()))
        ax.minorticks_off()
    axes.flat[0].set_ylabel("Test accuracy")
    style.legend_below(figure, axes.flat[0], columns=3)
    return figure


def _runs(results: Any) -> list[tuple[str, int]]:
    return list(results[["dataset", "megabytes"]].drop_duplicates().itertuples(index=False, name=None))


def _split(rows: Any, split: str) -> list[str]:
    wide = rows.pivot_table(index="scheme", columns="capacity", values="accuracy")
    best = wide.drop(index=NOT_COMPARED, errors="ignore").max()
    ranges = (rows["highest_seed"] - rows["lowest_seed"]).groupby(rows["scheme"]).max()
    worst = rows.groupby("scheme")["worst_client"].first()
    head = [SPLITS[split], *CAPACITIES.values(), "worst client", "seed range"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for name in (name for name in TITLES if name in wide.index):
        none = [None if name == NOT_COMPARED else best[size] for size in CAPACITIES]
        cells = [_number(wide.loc[name, size], top) for size, top in zip(CAPACITIES, none, strict=True)]
        ends = [f"{worst[name]:.2f}".lstrip("0"), _number(ranges[name], None)]
        lines.append(f"| {TITLES[name]} | {' | '.join([*cells, *ends])} |")
    return [*lines, ""]


def _number(value: float, best: float | None) -> str:
    if pandas.isna(value):
        return ""
    text = f"{value:.3f}".lstrip("0")
    return f"**{text}**" if value == best else text


if __name__ == "__main__":
    published = pandas.read_csv(NUMBERS)
    files.write(NUMBERS.parent.with_suffix(".md"), page(published).encode())
    draw(published).savefig(DOCS / "images" / "federated_capacities.png", dpi=160)
    print(guide(published))
