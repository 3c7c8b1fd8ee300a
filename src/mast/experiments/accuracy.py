"""Accuracy: test accuracies of sparsified ERM and MAST models, by the share of weights that is zeroed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from mast.experiments import style
from mast.experiments.datasets import Dataset, halves, logistic
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
from mast.problem import Problem
from mast.sketches import PermK
from mast.support.cells import Cell, Done
from mast.support.checks import Array

BLOCKS = (2, 4, 5, 10, 20)
KAPPA = 100.0
TEST_SHARE = 0.25
SPLIT_SEED = 0
CLOSE = 0.02  # "close to the dense model": at most two percentage points below it


def predicted_labels(margins: Array) -> Array:
    """The label of each margin: margin > 0 is +1, else -1; so a margin of exactly 0 is -1.

    >>> predicted_labels(np.array([0.3, 0.0, -2.0])).tolist()
    [1.0, -1.0, -1.0]
    """
    return np.where(margins > 0, 1.0, -1.0)


def accuracy(A: Any, b: Array, x: Array) -> float:
    """The share of rows whose label a linear model predicts."""
    return float(np.mean(predicted_labels(A @ x) == b))


def sparsified(config: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Test accuracies of all K sparsified versions of the ERM and of the MAST model, for one partition."""
    share, split = config["test_share"], config["split_seed"]
    f = logistic(dataset, config["kappa"], split, share)
    A, b = halves(dataset, split, share).test
    problem = Problem(f, PermK(config["K"], seed=config["permutation"]))
    models = {"erm": f.minimizer(), "mast": problem.minimizer()}
    draws = [draw for _, draw in problem.sketch.support(problem.dim) or []]
    result: dict[str, Any] = {}
    for name, x in models.items():
        margins = [A @ problem.sparsified(x, draw) for draw in draws]
        right = np.array([predicted_labels(m) == b for m in margins])
        result[f"accuracy_{name}"] = right.mean(axis=1)
        result[f"right_{name}"] = right.sum(axis=0).astype(np.uint8)  # how many of the K, for each row
        result[f"ties_{name}"] = np.array([np.mean(m == 0) for m in margins])
        result[f"dense_{name}"] = accuracy(A, b, x)
    result["right_dense"] = predicted_labels(A @ models["erm"]) == b
    result["kept"] = np.array([draw.indices.size for draw in draws])  # type: ignore[attr-defined]
    result["gradient_erm"] = float(np.linalg.norm(f.gradient(models["erm"])))
    result["gradient_mast"] = float(np.linalg.norm(problem.gradient(models["mast"])))
    result["negative"] = float(np.mean(b < 0))
    return result


def accuracy_table(results: Results) -> Any:
    """One row per sparsified model."""

    def both(name: str) -> Callable[[Done], Array]:
        return lambda d: np.concatenate([np.broadcast_to(d[f"{name}_{m}"], d["K"]) for m in ("erm", "mast")])

    return results.frame(
        "K",
        sparsity=lambda d: 1 - 1 / d["K"],
        permutation="permutation",
        block=lambda d: np.tile(np.arange(d["K"]), 2),
        kept=lambda d: np.tile(d["kept"], 2),
        model=lambda d: np.repeat(["ERM", "MAST"], d["K"]),
        accuracy=both("accuracy"),
        tie_share=both("ties"),
        dense_accuracy=both("dense"),
        gradient_norm=both("gradient"),
    )


def accuracy_summary(numbers: Any) -> Any:
    """Medians, quartiles, extremes and ties for each data set, K and model."""
    grouped = numbers.groupby(["dataset", "K", "model"], sort=False)
    out = grouped["accuracy"].quantile([0.25, 0.5, 0.75]).unstack()
    out.columns = ["lower_quartile", "median", "upper_quartile"]
    out[["lowest", "highest", "models"]] = grouped["accuracy"].agg(["min", "max", "size"])
    out["mean_tie_share"] = grouped["tie_share"].mean()
    out["dense_accuracy"] = grouped["dense_accuracy"].first()
    return out.reset_index()


