"""The pictures of the pages, made by MAST itself: `python docs/tools/pictures.py [name ...]`.

overview        the start page: what MAST does, and what comes of it (a minute)
researcher      a run beside its bound
data-scientist  what `mast evaluate` draws
gallery         what the commands on the gallery page draw (a few minutes)
architecture    the rooms of the source, and the data's way through a run
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).parents[1] / "images"
BLUE, ORANGE, GREY = "#3b5bdb", "#e8710a", "#868e96"
DENSITIES = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2]

# name of the picture -> the command, and the figure that it leaves
GALLERY = {
    "accuracy": ("mast reproduce accuracy --dataset a1a --out runs/accuracy", "accuracy_box"),
    "trajectory": ("mast reproduce trajectory --dataset a1a --out runs/trajectory", "trajectory"),
    "rand1": ("mast reproduce rand1 --dataset a1a --out runs/rand1", "rand1"),
    "shift": ("mast reproduce shift --dataset a1a --out runs/shift", "shift_a1a"),
    "interpolation": ("mast reproduce shift --dataset a1a --out runs/shift", "interpolation"),
    "conditioning": ("mast reproduce conditioning --dataset a1a --out runs/conditioning", "conditioning"),
    "dropout": ("mast reproduce dropout --out runs/dropout", "dropout_digits"),
}


# ---- the start page -----------------------------------------------------------------------------


def overview() -> None:
    """Left: one network and three of its submodels. Right: accuracy against the share of neurons kept."""
    import torch

    import mast

    torch.set_num_threads(1)
    X, X_test, y, y_test = _digits()

    def accuracy(model: Any) -> float:
        with torch.no_grad():
            return (model(X_test).argmax(1) == y_test).float().mean().item()

    sketch = mast.nn.Neurons(mast.Bernoulli(0.3))
    curves, handles = {}, {}
    for name in ("plain", "MAST"):
        model = _network()
        if name == "MAST":
            handles[name] = mast.nn.sparsify(model, sketch)
        _train(model, X, y)
        if name == "plain":
            handles[name] = mast.nn.sparsify(model, sketch)  # only to cut it
        curves[name] = handles[name].report(accuracy, DENSITIES, draws=30)
    scores = sorted(
        (accuracy(handles["plain"].submodel(seed=seed)), accuracy(handles["MAST"].submodel(seed=seed)), seed)
        for seed in range(31)
    )
    # Not the best submodels: those at the quartiles of the plain network's scores.
    examples = [(seed, plain, ours) for plain, ours, seed in (scores[23], scores[15], scores[7])]
    _draw_overview(curves, examples)


def _digits() -> Any:
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images / 16, dtype=torch.float32)
    return train_test_split(images, torch.tensor(labels), test_size=0.3, random_state=0)


def _network() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def _train(model: Any, X: Any, y: Any, epochs: int = 60) -> None:
    import torch
    from torch.nn.functional import cross_entropy

    torch.manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
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

    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10.6, 4.3), width_ratios=(1.12, 1), layout="constrained"
    )
    _draw_submodels(left, examples)
    for name, colour in (("plain", ORANGE), ("MAST", BLUE)):
        curve = curves[name]
        right.fill_between(
            curve["density"], curve["lowest"], curve["highest"], color=colour, alpha=0.14, lw=0
        )
        right.plot(curve["density"], curve["mean"], "o-", color=colour, ms=4, lw=1.8)
    right.annotate(
        "trained by MAST", (0.42, _at(curves["MAST"], 0.4)), (0.5, 1.015), color=BLUE, va="center",
        arrowprops={"arrowstyle": "-", "color": BLUE, "lw": 0.8},
    )  # fmt: skip
    right.annotate(
        "trained plainly", (0.4, _at(curves["plain"], 0.4)), (0.52, 0.62), color=ORANGE, va="center",
        arrowprops={"arrowstyle": "-", "color": ORANGE, "lw": 0.8},
    )  # fmt: skip
    right.invert_xaxis()
    right.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    right.set(xlabel="share of hidden neurons kept", ylabel="accuracy on unseen digits", ylim=(0.4, 1.05))
    right.set_title("mean and range of 30 random submodels", fontsize=10, loc="left")
    figure.savefig(IMAGES / "overview.png", dpi=170)


def _at(curve: Any, density: float) -> float:
    return float(curve.loc[(curve["density"] - density).abs().idxmin(), "mean"])


def _draw_submodels(axes: Any, examples: list[tuple[int, float, float]]) -> None:
    """A small network, whole; and three draws of it, each with its measured accuracies."""
    import mast

    axes.set(xlim=(0, 10.4), ylim=(-0.35, 10.4))
    axes.axis("off")
    layers = (4, 8, 8, 3)
    _draw_network(axes, (0.2, 2.6), (3.3, 5.2), layers, None)
    axes.text(1.85, 8.35, "train one model", ha="center", weight="bold")
    axes.text(
        1.85, 1.75, "every step uses a new\nrandom submodel", ha="center", va="top", color=GREY, fontsize=9
    )
    axes.text(8.0, 10.0, "run any of its submodels", ha="center", weight="bold")
    for row, (seed, plain, ours) in enumerate(examples):
        bottom = 6.75 - 3.3 * row
        kept = [set(mast.RandK(3).draw(8, seed=seed, index=layer).indices.tolist()) for layer in (0, 1)]
        _draw_network(axes, (5.6, bottom), (2.3, 2.5), layers, kept)
        axes.annotate(
            "", (5.35, bottom + 1.25), (3.85, 5.2), arrowprops={"arrowstyle": "->", "color": GREY, "lw": 1}
        )
        axes.text(8.35, bottom + 1.7, f"plain  {plain:.2f}", color=ORANGE, va="center")
        axes.text(8.35, bottom + 0.8, f"MAST {ours:.2f}", color=BLUE, va="center", weight="bold")


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


# ---- tutorials and gallery ----------------------------------------------------------------------


def researcher() -> None:
    """The run of the researcher's tutorial."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    import mast

    A, b = mast.data.load("a1a")
    problem = mast.Problem(mast.Logistic(A, b, kappa=100), mast.PermK(10, seed=0))
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    mast.minimize(problem, "dsgd", steps=2000).plot(ax=axes)
    figure.savefig(IMAGES / "tutorial-researcher.png", dpi=150)


def data_scientist() -> None:
    """What `mast evaluate` draws in the data scientist's tutorial."""
    from sklearn.datasets import load_breast_cancer

    table = load_breast_cancer(as_frame=True)
    with tempfile.TemporaryDirectory() as folder:
        names = table.target.map({0: "malignant", 1: "benign"})
        table.data.assign(diagnosis=names).to_csv(f"{folder}/patients.csv", index=False)
        _command("mast train patients.csv --target diagnosis --sketch bernoulli:0.25 --out model", folder)
        _command("mast evaluate model patients.csv", folder)
        shutil.copy(f"{folder}/model/evaluation.png", IMAGES / "tutorial-data-scientist.png")


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
    tool = Path(sys.executable).parent / "mast"
    subprocess.run([tool, *command.split()[1:]], cwd=folder, check=True)


def architecture() -> None:
    """The diagram of the rooms."""
    sys.path.insert(0, str(Path(__file__).parent))
    from rooms import diagram  # beside this file

    (IMAGES / "architecture.svg").write_text(diagram(), encoding="utf-8")


PICTURES = {
    "overview": overview,
    "researcher": researcher,
    "data-scientist": data_scientist,
    "gallery": gallery,
    "architecture": architecture,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()
