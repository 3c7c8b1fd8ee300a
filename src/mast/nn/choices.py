"""Choosing submodels: of a density, within a budget, the best of several draws."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import nn

from mast.checks import whole
from mast.errors import ArgumentError
from mast.nn.costs import count_flops
from mast.nn.structure import UnitDraw
from mast.nn.structure.drawing import UnitDrawing
from mast.nn.submodels import smaller, submodel
from mast.nn.tensors.drawing import Drawing
from mast.nn.tensors.weights import Batches
from mast.progress import Progress
from mast.randomness import Key

if TYPE_CHECKING:
    from mast.nn.sparsifier import Sparsifier

_BUDGET = re.compile(r"\s*([\d.]+)\s*(%?)\s*(flops?|params?|parameters?)\s*", re.IGNORECASE)
_STEPS = 12  # halvings of the interval of densities: 1/4096 of the units


class Picked(NamedTuple):
    """One draw, and how it is made; with a structured sketch, its units."""

    key: Key
    drawing: Drawing
    units: UnitDraw | None


def pick(
    sk: Sparsifier, which: int | Key | UnitDraw, density: float | None, budget: str | float | None
) -> Picked:
    """The draw of a seed, a key or known units: of the sketch itself, at a density, or within a budget."""
    if density is not None and budget is not None:
        raise ArgumentError("a submodel has a density or a budget, not both")
    if isinstance(which, UnitDraw):
        if sk.structure is None:
            raise ArgumentError(f"a draw of units belongs to a structured sketch, and this is {sk.sketch!r}")
        if density is not None or budget is not None:
            raise ArgumentError("a draw of units has its density: give its seed or key instead")
        return Picked(which.key, sk.drawing, which)
    key = which if isinstance(which, Key) else Key(which)
    if budget is not None:
        drawing = _within(sk, key, budget)
    else:
        drawing = sk.drawing if density is None else sk.drawing_for(sk.sketch.at(density))
    return Picked(key, drawing, drawing.draw(key) if isinstance(drawing, UnitDrawing) else None)


def _within(sk: Sparsifier, key: Key, budget: str | float) -> Drawing:
    """The drawing of the largest density whose draw of this key costs no more than the budget."""
    most, is_share, operations = _parsed(budget)
    if operations and (sk.structure is None or sk.shift is not None):
        raise ArgumentError(
            "a budget of operations needs a smaller network: Neurons or Layers, and no shift; this is "
            f"{sk.sketch!r}"
        )

    def cost(drawing: Drawing) -> float:
        if sk.structure is None or not isinstance(drawing, UnitDrawing):
            kept = sum(drawing.kept(i, key, w.parameter).count for i, w in enumerate(sk.weights))
            return sum(p.numel() for p in sk.model.parameters()) - sk.dim + kept
        draw = drawing.draw(key)
        if not operations:
            return sk.structure.cut(draw).count
        return count_flops(smaller(sk, draw), sk.structure.examples[0].to(sk.model).call)

    best: Drawing | None = None
    whole_model = sk.drawing_for(sk.sketch.at(1))
    everything = cost(whole_model)
    most *= everything if is_share else 1
    if everything <= most:
        return whole_model
    low, high, least = 0.0, 1.0, float("inf")
    for _ in range(_STEPS):
        middle = (low + high) / 2
        drawing = sk.drawing_for(sk.sketch.at(middle))
        least = min(least, spent := cost(drawing))
        if spent <= most:
            best, low = drawing, middle
        else:
            high = middle
    if best is None:
        unit = "operations" if operations else "parameters"
        raise ArgumentError(
            f"no submodel of this draw costs at most {most:,.0f} {unit}: the smallest has {least:,.0f}, "
            "because of what is not sketched and of one unit in each layer"
        )
    return best


def _parsed(budget: str | float) -> tuple[float, bool, bool]:
    """An amount, whether it is a share of the whole model's, and whether it is of operations.

    >>> _parsed("25% flops"), _parsed(10_000)
    ((0.25, True, True), (10000.0, False, False))
    """
    amount, percent, unit = str(budget), "", "parameters"
    if isinstance(budget, str):
        match = _BUDGET.fullmatch(budget)
        if match is None:
            raise ArgumentError(
                f"budget: {budget!r} is not understood; examples are '25% flops', '40% params', 10000"
            )
        amount, percent, unit = match.groups()
    most = float(amount) / (100 if percent else 1)
    if not most > 0 or (percent and most > 1):
        raise ArgumentError(f"budget: {budget!r} is not more than nothing and at most the whole model")
    return most, bool(percent), unit.lower().startswith("f")


@dataclass(frozen=True)
class BestDraw:
    """The best of several submodels by a score: it was chosen, so its score is better than it deserves.

    Score it again on data that had no part in the choice before you report a number.
    """

    model: nn.Module = field(repr=False)  #: the submodel
    key: Key  #: its draw: ``sk.submodel(key)`` is the same submodel, with the same density or budget
    score: float
    scores: tuple[float, ...] = field(repr=False)  #: of all draws
    draw: UnitDraw | None = field(default=None, repr=False)  #: of units, for ``sk.save_submodel``

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
    scores: list[float] = []
    top = 0
    with Progress(draws, "submodels") as progress:
        for seed in range(draws):
            picked = pick(sk, seed, density, budget)
            model = submodel(sk, picked, batches)
            scores.append(float(evaluate(model)))
            if seed == 0 or scores[seed] > scores[top]:
                top, chosen, found = seed, picked, model
            progress.advance(seed + 1)
    return BestDraw(found, chosen.key, scores[top], tuple(scores), chosen.units)
