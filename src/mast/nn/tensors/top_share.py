"""TopShare: one chosen cut of a network, the largest weights, chosen anew during training.

Pruning with training in between. What is kept depends on the weights and not on chance: no theorem covers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mast.arrays import Indices
from mast.checks import choice, probability, whole
from mast.errors import ArgumentError
from mast.nn.tensors.drawing import Drawing
from mast.nn.tensors.weights import Weight
from mast.randomness import Key
from mast.sketches import Draw, Sketch
from mast.sketches.base import percent
from mast.sketches.kept import Entries


class TopShare(Sketch):
    """Keep the share of each weight whose entries score highest, times 1; choose anew every so many steps.

    Parameters
    ----------
    share
        The share of every sketched weight that is kept: ``round(share * entries)``, at least one.
    score
        "magnitude" is |x - v|; "curvature" is sqrt(H_jj) |x - v|, with the squares of gradients, averaged
        since the last choice, for the diagonal H_jj of the Gauss-Newton matrix.
    every
        How many steps a choice lasts. The state of a run holds the present one.

    >>> import mast, torch
    >>> model = torch.nn.Linear(4, 1, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, -3.0, 0.5, 2.0]]))
    >>> sk = mast.nn.sparsify(model, mast.nn.TopShare(0.5))
    >>> sk.submodel().weight.data
    tensor([[ 0., -3.,  0.,  2.]])
    """

    unbiased = False

    def __init__(self, share: float, score: str = "magnitude", every: int = 100) -> None:
        self.density = probability("share", share)
        self.score = choice("score", score, ("magnitude", "curvature"))
        self.every = whole("every", every, 1)

    def sample(self, d: int, key: Key) -> Draw:
        """Refused: what is kept follows from the weights of a network."""
        raise ArgumentError(f"{self!r} chooses among the weights of a network: pass it to mast.nn.sparsify")

    def count(self, d: int) -> int:
        """How many entries of a weight are kept."""
        return max(1, round(self.density * d))

    def share(self, d: int) -> float:
        """The share that is kept, as it is rounded."""
        return self.count(d) / d

    def at(self, density: float) -> Sketch:
        """The same score at another share."""
        return TopShare(density, self.score, self.every)

    def arguments(self) -> dict[str, Any]:
        """The share, the score, and how long a choice lasts."""
        return {"share": self.density, "score": self.score, "every": self.every}

    def label(self) -> str:
        """The share, and of what."""
        return f"TopShare({self.density:g}): keeps {percent(self.density)}, by {self.score}"


class Chosen(Entries):
    """Entries that tell what gradient they met."""

    __slots__ = ("observe",)

    def __init__(self, shape: Sequence[int], indices: Indices, observe: Callable[[Tensor], None]) -> None:
        super().__init__(shape, indices, np.ones(indices.size, dtype=np.float32))
        self.observe = observe


class TopDrawing(Drawing):
    """Remembers the choice of each weight, and when it was made."""

    sketch: TopShare

    def __init__(self, weights: Sequence[Weight], sketch: TopShare) -> None:
        super().__init__(weights, sketch)
        #: gives v by name, or None where there is no shift
        self.shift: Callable[[], Mapping[str, Tensor] | None] = lambda: None
        self._chosen: dict[int, tuple[int, Indices]] = {}  # by weight: the period, and the entries
        self._squares: dict[int, tuple[Tensor, int]] = {}  # by weight: their sum over gradients, of how many

    def kept(self, number: int, key: Key, like: Tensor) -> Chosen:
        """The choice of the period that the step is in; the last one for earlier steps, as of submodels."""
        period = key.step // self.sketch.every
        if number not in self._chosen or period > self._chosen[number][0]:
            self._chosen[number] = (period, self._choose(number, like.detach()))
        indices = self._chosen[number][1]
        return Chosen(self.weights[number].shape, indices, lambda g: self._observe(number, g))

    def _choose(self, number: int, x: Tensor) -> Indices:
        shift = self.shift()
        v = None if shift is None else shift[self.weights[number].name].to(x)
        score = (x if v is None else x - v).abs().flatten()
        if self.sketch.score == "curvature" and number in self._squares:
            total, times = self._squares.pop(number)
            score = score * (total / times).sqrt().to(score)
        best = torch.topk(score, self.sketch.count(score.numel())).indices.cpu().numpy()
        return np.sort(best.astype(np.int64))

    def state(self) -> dict[str, Tensor]:
        """The present choices with their periods, and the squares of gradients since."""
        tensors = {}
        for number, (period, entries) in self._chosen.items():
            name = self.weights[number].name
            tensors |= {f"period/{name}": torch.tensor(period), f"entries/{name}": torch.tensor(entries)}
        for number, (total, times) in self._squares.items():
            name = self.weights[number].name
            tensors |= {f"squares/{name}": total.cpu().clone(), f"times/{name}": torch.tensor(times)}
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue with these choices; without any, the next step chooses anew."""
        self._chosen, self._squares = {}, {}
        for number, w in enumerate(self.weights):
            if f"entries/{w.name}" in tensors:
                entries = tensors[f"entries/{w.name}"].cpu().numpy().copy()
                self._chosen[number] = (int(tensors[f"period/{w.name}"]), entries)
            if f"squares/{w.name}" in tensors:
                total = tensors[f"squares/{w.name}"].to(w.parameter.device, copy=True)
                self._squares[number] = (total, int(tensors[f"times/{w.name}"]))

    def _observe(self, number: int, g: Tensor) -> None:
        """One more gradient, of all entries, also of those that are dropped."""
        if self.sketch.score == "curvature":
            total, times = self._squares.get(number, (torch.zeros_like(g).flatten(), 0))
            self._squares[number] = (total + g.detach().square().flatten(), times + 1)
