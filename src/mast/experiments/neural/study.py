"""Neural: the distributed method with Bernoulli sketches on a two-layer network, the paper's six panels.

The step size that `mast.nn.advise` proposes is run beside the paper's five.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas

from mast.experiments import style
from mast.experiments.experiment import Experiment, Findings, Request, Results
from mast.experiments.neural import runs
from mast.experiments.neural.claims import SPARSE, Curves, best, neural_claims, neural_curves
from mast.experiments.neural.data import DIGIT_FEATURES, HEAD_RATE, HEAD_STEPS, HEAD_WIDTH, find_embeddings
from mast.experiments.neural.runs import DIVERGED, HIDDEN, KEEPS, NODES, STEP_SIZES, Curve, advised
from mast.support.cells import Cell


class Neural(Experiment):
    """The paper's six panels, and what they leave open."""

    name = "neural"
    title = "A neural network, trained sparsely by ten nodes"
    version = 2

    find = staticmethod(find_embeddings)

    def cells(self, request: Request) -> list[Cell]:
        """The runs of the distributed method."""
        return runs.training_cells(self, request, KEEPS, STEP_SIZES)

    def findings(self, request: Request, results: Results) -> Findings:
        """Figures, numbers and claims."""
        over = over_seeds(request)
        return Findings(
            lead=f"Distributed DSGD with {NODES} nodes: in each round every node draws its own Bernoulli "
            "mask of all weights, and sends the gradient of its submodel on its own rows. A two-layer ReLU "
            "network learns the logits of a fine-tuned head from embeddings. The loss shown is the standard "
            "one: no weight is dropped when it is evaluated.",
            figures=[
                *results.figures(
                    "neural",
                    "Sparsity and step size",
                    f"{over}. Left: one frame per keep probability, one curve per step size, and the step "
                    "size that mast.nn.advise proposes (dashed, black). Right: one frame per step size, one "
                    "curve per keep probability; dashed where the step size is longer than the advised one. "
                    "A curve that leaves the frame has diverged.",
                    draw_panels,
                ),
                *results.figures(
                    "neural_levels",
                    "Where the runs end",
                    f"{over}. Left: the median loss over the last tenth of each run, with the advised step "
                    "size (dotted line and star). Right: the deviation of log f from its linear trend in the "
                    "last quarter.",
                    draw_levels,
                ),
            ],
            tables={"neural": runs.loss_table(results), "neural_levels": neural_levels(results)},
            claims=results.claims(neural_claims),
            choices=CHOICES,
        )


def over_seeds(request: Request) -> str:
    """What a curve shows, for captions."""
    count = runs.seeds(request)
    return f"Median over {count} seeds, with the range of all seeds" if count > 1 else "One seed"


CHOICES = [
    "Inputs: ResNet-50 embeddings of CIFAR-10 where --data-dir has them. By default scikit-learn's "
    f"digits: {DIGIT_FEATURES} fixed random ReLU features of the centred pixels play the frozen network. "
    "Either way each embedding is scaled to norm 1.",
    f"Targets: a two-layer ReLU head ({HEAD_WIDTH} hidden units) is tuned on the labels of all rows "
    f"({HEAD_STEPS} steps of Adam at {HEAD_RATE:g}); its logits, each standardised to mean 0 and "
    "variance 1, are the targets. All seeds have the same targets.",
    f"Student: inputs - {HIDDEN} ReLU units - outputs, without biases, so that every weight is sketched; "
    f"weights start at N(0, 2/{HIDDEN}) and N(0, 1/{HIDDEN}). Loss: the squared distance to the "
    "targets, averaged over rows. v = 0. (With half of it, every step would be half as long, and the "
    "grid would end before dense training becomes unstable: so it was at first, and the best step size "
    "was often the longest.)",
    f"Rows are shuffled and divided evenly among {NODES} nodes; a node uses all its rows in every round, "
    "so sketches are the only randomness of a run. A seed decides the start and all masks.",
    "Node i's mask in round t is that of mast.nn.sparsify(student, sketch, seed=seed, node=i) at step t; "
    "runs that differ in their step size alone see the same masks.",
    f"A run has diverged when a measured loss is not finite or above {DIVERGED:g} times its start; it "
    "may also end as a network whose units are all dead, at the loss of the zero function. A level is "
    "the median over the last tenth of a run; a claim speaks of the median level over seeds.",
    "Advice is asked for at the start of each run, on all its rows: 1/(L_f L_max) with the measured "
    "curvature as L_f, the limit for one draw per step, without the gain from averaging nodes.",
]


# ---- figures --------------------------------------------------------------------------------------

BY_STEP = dict(
    zip(STEP_SIZES, (style.SKY, style.GREEN, style.BLUE, style.ORANGE, style.VERMILION), strict=True)
)
BY_KEEP = dict(zip(KEEPS, (style.VERMILION, style.ORANGE, style.BLUE, style.BLACK), strict=True))
SPARSITY = {0.5: "high sparsity", 0.7: "mid sparsity", 0.9: "low sparsity"}
SIZES = {0.5: "large step size", 0.1: "medium step size", 0.01: "small step size"}
CEILING = 1.6  # times the loss at the start: the top of a frame
OUTSIDE = 100.0  # times that loss: where infinity is drawn, which is out of the frame


