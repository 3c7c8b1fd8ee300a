"""Sizes: a trained network for digits, cut to a few of its units, and what one short run makes of that.

The recipe of `mast.nn.elastic` in small. The network has been trained plainly; then each size is cut from it
and used as it is, trained alone, or is one of the sizes of a single elastic run.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import mast.nn
from mast.errors import ArgumentError
from mast.experiments import style
from mast.experiments.accuracy import standard_error
from mast.experiments.datasets import Dataset, digits, digits_sum, one_thread
from mast.experiments.experiment import (
    NOISE,
    Claim,
    Experiment,
    Figure,
    Findings,
    Gain,
    Request,
    Results,
    small_table,
)
from mast.experiments.neural.rounds import start
from mast.randomness import Key, Purpose, permutation
from mast.support.cells import Cell
from mast.support.checks import Array

SIZES = (0.05, 0.1, 0.25, 1.0)  # shares of the hidden units
WAYS = {"cut": "cut, not trained", "alone": "each size alone", "elastic": "one elastic run"}
LEVEL = 0.01  # of accuracy, on the mean over sizes


@dataclass(frozen=True)
class Digits(Dataset):
    """Scikit-learn's digits: pixels from 0 to 1."""

    def load(self) -> tuple[Any, Any]:
        """Pixels and labels."""
        pixels, labels = digits()
        return pixels / 16, labels


