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
from mast.errors import ArgumentError, BiasedSketchError
from mast.nn.tensors.drawing import Drawing
from mast.nn.tensors.weights import Weight
from mast.randomness import Key
from mast.sketches import Constants, Draw, Sketch
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

    def constants(self, d: int) -> Constants:
        """Refused: a choice that depends on the weights is no distribution of S."""
        raise BiasedSketchError(f"{self!r} chooses by the weights, so no statement of the theory applies")

    def drawing(self, weights: Sequence[Weight]) -> TopDrawing:
        """The choice among the weights of a model, which `sparsify` asks for."""
        return TopDrawing(weights, self)

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
        # By weight: the chosen "entries/" and the "period/" they are of, the sum of "squares/" of so many
        # ("times/") gradients since.
        self._memory: dict[str, Tensor] = {}

    def kept(self, number: int, key: Key, like: Tensor) -> Chosen:
        """The choice of the period that the step is in; the last one for earlier steps, as of submodels."""
        w, period = self.weights[number], key.step // self.sketch.every
        if period > self._memory.get(f"period/{w.name}", -1):
            self._memory[f"entries/{w.name}"] = self._choose(w.name, like.detach())
            self._memory[f"period/{w.name}"] = torch.tensor(period)
        entries = self._memory[f"entries/{w.name}"].numpy()
        return Chosen(w.shape, entries, lambda g: self._observe(w.name, g))

    def _choose(self, name: str, x: Tensor) -> Tensor:
        shift = self.shift()
        score = (x if shift is None else x - shift[name].to(x)).abs().flatten()
        if f"squares/{name}" in self._memory:
            mean = self._memory.pop(f"squares/{name}") / self._memory.pop(f"times/{name}")
            score = score * mean.sqrt().to(score)
        best = torch.topk(score, self.sketch.count(score.numel())).indices
        return best.cpu().long().sort().values

    def _observe(self, name: str, g: Tensor) -> None:
        """One more gradient, of all entries, also of those that are dropped."""
        if self.sketch.score == "curvature":
            square, zero = g.detach().square().flatten(), torch.tensor(0)
            self._memory[f"squares/{name}"] = self._memory.get(f"squares/{name}", zero).to(square) + square
            self._memory[f"times/{name}"] = self._memory.get(f"times/{name}", zero) + 1

    def state(self) -> dict[str, Tensor]:
        """The present choices, and the squares of gradients since."""
        return {name: t.cpu().clone() for name, t in self._memory.items()}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue with these choices; without any, the next step chooses anew."""
        for w in self.weights:
            entries = tensors.get(f"entries/{w.name}", torch.zeros(1, dtype=torch.int64))
            squares = tensors.get(f"squares/{w.name}", torch.zeros(w.count))
            inside = entries.dtype == torch.int64 and entries.dim() == 1 and len(entries) > 0
            if not inside or not 0 <= entries.min() <= entries.max() < w.count or squares.numel() != w.count:
                raise ArgumentError(f"the stored choice among the entries of {w.name!r} does not fit it")
        self._memory = {name: t.cpu().clone() for name, t in tensors.items()}