def show(ax: Any, curve: Curve, colour: str, label: str, line: str = "-", **options: Any) -> None:
    """A curve with its band; where it diverged it leaves the frame."""
    high = OUTSIDE * curve.loss[:, :1]
    style.band(ax, curve.rounds, np.minimum(curve.loss, high), colour, label, line, **options)


def log_losses(ax: Any) -> None:
    """A logarithmic axis with numbers at 1, 2 and 5, written as numbers: losses span a decade or two."""
    from matplotlib.ticker import LogLocator

    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter("")


def draw_panels(results: Results) -> Any:
    """Left by sparsity, one curve per step size; right by step size, one curve per keep probability."""
    curves, name = neural_curves(results), results.datasets[0]
    sizes = {k: advised(results, k) for k in KEEPS}
    figure, axes = style.frames(3, 2, width=5.2, height=3.1, sharex=True)
    for ax, (keep, title) in zip(axes[:, 0], SPARSITY.items(), strict=True):
        for s in STEP_SIZES:
            show(ax, curves[keep, s], BY_STEP[s], f"γ = {s:g}")
        show(ax, curves[keep, "advised"], style.BLACK, "advised γ", "--", linewidth=1.2)
        ax.set_title(f"{name}: {title}, keep {keep:g} (advised γ = {sizes[keep]:.2g})")
    for ax, (s, title) in zip(axes[:, 1], SIZES.items(), strict=True):
        for keep in KEEPS:
            label = f"{_label(keep)} (advised γ = {sizes[keep]:.2g})"
            show(ax, curves[keep, s], BY_KEEP[keep], label, "-" if s <= sizes[keep] else "--")
        ax.set_title(f"{name}: {title}, γ = {s:g}")
    _frames(axes, curves)
    return figure


def _frames(axes: Any, curves: Curves) -> None:
    """The same limits in every frame, so that frames can be compared."""
    begin = max(float(c.loss[:, 0].max()) for c in curves.values())
    ends = [c.loss[np.isfinite(c.loss)].min() for c in curves.values()]
    for ax in axes.flat:
        log_losses(ax)
        ax.set_ylim(0.8 * min(ends), CEILING * begin)
    for ax, columns in zip(axes[-1], (3, 2), strict=True):
        ax.set_xlabel("Rounds")
        ax.legend(ncols=columns, loc="upper center", bbox_to_anchor=(0.5, -0.2))  # one for the whole column
    for ax in axes[:, 0]:
        ax.set_ylabel("Loss $f$ (S = I)")


def draw_levels(results: Results) -> Any:
    """Where runs end by step size, one line per keep probability; the advised step size is marked."""
    curves, x = neural_curves(results), np.array(STEP_SIZES)
    begin = max(float(c.loss[:, 0].max()) for c in curves.values())
    figure, ((left, right),) = style.frames(1, 2, width=5.0, height=3.9)
    star = {"markersize": 13, "markeredgecolor": "white"}
    for keep, colour in BY_KEEP.items():
        size = advised(results, keep)
        rows = np.array([curves[keep, s].levels for s in STEP_SIZES]).T
        style.band(left, x, np.minimum(rows, OUTSIDE * begin), colour, _label(keep), "o-")
        left.plot([size], [curves[keep, "advised"].level], "*", color=colour, **star)
        left.axvline(size, color=colour, linewidth=0.8, linestyle=":")
        if keep in SPARSE:
            noise = np.array([curves[keep, s].fluctuations for s in STEP_SIZES]).T
            style.band(right, x, np.minimum(noise, 10), colour, _label(keep), "o-")
    left.plot([], [], "*", color=style.GREY, markersize=11, label="at the advised γ")
    left.set_ylabel("Loss $f$ at the end")
    right.set_ylabel("Fluctuation of log $f$ at the end")
    for ax, title in ((left, "where runs end"), (right, "how much they fluctuate")):
        ax.set(xscale="log", yscale="log", xlabel="Step size γ", title=f"{results.datasets[0]}: {title}")
        ax.legend()
    log_losses(left)
    ends = [c.level for c in curves.values() if np.isfinite(c.level)]
    left.set_ylim(0.6 * min(ends), CEILING * begin)
    return figure


def _label(keep: float) -> str:
    return "dense" if keep == 1 else f"keep {keep:g}"


def neural_levels(results: Results) -> Any:
    """Where each curve ends."""
    curves = neural_curves(results)
    return pandas.DataFrame(
        {
            "dataset": results.datasets[0],
            "keep": keep,
            "step_size": advised(results, keep) if lane == "advised" else lane,
            "advised": lane == "advised",
            "best": lane == best(curves, keep),
            **c.summary(),
            "fall_in_second_half": np.median(c.falls),
            "diverged": int(np.isinf(c.loss[:, -1]).sum()),
            "seeds": len(c.loss),
        }
        for (keep, lane), c in curves.items()
    )
