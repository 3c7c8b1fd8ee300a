"""Train once, run sparse: a small CNN on scikit-learn's digits, trained plainly and with MAST.

Both networks are then sparsified at random, at several densities, and scored on images they have not
seen. The plain one breaks; the one that was trained on its own sparsified versions does not.

    python examples/digits_cnn.py
"""

from __future__ import annotations

import time

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.functional import cross_entropy

import mast

EPOCHS, BATCH = 30, 64
DENSITIES = [1.0, 0.9, 0.7, 0.5, 0.3]


def digits() -> list[torch.Tensor]:
    """Training and test images (8 x 8, one channel) and labels."""
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    parts = train_test_split(images, torch.tensor(labels), test_size=0.3, random_state=0, stratify=labels)
    return list(parts)


def network() -> nn.Module:
    """Two convolutions and a linear layer, about 60,000 weights."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    """A plain training loop. Nothing in it knows about MAST."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    model.train()
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(BATCH):
            loss = cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    model.eval()


def main() -> None:
    """Train both, and print accuracy against density."""
    train_images, test_images, train_labels, test_labels = digits()

    def accuracy(model: nn.Module) -> float:
        with torch.no_grad():
            return (model(test_images).argmax(1) == test_labels).float().mean().item()

    # Submodels need BatchNorm statistics of their own: a few hundred training images suffice.
    calibrate = list(train_images[:512].split(128))
    tables = {}
    for name in ("plain", "MAST"):
        model = network()
        start = time.perf_counter()
        if name == "MAST":
            sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))
            print(sk, end="\n\n")
            train(model, train_images, train_labels)
        else:
            train(model, train_images, train_labels)
            sk = mast.nn.sparsify(model, mast.Bernoulli(0.5))  # only to draw its submodels
        print(f"{name}: trained in {time.perf_counter() - start:.0f} s")
        tables[name] = sk.report(accuracy, DENSITIES, draws=20, calibrate=calibrate).set_index("density")

    print("\naccuracy on unseen digits, mean over 20 random submodels (worst in brackets)\n")
    print("  density     plain            MAST")
    for density in DENSITIES:
        cells = [f"{t.loc[density, 'mean']:.3f} ({t.loc[density, 'lowest']:.3f})" for t in tables.values()]
        print(f"  {density:>6.0%}      {'    '.join(cells)}")


if __name__ == "__main__":
    main()
