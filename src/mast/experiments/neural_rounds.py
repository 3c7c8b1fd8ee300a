"""Rounds of the distributed method on a two-layer network: several nodes and several step sizes at once.

A round is x <- x - (g/M) sum_i S_i' grad f_i(S_i x). Node i's masks in round t are those of
``mast.nn.sparsify(student, sketch, seed=seed, node=i)`` at step t: functions of (seed, t, i) and of the
parameter's name, drawn by the compiled kernel of `mast.randomness`. They do not depend on the step size, so
runs that differ in nothing else advance together ("lanes"), and each mask is drawn once for all of them.
The slow twin, a loop over nodes with `sparsify` and autograd, is in the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mast import randomness
from mast.arrays import Array
from mast.randomness import Key, Purpose
from mast.sketches import Bernoulli

if TYPE_CHECKING:
    from torch import Tensor, nn

NAMES = ("0.weight", "2.weight")  # of the student's parameters


@dataclass(frozen=True)
class Shape:
    """The widths of the student: inputs, hidden units, outputs."""

    inputs: int
    hidden: int
    outputs: int

    @property
    def parameters(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The shapes of its two matrices."""
        return (self.hidden, self.inputs), (self.outputs, self.hidden)


def student(shape: Shape, seed: int) -> nn.Sequential:
    """The network at its start: N(0, 2/hidden) and N(0, 1/hidden) weights, no biases.

    With inputs of norm 1, hidden vectors have a squared norm of about 1, and outputs a variance of
    about 1: He's initialisation, for inputs that are normalised as vectors and not number by number.
    """
    import torch
    from torch import nn

    network = nn.Sequential(
        nn.Linear(shape.inputs, shape.hidden, bias=False),
        nn.ReLU(),
        nn.Linear(shape.hidden, shape.outputs, bias=False),
    )
    with torch.no_grad():
        for number, (p, variance) in enumerate(
            zip(network.parameters(), (2 / shape.hidden, 1 / shape.hidden), strict=True)
        ):
            p.copy_(start(seed, number, tuple(p.shape), variance))
    return network


def start(seed: int, number: int, shape: tuple[int, ...], variance: float) -> Tensor:
    """Keyed normal numbers; `number` tells the matrices of one seed apart."""
    import torch

    values = randomness.normal(Key(seed).child(number, Purpose.START), 0, int(np.prod(shape)))
    return torch.from_numpy((values * np.sqrt(variance)).astype(np.float32).reshape(shape))


def squared_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """f: the squared distance to the targets, averaged over rows."""
    return (outputs - targets).square().sum(dim=-1).mean(dim=-1)


class Masks:
    """The diagonals of S_i, one array of scales (1/keep or 0) a parameter, for all nodes of a round."""

    def __init__(self, sketch: Bernoulli, shape: Shape, nodes: int, seed: int) -> None:
        import torch

        from mast.nn.weights import name_index

        entry = sketch.entry()
        assert entry is not None
        self.threshold, self.scale = entry.threshold, entry.scale
        self.nodes, self.seed = nodes, seed
        self.indices = [name_index(name) for name in NAMES]
        self.scales = [torch.empty(nodes, *size) for size in shape.parameters]

    def of(self, t: int) -> list[Tensor]:
        """Those of round t; the memory is that of the round before."""
        import torch

        for index, scales in zip(self.indices, self.scales, strict=True):
            for node in range(self.nodes):
                key = Key(self.seed, t, node, index)
                kept = randomness.bernoulli(key, self.threshold, 0, scales[node].numel())
                torch.mul(torch.from_numpy(kept).view(scales[node].shape), self.scale, out=scales[node])
        return self.scales


