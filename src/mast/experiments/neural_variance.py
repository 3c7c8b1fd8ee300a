"""Does variance reduction over sketches pay? DSGD, L-SVRDSG and S-PAGE on the student, by gradients computed.

One node that holds all rows, and N draws of the sketch, sampled once: f_D is the mean over these N, known
exactly, and all three methods sample from them. A gradient is one pass over all rows with one draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mast.arrays import Array
from mast.experiments import style
from mast.experiments.cells import Cell, Done
from mast.experiments.datasets import Dataset
from mast.experiments.findings import Claim, Plan
from mast.experiments.neural_runs import HIDDEN, NAME, NODES, VERSION, ended, seeds
from mast.sketches import Bernoulli

if TYPE_CHECKING:
    from mast.nn.sparsifier import Sparsifier
    from mast.nn.variance_reduction import SupportEstimator

KEEP, N, P = 0.7, 8, 1 / 8
METHODS = ("DSGD", "L-SVRDSG", "S-PAGE")
STEP_SIZES = (0.01, 0.05, 0.1, 0.5)
POINTS = 40
LAST = 0.1  # a level is over the last tenth of the gradients


def estimator_of(method: str, sk: Sparsifier) -> SupportEstimator:
    """The method over N draws; DSGD is the sketched gradient of one of them."""
    from torch import Tensor

    from mast.nn import LSVRDSG, SPAGE
    from mast.nn.estimators import Closure
    from mast.nn.variance_reduction import SupportEstimator

    class Sampled(SupportEstimator):
        """grad f_S for one draw of the support."""

        def backward(self, closure: Closure) -> Tensor:
            """Add it to `.grad`."""
            loss, h = self.gradient(self._one(), closure)
            self.add(h)
            return loss

    if method == "DSGD":
        return Sampled(sk, N, P)
    return LSVRDSG(sk, N=N, p=P) if method == "L-SVRDSG" else SPAGE(sk, N=N, p=P)


def reduce(config: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """One run: f_D, its squared gradient and f against the gradients computed so far."""
    import torch

    from mast.experiments.neural_data import one_thread, shares
    from mast.experiments.neural_rounds import Shape, squared_loss, student
    from mast.nn import sparsify

    with one_thread():
        shared = shares(dataset, config["rows"], NODES)[:2]
        X, T = (part.flatten(0, 1) for part in shared)
        network = student(Shape(X.shape[1], config["hidden"], T.shape[1]), config["seed"])
        sk = sparsify(network, Bernoulli(config["keep"]), seed=config["seed"])
        estimator = estimator_of(config["method"], sk)
        computed = [0]

        def closure() -> Any:
            computed[0] += 1
            return squared_loss(network(X), T)

        optimizer = torch.optim.SGD(network.parameters(), lr=config["step_size"])
        marks = grid(config["gradients"])
        rows: list[tuple[float, ...]] = []
        for mark in marks:
            while computed[0] < mark:
                optimizer.zero_grad()
                estimator.backward(closure)
                optimizer.step()
            before = computed[0]
            rows.append((before, *measured(estimator, closure)))
            computed[0] = before  # measuring is not counted
            if not np.isfinite(rows[-1]).all():
                break
        sk.remove()
    table = np.full((marks.size, 4), np.inf)
    table[: len(rows)] = rows
    losses, status = ended(table[None, :, 1])
    return {
        "gradients_computed": np.where(np.isfinite(table[:, 0]), table[:, 0], marks),
        "f_D": losses[0],
        "grad_sq": table[:, 2],
        "f": table[:, 3],
        "status": status[0],
        "mean_error": estimator.mean_error(),
    }


def grid(gradients: int) -> Array:
    """After how many gradients to measure: at most 41 times, and rarely in short runs, for it costs N."""
    return np.linspace(0, gradients, min(POINTS, gradients // 10) + 1)


def measured(estimator: SupportEstimator, closure: Any) -> tuple[float, float, float]:
    """f_D over the support, |grad f_D|², and f with S = I, at the present weights."""
    import torch

    network = estimator.sk.model
    loss, gradient = estimator.mean_gradient([estimator.key(i) for i in range(N)], closure)
    network.eval()
    with torch.no_grad():
        plain = float(closure())
    network.train()
    return float(loss), float(sum(g.double().square().sum() for g in gradient.values())), plain


def cells(plan: Plan) -> list[Cell]:
    """One cell a data set, method, step size and seed."""
    gradients, rows = plan.pick(fast=120, normal=2000, full=2000), plan.pick(fast=500, normal=2500, full=None)
    return [
        Cell(
            NAME,
            VERSION,
            reduce,
            {
                "method": method,
                "step_size": step_size,
                "gradients": gradients,
                "keep": KEEP,
                "rows": rows,
                "hidden": HIDDEN,
                "N": N,
                "p": P,
                "seed": seed,
            },
            dataset,
            cost=1 + gradients * 5e-11 * HIDDEN * ((2048 if dataset.path else 256) * (rows or 10_000)),
        )
        for dataset in plan.datasets
        for method in METHODS
        for step_size in STEP_SIZES
        for seed in range(seeds(plan))
    ]


def select(done: Sequence[Done], dataset: str, method: str, step_size: float) -> list[Done]:
    """The seeds of one method at one step size."""
    return [
        d
        for d in done
        if d.cell.compute is reduce
        and d.cell.dataset.name == dataset
        and d["method"] == method
        and d["step_size"] == step_size
    ]


def levels(mine: Sequence[Done], what: str) -> Array:
    """The median over the last tenth of the gradients, a number a seed."""
    found = []
    for d in mine:
        late = d["gradients_computed"] > (1 - LAST) * d["gradients"]
        found.append(float(np.median(d[what][late])))
    return np.array(found)


def best(done: Sequence[Done], dataset: str, method: str, what: str) -> float:
    """The step size at which a method ends with the lowest `what`, by the median over seeds.

    Each quantity has its own: a shorter step alone makes the gradient smaller, so methods at the step sizes
    that are best for f_D cannot be compared by their gradients.
    """
    ends = {s: float(np.median(levels(select(done, dataset, method, s), what))) for s in STEP_SIZES}
    return min(ends, key=lambda s: ends[s])


def claims(done: Sequence[Done], dataset: str) -> list[Claim]:
    """Whether each of the two reduced methods ends lower than DSGD, in f_D and in its gradient."""
    quantities = {"f_D": "loss f_D", "grad_sq": "squared gradient of f_D"}
    sizes = {(m, what): best(done, dataset, m, what) for m in METHODS for what in quantities}
    ends = {(m, what): levels(select(done, dataset, m, size), what) for (m, what), size in sizes.items()}
    return [
        Claim(
            f"Per gradient computed, {method} pays: it ends with a lower {name} than DSGD",
            dataset,
            f"lower in every seed over the last tenth of the gradients, each method at that of the step "
            f"sizes {', '.join(f'{s:g}' for s in STEP_SIZES)} which is best for it",
            ", ".join(f"{m} {_said(ends[m, what])} at {sizes[m, what]:g}" for m in ("DSGD", method)),
            bool((ends[method, what] < ends["DSGD", what]).all()),
            source="beyond",
        )
        for what, name in quantities.items()
        for method in METHODS[1:]
    ]


def _said(values: Array) -> str:
    middle = f"{np.median(values):.3g}"
    return middle if values.size == 1 else f"{middle} ({values.min():.3g} to {values.max():.3g})"


COLOUR = {"DSGD": style.BLUE, "L-SVRDSG": style.GREEN, "S-PAGE": style.ORANGE}


def draw(done: Sequence[Done], dataset: str) -> Any:
    """f_D, its gradient and f by gradients computed; each method at the step size best for that frame."""
    with style.look():
        figure, axes = style.frames(1, 3, width=4.2, height=3.7)
        for ax, what, title in zip(
            axes[0],
            ("f_D", "grad_sq", "f"),
            (r"MAST loss $f_D$", r"$|\nabla f_D|^2$", "plain loss $f$"),
            strict=True,
        ):
            highest = 0.0
            for method in METHODS:
                step_size = best(done, dataset, method, what)
                mine = select(done, dataset, method, step_size)
                x = grid(mine[0]["gradients"])
                label = f"{method}, γ = {step_size:g}"
                curves = np.array([np.interp(x, d["gradients_computed"], finite(d[what])) for d in mine])
                style.band(ax, x, curves, COLOUR[method], label)
                highest = max(highest, float(np.median(curves[:, 0])))
            ax.set_yscale("log")
            ax.set_ylim(top=2 * highest)
            ax.set_title(f"{dataset}: {title}")
            ax.set_xlabel("Gradients computed")
            ax.legend(loc="upper right")
        return figure


def finite(values: Array) -> Array:
    """Infinity as a large number, so that a line leaves the frame."""
    return np.where(np.isfinite(values), values, 1e30)


def table(done: Sequence[Done]) -> Any:
    """One row a measured point."""
    import pandas

    parts = [
        pandas.DataFrame(
            {
                "dataset": d.cell.dataset.name,
                "method": d["method"],
                "step_size": d["step_size"],
                "seed": d["seed"],
                "gradients_computed": d["gradients_computed"],
                "f_D": d["f_D"],
                "grad_sq": d["grad_sq"],
                "f": d["f"],
                "status": d["status"],
            }
        )
        for d in done
        if d.cell.compute is reduce
    ]
    return pandas.concat(parts, ignore_index=True)
