"""A batched twin of the distributed method for one small network: all nodes and all step sizes at once.

A round is x <- x - (g/M) sum_i S_i' grad f_i(S_i x). The library's own path is one `mast.nn.sparsify` with
`node=i` per node, run once for each step size. With ten nodes and six step sizes that is sixty passes through
a network of a few thousand weights, which takes about ten times as long as the few large products here. Masks
do not depend on the step size, so runs that differ in nothing else advance together ("lanes"), and each mask
is drawn once for all of them. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from mast import randomness
from mast.nn.tensors.weights import name_index
from mast.randomness import Key, Purpose
from mast.sketches import Bernoulli
from mast.sketches.independent import entry_of
from mast.support.checks import Array


def student(widths: tuple[int, int, int], seed: int) -> nn.Sequential:
    """The network (inputs, hidden units, outputs) at its start: N(0, 2/hidden) and N(0, 1/hidden) weights.

    With inputs of norm 1, hidden vectors have a squared norm of about 1, and outputs a variance of
    about 1: He's initialisation, for inputs that are normalised as vectors and not number by number.
    """
    inputs, hidden, outputs = widths
    first, second = nn.Linear(inputs, hidden, bias=False), nn.Linear(hidden, outputs, bias=False)
    network = nn.Sequential(first, nn.ReLU(), second)
    with torch.no_grad():
        for number, p in enumerate(network.parameters()):
            p.copy_(start(seed, number, tuple(p.shape), variance=(2 - number) / hidden))
    return network


def start(seed: int, number: int, shape: tuple[int, ...], variance: float) -> Tensor:
    """Keyed normal numbers; `number` tells the matrices of one seed apart."""
    values = randomness.normal(Key(seed).child(number, Purpose.START), 0, int(np.prod(shape)))
    return torch.from_numpy((values * np.sqrt(variance)).astype(np.float32).reshape(shape))


def squared_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """f: the squared distance to the targets, averaged over rows."""
    return (outputs - targets).square().sum(dim=-1).mean(dim=-1)


class Masks:
    """The diagonals of S_i for all nodes of a round: one tensor of scales (1/keep or 0) per parameter.

    They are those of ``mast.nn.sparsify(student, sketch, seed=seed, node=i)`` at step t.
    """

    def __init__(self, sketch: Bernoulli, network: nn.Module, nodes: int, seed: int) -> None:
        entry = entry_of(sketch)
        assert entry is not None
        self.threshold, self.scale = entry.threshold, entry.scale
        self.seed = seed
        self.scales = {name_index(n): torch.empty(nodes, *p.shape) for n, p in network.named_parameters()}

    def of(self, t: int) -> list[Tensor]:
        """Those of round t; the memory is that of the round before."""
        for index, scales in self.scales.items():
            for node, of_node in enumerate(scales):
                key = Key(self.seed, t, node, index)
                kept = randomness.bernoulli(key, self.threshold, 0, of_node.numel())
                torch.mul(torch.from_numpy(kept).view(of_node.shape), self.scale, out=of_node)
        return list(self.scales.values())


class Lanes:
    """Copies of the student, one for each step size, that see the same nodes and the same sketches.

    `inputs` and `targets` are of shape (nodes, rows of a node, .).
    """

    def __init__(
        self, network: nn.Sequential, step_sizes: Sequence[float], inputs: Tensor, targets: Tensor
    ) -> None:
        lanes = len(step_sizes)
        self.weights = [torch.stack([p.detach()] * lanes) for p in network.parameters()]  # (lanes, to, from)
        self.inputs, self.targets = inputs, targets
        self.step_sizes = torch.tensor(step_sizes, dtype=torch.float32).view(-1, 1, 1)

    def advance(self, scales: Sequence[Tensor] | None) -> None:
        """One round with these diagonals of S_i, or with S = I."""
        if scales is None:  # the mean of the nodes' gradients is that of all rows
            X, T = self.inputs.flatten(0, 1)[None], self.targets.flatten(0, 1)[None]
            totals = [g[0] for g in _gradients([w[None] for w in self.weights], X, T)]
        else:
            sketched = [w[None] * s[:, None] for w, s in zip(self.weights, scales, strict=True)]
            totals = [torch.zeros_like(w) for w in self.weights]
            gradients = _gradients(sketched, self.inputs, self.targets)
            for total, by_node, s in zip(totals, gradients, scales, strict=True):
                for node in range(len(s)):
                    total.addcmul_(by_node[node], s[node])
                total /= len(s)
        for w, total in zip(self.weights, totals, strict=True):
            w.addcmul_(self.step_sizes, total, value=-1)

    def losses(self, factor: float = 1.0) -> Array:
        """f of each lane at `factor` times its weights, over all rows, with S = I."""
        X, T = self.inputs.flatten(0, 1)[None], self.targets.flatten(0, 1)
        outputs = _forward([(factor * w)[None] for w in self.weights], X)[2][0]
        return np.asarray(squared_loss(outputs, T[None]).double())


def _forward(weights: Sequence[Tensor], X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What enters the hidden units, what leaves them, and the outputs: (nodes, lanes, rows, .) each.

    Weights are of shape (nodes, lanes, to, from). All lanes of a node are one product with its rows.
    """
    first, second = weights
    before = X @ first.flatten(1, 2).transpose(1, 2)
    before = before.view(*X.shape[:2], *first.shape[1:3]).transpose(1, 2)
    hidden = before.relu()
    return before, hidden, hidden @ second.transpose(2, 3)


def _gradients(weights: Sequence[Tensor], X: Tensor, T: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of `squared_loss` with respect to both matrices, for all nodes and lanes."""
    before, hidden, outputs = _forward(weights, X)
    error = (outputs - T[:, None]) * (2 / X.shape[1])
    back = (error @ weights[1]).mul_(before > 0).transpose(1, 2).flatten(2, 3)
    first = back.transpose(1, 2) @ X  # of (nodes, rows, lanes * hidden) and (nodes, rows, inputs)
    return first.view(weights[0].shape), error.transpose(2, 3) @ hidden