@one_thread()
def sizes(config: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Which test rows every size of every way has right, and the seconds of training."""
    pixels, labels = dataset.load()
    seed = config["seed"]
    order = permutation(Key(seed), Purpose.BATCH, len(labels))
    X, y = torch.tensor(pixels[order], dtype=torch.float32), torch.tensor(labels[order])
    train, test = slice(0, None, 2), slice(1, None, 2)
    batches = partial(_batches, X[train], y[train], seed, config["batch"])
    given = network(seed, 64, config["width"], config["width"], 10)
    _train(given, batches(config["steps"], 1), F.cross_entropy, config["rate"])
    teacher = copy.deepcopy(given).eval()

    def distilled(output: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = teacher(x).softmax(1)
        return F.cross_entropy(output, wanted)

    sk = mast.nn.elastic(given, SIZES, list(batches(8, 2)))
    networks = {way: [sk.submodel(member=i) for i in range(len(SIZES))] for way in ("cut", "alone")}
    seconds = {"cut": 0.0, "alone": 0.0, "elastic": 0.0}
    for net in networks["alone"]:
        pairs = ((x, x) for x, _ in batches(config["alone"], 3))
        seconds["alone"] += _train(net, pairs, distilled, config["rate"])
    pairs = ((x, x) for x, _ in batches(config["elastic"], 3))
    seconds["elastic"] = _train(given, pairs, distilled, config["rate"])
    networks["elastic"] = [sk.submodel(member=i) for i in range(len(SIZES))]
    result: dict[str, Any] = {f"seconds_{way}": taken for way, taken in seconds.items()}
    for way, members in networks.items():
        result[f"right_{way}"] = np.array([_right(net, X[test], y[test]) for net in members])
    result["right_given"] = _right(teacher, X[test], y[test])
    result["parameters"] = np.array([sum(p.numel() for p in net.parameters()) for net in networks["cut"]])
    return result


def network(seed: int, *widths: int) -> nn.Sequential:
    """Linear layers with ReLUs between them; normal weights of variance 2 over the width before."""
    layers: list[nn.Module] = []
    for number, (before, width) in enumerate(pairwise(widths)):
        linear = nn.Linear(before, width)
        linear.weight.data = start(seed, number, (width, before), 2 / before)
        linear.bias.data.zero_()
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _batches(
    X: Tensor, y: Tensor, seed: int, size: int, count: int, part: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Random rows; each part of the work has its own."""
    for step in range(count):
        rows = torch.from_numpy(permutation(Key(seed, step, part), Purpose.BATCH, len(X), 0, size))
        yield X[rows], y[rows]


def _train(net: nn.Module, batches: Any, loss: Callable[[Tensor, Any], Tensor], rate: float) -> float:
    """The usual loop; its processor seconds."""
    begun = time.process_time()
    optimizer = torch.optim.Adam(net.train().parameters(), lr=rate)
    for x, target in batches:
        loss(net(x), target).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    return time.process_time() - begun


@torch.no_grad()
def _right(net: nn.Module, X: Tensor, y: Tensor) -> Array:
    return np.asarray(net.eval()(X).argmax(1) == y)


class Sizes(Experiment):
    """One network in four sizes; not in the paper."""

    name = "sizes"
    title = "One network in several sizes"
    datasets = fast_datasets = ("digits",)

    def find(self, effort: str, dataset: str | None, data_dir: Path | None) -> tuple[Dataset, ...]:
        """Digits."""
        if dataset not in (None, "digits"):
            raise ArgumentError(f"the sizes experiment runs on digits, not on {dataset!r}")
        return (Digits("digits", "", digits_sum()),)

    def cells(self, request: Request) -> list[Cell]:
        """One cell per seed: another split, start and order of rows."""
        fixed = {"width": 512, "steps": 300, "alone": 150, "elastic": 300, "batch": 64, "rate": 1e-3}
        varied = {"seed": range(request.pick(fast=4, normal=8, full=20))}
        return [c for data in request.datasets for c in self.grid(sizes, data, 4.0, varied, **fixed)]

    def findings(self, request: Request, results: Results) -> Findings:
        """Figure, numbers and claims."""
        one, all_four = (results.values(f"seconds_{way}").mean() for way in ("elastic", "alone"))
        return Findings(
            lead="A network is trained plainly, its units are sorted by importance, and only the first of "
            "them are used. Cut like this and used as it is, trained alone for each size, or all sizes in "
            f"one elastic run, which takes {one:.1f} seconds where the four sizes take {all_four:.1f}.",
            figures=[
                Figure(
                    "sizes",
                    "One network in several sizes",
                    f"Test accuracy on digits, the mean over {len(results)} splits, against the number of "
                    "parameters; the dotted line is the given network.",
                    partial(draw_sizes, results),
                )
            ],
            tables={"sizes": size_table(results)},
            claims=results.claims(size_claims),
            gains=list(size_gains(results)),
            choices=[
                "Half of the rows to train on, the others to test on. The given network teaches the sizes by "
                "its outputs (distillation), alone and together; all have the same learning rate. On "
                "pretrained networks the same is measured in the study of elastic networks.",
            ],
        )


def scores(results: Results, way: str) -> Array:
    """Accuracies: seeds by sizes."""
    return np.asarray(results.values(f"right_{way}").mean(axis=2))


def size_table(results: Results) -> Any:
    """One row per seed, way and size."""
    return results.frame(
        "seed",
        way=lambda d: np.repeat(list(WAYS), len(SIZES)),
        size=lambda d: np.tile(SIZES, len(WAYS)),
        parameters=lambda d: np.tile(d["parameters"], len(WAYS)),
        accuracy=lambda d: np.concatenate([d[f"right_{way}"].mean(axis=1) for way in WAYS]),
        seconds=lambda d: np.repeat([d[f"seconds_{way}"] for way in WAYS], len(SIZES)),
    )


def size_gains(results: Results) -> Iterator[Gain]:
    """One elastic run against the cut at all sizes but the largest, and against each size trained alone."""
    ours, cut, alone = (results.values(f"right_{way}") * 1.0 for way in ("elastic", "cut", "alone"))
    for i, size in enumerate(SIZES[:-1]):
        what = f"digits, {100 * size:.0f} % of the units kept"
        yield _gain(what, cut[:, i], ours[:, i], "cutting the network")
    yield _gain(
        "digits, mean of four sizes", alone.mean(axis=1), ours.mean(axis=1), "each size trained alone"
    )


def _gain(setting: str, baseline: Array, ours: Array, rival: str) -> Gain:
    return Gain(setting, float(baseline.mean()), float(ours.mean()), standard_error(ours - baseline), rival)


def size_claims(results: Results) -> Iterator[Claim]:
    """What a run for all sizes is good for."""
    means = {way: scores(results, way) for way in WAYS}
    listed = {way: [f"{a:.3f}" for a in values.mean(axis=0)] for way, values in means.items()}
    evidence = small_table("share of units", SIZES, **{WAYS[way]: row for way, row in listed.items()})
    yield Claim(
        "After one run small sizes are better than the cut",
        "higher mean accuracy at each size but the largest",
        evidence,
        bool((means["elastic"] > means["cut"]).mean(axis=0)[:-1].min() > 0.5),
        source="beyond",
    )
    behind = (means["elastic"] - means["alone"]).mean(axis=1)
    noise = NOISE * behind.std(ddof=1) / np.sqrt(len(behind)) if len(behind) > 1 else 0.0
    yield Claim(
        "One run makes the sizes as good as training each of them alone",
        f"mean accuracy over sizes at most {LEVEL} lower",
        f"{behind.mean():+.4f} ± {noise:.4f}",
        bool(behind.mean() >= -LEVEL),
        source="beyond",
        noise=bool(behind.mean() + noise >= -LEVEL),
    )


def draw_sizes(results: Results) -> Any:
    """Accuracy against parameters."""
    figure, axes = style.frames(1, 1, width=4.6, height=3.4)
    ax = axes[0][0]
    look = {"cut": (style.GREY, "v"), "alone": (style.BLACK, "s"), "elastic": (style.BLUE, "o")}
    for way, (colour, marker) in look.items():
        seconds = results.values(f"seconds_{way}").mean()
        label = f"{WAYS[way]}: {seconds:.1f} s"
        ax.plot(
            results[0]["parameters"],
            scores(results, way).mean(axis=0),
            marker=marker,
            color=colour,
            label=label,
        )
    ax.axhline(results.values("right_given").mean(), color=style.BLACK, linestyle=":")
    ax.set(xscale="log", xlabel="Parameters", ylabel="Test accuracy")
    ax.legend(loc="lower right")
    return figure
