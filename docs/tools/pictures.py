"""The pictures of the pages, made by MAST itself: `python docs/tools/pictures.py [name ...]`.

overview        the start page: what MAST does, and what comes of it (two minutes)
gallery         what the commands on the gallery page and the study of conditioning draw (a few minutes)
architecture    the rooms of the source, and the data's way through a run
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from mast.plots import COLOURS, SETTINGS

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
BLUE, ORANGE, GREY = COLOURS[0], COLOURS[4], "#868e96"
WIDTH, PACKET = 256, 16  # hidden neurons of a layer, and of a packet
DENSITIES = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2]
CONTENDERS = {
    "plain": (0.0,),
    "dropout": (0.2, 0.4, 0.5, 0.6, 0.7),
    "MAST": (0.25, 0.4, 0.5),
}  # rates or keeps
DECAYS = (0.0, 0.1, 1.0, 10.0)

# name of the picture -> the command, and the figure that it leaves
GALLERY = {
    "accuracy": ("mast reproduce accuracy --dataset a1a --out runs/accuracy", "accuracy_box"),
    "trajectory": ("mast reproduce trajectory --dataset a1a --out runs/trajectory", "trajectory"),
    "rand1": ("mast reproduce rand1 --dataset a1a --out runs/rand1", "rand1"),
    "shift": ("mast reproduce shift --dataset a1a --out runs/shift", "shift_a1a"),
    "interpolation": ("mast reproduce shift --dataset a1a --out runs/shift", "interpolation"),
    "conditioning": ("python -m studies.conditioning --dataset a1a --out runs/conditioning", "conditioning"),
    "dropout": ("mast reproduce dropout --out runs/dropout", "dropout_digits"),
}


# ---- the start page -----------------------------------------------------------------------------


def overview() -> None:
    """Left: one network and three of its submodels. Right: accuracy against the share of packets that arrive.

    Hidden neurons are sent in packets of 16, and some packets get lost. Each contender's settings are those
    with the best validation accuracy when a quarter of the packets arrives; the picture shows test rows.
    """
    import torch

    import mast

    torch.set_num_threads(1)
    parts = _digits()

    def packets(share: float) -> Any:
        return mast.nn.Neurons(mast.Grouped(mast.RandK(share), [unit // PACKET for unit in range(WIDTH)]))

    def trained(name: str, rate: float, decay: float) -> Any:
        """A network, and the handle that cuts it."""
        model = _network(rate if name == "dropout" else 0.0)
        if name == "MAST":
            mast.nn.scale_start(model, packets(rate))
            sk = mast.nn.sparsify(model, packets(rate))
        _train(model, *parts["train"], decay)
        return sk if name == "MAST" else mast.nn.sparsify(model, packets(0.5))

    def accuracy(part: str) -> Callable[[Any], float]:
        X, y = parts[part]

        def score(model: Any) -> float:
            with torch.no_grad():
                return (model.eval()(X).argmax(1) == y).float().mean().item()

        return score

    handles = {}
    for name, rates in CONTENDERS.items():
        tried = {}
        for setting in product(rates, DECAYS):
            report = trained(name, *setting).report(accuracy("validation"), [0.25], draws=10)
            tried[setting] = float(report["mean"].iloc[0])
        best = max(tried, key=tried.__getitem__)
        print(f"{name}: {best}, {tried[best]:.3f} on validation rows")
        handles[name] = trained(name, *best)
    curves = {name: sk.report(accuracy("test"), DENSITIES, draws=30) for name, sk in handles.items()}
    cut = {name: [sk.submodel(seed=seed, density=0.25) for seed in range(31)] for name, sk in handles.items()}
    scores = sorted(
        (accuracy("test")(rival), accuracy("test")(ours), seed)
        for seed, (rival, ours) in enumerate(zip(cut["dropout"], cut["MAST"], strict=True))
    )
    # Not the best submodels: those at the quartiles of the rival's scores.
    examples = [(seed, rival, ours) for rival, ours, seed in (scores[23], scores[15], scores[7])]
    _draw_overview(curves, examples)


def _digits() -> Any:
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images / 16, dtype=torch.float32)
    X, X_test, y, y_test = train_test_split(images, torch.tensor(labels), test_size=0.3, random_state=0)
    X, X_chosen, y, y_chosen = train_test_split(X, y, test_size=0.2, random_state=0)
    return {"train": (X, y), "validation": (X_chosen, y_chosen), "test": (X_test, y_test)}


def _network(dropout: float) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = [nn.Linear(64, WIDTH), nn.Linear(WIDTH, WIDTH)]
    hidden = [part for layer in layers for part in (layer, nn.ReLU(), nn.Dropout(dropout))]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, 10))


def _train(model: Any, X: Any, y: Any, decay: float, epochs: int = 60) -> None:
    import torch
    from torch.nn.functional import cross_entropy

    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(X)).split(64):
            optimizer.zero_grad()
            cross_entropy(model(X[batch]), y[batch]).backward()
            optimizer.step()
        schedule.step()
    model.eval()


def _draw_overview(curves: dict[str, Any], examples: list[tuple[int, float, float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(SETTINGS)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10.6, 4.3), width_ratios=(1.12, 1), layout="constrained"
    )
    _draw_submodels(left, examples)
    words = {"MAST": "trained by MAST", "dropout": "dropout, tuned", "plain": "plain, weight decay tuned"}
    for name, colour in (("plain", GREY), ("dropout", ORANGE), ("MAST", BLUE)):
        curve = curves[name]
        right.fill_between(
            curve["density"], curve["lowest"], curve["highest"], color=colour, alpha=0.14, lw=0
        )
        right.plot(curve["density"], curve["mean"], "o-", color=colour, ms=4, lw=1.8, label=words[name])
    right.invert_xaxis()
    right.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    right.set(
        xlabel="Share of the packets of neurons that arrive (%)",
        ylabel="Test accuracy (share of digits)",
        ylim=(0.4, 1.05),
    )
    right.legend(loc="lower left", frameon=False, reverse=True)
    right.set_title("Mean and range of 30 random submodels", loc="left")
    figure.savefig(IMAGES / "overview.png", dpi=170)


def _draw_submodels(axes: Any, examples: list[tuple[int, float, float]]) -> None:
    """A small network, whole; and three draws of it, each with its measured accuracies."""
    import mast

    axes.set(xlim=(0, 10.4), ylim=(-0.35, 10.4))
    axes.axis("off")
    layers = (4, 8, 8, 3)
    _draw_network(axes, (0.2, 2.6), (3.3, 5.2), layers, None)
    axes.text(1.85, 8.35, "train one model", ha="center", weight="bold")
    axes.text(
        1.85,
        1.75,
        "every step loses other\npackets of neurons",
        ha="center",
        va="top",
        color=GREY,
        fontsize=9,
    )
    axes.text(8.0, 10.0, "run any of its submodels", ha="center", weight="bold")
    for row, (seed, rival, ours) in enumerate(examples):
        bottom = 6.75 - 3.3 * row
        pairs = mast.Grouped(mast.RandK(1), [0, 0, 1, 1, 2, 2, 3, 3])
        kept = [set(pairs.draw(8, seed=seed, index=layer).indices.tolist()) for layer in (0, 1)]
        _draw_network(axes, (5.6, bottom), (2.3, 2.5), layers, kept)
        axes.annotate(
            "", (5.35, bottom + 1.25), (3.85, 5.2), arrowprops={"arrowstyle": "->", "color": GREY, "lw": 1}
        )
        axes.text(8.35, bottom + 1.7, f"dropout  {rival:.2f}", color=ORANGE, va="center")
        axes.text(8.35, bottom + 0.8, f"MAST  {ours:.2f}", color=BLUE, va="center", weight="bold")


def _draw_network(axes: Any, corner: Any, size: Any, layers: Any, kept: Any) -> None:
    places = [
        [
            (corner[0] + size[0] * k / (len(layers) - 1), corner[1] + size[1] * (i + 0.5) / count)
            for i in range(count)
        ]
        for k, count in enumerate(layers)
    ]
    alive = [
        {i for i in range(count) if kept is None or k in (0, len(layers) - 1) or i in kept[k - 1]}
        for k, count in enumerate(layers)
    ]
    for k in range(len(layers) - 1):
        for i in sorted(alive[k]):
            for j in sorted(alive[k + 1]):
                axes.plot(
                    *zip(places[k][i], places[k + 1][j], strict=True),
                    color=BLUE,
                    lw=0.4,
                    alpha=0.55,
                    zorder=1,
                )
    for k, layer in enumerate(places):
        for i, (x, y) in enumerate(layer):
            colour = BLUE if i in alive[k] else "#dee2e6"
            axes.plot(x, y, "o", color=colour, ms=5.2 if kept is None else 4.2, zorder=2)


# ---- gallery and architecture --------------------------------------------------------------------


def gallery() -> None:
    """The figures of the gallery, from the commands that the page shows."""
    with tempfile.TemporaryDirectory() as folder:
        done = set()
        for picture, (command, figure) in GALLERY.items():
            if command not in done:
                _command(command, folder)
                done.add(command)
            out = Path(folder) / command.split("--out ")[1]
            shutil.copy(out / "figures" / f"{figure}.png", IMAGES / f"gallery-{picture}.png")


def _command(command: str, folder: str | None = None) -> None:
    tool, *words = command.split()
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]  # studies are not installed
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    subprocess.run([Path(sys.executable).parent / tool, *words], cwd=folder, env=environment, check=True)


def architecture() -> None:
    """The diagram of the rooms."""
    sys.path.insert(0, str(Path(__file__).parent))
    from rooms import diagram  # beside this file

    (IMAGES / "architecture.svg").write_text(diagram(), encoding="utf-8")


PICTURES = {
    "overview": overview,
    "gallery": gallery,
    "architecture": architecture,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()
