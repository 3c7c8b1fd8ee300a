"""Submodels: one small network, used as a list of nested sizes and with random packets of neurons lost.

The picture of the README in a minute. Every contender's settings are chosen on validation rows, for just
that use; the chosen network is trained anew with other seeds, and its submodels are scored on test rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from mast.arrays import Array
from mast.cells import Cell
from mast.experiments import style
from mast.experiments.datasets import Dataset, one_thread
from mast.experiments.density.cells import CHOOSING, SECONDS, scores_of
from mast.experiments.density.contenders import trained
from mast.experiments.density.data import Labelled, find
from mast.experiments.density.search import climb
from mast.experiments.experiment import NOISE, Claim, Experiment, Figure, Findings, Gain, Request, Results

SHARES = (0.5, 0.3, 0.2)  # of the neurons that are left: the sizes of the list, and the random cuts
PACKET = 8  # neurons of a layer that are lost together; a layer has 128
RATE = 3e-3  # the learning rate of all contenders
USES = {
    "list": "size of {:.0f} % from one list",
    "random": "random packets, {:.0f} % of the neurons left",
}
RIVALS = {"plain": "weight decay, tuned", "dropout": "dropout, tuned"}
CONTENDERS: list[dict[str, Any]] = [
    {"kind": "plain", "use": "list", "axes": ["decay"], "scanned": ["decay"]},
    {"kind": "dropout", "use": "list", "axes": ["keep", "decay"], "scanned": []},
    {"kind": "nested", "use": "list", "axes": ["decay"], "scanned": []},
    {"kind": "plain", "use": "random", "axes": ["decay"], "scanned": ["decay"]},
    {"kind": "dropout", "use": "random", "axes": ["keep", "decay"], "scanned": []},
    {"kind": "mast", "use": "random", "axes": ["keep", "decay"], "scanned": []},
]


@one_thread()
def compared(config: Mapping[str, Any], dataset: Labelled) -> dict[str, Any]:
    """The chosen setting, its validation score, and test accuracies (seeds, shares)."""

    def scores(part: str, seed: int, setting: dict[str, float]) -> Array:
        complete = {"rate": RATE} | setting
        model = trained(config, dataset, seed, complete)
        if config["kind"] == "nested":
            sizes = scores_of(config, dataset, part, "members", seed, complete, model)
            return sizes[len(SHARES) - 1 :: -1]  # the largest comes first here, and the whole is left out
        structure = "units" if config["use"] == "list" else "packets"
        cuts = [f"{structure} {share}" for share in SHARES]
        return np.array([scores_of(config, dataset, part, cut, seed, complete, model).mean() for cut in cuts])

    best, tried = climb(
        lambda setting: float(np.mean([scores("validation", seed, setting) for seed in CHOOSING])),
        config["axes"],
        scanned=config["scanned"],
    )
    judged = np.array([scores("test", seed, best) for seed in config["seeds"]])
    return {
        "scores": judged,
        "validated": max(score for _, score in tried),
        "rows_tested": len(dataset.parts().test.y),
        **best,
    }


class Submodels(Experiment):
    """What training for submodels gains over tuned dropout and weight decay, on digits."""

    name = "submodels"
    title = "One network, many submodels"

    def find(self, effort: str, dataset: str | None, data_dir: Path | None) -> tuple[Dataset, ...]:
        """Digits, whatever data other experiments of the same run are made on."""
        return find(effort, "digits", data_dir)

    def cells(self, request: Request) -> list[Cell]:
        """One cell per contender and use."""
        epochs = request.pick(fast=20, normal=120, full=120)
        common = {
            "epochs": epochs,
            "batch": 64,
            "draws": request.pick(fast=6, normal=10, full=30),
            "seeds": list(range(request.pick(fast=3, normal=5, full=10))),
            "structure": "packets",
            "packet": PACKET,
            "shares": [*sorted(SHARES), 1.0],
        }
        trainings = 9 + len(common["seeds"])
        return [
            self.cell(compared, common | contender, dataset, epochs * SECONDS["digits"] * trainings)
            for dataset in request.datasets
            for contender in CONTENDERS
        ]

    def findings(self, request: Request, results: Results) -> Findings:
        """Figure, numbers, gains and claims."""
        epochs, seeds = results[0]["epochs"], len(results[0]["seeds"])
        return Findings(
            lead="A network of two hidden layers of 128 neurons is trained once, and parts of it are used: "
            "sizes of 50, 30 and 20 % of the neurons that are known beforehand, each a part of the next; or "
            f"what is left when packets of {PACKET} neurons get lost at random. The rivals are the same "
            "network trained with weight decay or with dropout, cut in the same way.",
            figures=[
                Figure(
                    "submodels",
                    "Accuracy of submodels, MAST and its rivals",
                    f"Mean test accuracy over {seeds} seeds, with twice its standard error.",
                    partial(draw, results),
                )
            ],
            tables={"submodels": table(results)},
            claims=list(claims(results)),
            gains=list(gains(results)),
            choices=[
                f"Every contender has the same network, start, batches, {epochs} epochs of AdamW and a "
                f"learning rate of {RATE:g}. Weight decay, and the share that dropout or MAST keeps, are "
                "chosen on validation rows for just this use, on ladders that are followed until the best "
                f"setting has worse neighbours. The {seeds} seeds and the test rows of the table chose "
                "nothing.",
                "A known size of a rival is a random cut to that share of the neurons, scaled as dropout is: "
                "its neurons are exchangeable. A network that is trained alone for each size, which takes "
                "several trainings, is about as good as MAST's list, see `mast reproduce density`.",
                "The baseline of the table is the rival with the better validation score. Errors are those "
                "of seeds and of test rows together.",
                "Where single neurons vanish one by one, instead of packets, tuned dropout does as well: "
                "that is what dropout is trained for. `mast reproduce density` compares every situation.",
            ],
        )


def gains(results: Results) -> Iterator[Gain]:
    """MAST, and the rival that would have been chosen by its validation score, for each use and share."""
    for use, words in USES.items():
        (ours,) = (d for d in results.of(use=use) if d["kind"] not in RIVALS)
        rivals = (d for d in results.of(use=use) if d["kind"] in RIVALS)
        rival = max(rivals, key=lambda d: float(d["validated"]))
        for share, mast, other in zip(SHARES, ours["scores"].T, rival["scores"].T, strict=True):
            means = np.array([other.mean(), mast.mean()])
            of_rows = np.sum(means * (1 - means)) / ours["rows_tested"]  # variance, for other test rows
            error = float(np.hypot(_error(mast - other), of_rows**0.5))
            baseline, gained = means.tolist()
            yield Gain(words.format(100 * share), baseline, gained, error, RIVALS[rival["kind"]])


def _error(values: Array) -> Any:
    """The standard error of a mean over seeds (rows)."""
    return values.std(axis=0, ddof=1) / len(values) ** 0.5


def claims(results: Results) -> Iterator[Claim]:
    """None of them is the paper's."""
    for gain in gains(results):
        ahead = gain.mast - gain.baseline
        yield Claim(
            f"MAST is ahead of {gain.rival}: {gain.setting}",
            f"mean test accuracy minus that of {gain.rival} > 0",
            [
                ["MAST", gain.rival, "difference"],
                [f"{gain.mast:.3f}", f"{gain.baseline:.3f}", f"{ahead:+.3f} ± {NOISE * gain.error:.3f}"],
            ],
            ahead > 0,
            source="beyond",
            dataset="digits",
            noise=ahead > -NOISE * gain.error,
        )


