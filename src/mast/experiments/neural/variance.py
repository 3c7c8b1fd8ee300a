"""Does variance reduction over sketches pay? DSGD, L-SVRDSG and S-PAGE on the student, by gradients computed.

One node that holds all rows, and N draws of the sketch, sampled once: f_D is the mean over these N, known
exactly, and all three methods sample from them. A gradient is one pass over all rows with one draw.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mast.arrays import Array
from mast.cells import Cell
from mast.experiments import style
from mast.experiments.datasets import one_thread
from mast.experiments.experiment import Claim, Experiment, Request, Results, spread
from mast.experiments.neural.data import Embedded, shares
from mast.experiments.neural.rounds import squared_loss, student
from mast.experiments.neural.runs import HIDDEN, LAST, NODES, ended, seeds
from mast.nn import LSVRDSG, SPAGE, Sparsifier, sparsify
from mast.nn.estimators import Closure
from mast.nn.variance_reduction import SupportEstimator
from mast.sketches import Bernoulli

KEEP, N, P = 0.7, 8, 1 / 8
METHODS = ("DSGD", "L-SVRDSG", "S-PAGE")
STEP_SIZES = (0.01, 0.05, 0.1, 0.5)
POINTS = 40


class OneDraw(SupportEstimator):
    """DSGD: grad f_S for one draw of the support."""

    def backward(self, closure: Closure) -> Tensor:
        """Add it to `.grad`."""
        loss, h = self.gradient(self._one(), closure)
        self.add(h)
        return loss


def estimator_of(method: str, sk: Sparsifier) -> SupportEstimator:
    """The method over N draws."""
    if method == "DSGD":
        return OneDraw(sk, N, P)
    return LSVRDSG(sk, N=N, p=P) if method == "L-SVRDSG" else SPAGE(sk, N=N, p=P)


@one_thread()
def reduce(config: Mapping[str, Any], dataset: Embedded) -> dict[str, Any]:
    """One run: f_D, its squared gradient and f against the gradients computed so far."""
    shared = shares(dataset, config["rows"], NODES)[:2]
    X, T = (part.flatten(0, 1) for part in shared)
    network = student((X.shape[1], config["hidden"], T.shape[1]), config["seed"])
    sk = sparsify(network, Bernoulli(config["keep"]), seed=config["seed"])
    estimator = estimator_of(config["method"], sk)
    computed = [0]

    def closure() -> Any:
        computed[0] += 1
        return squared_loss(network(X), T)

    optimizer = torch.optim.SGD(network.parameters(), lr=config["step_size"])
    marks = grid(config["gradients"])
    table = np.full((marks.size, 4), np.inf)
    for row, mark in zip(table, marks, strict=True):
        while computed[0] < mark:
            optimizer.zero_grad()
            estimator.backward(closure)
            optimizer.step()
        before = computed[0]
        row[:] = before, *measured(estimator, closure)
        computed[0] = before  # measuring is not counted
        if not np.isfinite(row).all():
            break
    sk.remove()
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
    network = estimator.sk.model
    loss, gradient = estimator.mean_gradient([estimator.key(i) for i in range(N)], closure)
    network.eval()
    with torch.no_grad():
        plain = float(closure())
    network.train()
    return float(loss), float(sum(g.double().square().sum() for g in gradient.values())), plain


def cells(experiment: Experiment, request: Request) -> list[Cell]:
    """One cell per method, step size and seed."""
    gradients = request.pick(fast=120, normal=2000, full=2000)
    rows = request.pick(fast=500, normal=2500, full=None)
    varied = {"method": METHODS, "step_size": STEP_SIZES, "seed": range(seeds(request))}
    fixed = {"gradients": gradients, "keep": KEEP, "rows": rows, "hidden": HIDDEN, "N": N, "p": P}
    (data,) = request.datasets
    seconds = 1 + gradients * 5e-11 * HIDDEN * (2048 if data.path else 256) * (rows or 10_000)
    return experiment.grid(reduce, data, seconds, varied, **fixed)


def levels(runs: Results, what: str) -> Array:
    """The median over the last tenth of the gradients, one number per seed."""
    late = [d["gradients_computed"] > (1 - LAST) * d["gradients"] for d in runs]
    return np.array([float(np.median(d[what][last])) for d, last in zip(runs, late, strict=True)])


def best(results: Results, method: str, what: str) -> float:
    """The step size at which a method ends with the lowest `what`, by the median over seeds.

    Each quantity has its own: a shorter step alone makes the gradient smaller, so methods at the step sizes
    that are best for f_D cannot be compared by their gradients.
    """
    runs = {s: results.of(reduce, method=method, step_size=s) for s in STEP_SIZES}
    return min(STEP_SIZES, key=lambda s: float(np.median(levels(runs[s], what))))


def claims(results: Results) -> Iterator[Claim]:
    """Whether each of the two reduced methods ends lower than DSGD, in f_D and in its gradient."""
    for what, words in (("f_D", "loss f_D"), ("grad_sq", "squared gradient of f_D")):
        sizes = {m: best(results, m, what) for m in METHODS}
        ends = {m: levels(results.of(reduce, method=m, step_size=s), what) for m, s in sizes.items()}
        shown = {m: spread(e, ".3g") if e.size > 1 else f"{e[0]:.3g}" for m, e in ends.items()}
        for method in METHODS[1:]:
            yield Claim(
                f"Per gradient computed, {method} pays: it ends with a lower {words} than DSGD",
                f"lower in every seed over the last tenth of the gradients, each method at that of the step "
                f"sizes {', '.join(f'{s:g}' for s in STEP_SIZES)} which is best for it",
                [["method", "step size", words], *([m, f"{sizes[m]:g}", shown[m]] for m in ("DSGD", method))],
                bool((ends[method] < ends["DSGD"]).all()),
                source="beyond",
            )


COLOUR = {"DSGD": style.BLUE, "L-SVRDSG": style.GREEN, "S-PAGE": style.ORANGE}
TITLES = {"f_D": r"MAST loss $f_D$", "grad_sq": r"$|\nabla f_D|^2$", "f": "plain loss $f$"}


def draw(results: Results) -> Any:
    """f_D, its gradient and f by gradients computed; each method at the step size best for that frame."""
    figure, (row,) = style.frames(1, 3, width=4.2, height=3.7)
    for ax, (what, title) in zip(row, TITLES.items(), strict=True):
        highest = 0.0
        for method, colour in COLOUR.items():
            step_size = best(results, method, what)
            runs = results.of(reduce, method=method, step_size=step_size)
            x = grid(runs[0]["gradients"])
            # where a run has diverged, its line leaves the frame
            drawn = [(d["gradients_computed"], np.nan_to_num(d[what], nan=1e30, posinf=1e30)) for d in runs]
            curves = np.array([np.interp(x, *points) for points in drawn])
            style.band(ax, x, curves, colour, f"{method}, γ = {step_size:g}")
            highest = max(highest, float(np.median(curves[:, 0])))
        ax.set_yscale("log")
        ax.set_ylim(top=2 * highest)
        ax.set(title=results.datasets[0], xlabel="Gradients computed", ylabel=title)
        ax.legend(loc="upper right")
    return figure


def table(reduced: Results) -> Any:
    """One row per measured point."""
    names = ("method", "step_size", "seed", "gradients_computed", "f_D", "grad_sq", "f", "status")
    return reduced.frame(*names)
