"""The figures of the guides, from the numbers of the studies and of the pages themselves.

`python docs/tools/pictures.py guides` draws them. They are small, so that they can be read on a phone.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas

import mast
from mast.plots import COLOURS, SETTINGS

DOCS = Path(__file__).parents[1]
BLUE, RED, GREEN, GREY = COLOURS[0], COLOURS[1], COLOURS[2], "#868e96"


def draw_all() -> None:
    """Every figure, into docs/images."""
    plt.rcParams.update(SETTINGS)
    for draw in (choosing, submodels, deltas, lists, missing, costs, deployment):
        figure = draw()
        figure.savefig(DOCS / "images" / f"guide-{draw.__name__}.png", dpi=140)
        plt.close(figure)


def choosing() -> Any:
    """The largest step size of theory against the share that is kept, relative to plain gradient descent."""
    figure, axes = _panel()
    keeps = np.array([1, 0.9, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05])
    constants = [mast.Bernoulli(keep).constants(1000) for keep in keeps]
    exact, one = [1 / c.L_D for c in constants], [1 / c.L_max for c in constants]
    axes.loglog(keeps, exact, "o-", color=GREEN, label="exact gradients of f_D: 1/(L_f L_D)")
    axes.loglog(keeps, one, "o-", color=BLUE, label="one draw per step: 1/(L_f L_max)")
    axes.set(xlabel="Share of the weights that is kept", ylabel="Step size relative to 1/L_f")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xticks([0.05, 0.1, 0.25, 0.5, 1], minor=False)
    axes.minorticks_off()
    axes.legend()
    return figure


def submodels() -> Any:
    """What half of the units leave of a network: parameters and time, from the table of supported models."""
    text = (DOCS / "support.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (torchvision|timm) (\S+) \|.*?\| (\d+)% \| \S+ \| (\S+) \|$", text, re.MULTILINE)
    named = {"resnet50", "vit_b_16", "mobilenet_v2", "swin_t", "convnext_tiny"}
    figure, axes = _panel()
    for library, colour in (("torchvision", BLUE), ("timm", RED)):
        points = [(int(left) / 100, float(time), name) for of, name, left, time in rows if of == library]
        axes.plot(*zip(*[point[:2] for point in points], strict=True), "o", color=colour, label=library)
        for left, time, name in points:
            if name in named and library == "torchvision":
                axes.annotate(name, (left, time), xytext=(5, -3), textcoords="offset points", fontsize=8)
    axes.plot([0.2, 0.75], [0.2, 0.75], color=GREY, lw=0.8, ls=":")
    axes.set(xlabel="Parameters left", ylabel="Time of a forward pass", xlim=(0.2, 0.8), ylim=(0.2, 1))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.legend(loc="lower right")
    return figure


def deltas() -> Any:
    """The table of the guide to deltas."""
    text = (DOCS / "deltas.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| (\.\d+) \| (\.\d+) \|$", text, re.MULTILINE)
    figure, axes = _panel(height=3.3)
    before, labels = "", []
    for place, (tuned, applied, keep, score) in enumerate(rows):
        before = before if tuned == "the same" else tuned
        labels.append(f"{before}:\n{applied}")
        colour = BLUE if applied == "delta" else GREY
        axes.plot(float(score), -place, "o", color=colour, markersize=7)
        label = f"{score}, keep {keep}  "
        axes.text(float(score) - 0.006, -place, label, va="center", ha="right", fontsize=8)
    axes.axvline(0.889, color=RED, lw=1.2)
    axes.text(0.889, 0.6, "the whole fine-tuned model, 0.889", color=RED, ha="right", fontsize=8)
    axes.set(xlim=(0.4, 0.95), ylim=(-5.6, 0.5), xlabel="Test accuracy on SST-2")
    axes.set_yticks([-place for place in range(len(rows))], labels, fontsize=7.5)
    axes.grid(axis="y", visible=False)
    return figure


def lists() -> Any:
    """Which units each submodel keeps: a random list, a balanced one, nested sizes."""
    figure, panels = plt.subplots(1, 3, figsize=(6.2, 2.3), layout="constrained")
    sketches = {
        "Sampled(RandK(6), 6)": mast.Sampled(mast.RandK(6), 6),
        "Sampled(PermK(4, ...), 8)": mast.Sampled(mast.PermK(4, redraw=True), 8),
        "Nested([.25, .5, .75, 1])": mast.Nested([0.25, 0.5, 0.75, 1.0]),
    }
    for axes, (title, sketch) in zip(panels, sketches.items(), strict=True):
        kept = np.array([_kept(draw, 24) for _, draw in sketch.support(24)])
        axes.imshow(kept, cmap=matplotlib.colors.ListedColormap(["#e9ecef", BLUE]), aspect="auto")
        axes.set_title(title, fontsize=8.5)
        axes.set(xticks=[], yticks=range(len(kept)), xlabel="Units of a layer")
        axes.grid(visible=False)
    panels[0].set_ylabel("Member")
    return figure


def _kept(draw: Any, d: int) -> Any:
    row = np.zeros(d)
    row[draw.indices] = 1
    return row


def missing() -> Any:
    """Log-loss against the share of missing cells: means over the tables of the study."""
    sys.path.insert(0, str(DOCS.parent))  # studies are not installed
    from studies.tables import page

    scores = page.complete(pandas.read_csv(DOCS / "studies" / "tables" / "scores.csv"))
    means = page.means(scores, "log_loss").xs("cells", level="blank").groupby(level="share").mean()
    figure, axes = _panel()
    for name, label, colour, style in (
        ("trees", "gradient boosting", RED, "o:"),
        ("MaskedTraining(trees)", "gradient boosting in MaskedTraining", RED, "o-"),
        ("linear, mean", "linear, mean imputation", GREY, "s:"),
        ("linear, our imputer", "linear, ConditionalImputer", GREEN, "s-"),
        ("MAST", "MastClassifier", BLUE, "D-"),
    ):
        axes.plot(means[name].index, means[name], style, color=colour, markersize=4, label=label)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set(
        xlabel="Cells that are missing in test rows",
        ylabel="Log-loss",
        xticks=[0, 0.25, 0.5, 0.75],
        ylim=(0, None),
    )
    axes.legend(loc="upper left")
    return figure


def costs() -> Any:
    """Where the seconds of a round go: the example of the page, 100 nodes of a billion weights."""
    figure, axes = _panel(height=2.4)
    parts = {
        "network": (6.4, 0.64),
        "server: wire": (2.4, 2.4),
        "server: gather and add": (1.2, 1.2),
        "server: Adam": (3.3, 3.3),
    }
    left = np.zeros(2)
    for (name, seconds), colour in zip(parts.items(), (RED, COLOURS[4], GREEN, BLUE), strict=True):
        axes.barh([1, 0], seconds, left=left, color=colour, label=name, height=0.55)
        left += seconds
    axes.set(yticks=[1, 0], yticklabels=["10 Gbit/s", "100 Gbit/s"], xlabel="Seconds per round")
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower right")
    return figure


def deployment() -> Any:
    """Who talks to whom."""
    figure, axes = _panel(height=2.6)
    axes.set(xlim=(0, 10), ylim=(0, 5))
    axes.axis("off")

    def box(x: float, y: float, width: float, text: str, colour: str) -> None:
        axes.add_patch(
            matplotlib.patches.FancyBboxPatch(
                (x, y), width, 1, boxstyle="round,pad=.08", fc="white", ec=colour, lw=1.4
            )
        )
        axes.text(x + width / 2, y + 0.5, text, ha="center", va="center", fontsize=8.5)

    box(0.2, 2, 2.6, "ServerApp\nMastStrategy, checkpoint", BLUE)
    box(3.9, 2, 1.7, "SuperLink\n(TLS)", GREY)
    for y, share in ((3.7, "all"), (2, "1/2"), (0.3, "1/4")):
        box(7.1, y, 2.7, f"SuperNode, ClientApp\nholds {share} of the units", GREEN)
        axes.annotate("", (7.0, y + 0.5), (5.7, 2.5), arrowprops={"arrowstyle": "<->", "color": GREY})
    axes.annotate("", (3.8, 2.5), (2.9, 2.5), arrowprops={"arrowstyle": "<->", "color": GREY})
    axes.text(
        4.75, 1.35, "values of submodels,\nno indices", ha="center", va="center", fontsize=8, color=GREY
    )
    return figure


def _panel(height: float = 3.3) -> Any:
    return plt.subplots(figsize=(6.2, height), layout="constrained")
