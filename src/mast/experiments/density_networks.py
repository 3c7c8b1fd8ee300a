"""The networks of the accuracy-density curves: chains of layers with hidden units, and keyed starts."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mast import randomness
from mast.randomness import Key, Purpose


@dataclass(frozen=True)
class Design:
    """A chain: hidden layers of these widths, fully connected or convolutional, and a linear output."""

    inputs: int  # features, or channels
    widths: tuple[int, ...]
    strides: tuple[int, ...] = ()  # of convolutions; none: fully connected layers
    classes: int = 10

    def share(self, density: float) -> Design:
        """The same chain with this share of the units in every hidden layer.

        >>> Design(64, (128, 10)).share(0.05).widths
        (6, 1)
        """
        widths = tuple(count(width, density) for width in self.widths)
        return Design(self.inputs, widths, self.strides, self.classes)

    @property
    def consumers(self) -> tuple[str, ...]:
        """For each hidden layer, the layer that its units feed."""
        return (*(f"layer{i}" for i in range(1, len(self.widths))), "out")


DESIGNS = {
    "digits": Design(64, (128, 128)),
    "features": Design(2048, (128, 128)),
    "images": Design(3, (32, 64, 64), strides=(2, 2, 1)),
}


def count(width: int, density: float) -> int:
    """How many units a density leaves of a layer: rounded, at least one (as `RandK` counts)."""
    return max(1, math.floor(density * width + 0.5))


class Dropout(nn.Module):
    """What `nn.Dropout` computes, with masks from keys: a new mask for each call and each row."""

    def __init__(self, rate: float, seed: int, number: int) -> None:
        super().__init__()
        self.rate, self.seed, self.number, self.calls = rate, seed, number, 0

    def forward(self, x: Tensor) -> Tensor:
        """The input, or in training mode what is left of it over the keep probability."""
        if not self.training:
            return x
        key = Key(self.seed, step=self.calls, index=self.number).child(0, Purpose.MASK)
        self.calls += 1
        mask = randomness.bernoulli(key, randomness.threshold(1 - self.rate), 0, x.numel())
        return x * (torch.from_numpy(mask).view(x.shape) / (1 - self.rate))


def network(design: Design, seed: int, dropout: float | None = None) -> nn.Sequential:
    """The network at its start: He's initialisation from keys. With dropout, after each hidden layer.

    >>> [name for name, _ in network(Design(4, (3,)), seed=0).named_parameters()]
    ['layer0.weight', 'layer0.bias', 'out.weight', 'out.bias']
    """
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    before = design.inputs
    for i, width in enumerate(design.widths):
        if design.strides:
            parts[f"layer{i}"] = nn.Conv2d(before, width, 3, stride=design.strides[i], padding=1, bias=False)
            parts[f"norm{i}"] = nn.BatchNorm2d(width)
        else:
            parts[f"layer{i}"] = nn.Linear(before, width)
        parts[f"relu{i}"] = nn.ReLU()
        if dropout is not None:
            parts[f"drop{i}"] = Dropout(dropout, seed, i)
        before = width
    if design.strides:
        parts["pool"] = nn.AdaptiveAvgPool2d(1)
        parts["flat"] = nn.Flatten()
    parts["out"] = nn.Linear(before, design.classes)
    model = nn.Sequential(parts)
    start(model, seed)
    return model


def start(model: nn.Module, seed: int) -> None:
    """N(0, 2/inputs) for each unit's weights, 0 for biases."""
    with torch.no_grad():
        for number, (name, p) in enumerate(model.named_parameters()):
            if p.dim() > 1:
                values = randomness.normal(Key(seed).child(number, Purpose.START), 0, p.numel())
                deviation = math.sqrt(2 / p[0].numel())
                p.copy_(torch.from_numpy(values * deviation).view(p.shape))
            elif name.endswith("bias"):
                p.zero_()