class Accuracy(Experiment):
    """The paper's figures of box plots and swarm plots."""

    name = "accuracy"
    title = "Test accuracy of sparsified models"
    version = 2

    def cells(self, request: Request) -> list[Cell]:
        """One cell per data set, K and partition."""
        varied = {"K": BLOCKS, "permutation": range(request.pick(fast=10, normal=10, full=50))}
        fixed = {"kappa": KAPPA, "test_share": TEST_SHARE, "split_seed": SPLIT_SEED}
        return [
            cell
            for dataset in request.datasets
            for cell in self.grid(sparsified, dataset, 0.02 + 2e-7 * dataset.load()[0].nnz, varied, **fixed)
        ]

    def findings(self, request: Request, results: Results) -> Findings:
        """Figures, numbers and claims."""
        numbers = accuracy_table(results)
        ties = numbers.groupby(["dataset", "K"], sort=False)["tie_share"].mean()
        shares = "; ".join(
            f"{name}: " + ", ".join(f"K = {K} {100 * ties[name, K]:.0f} %" for K in BLOCKS)
            for name in results.datasets
        )
        partitions = len(set(results.values("permutation")))
        left = max(max(d["gradient_erm"], d["gradient_mast"]) for d in results)
        return Findings(
            lead="A model is cut into K blocks of weights and each block, times K, is used alone: 1 − 1/K of "
            "the weights are zero. The ERM model minimises the plain loss f; the MAST model minimises the "
            "mean loss f_D of its own sparsified versions. Both are exact optima.",
            figures=[
                Figure(
                    "accuracy_box",
                    "Accuracy of sparsified models",
                    f"Test accuracy of every sparsified model, for {partitions} partitions of the "
                    "weights into K = 2, 4, 5, 10 and 20 blocks. Medians in white; the dashed line is the "
                    "ERM model before it is sparsified, the dotted line what answering −1 always would "
                    "reach.",
                    partial(draw_accuracies, numbers, results, as_swarm=False),
                ),
                Figure(
                    "accuracy_swarm",
                    "The same, model by model",
                    "Each dot is one sparsified model of the other figure.",
                    partial(draw_accuracies, numbers, results, as_swarm=True),
                ),
            ],
            tables={"accuracy": numbers, "accuracy_summary": accuracy_summary(numbers)},
            claims=results.claims(accuracy_claims),
            gains=[
                gain for name, part in results.by_dataset().items() for gain in accuracy_gains(name, part)
            ],
            choices=[
                "Zero margins decide these figures: a row without a feature in the kept block has margin 0. "
                "The rule is “margin > 0 is +1, else −1”. Share of test rows with margin 0, by K: "
                f"{shares}.",
                "The optima are computed to machine precision by Newton's method, so the start x0 ~ N(0, I) "
                f"of the paper does not matter; the largest gradient norm left is {left:.1e}.",
                "One shuffled split (75 % to train, 25 % to test) for all partitions; l2 is set on the "
                "training rows so that the condition number is 100; no intercept, no scaling of features, "
                "v = 0.",
            ],
        )


def right(results: Results, model: str, K: int) -> Array:
    """The share of the K sparsified models that are right, for each partition and test row."""
    return results.of(K=K).values(f"right_{model}") / K


def standard_error(differences: Array) -> float:
    """The standard error of the mean, for other partitions (rows of the array) and other test rows.

    >>> standard_error(np.array([[1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0]]))
    0.28...
    """
    by_row, by_partition = differences.mean(axis=0), differences.mean(axis=1)
    of_partitions = by_partition.std(ddof=1) / len(by_partition) ** 0.5 if len(by_partition) > 1 else 0.0
    return float(np.hypot(by_row.std(ddof=1) / by_row.size**0.5, of_partitions))


def accuracy_gains(name: str, results: Results) -> Iterator[Gain]:
    """Mean accuracies at each sparsity."""
    for K in BLOCKS:
        erm, mast = right(results, "erm", K), right(results, "mast", K)
        what = f"{name}, {100 / K:.0f} % of the weights kept"
        yield Gain(what, float(erm.mean()), float(mast.mean()), standard_error(mast - erm), "plain model")


