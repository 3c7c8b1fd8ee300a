"""Submodels: plain modules with the weights of a draw; of a density, within a budget, the best of several."""

from __future__ import annotations

import math
import re
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from mast.errors import ArgumentError
from mast.nn.batches import check_batches, run_batches
from mast.nn.costs import count_flops, evaluated
from mast.nn.tensors.bound import BoundSketch
from mast.nn.tensors.sparsified import sparsify_tensor
from mast.nn.tensors.torch_private import BatchNorm
from mast.nn.tensors.weights import Calibration
from mast.nn.units import BoundUnits, UnitDraw
from mast.nn.units.dependencies.examples import check_submodel
from mast.randomness import Key
from mast.sketches.draws import Draw, GridDraw, ModelDraw
from mast.support.checks import check_int
from mast.support.progress import Progress

if TYPE_CHECKING:
    from mast.nn.sparsifier import Sparsifier

_BUDGET = re.compile(r"\s*([\d.]+)\s*(%?)\s*(flops?|params?|parameters?)\s*", re.IGNORECASE)
_GRAINS = 4096  # densities are multiples of 1 / _GRAINS


def pick(
    sk: Sparsifier,
    which: int | Key | UnitDraw,
    member: int | None,
    density: float | None,
    budget: str | float | None,
) -> ModelDraw[Any]:
    """A draw by seed, key, known units or member: of the sketch itself, at a density, or within a budget.

    With a structured sketch it is one of units, else one of weights.
    """
    if member is not None:
        if which != 0:
            raise ArgumentError("a draw is named by its seed or by member, not by both")
        if density is not None or budget is not None:
            raise ArgumentError("a member of a list has its own size: give a seed with a density or budget")
        which = sk.member_key(member)
    if density is not None and budget is not None:
        raise ArgumentError("a submodel has a density or a budget, not both")
    if isinstance(which, ModelDraw):
        if sk.unit_map is None:
            raise ArgumentError(f"a draw of units belongs to a structured sketch, and this is {sk.sketch!r}")
        if density is not None or budget is not None:
            raise ArgumentError("a draw of units has its density: give its seed or key instead")
        return which
    sk.watched.check()
    key = which if isinstance(which, Key) else Key(which)
    if budget is not None:
        bound = _within(sk, key, budget)
    else:
        bound = sk.bound if density is None else sk.bind(sk.sketch.at(density))
    return bound.draw(key) if isinstance(bound, BoundUnits) else weight_draw(sk, bound, key)


def weight_draw(sk: Sparsifier, bound: BoundSketch, key: Key) -> ModelDraw[Draw]:
    """What a key keeps of each sketched weight, by its name."""
    return ModelDraw({w.name: bound.kept(i, key, w.parameter) for i, w in enumerate(sk.weights)}, key)


def _within(sk: Sparsifier, key: Key, budget: str | float) -> BoundSketch:
    """The sketch of the largest density whose draw of this key costs no more than the budget."""
    most, is_share, operations = _parsed(budget)
    if operations and (sk.unit_map is None or sk.shift is not None):
        raise ArgumentError(
            "a budget of operations needs a smaller network: Neurons or Layers, and no shift; this is "
            f"{sk.sketch!r}"
        )

    def bound_at(grains: int) -> BoundSketch:
        return sk.bind(sk.sketch.at(grains / _GRAINS))

    def cost(grains: int) -> float:
        bound = bound_at(grains)
        if sk.unit_map is None or not isinstance(bound, BoundUnits):
            kept = sum(bound.kept(i, key, w.parameter).count for i, w in enumerate(sk.weights))
            return sum(p.numel() for p in sk.model.parameters()) - sk.dim + kept
        draw = bound.draw(key)
        if not operations:
            return sk.unit_map.cut(draw).count
        return count_flops(small_model(sk, draw), sk.unit_map.examples_for(sk.model)[0].call)

    most *= cost(_GRAINS) if is_share else 1
    affordable = bisect_right(range(1, _GRAINS + 1), most, key=cost)
    if not affordable:
        unit = "operations" if operations else "parameters"
        raise ArgumentError(
            f"no submodel of this draw costs at most {most:,.0f} {unit}: the smallest has "
            f"{cost(1):,.0f}, because of what is not sketched and of one unit in each layer"
        )
    return bound_at(affordable)


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
    try:
        most = float(amount) / (100 if percent else 1)
    except ValueError:
        raise ArgumentError(f"budget: {budget!r} is not understood; give a number or a text") from None
    if not most > 0 or (percent and most > 1):
        raise ArgumentError(f"budget: {budget!r} is not more than nothing and at most the whole model")
    return most, bool(percent), unit.lower().startswith("f")


def make_submodel(sk: Sparsifier, draw: ModelDraw[Any], calibrate: Calibration) -> nn.Module:
    """A plain copy of the model with the weights v + S(x - v) of a draw, in eval mode; smaller, of units."""
    sk.watched.check("submodel() cannot be called")
    warn_of_sorting(sk)
    if calibrate is None:
        warn_of_batch_norm(sk)
    if sk.unit_map is not None:
        model = small_model(sk, draw)
        cut = sk.unit_map.cut(draw)
        cut.adapt_configuration(model)
        if stay := [branch.name for branch in cut.dropped_branches if not branch.modules]:
            warnings.warn(
                f"{len(stay)} dropped branches, such as {stay[0]!r}, could not be taken out of the submodel: "
                "it still has them, times 0"
                + ("" if sk.checks_submodels else ". Pass example= to sparsify(), and more can be taken out"),
                stacklevel=3,
            )
        if sk.checks_submodels:
            check_submodel(sk.unit_map, sk.model, draw, model, sk.shift)
    else:
        model = sk.watched.plain_copy()
        put_draw(sk, draw, model)
    model.eval()
    if calibrate is not None and calibrate is not False:
        recalibrate(model, calibrate)
    return model


