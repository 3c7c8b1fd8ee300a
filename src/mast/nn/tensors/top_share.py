"""TopShare, a pruning schedule: the largest weights of a network are kept, and chosen anew during training.

What is kept depends on the weights and not on chance. So it is no sketch, and no theorem covers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mast.errors import ArgumentError, BiasedSketchError
from mast.nn.tensors.bound import BoundSketch
from mast.nn.tensors.weights import Weight
from mast.randomness import Key
from mast.sketches import Constants
from mast.sketches.base import percent
from mast.sketches.draws import DiagonalDraw
from mast.support.checks import check_choice, check_int, check_probability


class TopShare:
    """Keep the share of each weight whose entries score highest, times 1; choose anew after `every` steps.

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

    def __init__(self, share: float, score: str = "magnitude", every: int = 100) -> None:
        self.density = check_probability("share", share)
        self.score = check_choice("score", score, ("magnitude", "curvature"))
        self.every = check_int("every", every, 1)

    def count(self, d: int) -> int:
        """How many entries of a weight are kept."""
        return max(1, round(self.density * d))

    def share(self, d: int) -> float:
        """The share that is kept, as it is rounded."""
        return self.count(d) / d

    def at(self, density: float) -> TopShare:
        """The same score at another share."""
        return TopShare(density, self.score, self.every)

    def arguments(self) -> dict[str, Any]:
        """The share, the score, and how long a choice lasts."""
        return {"share": self.density, "score": self.score, "every": self.every}

    def label(self) -> str:
        """The share, and of what."""
        return f"TopShare({self.density:g}): keeps {percent(self.density)}, by {self.score}"

    def __repr__(self) -> str:
        return f"<{self.label()}>"


class PrunedWeights(BoundSketch):
    """The schedule over the weights of a model: remembers the choice of each, and when it was made.

    `shift` gives v by name, or None where there is none. `before` is the same schedule with another share:
    the gradients that it has seen count here too.
    """

    sketch: TopShare

    def __init__(
        self,
        weights: Sequence[Weight],
        sketch: TopShare,
        shift: Callable[[], Mapping[str, Tensor] | None],
        before: BoundSketch | None = None,
    ) -> None:
        self.weights, self.sketch, self._shift = weights, sketch, shift
        # By weight: the chosen "entries/" and the "period/" they are of, the sum of "squares/" of gradients
        # since, and how many ("times/") there were: 0 if the squares are the mean that the last choice used.
        self._memory: dict[str, Tensor] = {}
        if isinstance(before, PrunedWeights) and sketch.score == "curvature":
            seen = before._memory.items()
            self._memory |= {name: t for name, t in seen if name.startswith(("squares/", "times/"))}

    def kept(self, number: int, key: Key, like: Tensor) -> DiagonalDraw:
        """The choice of the period that the step is in; the last one for earlier steps, as of submodels."""
        w, period = self.weights[number], key.step // self.sketch.every
        if period > self._memory.get(f"period/{w.name}", -1):
            self._memory[f"entries/{w.name}"] = self._choose(w.name, like.detach())
            self._memory[f"period/{w.name}"] = torch.tensor(period)
        entries = self._memory[f"entries/{w.name}"].numpy()
        return DiagonalDraw(w.shape, entries, np.ones(entries.size, dtype=np.float32))

    def share(self, number: int) -> float:
        """The share that is kept, as it is rounded."""
        return self.sketch.share(self.weights[number].count)

    def constants(self) -> Constants:
        """Refused: a choice that depends on the weights is no distribution of S."""
        raise BiasedSketchError(
            f"{self.sketch!r} chooses by the weights, so no statement of the theory applies"
        )

    def observer(self, number: int) -> Callable[[Tensor], None] | None:
        """The score by curvature looks at all gradients, also of entries that are dropped."""
        by_curvature = self.sketch.score == "curvature"
        return partial(self._observe, self.weights[number].name) if by_curvature else None

    def _choose(self, name: str, x: Tensor) -> Tensor:
        shift = self._shift()
        score = (x if shift is None else x - shift[name].to(x)).abs().flatten()
        if f"squares/{name}" in self._memory:
            mean = self._memory[f"squares/{name}"] / self._memory[f"times/{name}"].clamp(min=1)
            self._memory |= {f"squares/{name}": mean, f"times/{name}": torch.tensor(0)}
            score = score * mean.sqrt().to(score)
        best = torch.topk(score, self.sketch.count(score.numel())).indices
        return best.cpu().long().sort().values

    def _observe(self, name: str, g: Tensor) -> None:
        square, times = g.detach().square().flatten(), self._memory.get(f"times/{name}", torch.tensor(0))
        if times > 0:
            square = square + self._memory[f"squares/{name}"].to(square)
        self._memory |= {f"squares/{name}": square, f"times/{name}": times + 1}

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
