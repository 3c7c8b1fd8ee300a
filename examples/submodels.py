"""Train once, deploy at four sizes: one digits CNN, four smaller dense networks, each in files of its own.

The network is trained once with `mast.nn.Neurons`: each step drops some channels, now more, now fewer. Then
one submodel of each density is written (safetensors), read again by a new process that has the
network's class and no weights, scored on images it has not seen, and timed.

    python examples/submodels.py            about a minute
    python examples/submodels.py --fast     some seconds, for a look
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.functional import cross_entropy

import mast

DENSITIES = [1.0, 0.75, 0.5, 0.25]
BATCH = 64

# What a server runs: it knows paths, MAST, and the network's class.
SERVER = """
import sys, torch, mast
from submodels import Network
torch.set_num_threads(1)
images, labels = torch.load(sys.argv[1])
models = {path: mast.nn.load_submodel(path, Network()) for path in sys.argv[2:]}
for row in mast.nn.sizes(models, images[:64]).itertuples():
    with torch.no_grad():
        accuracy = (models[row.name](images).argmax(1) == labels).float().mean().item()
    print(accuracy, row.parameters, row.flops, row.seconds)
"""


def digits() -> list[torch.Tensor]:
    """Training and test images (8 x 8, one channel) and labels."""
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    parts = train_test_split(images, torch.tensor(labels), test_size=0.3, random_state=0, stratify=labels)
    return list(parts)


class Network(nn.Module):
    """Three convolutions, the last around a residual connection, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU())
        self.third = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.pool(self.second(self.first(x)))
        h = torch.relu(h + self.third(h))
        return self.head(self.pool(h).flatten(1))


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, epochs: int) -> None:
    """A plain training loop. Nothing in it knows about MAST."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(BATCH):
            loss = cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    model.eval()


def score(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of images that are classified right."""
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


def main() -> None:
    """Train, choose, write, read elsewhere, and print the table."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--fast", action="store_true", help="train briefly")
    fast = arguments.parse_args().fast
    epochs, draws = (2, 2) if fast else (30, 8)
    torch.set_num_threads(1)
    train_images, test_images, train_labels, test_labels = digits()
    calibrate = list(train_images[:512].split(128))  # each submodel has BatchNorm statistics of its own

    networks = {}
    for name in ("plain", "MAST"):
        torch.manual_seed(0)
        network = networks[name] = Network()
        start = time.perf_counter()
        if name == "MAST":  # sizes in turns: one training run for all densities
            sizes = mast.Mixture([mast.RandK(density) for density in DENSITIES])
            sk = mast.nn.sparsify(network, mast.nn.Neurons(sizes))
        train(network, train_images, train_labels, epochs)
        print(f"{name}: trained in {time.perf_counter() - start:.0f} s")
    sk.remove()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch.save((test_images, test_labels), folder / "test.pt")
        paths, rows = [], []
        for density in DENSITIES:
            handles = {}
            for name, network in networks.items():
                handles[name] = mast.nn.sparsify(network, mast.nn.Neurons(mast.RandK(density)))
            seed = max(
                range(draws if density < 1 else 1),
                key=lambda i: score(  # on training images: the test images are for the end
                    handles["MAST"].submodel(i, calibrate=calibrate), train_images, train_labels
                ),
            )
            path = folder / f"{density:.0%}.safetensors"
            handles["MAST"].save_submodel(path, seed, calibrate=calibrate)
            row = [f"{density:.0%}", f"{path.stat().st_size / 1e3:.0f} kB"]
            theirs = handles["plain"].submodel(seed, calibrate=calibrate)  # the same channels
            rows.append((row, score(theirs, test_images, test_labels)))
            paths.append(str(path))
            for handle in handles.values():
                handle.remove()
        served = subprocess.run(
            [sys.executable, "-c", SERVER, str(folder / "test.pt"), *paths],
            stdout=subprocess.PIPE, text=True, check=True, cwd=Path(__file__).parent,
        )  # fmt: skip

    print("\nread and run by a process that has nothing but the network's class; 64 images on one thread\n")
    head = ["density", "file", "parameters", "MFLOP", "time", "accuracy", "trained plainly"]
    print("| " + " | ".join(head) + " |")
    print("|---:" * len(head) + "|")
    for (row, theirs), line in zip(rows, served.stdout.splitlines(), strict=True):
        accuracy, parameters, flops, seconds = map(float, line.split())
        row += [f"{parameters:,.0f}", f"{flops / 1e6:.0f}", f"{1e3 * seconds:.2f} ms"]
        print("| " + " | ".join([*row, f"{accuracy:.3f}", f"{theirs:.3f}"]) + " |")


if __name__ == "__main__":
    main()