def small_model(sk: Sparsifier, draw: UnitDraw, source: nn.Module | None = None) -> nn.Module:
    """The kept units (of `source`, if given) as a model of their own, the scale in the outgoing weights."""
    assert sk.unit_map is not None
    source = sk.model if source is None else source
    cut = sk.unit_map.cut(draw)
    y = cut.gather(source)
    if sk.shift is None:
        y = cut.scaled(y)
    else:
        for name, v in sk.shift.items():
            _shift(name, cut.parameters, v.to(y), y)
    return cut.pour(y, cut.gather_buffers(source), source)


def _shift(name: str, parameters: ModelDraw[Draw], v: Tensor, y: Tensor) -> None:
    """v + S(x - v) on the kept entries; an error if v is not 0 on dropped ones, which are gone."""
    kept = parameters.get(name)
    if kept is None:
        lost = bool(torch.count_nonzero(v))
    else:
        base = kept.gather(v)
        lost = False
        if isinstance(kept, GridDraw):  # only what the sketch itself drops has to be 0, not rows of producers
            rows = GridDraw(v.shape, {dim: i for dim, i in kept.indices.items() if dim not in kept.scales})
            lost = bool(torch.count_nonzero(rows.gather(v)) != torch.count_nonzero(base))
    if lost:
        raise ArgumentError(
            f"the shift of {name!r} is not 0 on what this draw drops, so the sparsified model is not a "
            "smaller one: with a shift a submodel is the base v plus a delta; write it with save_delta()"
        )
    if kept is not None:
        small = parameters.of(y, name)
        small.sub_(base)
        kept.scale(small)
        small.add_(base)


def put_draw(
    sk: Sparsifier, draw: ModelDraw[Draw], model: nn.Module, source: nn.Module | None = None
) -> None:
    """Write v + S(x - v) of one draw into a copy of the model; x is that of `source`, if it is given."""
    parameters = dict(model.named_parameters())
    points = {} if source is None else dict(source.named_parameters())
    with torch.no_grad():
        for i, w in enumerate(sk.weights):
            x = points.get(w.name, w.parameter).detach()
            parameters[w.name].copy_(sparsify_tensor(draw[w.name], x, sk.values.shift_of(i, x)))


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


def best_submodel(
    sk: Sparsifier,
    evaluate: Callable[[nn.Module], float],
    draws: int,
    density: float | None,
    budget: str | float | None,
    calibrate: Calibration,
) -> BestDraw:
    """Score the submodels of the seeds 0 .. draws - 1; see `Sparsifier.best`."""
    check_int("draws", draws, 1)
    batches = calibrate
    if calibrate is not None and calibrate is not False:
        batches = list(check_batches("calibrate", calibrate))
    scores: list[float] = []
    with Progress(draws, "submodels") as progress:
        for seed in range(draws):
            picked = pick(sk, seed, None, density, budget)
            model = make_submodel(sk, picked, batches)
            scores.append(score_of(evaluate, model))
            if math.isnan(scores[-1]):
                raise ArgumentError(f"the score of seed {seed} is NaN, which is neither better nor worse")
            if scores.index(max(scores)) == seed:
                chosen, found = picked, model
            progress.advance(seed + 1)
    units = None if sk.unit_map is None else chosen
    return BestDraw(found, chosen.key, max(scores), tuple(scores), units)


def score_of(evaluate: Callable[[nn.Module], float], model: nn.Module) -> float:
    """The number that the user's function gives a model."""
    if not callable(evaluate):
        raise ArgumentError(f"evaluate is a function of a model that returns a number, got {evaluate!r}")
    score = evaluate(model)
    try:
        return float(score)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(f"evaluate returns one number for a model, got {score!r}") from None


def warn_of_batch_norm(sk: Sparsifier) -> None:
    """A warning, once, if submodels have statistics of BatchNorm that are averages over all draws."""
    if any(isinstance(m, BatchNorm) and m.track_running_stats for m in sk.model.modules()):
        sk.watched.warn_once(
            "the model has BatchNorm layers, whose statistics are averages over draws and fit no submodel: "
            "pass calibrate=batches, or calibrate=False if they are taken anew later"
        )


def warn_of_sorting(sk: Sparsifier) -> None:
    """A warning, once, if a resumed run has weights whose units were sorted a second time."""
    if sk.sorting is not None and sk.sorting.is_in_doubt:
        sk.watched.warn_once(
            "elastic() has sorted units of weights that are not those of the loaded state, so the sizes are "
            "not the ones that were trained: load the weights that were saved with the state, or pass "
            "sort=False"
        )


def recalibrate(model: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """Take the statistics of BatchNorm layers anew from batches: a submodel needs its own.

    A batch is the inputs or a pair of inputs and targets; inputs are a tensor, a tuple of arguments, or a
    dict of keyword arguments.

    >>> import torch
    >>> model = torch.nn.BatchNorm1d(1)
    >>> recalibrate(model, [torch.tensor([[1.0], [3.0]])]).running_mean
    tensor([2.])
    """
    batches = check_batches("recalibrate", batches)
    norms = [m for m in model.modules() if isinstance(m, BatchNorm) and m.track_running_stats]
    if not norms:
        return model
    momenta = {norm: norm.momentum for norm in norms}
    with evaluated(model):
        try:
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # a plain average over all batches
                norm.train()
            if not run_batches("recalibrate", model, batches):
                raise ArgumentError(
                    "BatchNorm layers were to be calibrated, but there was no batch to do it with"
                )
        finally:
            for norm, momentum in momenta.items():
                norm.momentum = momentum
    return model
