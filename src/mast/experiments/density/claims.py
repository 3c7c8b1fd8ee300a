"""Claims about accuracy and density, each with the rule that decides it. None of them is the paper's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mast.experiments.density.curves import SPARSER
from mast.experiments.density.tables import LABELS
from mast.experiments.experiment import Claim

NEAR_CEILING, NEAR_DENSE, NEAR_FULL = 0.05, 0.02, 0.02  # of accuracy
SHARE = 0.1  # of the change, in the claim about nearly full fine-tuning


ABOVE = "the area under the first curve minus that under the second is > 0 for every seed"
COMPARED = (  # text, the rule, the measure, the first and the second contender
    ("Training with the keep that is run is better there than training with a larger one",
     f"accuracy at {100 * SPARSER:g} %, the first minus the second, is > 0 for every seed",
     "there", "sparser_random", "fixed_random"),
    ("One mixture of densities serves all densities better than one fixed keep does",
     ABOVE, "area", "mixture_random", "fixed_random"),
    ("Cut at random, a network trained with MAST is better than one trained with dropout",
     ABOVE, "area", "fixed_random", "dropout_random"),
    ("The worst random submodel is better with MAST than with dropout",
     ABOVE.replace("curve", "curve of worst draws", 1), "area_worst", "fixed_random", "dropout_random"),
    ("Random submodels of a MAST network are as good as a plain network pruned by magnitude",
     ABOVE, "area", "mixture_random", "plain_magnitude"),
    ("A network trained with MAST can be pruned by magnitude further than a plain one",
     ABOVE, "area", "fixed_magnitude", "plain_magnitude"),
    ("Nested subsets are better than independent ones", ABOVE, "area", "nested", "mixture_random"),
)  # fmt: skip


def claims(curves: Any, areas: Any, changed: Any) -> Iterator[Claim]:
    """All claims that the tables can decide."""
    for (dataset, structure), part in areas.groupby(["dataset", "structure"], sort=False):
        same = curves[(curves["dataset"] == dataset) & (curves["structure"] == structure)]
        decided = _linear(part) if structure == "linear" else _networks(same, part)
        yield from (replace(c, dataset=f"{dataset}, {structure}", source="beyond") for c in decided)
    for dataset, part in changed.groupby("dataset", sort=False) if len(changed) else []:
        yield from (replace(c, dataset=f"{dataset}, fine-tuning", source="beyond") for c in _changes(part))


def _networks(curves: Any, areas: Any) -> Iterator[Claim]:
    by_seed = {
        name: areas.pivot(index="seed", columns="contender", values=name) for name in ("area", "area_worst")
    }
    there = curves[curves["density"] == SPARSER]
    by_seed["there"] = there.pivot(index="seed", columns="contender", values="mean")
    means = curves.groupby(["contender", "density"])["mean"].mean()
    lead = (means["fixed_random"] - means["plain_random"]).drop(1.0)
    area = by_seed["area"]
    ceiling = area["scratch"] - area[["fixed_random", "mixture_random"]].max(axis=1)
    dense = means["scratch"][1.0] - means["mixture_random"][1.0]
    yield Claim(
        "Cut at random, a network trained with MAST is more accurate than a plain one, at every density",
        "mean accuracy of MAST with keep 50 % minus that of the plain network > 0 at each density < 1",
        ", ".join(f"{100 * p:g} %: {value:+.3f}" for p, value in lead[::-1].items()),
        bool((lead > 0).all()),
    )
    for text, decides, measure, first, second in COMPARED:
        a, b = by_seed[measure][first], by_seed[measure][second]
        yield Claim(
            text,
            decides,
            f"{_range(a - b, '+.3f')}: {LABELS[first]} {a.mean():.3f}, {LABELS[second]} {b.mean():.3f}",
            bool((a - b > 0).all()),
        )
    yield Claim(
        "Random submodels come close to networks trained at each density",
        f"area of the ceiling minus the larger MAST area at most {NEAR_CEILING}, mean over seeds",
        _range(ceiling, ".3f"),
        bool(ceiling.mean() <= NEAR_CEILING),
    )
    yield Claim(
        "Serving all densities costs little where nothing is cut",
        f"mean accuracy of the MAST mixture at 100 % at most {NEAR_DENSE} below that of plain training",
        f"{dense:.3f} below ({means['mixture_random'][1.0]:.3f} against {means['scratch'][1.0]:.3f})",
        bool(dense <= NEAR_DENSE),
    )


def _range(values: Any, form: str) -> str:
    return f"{values.mean():{form}} ({values.min():{form}} to {values.max():{form}})"


def _linear(areas: Any) -> Iterator[Claim]:
    by_seed = areas.pivot(index="seed", columns="contender", values="area")
    difference = by_seed["matched"] - by_seed["plain_random"]
    yield Claim(
        "Linear models: cut at random, MAST at each density is better than the plain model",
        "mean over partitions of the difference of areas > 0",
        f"{_range(difference, '+.4f')}: MAST {by_seed['matched'].mean():.3f}, plain "
        f"{by_seed['plain_random'].mean():.3f}, plain by magnitude {by_seed['plain_magnitude'].mean():.3f}",
        bool(difference.mean() > 0),
    )


def _changes(table: Any) -> Iterator[Claim]:
    means = table.groupby(["contender", "density"])["mean"].mean()
    for other, words in (
        ("magnitude", "the largest changes of full fine-tuning"),
        ("random", "random changes of full fine-tuning"),
        ("chosen", "training a share of the weights that is chosen once, at random"),
    ):
        lead = means["mast"] - means[other]
        yield Claim(
            f"A sparse change trained with MAST is better than {words}, at every share",
            "difference of mean accuracies > 0 at 1, 5, 10 and 25 %",
            ", ".join(f"{100 * q:g} %: {value:+.3f}" for q, value in lead.items()),
            bool((lead > 0).all()),
        )
    full, part = means["full"].iloc[0], means["mast"][SHARE]
    yield Claim(
        "A tenth of the change, trained with MAST, is nearly as good as full fine-tuning",
        f"mean accuracy at 10 % at most {NEAR_FULL} below full fine-tuning's",
        f"{part:.3f} against {full:.3f}; before fine-tuning {means['before'].iloc[0]:.3f}",
        bool(part >= full - NEAR_FULL),
    )
