"""The file of a delta that keeps a tenth of the weights, against the file of the whole model, in bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from _bench import Row, versus

TITLE = "Files of deltas"

MODELS = {
    "MLP 2048-1024-10": lambda nn: nn.Sequential(nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 10)),
    "CNN (64-128 conv + linear)": lambda nn: nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128 * 49, 10),
    ),
}  # fmt: skip


def rows() -> Iterator[Row]:
    try:
        import torch
        from torch import nn
    except ImportError:
        return  # the extra is not installed
    import mast

    for name, make in MODELS.items():
        for sketch in (mast.Bernoulli(0.1), mast.RandK(0.1), mast.PermK(10)):
            torch.manual_seed(0)
            model = make(nn)
            sk = mast.nn.sparsify(model, sketch, shift="init")
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(torch.randn_like(p))
            with tempfile.TemporaryDirectory() as folder:
                whole = Path(folder, "whole.pt")
                torch.save(model.state_dict(), whole)
                sizes = {
                    how: sk.save_delta(Path(folder, how), seed=1, indices=how == "indices").stat().st_size
                    for how in ("key", "indices")
                }
                full = whole.stat().st_size
            yield versus(
                f"file of a 10 % delta of a {name}, {sketch.label().split(':')[0]}",
                sizes["key"],
                "torch.save of its state_dict",
                full,
                0.11,
                detail=f"with indices {sizes['indices'] / full:.3f}",
                unit="B",
            )