def table(results: Results) -> Any:
    """One row per contender, use, share and seed, with the setting that was chosen."""
    return pandas.DataFrame(
        {
            "use": d["use"],
            "contender": d["kind"],
            "share": share,
            "seed": seed,
            "accuracy": float(scores[column]),
            "validated": d["validated"],
            "decay": d["decay"],
            "keep": d["keep"] if "keep" in d["axes"] else 1.0,
        }
        for d in results
        for seed, scores in zip(d["seeds"], d["scores"], strict=True)
        for column, share in enumerate(SHARES)
    )


def draw(results: Results) -> Any:
    """One frame per use; a line with error bars for each contender."""
    looks = {"plain": (style.GREY, "o"), "dropout": (style.ORANGE, "s")}
    figure, axes = style.frames(1, 2, width=4.4, height=3.4, sharey=True)
    titles = {"list": "Sizes from one list", "random": f"Random packets of {PACKET} neurons"}
    for ax, (use, title) in zip(axes[0], titles.items(), strict=True):
        for d in results.of(use=use):
            colour, marker = looks.get(d["kind"], (style.MAST, "D"))
            scores, label = d["scores"], RIVALS.get(d["kind"], "MAST")
            errors = NOISE * _error(scores)
            ax.errorbar(SHARES, scores.mean(axis=0), errors, color=colour, marker=marker, label=label)
        ax.set_xticks(SHARES, [f"{share:.0%}" for share in SHARES])
        ax.set(title=title, xlabel="Share of the neurons that is left (%)")
    axes[0][0].set_ylabel("Test accuracy (share of rows)")
    style.legend_below(figure, axes[0][1], columns=3)
    return figure
