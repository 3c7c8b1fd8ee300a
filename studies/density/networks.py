"""The networks of the study, and one training loop for all contenders."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.nn.utils import parametrize

from mast import randomness
from mast.randomness import Key, Purpose
from studies.density.data import LENGTH, SYMBOLS, TEXTS, ClassRows

Backward = Callable[..., object]  # of a loss, as a function of rows and their labels, and a batch of these
CLIP = 1.0  # the largest norm of a gradient: of a sketch that keeps a tenth, a step can be 1/.1 too large


@dataclass(frozen=True)
class Chain:
    """A chain: hidden layers of these widths, fully connected or convolutional, and a linear output."""

    inputs: int  # features, or channels
    widths: tuple[int, ...]
    strides: tuple[int, ...] = ()  # of convolutions; none: fully connected layers
    classes: int = 10


@dataclass(frozen=True)
class Reader:
    """A transformer that says for every character of a row which one follows."""

    symbols: int
    length: int
    width: int = 128
    heads: int = 4
    blocks: int = 5

    @property
    def widths(self) -> tuple[int, ...]:
        """Hidden units of the blocks."""
        return (4 * self.width,) * self.blocks


Design = Chain | Reader
DESIGNS: dict[str, Design] = {
    "digits": Chain(64, (128, 128)),
    "digit-images": Chain(1, (32, 32, 32), strides=(1, 2, 1)),
    "features": Chain(2048, (128, 128)),
    "images": Chain(3, (32, 64, 64), strides=(2, 2, 1)),
    **dict.fromkeys(TEXTS, Reader(SYMBOLS, LENGTH)),
}


class Keyed(nn.Module):
    """A layer that is random while it is trained, with keys: new numbers for each call."""

    def __init__(self, keep: float, seed: int, number: int) -> None:
        super().__init__()
        self.keep, self.seed, self.number, self.calls = keep, seed, number, 0

    def next_key(self) -> Key:
        """The key of this call."""
        self.calls += 1
        return Key(self.seed, step=self.calls - 1, index=self.number).child(0, Purpose.MASK)


class KeyedDropout(Keyed):
    """What `nn.Dropout` computes, with masks from keys: a new mask for each call and each row."""

    def forward(self, x: Tensor) -> Tensor:
        """The input, or in training mode what is left of it over the keep probability."""
        if not self.training or self.keep == 1:
            return x
        mask = randomness.bernoulli(self.next_key(), randomness.threshold(self.keep), 0, x.numel())
        return x * (torch.from_numpy(mask).view(x.shape) / self.keep)


class Noise(Keyed):
    """W times 1 plus normal numbers, whose variance is that of masks that keep this share."""

    def forward(self, weight: Tensor) -> Tensor:
        """Noisy weights in training mode."""
        if not self.training:
            return weight
        noise = torch.from_numpy(randomness.normal(self.next_key(), 0, weight.numel())).to(weight)
        return weight * (1 + math.sqrt(1 / self.keep - 1) * noise.view(weight.shape))


class Attends(nn.Module):
    """Causal attention, and a layer of hidden units; each added to what comes in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads  # of a head
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """What comes in (rows, characters, width), with what was seen added."""
        y = self.norm1(x)
        q, k, v = (
            part(y).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        seen = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.norm2(x))))


class Places(nn.Module):
    """A vector for each character and one for its place."""

    def __init__(self, design: Reader) -> None:
        super().__init__()
        self.symbol = nn.Embedding(design.symbols, design.width)
        self.place = nn.Embedding(design.length, design.width)

    def forward(self, codes: Tensor) -> Tensor:
        """Their sum."""
        places = torch.arange(codes.shape[1], device=codes.device)
        return self.symbol(codes) + self.place(places)


def add_noise(model: nn.Module, keep: float, seed: int) -> None:
    """Noise on the weights of all linear and convolutional layers."""
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    for number, layer in enumerate(layers):
        parametrize.register_parametrization(layer, "weight", Noise(keep, seed, number))


def remove_noise(model: nn.Module) -> None:
    """The weights as they are without it."""
    for layer in list(model.modules()):
        if parametrize.is_parametrized(layer):
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)


def network(design: Design, seed: int, dropout_keep: float | None = None) -> nn.Sequential:
    """The network at its start: He's initialisation from keys. With dropout, after each hidden layer.

    >>> [name for name, _ in network(Chain(4, (3,)), seed=0).named_parameters()]
    ['layer0.weight', 'layer0.bias', 'out.weight', 'out.bias']
    """
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    if isinstance(design, Reader):
        blocks = {f"block{i}": Attends(design.width, design.heads) for i in range(design.blocks)}
        ends = {"norm": nn.LayerNorm(design.width), "out": nn.Linear(design.width, design.symbols)}
        reader = nn.Sequential(OrderedDict(places=Places(design), **blocks, **ends))
        start(reader, seed)
        return reader
    before = design.inputs
    for i, width in enumerate(design.widths):
        if design.strides:
            parts[f"layer{i}"] = nn.Conv2d(before, width, 3, stride=design.strides[i], padding=1, bias=False)
            parts[f"norm{i}"] = nn.BatchNorm2d(width)
        else:
            parts[f"layer{i}"] = nn.Linear(before, width)
        parts[f"relu{i}"] = nn.ReLU()
        if dropout_keep is not None:
            parts[f"drop{i}"] = KeyedDropout(dropout_keep, seed, i)
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


@dataclass(frozen=True)
class Recipe:
    """How long and how fast: the same for every contender but for what is tuned."""

    epochs: int
    batch: int
    rate: float
    seed: int
    decay: float = 0.0


def train(
    model: nn.Module,
    rows: ClassRows,
    recipe: Recipe,
    before: Callable[[int, int], None] | None = None,
    backward: Backward | None = None,
) -> None:
    """AdamW, clipped gradients, a cosine schedule, keyed batches; the model is in eval mode afterwards.

    `before` is called at the beginning of each step, with its number and that of all steps. `backward` takes
    the loss as a function and a batch, and adds to the gradients.
    """

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model(x).flatten(0, -2), y.flatten())

    rate, decay = recipe.rate, recipe.decay
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay, fused=True)
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
        if before is not None:
            before(t, steps)
        optimizer.zero_grad()
        if backward is not None:
            backward(loss, rows.x[batch], rows.y[batch])
        else:
            loss(rows.x[batch], rows.y[batch]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    model.eval()


def accuracy(model: nn.Module, rows: ClassRows) -> float:
    """The share of rows that the model classifies rightly, in eval mode."""
    model.eval()
    with torch.no_grad():
        return float((model(rows.x).argmax(-1) == rows.y).double().mean())
