"""Claims about accuracy and density, each with the rule that decides it. None of them is the paper's."""

from __future__ import annotations

from typing import Any

from mast.experiments.density_cells import SPARSER
from mast.experiments.density_tables import LABELS
from mast.experiments.findings import Claim

NEAR_CEILING, NEAR_DENSE, NEAR_FULL = 0.05, 0.02, 0.02  # of accuracy
SHARE = 0.1  # of the change, in the claim about nearly full fine-tuning


def claims(curves: Any, areas: Any, changed: Any) -> list[Claim]:
    """All claims that the tables can decide."""
    found = []
    for (dataset, structure), part in areas.groupby(["dataset", "structure"], sort=False):
        mine = curves[(curves["dataset"] == dataset) & (curves["structure"] == structure)]
        if structure == "linear":
            found.append(_linear(dataset, part))
        else:
            found += _networks(f"{dataset}, {structure}", mine, part)
    for dataset, part in changed.groupby("dataset", sort=False) if len(changed) else []:
        found += _changes(dataset, part)
    return found


def _networks(where: str, curves: Any, areas: Any) -> list[Claim]:
    by_seed = areas.pivot(index="seed", columns="contender", values="area")
    worst = areas.pivot(index="seed", columns="contender", values="area_worst")
    means = curves.groupby(["contender", "density"])["mean"].mean()
    lead = (means["fixed_random"] - means["plain_random"]).drop(1.0)
    ceiling = by_seed["scratch"] - by_seed[["fixed_random", "mixture_random"]].max(axis=1)
    dense = means["scratch"][1.0] - means["mixture_random"][1.0]
    there = curves[curves["density"] == SPARSER].pivot(index="seed", columns="contender", values="mean")
    above = "the area under the first curve minus that under the second is > 0 for every seed"
    return [
        Claim(
            "Cut at random, a network trained with MAST is more accurate than a plain one, at every density",
            where,
            "mean accuracy of MAST with keep 50 % minus that of the plain network > 0 at each density < 1",
            ", ".join(f"{100 * p:g} %: {value:+.3f}" for p, value in lead[::-1].items()),
            bool((lead > 0).all()),
            "beyond",
        ),
        _compare("Training with the keep that is run is better there than training with a larger one",
                 where, f"accuracy at {100 * SPARSER:g} %, the first minus the second, is > 0 for every seed",
                 there, "sparser_random", "fixed_random"),
        _compare("One mixture of densities serves all densities better than one fixed keep does",
                 where, above, by_seed, "mixture_random", "fixed_random"),
        _compare("Cut at random, a network trained with MAST is better than one trained with dropout",
                 where, above, by_seed, "fixed_random", "dropout_random"),
        _compare("The worst random submodel is better with MAST than with dropout",
                 where, above.replace("curve", "curve of worst draws", 1), worst,
                 "fixed_random", "dropout_random"),
        _compare("Random submodels of a MAST network are as good as a plain network pruned by magnitude",
                 where, above, by_seed, "mixture_random", "plain_magnitude"),
        _compare("A network trained with MAST can be pruned by magnitude further than a plain one",
                 where, above, by_seed, "fixed_magnitude", "plain_magnitude"),
        _compare("Nested subsets are better than independent ones",
                 where, above, by_seed, "nested", "mixture_random"),
        Claim(
            "Random submodels come close to networks trained at each density",
            where,
            f"area of the ceiling minus the larger MAST area at most {NEAR_CEILING}, mean over seeds",
            f"{ceiling.mean():.3f} ({ceiling.min():.3f} to {ceiling.max():.3f})",
            bool(ceiling.mean() <= NEAR_CEILING),
            "beyond",
        ),
        Claim(
            "Serving all densities costs little where nothing is cut",
            where,
            f"mean accuracy of the MAST mixture at 100 % at most {NEAR_DENSE} below that of plain training",
            f"{dense:.3f} below ({means['mixture_random'][1.0]:.3f} against {means['scratch'][1.0]:.3f})",
            bool(dense <= NEAR_DENSE),
            "beyond",
        ),
    ]  # fmt: skip


def _compare(text: str, where: str, decides: str, by_seed: Any, first: str, second: str) -> Claim:
    difference = by_seed[first] - by_seed[second]
    return Claim(
        text,
        where,
        decides,
        f"{difference.mean():+.3f} ({difference.min():+.3f} to {difference.max():+.3f}): "
        f"{LABELS[first]} {by_seed[first].mean():.3f}, {LABELS[second]} {by_seed[second].mean():.3f}",
        bool((difference > 0).all()),
        "beyond",
    )


def _linear(dataset: str, areas: Any) -> Claim:
    by_seed = areas.pivot(index="seed", columns="contender", values="area")
    difference = by_seed["matched"] - by_seed["plain_random"]
    return Claim(
        "Linear models: cut at random, MAST at each density is better than the plain model",
        f"{dataset}, linear",
        "mean over partitions of the difference of areas > 0",
        f"{difference.mean():+.4f} ({difference.min():+.4f} to {difference.max():+.4f}): MAST "
        f"{by_seed['matched'].mean():.3f}, plain {by_seed['plain_random'].mean():.3f}, plain by magnitude "
        f"{by_seed['plain_magnitude'].mean():.3f}",
        bool(difference.mean() > 0),
        "beyond",
    )


def _changes(dataset: str, table: Any) -> list[Claim]:
    means = table.groupby(["contender", "density"])["mean"].mean()
    where, found = f"{dataset}, fine-tuning", []
    for other, words in (
        ("magnitude", "the largest changes of full fine-tuning"),
        ("random", "random changes of full fine-tuning"),
        ("chosen", "training a share of the weights that is chosen once, at random"),
    ):
        lead = means["mast"] - means[other]
        found.append(
            Claim(
                f"A sparse change trained with MAST is better than {words}, at every share",
                where,
                "difference of mean accuracies > 0 at 1, 5, 10 and 25 %",
                ", ".join(f"{100 * q:g} %: {value:+.3f}" for q, value in lead.items()),
                bool((lead > 0).all()),
                "beyond",
            )
        )
    full, part = means["full"].iloc[0], means["mast"][SHARE]
    found.append(
        Claim(
            "A tenth of the change, trained with MAST, is nearly as good as full fine-tuning",
            where,
            f"mean accuracy at 10 % at most {NEAR_FULL} below full fine-tuning's",
            f"{part:.3f} against {full:.3f}; before fine-tuning {means['before'].iloc[0]:.3f}",
            bool(part >= full - NEAR_FULL),
            "beyond",
        )
    )
    return found
