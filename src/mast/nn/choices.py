"""Choosing submodels: of a density, within a budget, the best of several draws."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from mast.checks import whole
from mast.errors import ArgumentError
from mast.nn.costs import count_flops
from mast.nn.structure import UnitDraw
from mast.nn.structure.drawing import UnitDrawing
from mast.nn.submodels import smaller
from mast.nn.tensors.drawing import Drawing
from mast.nn.tensors.weights import Batches
from mast.progress import Progress
from mast.randomness import Key
from mast.sketches.kept import KeptTensors

if TYPE_CHECKING:
    from mast.nn.sparsifier import Sparsifier

_TEXT = re.compile(r"\s*([\d.]+)\s*(%?)\s*(flops?|params?|parameters?)\s*", re.IGNORECASE)
_STEPS = 12  # halvings of the interval of densities: 1/4096 of the units


@dataclass(frozen=True)
class Budget:
    """What a submodel may cost at most: a share of the whole model's, or a number.

    >>> Budget.of("25% flops"), Budget.of(10_000)
    (Budget(amount=0.25, share=True, operations=True), Budget(amount=10000.0, share=False, operations=False))
    """

    amount: float
    share: bool
    operations: bool  # of one call on the example; else parameters

    @classmethod
    def of(cls, budget: str | float) -> Budget:
        """From a text such as "25% flops" or "40% params", or a number of parameters."""
        if isinstance(budget, str):
            found = _TEXT.fullmatch(budget)
            if found is None:
                raise ArgumentError(
                    f"budget: {budget!r} is not understood; examples are '25% flops', '40% params', 10000"
                )
            amount, percent, unit = found.groups()
            made = cls(float(amount) / (100 if percent else 1), bool(percent), unit.lower().startswith("f"))
        else:
            made = cls(float(budget), False, False)
        if not made.amount > 0 or (made.share and made.amount > 1):
            raise ArgumentError(f"budget: {budget!r} is not more than nothing and at most the whole model")
        return made


def drawing_for(sk: Sparsifier, key: Key, density: float | None, budget: str | float | None) -> Drawing:
    """How a submodel is drawn: with the sketch itself, at a density, or as large as a budget allows."""
    if density is not None and budget is not None:
        raise ArgumentError("a submodel has a density or a budget, not both")
    if budget is not None:
        return _within(sk, key, Budget.of(budget))
    return sk.drawing if density is None else sk.drawing_for(sk.sketch.at(density))


def _within(sk: Sparsifier, key: Key, budget: Budget) -> Drawing:
    """The drawing of the largest density whose draw of this key costs no more than the budget."""
    if budget.operations and (sk.structure is None or sk.shift is not None):
        raise ArgumentError(
            "a budget of operations needs a smaller network: Neurons or Layers, and no shift; this is "
            f"{sk.sketch!r}"
        )
    whole_model = sk.drawing_for(sk.sketch.at(1))
    most = budget.amount * (_cost(sk, whole_model, key, budget) if budget.share else 1)
    best: Drawing | None = None
    low, high = 0.0, 1.0
    if _cost(sk, whole_model, key, budget) <= most:
        return whole_model
    least = float("inf")
    for _ in range(_STEPS):
        middle = (low + high) / 2
        drawing = sk.drawing_for(sk.sketch.at(middle))
        cost = _cost(sk, drawing, key, budget)
        least = min(least, cost)
        if cost <= most:
            best, low = drawing, middle
        else:
            high = middle
    if best is None:
        unit = "operations" if budget.operations else "parameters"
        raise ArgumentError(
            f"no submodel of this draw costs at most {most:,.0f} {unit}: the smallest has {least:,.0f}, "
            "because of what is not sketched and of one unit in each layer"
        )
    return best


def _cost(sk: Sparsifier, drawing: Drawing, key: Key, budget: Budget) -> float:
    if sk.structure is None or not isinstance(drawing, UnitDrawing):
        kept = KeptTensors({w.name: drawing.kept(i, key, w.parameter) for i, w in enumerate(sk.weights)})
        return sum(p.numel() for p in sk.model.parameters()) - sk.dim + kept.count
    draw = drawing.draw(key)
    if not budget.operations:
        return sk.structure.cut(draw).count
    example = sk.structure.examples[0].to(sk.model)
    return count_flops(smaller(sk, draw), example.call)


@dataclass(frozen=True)
class BestDraw:
    """The best of several submodels by a score: it was chosen, so its score is better than it deserves.

    Score it again on data that had no part in the choice before you report a number.
    ``model, score = sk.best(...)`` takes the two that one needs most.
    """

    model: nn.Module = field(repr=False)  #: the submodel
    key: Key  #: its draw: ``sk.submodel(key)`` is the same submodel, with the same density or budget
    score: float
    scores: tuple[float, ...] = field(repr=False)  #: of all draws
    draw: UnitDraw | None = field(default=None, repr=False)  #: of units, for ``sk.save_submodel``

    def __iter__(self) -> Iterator[nn.Module | float]:
        return iter((self.model, self.score))

    def __repr__(self) -> str:
        return (
            f"<chosen: the best of {len(self.scores)} draws, seed {self.key.seed}, with the score "
            f"{self.score:.4g} (mean of all: {np.mean(self.scores):.4g}); score it again on other data>"
        )


def best(
    sk: Sparsifier,
    evaluate: Callable[[nn.Module], float],
    draws: int,
    density: float | None,
    budget: str | float | None,
    calibrate: Batches,
) -> BestDraw:
    """See `Sparsifier.best`."""
    whole("draws", draws, 1)
    batches = calibrate if calibrate is None or calibrate is False else list(calibrate)
    found: BestDraw | None = None
    scores: list[float] = []
    with Progress(draws, "submodels") as progress:
        for seed in range(draws):
            key = Key(seed)
            model = sk.submodel(key, density=density, budget=budget, calibrate=batches)
            scores.append(float(evaluate(model)))
            if np.isnan(scores[-1]):
                raise ArgumentError(f"the score of seed {seed} is NaN, which is neither better nor worse")
            if found is None or scores[-1] > found.score:
                drawing = drawing_for(sk, key, density, budget)
                draw = drawing.draw(key) if isinstance(drawing, UnitDrawing) else None
                found = BestDraw(model, key, scores[-1], (), draw)
            progress.advance(seed + 1)
    assert found is not None
    return BestDraw(found.model, found.key, found.score, tuple(scores), found.draw)
