"""One training loop for all contenders: Adam, clipped gradients, a cosine schedule, keyed batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from mast import randomness
from mast.experiments.density_data import Rows
from mast.randomness import Key, Purpose

Masks = Mapping[str, Tensor]
CLIP = 1.0  # the largest norm of a gradient: of a sketch that keeps a tenth, a step can be 1/.1 too large


@dataclass(frozen=True)
class Recipe:
    """How long and how fast: the same for every contender but for the learning rate."""

    epochs: int
    batch: int
    rate: float
    seed: int


def train(model: nn.Module, rows: Rows, recipe: Recipe, only: Masks | None = None) -> None:
    """Train in place, ending in eval mode. With `only`, weights outside the masks stay as they are."""
    handles = []
    for name, p in model.named_parameters():
        if only is not None and name in only:
            handles.append(p.register_hook(partial(torch.mul, only[name])))  # type: ignore[no-untyped-call]
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.rate)
    batches = len(rows.y) // recipe.batch  # what is left of an epoch's rows would make a small batch
    steps = recipe.epochs * batches
    model.train()
    for t in range(steps):
        if t % batches == 0:
            key = Key(recipe.seed, step=t // batches)
            order = torch.from_numpy(randomness.permutation(key, Purpose.BATCH, len(rows.y)))
        batch = order[t % batches * recipe.batch :][: recipe.batch]
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * 0.5 * (1 + math.cos(math.pi * t / steps))
        optimizer.zero_grad()
        cross_entropy(model(rows.x[batch]), rows.y[batch]).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    model.eval()
    for handle in handles:
        handle.remove()


def random_masks(model: nn.Module, density: float, seed: int) -> dict[str, Tensor]:
    """A random share of each weight matrix, drawn once."""
    masks = {}
    for number, (name, p) in enumerate(model.named_parameters()):
        if p.dim() > 1:
            key = Key(seed, index=number).child(0, Purpose.SUPPORT)
            kept = randomness.bernoulli(key, randomness.threshold(density), 0, p.numel())
            masks[name] = torch.from_numpy(kept).view(p.shape)
    return masks


def accuracy(model: nn.Module, rows: Rows) -> float:
    """The share of rows that the model classifies rightly, in eval mode."""
    model.eval()
    with torch.no_grad():
        return float((model(rows.x).argmax(1) == rows.y).double().mean())