class Lanes:
    """Copies of the student, one for each step size, that see the same nodes and the same sketches.

    `inputs` and `targets` are of shape (nodes, rows of a node, .). `together` says for how many nodes
    products are made at once.
    """

    def __init__(
        self,
        network: nn.Sequential,
        step_sizes: Sequence[float],
        inputs: Tensor,
        targets: Tensor,
        together: int,
    ) -> None:
        import torch

        self.weights = [
            torch.stack([p.detach()] * len(step_sizes)) for p in network.parameters()
        ]  # (lanes, to, from)
        self.inputs, self.targets = inputs, targets
        self.nodes, self.rows = inputs.shape[:2]
        self.together = together
        self.step_sizes = torch.tensor(step_sizes, dtype=torch.float32).view(-1, 1, 1)
        self.memory: dict[Any, Tensor] = {}

    def advance(self, scales: Sequence[Tensor] | None) -> None:
        """One round with these diagonals of S_i, or with S = I."""
        import torch

        totals = [torch.zeros_like(w) for w in self.weights]
        if scales is None:  # the mean of the nodes' gradients is that of all rows
            inputs, targets = self.inputs.flatten(0, 1)[None], self.targets.flatten(0, 1)[None]
            self._add_gradients(totals, inputs, targets, None)
        else:
            for first in range(0, self.nodes, self.together):
                part = slice(first, first + self.together)
                self._add_gradients(totals, self.inputs[part], self.targets[part], [s[part] for s in scales])
            for total in totals:
                total /= self.nodes
        for w, total in zip(self.weights, totals, strict=True):
            w.addcmul_(self.step_sizes, total, value=-1)

    def _add_gradients(
        self, totals: list[Tensor], X: Tensor, T: Tensor, scales: Sequence[Tensor] | None
    ) -> None:
        """Add sum_i S_i' grad f_i(S_i x) over the nodes in X; letters: i node, g lane, n row, h hidden."""
        import torch

        nodes, rows = X.shape[:2]
        lanes, hidden, inputs = self.weights[0].shape
        first, second = self.weights
        if scales is None:
            Y1, Y2 = first[None], second[None]
        else:
            Y1 = torch.mul(first[None], scales[0][:, None], out=self._scratch("Y1", nodes, *first.shape))
            Y2 = second[None] * scales[1][:, None]
        # all lanes of a node in one product with its rows
        before = torch.bmm(X, Y1.reshape(nodes, lanes * hidden, inputs).transpose(1, 2))
        active = before.view(nodes, rows, lanes, hidden).transpose(1, 2)  # i g n h
        H = active.relu()
        error = (H @ Y2.transpose(2, 3) - T[:, None]) * (2 / rows)  # i g n output
        G2 = error.transpose(2, 3) @ H
        back = (error @ Y2).mul_(active > 0)
        back = back.transpose(1, 2).reshape(nodes, rows, lanes * hidden)
        G1 = torch.bmm(back.transpose(1, 2), X, out=self._scratch("G1", nodes, lanes * hidden, inputs)).view(
            nodes, *first.shape
        )
        for node in range(nodes):
            if scales is None:
                totals[0] += G1[node]
                totals[1] += G2[node]
            else:
                totals[0].addcmul_(G1[node], scales[0][node])
                totals[1].addcmul_(G2[node], scales[1][node])

    def _scratch(self, name: str, *shape: int) -> Tensor:
        """Memory that every round uses again: fresh pages of the system cost as much as a product."""
        import torch

        if (name, shape) not in self.memory:
            self.memory[name, shape] = torch.empty(shape)
        return self.memory[name, shape]

    def losses(self, factor: float = 1.0) -> Array:
        """f of each lane at `factor` times its weights, over all rows, with S = I."""
        X, T = self.inputs.flatten(0, 1), self.targets.flatten(0, 1)
        first, second = (factor * w for w in self.weights)
        H = (X @ first.flatten(0, 1).T).relu().view(len(X), len(first), -1).transpose(0, 1)
        losses: Array = squared_loss(H @ second.transpose(1, 2), T[None]).double().numpy()
        return losses
