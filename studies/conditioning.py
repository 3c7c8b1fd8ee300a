"""Conditioning: is f_D harder to minimise than f? Its condition number against (p_max/p_min) kappa_f."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from mast.experiments import style
from mast.experiments.datasets import Dataset
from mast.experiments.experiment import Claim, Experiment, Figure, Findings, Request, Results, small_table
from mast.objectives import LeastSquares
from mast.randomness import Key, Purpose, words
from mast.sketches import Bernoulli
from mast.support.cells import Cell
from mast.support.checks import Array
from mast.theory import problem_bounds
from studies.command import main

KAPPA = 100.0
KEEPS = (0.9, 0.7, 0.5, 0.3, 0.1)
RATIOS = (1.5, 2.0, 3.0, 5.0, 10.0)
HIGHEST = 0.9  # p_max where the probabilities differ
LARGEST_DIMENSION = 1500
ORDERS = ("random", "steep", "flat")


def measure(config: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """The condition number of f and of f_D for uniform and for spread keep probabilities."""
    A, b = dataset.load()
    if A.shape[1] > LARGEST_DIMENSION:  # the most frequent features only: eigenvalues cost d³
        often = np.argsort(-np.diff(A.tocsc().indptr), kind="stable")[:LARGEST_DIMENSION]
        A = A[:, np.sort(often)]
    f = LeastSquares(A, b, kappa=config["kappa"])
    H = f.hessian(np.zeros(f.dim))
    rows = [("uniform", keep, 1.0, 0, *_measured(H, np.full(f.dim, keep), f)) for keep in config["keeps"]]
    for ratio, order in product(config["ratios"], ORDERS):
        for seed in range(config["seeds"] if order == "random" else 1):
            keep = _keeps(np.diag(H), ratio, order, seed)
            rows.append((order, float(keep.min()), ratio, seed, *_measured(H, keep, f)))
    columns = ("order", "keep", "ratio", "seed", "kappa_D", "bound")
    result: dict[str, Any] = {
        name: np.array(c) for name, c in zip(columns, zip(*rows, strict=True), strict=True)
    }
    return {**result, "kappa_f": _condition(H), "features": f.dim}


def _measured(H: Array, keep: Array, f: LeastSquares) -> tuple[float, float]:
    sketch = Bernoulli(keep)
    c = sketch.constants(f.dim)
    bounds = problem_bounds(L_f=f.smoothness, mu_f=f.strong_convexity, L_D=c.L_D, mu_D=c.mu_D)
    return _condition(sketch.sandwich(H)), bounds.condition_number


def _condition(H: Array) -> float:
    eigenvalues = np.linalg.eigvalsh(H)
    return float(eigenvalues[-1] / eigenvalues[0])


def _keeps(curvature: Array, ratio: float, order: str, seed: int) -> Array:
    """Keep probabilities from 0.9/ratio to 0.9, spread at random, or least (most) where f is steepest."""
    d = curvature.size
    if order == "random":
        u = words(Key(seed).child(1, Purpose.START), Purpose.START, 0, d) / 2.0**32
    else:
        rank = np.argsort(np.argsort(curvature, kind="stable"), kind="stable") / max(d - 1, 1)
        u = rank if order == "steep" else 1 - rank
    u = (u - u.min()) / max(float(np.ptp(u)), 1e-300)  # both ends are reached
    return np.asarray(HIGHEST * float(ratio) ** -u)


class Conditioning(Experiment):
    """Condition numbers of f_D, measured."""

    name = "conditioning"
    title = "Condition numbers"

    def cells(self, request: Request) -> list[Cell]:
        """One cell per data set."""
        seeds = request.pick(fast=3, normal=10, full=30)
        config = {"kappa": KAPPA, "keeps": list(KEEPS), "ratios": list(RATIOS), "seeds": seeds}
        return [self.cell(measure, config, dataset, cost=0.5) for dataset in request.datasets]

    def findings(self, request: Request, results: Results) -> Findings:
        """Figure, numbers and claims."""
        table = results.frame(
            "order",
            lowest_keep="keep",
            p_max_over_p_min="ratio",
            **{name: name for name in ("seed", "kappa_D", "bound", "kappa_f", "features")},
        )
        return Findings(
            lead="Keeping weight j with probability p_j, the condition number of f_D is at most "
            "(p_max/p_min) times that of f. Measured on ridge regression with condition number 100, where "
            "the Hessian of f_D is exact.",
            figures=[
                Figure(
                    "conditioning",
                    "Condition numbers of f_D",
                    "Left: the same keep probability for all weights; the bound is 1. Right: different "
                    "ones, from 0.9/ratio to 0.9, in random order, or lowest where f is steepest (steep) or "
                    "flattest (flat).",
                    partial(draw_conditioning, results),
                )
            ],
            tables={"conditioning": table},
            claims=results.claims(conditioning_claims),
            choices=[
                "Least squares on the labels with l2 such that the condition number is 100; in data sets "
                f"with more than {LARGEST_DIMENSION:,} features, the {LARGEST_DIMENSION:,} most frequent "
                "ones."
            ],
        )


def conditioning_claims(results: Results) -> Iterator[Claim]:
    """What the paper says of condition numbers."""
    (d,) = results
    kappa, against = d["kappa_f"], d["kappa_D"] / d["bound"]
    uniform = d["order"] == "uniform"
    grown = d["kappa_D"][~uniform] / kappa
    yield Claim(
        "The condition number of f_D is at most (p_max/p_min) times that of f",
        "largest ratio of measured to bound at most 1",
        f"{against.max():.3f} over {against.size} sketches",
        bool(against.max() <= 1 + 1e-9),
        source="theory",
    )
    uniform_keeps = [float(keep) for keep in np.ravel(d["keep"][uniform])]
    ratios = [f"{ratio:.2f}" for ratio in d["kappa_D"][uniform] / kappa]
    yield Claim(
        "Uniform keep probabilities do not worsen the condition number",
        "kappa(f_D)/kappa(f) at most 1 (the bound is 1, whatever p)",
        small_table("keep probability", uniform_keeps, measured=ratios, bound=["1.00"] * len(ratios)),
        bool((d["kappa_D"][uniform] <= kappa * (1 + 1e-9)).all()),
    )
    yield Claim(
        "Different keep probabilities may increase the condition number",
        "kappa(f_D)/kappa(f) above 1 for some of them",
        f"{grown.min():.2f} to {grown.max():.2f}; {np.mean(grown > 1):.0%} of them above 1",
        bool((grown > 1).any()),
    )


COLOURS = {"random": style.BLUE, "steep": style.VERMILION, "flat": style.GREEN}
MARKERS = ("o", "s", "^", "D", "v")


def draw_conditioning(results: Results) -> Any:
    """Uniform probabilities left, different ones right."""
    figure, ((left, right),) = style.frames(1, 2, width=5.0, height=3.7)
    for number, d in enumerate(results):
        marker, grown = MARKERS[number % len(MARKERS)], d["kappa_D"] / d["kappa_f"]
        uniform = d["order"] == "uniform"
        look = {"color": style.PALETTE[number % len(style.PALETTE)], "ms": 4, "label": d.cell.dataset.name}
        left.plot(d["keep"][uniform], grown[uniform], f"{marker}-", **look)
        for order, colour in COLOURS.items():
            of_order = d["order"] == order
            look = {"color": colour, "ms": 3.5, "alpha": 0.7, "label": order if number == 0 else None}
            right.plot(d["ratio"][of_order], grown[of_order], marker, **look)
    left.axhline(1, color=style.BLACK, linestyle=":", label="bound")
    right.plot([1, 10], [1, 10], ":", color=style.BLACK, label="bound")
    for ax in (left, right):
        ax.set_ylabel(r"$\kappa(f_D)\,/\,\kappa(f)$")
    left.set_xlabel("Keep probability p, the same for all weights")
    left.set_ylim(0, 1.08)
    right.set(xlabel=r"$p_{\max}/p_{\min}$", xscale="log", yscale="log")
    right.set_xticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    right.minorticks_off()
    left.legend()
    right.legend()
    return figure


if __name__ == "__main__":
    main("studies.conditioning.Conditioning")