def accuracy_claims(results: Results) -> Iterator[Claim]:
    """What the paper says of this figure, decided for one data set."""
    numbers = accuracy_table(results)
    ahead = {K: right(results, "mast", K) - right(results, "erm", K) for K in BLOCKS}
    noise = {K: NOISE * standard_error(difference) for K, difference in ahead.items()}
    erm, mast = (numbers[numbers["model"] == model].groupby("K")["accuracy"] for model in ("ERM", "MAST"))
    lead, mean = mast.median() - erm.median(), mast.mean() - erm.mean()
    by_partition = numbers.groupby(["model", "permutation", "K"])["accuracy"].median()
    single = by_partition["MAST"] - by_partition["ERM"]
    models, first, last = {"ERM": erm, "MAST": mast}, BLOCKS[0], BLOCKS[-1]
    apart = {name: part.quantile(0.75) - part.quantile(0.25) for name, part in models.items()}
    drop = {name: float(part.median()[first] - part.median()[last]) for name, part in models.items()}
    below = {name: part[part["accuracy"] < 0.5] for name, part in numbers.groupby("model")}
    extreme = sorted(below["ERM"]["K"].unique().tolist())
    dense, light = results[0]["dense_erm"], by_partition["MAST"].xs(first, level="K")
    middle = float(mast.median()[first])
    yield Claim(
        "Sparsified MAST models are more accurate than sparsified ERM models, at every sparsity",
        "median accuracy of MAST minus that of ERM > 0 for each K",
        small_table(
            "K",
            BLOCKS,
            difference_of_medians=_each("{:+.4f}", lead),
            difference_of_means=_each("{:+.4f}", mean),
            lowest_partition=_each("{:+.3f}", single.groupby("K").min()),
            highest_partition=_each("{:+.3f}", single.groupby("K").max()),
        ),
        bool((lead > 0).all()),
        noise=bool(all(lead[K] > -noise[K] for K in BLOCKS)),
    )
    yield Claim(
        "Accuracies of MAST models vary less than those of ERM models",
        "distance of the quartiles, MAST below ERM for each K",
        small_table(
            "K",
            BLOCKS,
            MAST=_each("{:.3f}", apart["MAST"]),
            ERM=_each("{:.3f}", apart["ERM"]),
            MAST_standard_deviation=_each("{:.3f}", mast.std()),
            ERM_standard_deviation=_each("{:.3f}", erm.std()),
        ),
        bool((apart["MAST"] < apart["ERM"]).all()),
    )
    yield Claim(
        "More sparsity costs accuracy, for both",
        f"median accuracy falls from K = {first} to K = {last}",
        f"ERM falls by {drop['ERM']:.3f}, MAST by {drop['MAST']:.3f}",
        drop["ERM"] > 0 and drop["MAST"] > 0,
    )
    yield Claim(
        "MAST models lose less by sparsification than ERM models",
        f"fall of the median from K = {first} to K = {last}, MAST below ERM",
        f"MAST {drop['MAST']:.3f}, ERM {drop['ERM']:.3f}",
        drop["MAST"] < drop["ERM"],
        noise=drop["MAST"] < drop["ERM"] + NOISE * standard_error(ahead[first] - ahead[last]),
    )
    yield Claim(
        "Accuracies below 0.5 occur for ERM only, and at the strongest sparsification only",
        f"no MAST model below 0.5, and no ERM model except at K = {last}",
        f"MAST {len(below['MAST'])} models; ERM {len(below['ERM'])} models"
        + (f", at K = {', '.join(map(str, extreme))}" if extreme else ": none at all here")
        + f"; lowest ERM {erm.min().min():.3f}, lowest MAST {mast.min().min():.3f}",
        below["MAST"].empty and set(extreme) <= {last},
    )
    yield Claim(
        "Light sparsification stays close to the dense ERM model",
        f"median accuracy of MAST at K = {first} at most {CLOSE} below the dense ERM's",
        f"{middle:.3f} (partitions {light.min():.3f} to {light.max():.3f}) against {dense:.3f}",
        middle >= dense - CLOSE,
        noise=middle
        >= dense - CLOSE - NOISE * standard_error(right(results, "mast", first) - results[0]["right_dense"]),
    )


def _each(form: str, by_K: Any) -> list[str]:
    return [form.format(by_K[K]) for K in BLOCKS]


def draw_accuracies(numbers: Any, results: Results, as_swarm: bool) -> Any:
    """One frame per data set; boxes or swarms of ERM and MAST side by side for each sparsity."""
    from matplotlib.patches import Patch

    figure, axes = style.frames(1, len(results.datasets), width=4.4, height=3.7)
    accuracies = numbers.groupby(["dataset", "K", "model"])["accuracy"]
    for ax, (name, part) in zip(axes[0], results.by_dataset().items(), strict=True):
        groups = [
            (place + side, accuracies.get_group((name, K, model)).to_numpy(), colour)
            for place, K in enumerate(BLOCKS)
            for model, side, colour in (("ERM", -0.2, style.ERM), ("MAST", 0.2, style.MAST))
        ]
        dense = part[0]["dense_erm"]
        lowest = min(float(values.min()) for _, values, _ in groups)
        highest = max(dense, *(float(values.max()) for _, values, _ in groups))
        margin = 0.04 * (highest - lowest) + 1e-3
        ax.set_ylim(lowest - margin, highest + margin)
        ax.set_xlim(-0.6, len(BLOCKS) - 0.4)
        ax.axhline(dense, color=style.GREY, linestyle="--", linewidth=1.1, label="ERM, dense")
        ax.axhline(part[0]["negative"], color=style.GREY, linestyle=":", linewidth=1.1, label="always −1")
        ax.set_xticks(range(len(BLOCKS)), [f"{100 * (1 - 1 / K):g} %" for K in BLOCKS])
        ax.set(xlabel="Sparsity (share of weights zeroed)", title=name)
        ax.grid(axis="x", visible=False)
        if as_swarm:
            style.swarm(ax, groups, half_width=0.19, size=2.0)
        else:
            for position, values, colour in groups:
                style.box(ax, values, position, 0.34, colour)
    axes[0][0].set_ylabel("Test accuracy of sparsified models")
    handles, labels = axes[0][0].get_legend_handles_labels()
    patches = [Patch(color=style.ERM, label="ERM"), Patch(color=style.MAST, label="MAST")]
    figure.legend(patches + handles, ["ERM", "MAST", *labels], loc="outside lower center", ncols=4)
    return figure
