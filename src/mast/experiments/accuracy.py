"""Accuracy: test accuracies of sparsified ERM and MAST models, by the share of weights that is zeroed.

The paper's figures of box plots and swarm plots. Both models are exact optima, so the start does
not matter; each is cut to the K blocks of a partition, and each piece is tested on its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mast.arrays import Array
from mast.experiments import style
from mast.experiments.cells import Cell, Done
from mast.experiments.datasets import Dataset, halves, logistic
from mast.experiments.findings import Claim, Experiment, Figure, Findings, Plan
from mast.problem import Problem
from mast.sketches import PermK

NAME, VERSION = "accuracy", 1
BLOCKS = (2, 4, 5, 10, 20)
KAPPA = 100.0
TEST_SHARE = 0.25
SPLIT_SEED = 0
CLOSE = 0.02  # "close to the dense model": at most two percentage points below it


def predict(margins: Array) -> Array:
    """The label of each margin: margin > 0 is +1, else -1; so a margin of exactly 0 is -1.

    >>> predict(np.array([0.3, 0.0, -2.0])).tolist()
    [1.0, -1.0, -1.0]
    """
    return np.where(margins > 0, 1.0, -1.0)


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
        result[f"accuracy_{name}"] = np.array([np.mean(predict(m) == b) for m in margins])
        result[f"ties_{name}"] = np.array([np.mean(m == 0) for m in margins])
        result[f"dense_{name}"] = float(np.mean(predict(A @ x) == b))
    result["kept"] = np.array([draw.indices.size for draw in draws])  # type: ignore[attr-defined]
    result["gradient_erm"] = float(np.linalg.norm(f.gradient(models["erm"])))
    result["gradient_mast"] = float(np.linalg.norm(problem.gradient(models["mast"])))
    result["negative"] = float(np.mean(b < 0))
    result["rows_tested"] = int(b.size)
    return result


def cells(plan: Plan) -> list[Cell]:
    """One cell a data set, K and partition."""
    permutations = plan.pick(fast=10, normal=10, full=50)
    return [
        Cell(
            NAME,
            VERSION,
            sparsified,
            {
                "K": K,
                "permutation": permutation,
                "kappa": KAPPA,
                "test_share": TEST_SHARE,
                "split_seed": SPLIT_SEED,
            },
            dataset,
            cost=0.02 + 2e-8 * dataset.load()[0].nnz * K,
        )
        for dataset in plan.datasets
        for K in BLOCKS
        for permutation in range(permutations)
    ]


def table(done: list[Done]) -> Any:
    """One row a sparsified model."""
    import pandas

    rows = [
        {
            "dataset": d.cell.dataset.name,
            "K": d["K"],
            "sparsity": 1 - 1 / d["K"],
            "permutation": d["permutation"],
            "block": block,
            "kept": int(d["kept"][block]),
            "model": model.upper(),
            "accuracy": float(d[f"accuracy_{model}"][block]),
            "tie_share": float(d[f"ties_{model}"][block]),
            "dense_accuracy": d[f"dense_{model}"],
            "gradient_norm": d[f"gradient_{model}"],
        }
        for d in done
        for model in ("erm", "mast")
        for block in range(d["K"])
    ]
    return pandas.DataFrame(rows)


def summary(numbers: Any) -> Any:
    """Medians, quartiles, extremes and ties for each data set, K and model."""
    grouped = numbers.groupby(["dataset", "K", "model"], sort=False)
    out = grouped["accuracy"].quantile([0.25, 0.5, 0.75]).unstack()
    out.columns = ["lower_quartile", "median", "upper_quartile"]
    out["lowest"] = grouped["accuracy"].min()
    out["highest"] = grouped["accuracy"].max()
    out["models"] = grouped["accuracy"].size()
    out["mean_tie_share"] = grouped["tie_share"].mean()
    out["dense_accuracy"] = grouped["dense_accuracy"].first()
    return out.reset_index()


def findings(plan: Plan, done: list[Done]) -> Findings:
    """Figures, numbers and claims."""
    numbers = table(done)
    names = [dataset.name for dataset in plan.datasets]
    ties = numbers.groupby(["dataset", "K"], sort=False)["tie_share"].mean()
    said = "; ".join(
        f"{name}: " + ", ".join(f"K = {K} {100 * ties[name, K]:.0f} %" for K in BLOCKS) for name in names
    )
    caption = (
        "Test accuracy of every sparsified model, for {} partitions of the weights into K = 2, 4, 5, 10 "
        "and 20 blocks. Medians in white; the dashed line is the ERM model before it is sparsified, the "
        "dotted line what answering −1 always would reach."
    ).format(len({d["permutation"] for d in done}))
    return Findings(
        lead=(
            "A model is cut into K blocks of weights and each block, times K, is used alone: 1 − 1/K of "
            "the weights are zero. The ERM model minimises the plain loss f; the MAST model minimises the "
            "mean loss f_D of its own sparsified versions. Both are exact optima."
        ),
        figures=[
            Figure(
                "accuracy_box",
                "Accuracy of sparsified models",
                caption,
                lambda: draw(numbers, done, names, False),
            ),
            Figure(
                "accuracy_swarm",
                "The same, model by model",
                "Each dot is one sparsified model of the figure above.",
                lambda: draw(numbers, done, names, True),
            ),
        ],
        tables={"accuracy": numbers, "accuracy_summary": summary(numbers)},
        claims=[claim for name in names for claim in claims(numbers[numbers["dataset"] == name], name)],
        choices=[
            "Zero margins decide these figures: a row without a feature in the kept block has margin 0. The "
            f"rule is “margin > 0 is +1, else −1”. Share of test rows with margin 0, by K: {said}.",
            "The optima are computed to machine precision by Newton's method, so the start x0 ~ N(0, I) "
            "of the paper does not matter; the largest gradient norm left is "
            f"{max(max(d['gradient_erm'], d['gradient_mast']) for d in done):.1e}.",
            "One shuffled split (75 % to train, 25 % to test) for all partitions; l2 is set on the training "
            "rows so that the condition number is 100; no intercept, no scaling of features, v = 0.",
        ],
        configuration={
            "K": BLOCKS,
            "kappa": KAPPA,
            "permutations": sorted({d["permutation"] for d in done}),
            "split_seed": SPLIT_SEED,
            "test_share": TEST_SHARE,
            "rule": "margin > 0 is +1, else -1",
        },
    )


def claims(numbers: Any, name: str) -> list[Claim]:
    """What the paper says of this figure, decided for one data set."""
    erm, mast = (numbers[numbers["model"] == model] for model in ("ERM", "MAST"))
    median = {model: part.groupby("K")["accuracy"].median() for model, part in (("ERM", erm), ("MAST", mast))}
    lead = median["MAST"] - median["ERM"]
    mean = mast.groupby("K")["accuracy"].mean() - erm.groupby("K")["accuracy"].mean()
    each = [part.groupby(["permutation", "K"])["accuracy"].median().unstack() for part in (mast, erm)]
    by_permutation = each[0] - each[1]
    spread = {
        model: part.groupby("K")["accuracy"].quantile(0.75) - part.groupby("K")["accuracy"].quantile(0.25)
        for model, part in (("ERM", erm), ("MAST", mast))
    }
    deviation = {model: part.groupby("K")["accuracy"].std() for model, part in (("ERM", erm), ("MAST", mast))}
    below = {model: part[part["accuracy"] < 0.5] for model, part in (("ERM", erm), ("MAST", mast))}
    drop = {model: float(values.iloc[0] - values.iloc[-1]) for model, values in median.items()}
    dense = float(erm["dense_accuracy"].iloc[0])
    first, last = BLOCKS[0], BLOCKS[-1]
    light = by_permutation.columns[0]
    lights = mast[mast["K"] == light].groupby("permutation")["accuracy"].median()
    extreme = sorted(below["ERM"]["K"].unique().tolist())
    return [
        Claim(
            "Sparsified MAST models are more accurate than sparsified ERM models, at every sparsity",
            name,
            "median accuracy of MAST minus that of ERM > 0 for each K",
            _by_K(lead, "{:+.4f}")
            + f"; over single partitions {by_permutation.min().min():+.3f} to "
            + f"{by_permutation.max().max():+.3f}; means "
            + _by_K(mean, "{:+.4f}"),
            bool((lead > 0).all()),
        ),
        Claim(
            "Accuracies of MAST models vary less than those of ERM models",
            name,
            "distance of the quartiles, MAST below ERM for each K",
            "MAST/ERM: "
            + _by_K(spread["MAST"].map("{:.3f}".format) + "/" + spread["ERM"].map("{:.3f}".format), "{}")
            + "; standard deviations "
            + _by_K(
                deviation["MAST"].map("{:.3f}".format) + "/" + deviation["ERM"].map("{:.3f}".format), "{}"
            ),
            bool((spread["MAST"] < spread["ERM"]).all()),
        ),
        Claim(
            "More sparsity costs accuracy, for both",
            name,
            f"median accuracy falls from K = {first} to K = {last}",
            f"ERM falls by {drop['ERM']:.3f}, MAST by {drop['MAST']:.3f}",
            drop["ERM"] > 0 and drop["MAST"] > 0,
        ),
        Claim(
            "MAST models lose less by sparsification than ERM models",
            name,
            f"fall of the median from K = {first} to K = {last}, MAST below ERM",
            f"MAST {drop['MAST']:.3f}, ERM {drop['ERM']:.3f}",
            drop["MAST"] < drop["ERM"],
        ),
        Claim(
            "Accuracies below 0.5 occur for ERM only, and at the strongest sparsification only",
            name,
            f"no MAST model below 0.5, and no ERM model except at K = {last}",
            f"MAST {len(below['MAST'])} models; ERM {len(below['ERM'])} models"
            + (f", at K = {', '.join(map(str, extreme))}" if extreme else "")
            + ("" if extreme else ": none at all here")
            + f"; lowest ERM {erm['accuracy'].min():.3f}, lowest MAST {mast['accuracy'].min():.3f}",
            below["MAST"].empty and set(extreme) <= {last},
        ),
        Claim(
            "Light sparsification stays close to the dense ERM model",
            name,
            f"median accuracy of MAST at K = {light} at most {CLOSE} below the dense ERM's",
            f"{median['MAST'].iloc[0]:.3f} (partitions {lights.min():.3f} to {lights.max():.3f}) "
            f"against {dense:.3f}",
            float(median["MAST"].iloc[0]) >= dense - CLOSE,
        ),
    ]


def _by_K(values: Any, form: str) -> str:
    return ", ".join(f"K={K} {form.format(value)}" for K, value in values.items())


def draw(numbers: Any, done: list[Done], names: list[str], as_swarm: bool) -> Any:
    """A frame a data set; boxes or swarms of ERM and MAST side by side for each sparsity."""
    with style.look():
        figure, axes = style.frames(1, len(names), width=4.4, height=3.7)
        for ax, name in zip(axes[0], names, strict=True):
            mine = numbers[numbers["dataset"] == name]
            one = next(d for d in done if d.cell.dataset.name == name)
            groups = [
                (
                    place + side,
                    mine[(mine["K"] == K) & (mine["model"] == model)]["accuracy"].to_numpy(),
                    colour,
                )
                for place, K in enumerate(BLOCKS)
                for model, side, colour in (("ERM", -0.2, style.ERM), ("MAST", 0.2, style.MAST))
            ]
            lowest = min(float(values.min()) for _, values, _ in groups)
            highest = max(float(one["dense_erm"]), max(float(values.max()) for _, values, _ in groups))
            margin = 0.04 * (highest - lowest) + 1e-3
            ax.set_ylim(lowest - margin, highest + margin)
            ax.set_xlim(-0.6, len(BLOCKS) - 0.4)
            ax.axhline(one["dense_erm"], color=style.GREY, linestyle="--", linewidth=1.1, label="ERM, dense")
            ax.axhline(one["negative"], color=style.GREY, linestyle=":", linewidth=1.1, label="always −1")
            ax.set_xticks(range(len(BLOCKS)), [f"{100 * (1 - 1 / K):g} %" for K in BLOCKS])
            ax.set_xlabel("Sparsity (share of weights zeroed)")
            ax.set_title(name)
            ax.grid(axis="x", visible=False)
            if as_swarm:
                style.swarm(ax, groups, half_width=0.19, size=2.0)
            else:
                for position, values, colour in groups:
                    style.box(ax, values, position, 0.34, colour)
        axes[0][0].set_ylabel("Test accuracy of sparsified models")
        _legend(figure, axes[0][0])
        return figure


def _legend(figure: Any, ax: Any) -> None:
    from matplotlib.patches import Patch

    handles, labels = ax.get_legend_handles_labels()
    patches = [Patch(color=style.ERM, label="ERM"), Patch(color=style.MAST, label="MAST")]
    figure.legend(patches + handles, ["ERM", "MAST", *labels], loc="outside lower center", ncols=4)


EXPERIMENT = Experiment(
    name=NAME,
    title="Test accuracy of sparsified models",
    datasets=("a5a", "a1a", "w8a"),
    cells=cells,
    findings=findings,
)
