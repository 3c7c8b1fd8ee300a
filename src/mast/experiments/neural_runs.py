"""The cells of the neural experiments: runs of the distributed method, and the curves they leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mast.arrays import Array
from mast.experiments.cells import Cell, Done
from mast.experiments.datasets import Dataset
from mast.experiments.findings import Plan
from mast.sketches import Bernoulli, UnscaledBernoulli

if TYPE_CHECKING:
    from torch import Tensor, nn

NAME, VERSION = "neural", 2
NODES, HIDDEN = 10, 32
KEEPS = (0.5, 0.7, 0.9, 1.0)
STEP_SIZES = (0.01, 0.05, 0.1, 0.5, 1.0)
TOGETHER = 5  # nodes in one product: up to a tenth faster than one by one, and all ten are no faster
DIVERGED = 1e4  # times the loss at the start
LAST, MIDDLE = 0.1, 0.5  # a level is over the last tenth of a run, or over the tenth before its middle
FLUCTUATING = 0.25  # the last quarter
UNSETTLED = 3.0  # largest over smallest loss in the last quarter
HIGH = 0.5  # of the start's loss


def run(config: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """All step sizes with one sketch and seed: f with S = I along the runs, and how each ended.

    With ``advised``, the last lane runs at the step size that `mast.nn.advise` proposes at the start.
    """
    from mast.experiments.neural_data import one_thread, shares
    from mast.experiments.neural_rounds import Lanes, Masks, Shape, student

    with one_thread():
        X, T, accuracy = shares(dataset, config["rows"], config["nodes"])
        shape = Shape(X.shape[2], config["hidden"], T.shape[2])
        network = student(shape, config["seed"])
        kind = Bernoulli if config["scaled"] else UnscaledBernoulli
        sketch = kind(config["keep"])
        step_sizes = list(config["step_sizes"])
        proposed: tuple[float, float] | tuple[None, None] = (None, None)
        if config["advised"]:
            proposed = advice(network, X, T, sketch, config["seed"])
            step_sizes.append(proposed[0])
        lanes = Lanes(network, step_sizes, X, T, TOGETHER)
        masks = None if config["keep"] == 1 else Masks(sketch, shape, config["nodes"], config["seed"])
        rounds = np.arange(0, config["rounds"] + 1, config["every"])
        losses, at_keep = [], []
        for t in range(int(rounds[-1]) + 1):
            if t % config["every"] == 0:
                losses.append(lanes.losses())
                if not config["scaled"]:
                    at_keep.append(lanes.losses(config["keep"]))
            if t < rounds[-1]:
                lanes.advance(None if masks is None else masks.of(t))
    loss, status = ended(np.array(losses).T)
    result = {"round": rounds, "step_size": np.array(step_sizes), "loss": loss, "status": status}
    if at_keep:
        result["loss_at_keep"] = ended(np.array(at_keep).T)[0]
    return result | {"advice": proposed[0], "curvature": proposed[1], "accuracy": accuracy}


def advice(network: nn.Sequential, X: Tensor, T: Tensor, sketch: Bernoulli, seed: int) -> tuple[float, float]:
    """What `mast.nn.advise` proposes for one draw a step, and the curvature that it measured."""
    from mast.experiments.neural_rounds import squared_loss
    from mast.nn import advise

    found = advise(network, squared_loss, [(X.flatten(0, 1), T.flatten(0, 1))], sketch, seed=seed)
    assert found.step_size is not None
    return found.step_size, found.smoothness


def ended(losses: Array) -> tuple[Array, list[str]]:
    """Losses with infinity from where a lane (row) has diverged, and each lane's status.

    >>> ended(np.array([[1.0, 2.0, 0.5], [1.0, 1e9, 3.0], [1.0, np.nan, 1.0]]))
    (array([[1. , 2. , 0.5],
           [1. , inf, inf],
           [1. , inf, inf]]), ['finished', 'diverged', 'diverged'])
    """
    beyond = ~(losses <= DIVERGED * losses[:, :1])  # NaN too
    beyond = np.logical_or.accumulate(beyond, axis=1)
    status = ["diverged" if last else "finished" for last in beyond[:, -1].tolist()]
    return np.where(beyond, np.inf, losses), status


def cells(plan: Plan, keeps: Sequence[float] = KEEPS) -> list[Cell]:
    """One cell a data set, keep probability and seed."""
    return [
        run_cell(NAME, VERSION, plan, dataset, keep, seed, STEP_SIZES, scaled=True)
        for dataset in plan.datasets
        for keep in keeps
        for seed in range(seeds(plan))
    ]


def seeds(plan: Plan) -> int:
    """How many seeds are run."""
    return int(plan.pick(fast=1, normal=3, full=3))


def run_cell(
    experiment: str,
    version: int,
    plan: Plan,
    dataset: Dataset,
    keep: float,
    seed: int,
    step_sizes: Sequence[float],
    scaled: bool,
) -> Cell:
    """A cell of `run`, with the numbers that the effort allows."""
    rounds, rows = plan.pick(fast=200, normal=1500, full=1500), plan.pick(fast=500, normal=2500, full=None)
    config = {
        "keep": keep,
        "scaled": scaled,
        "advised": scaled,
        "step_sizes": list(step_sizes),
        "rounds": rounds,
        "every": plan.pick(fast=4, normal=10, full=10),
        "rows": rows,
        "nodes": NODES,
        "hidden": HIDDEN,
        "seed": seed,
    }
    products = 4e-11 * HIDDEN * (len(step_sizes) + scaled)  # seconds for a row and an input, forth and back
    wide, long = (2048, rows or 10_000) if dataset.path else (256, 1790)
    return Cell(
        experiment, version, run, config, dataset, cost=2 + rounds * products * wide * min(long, rows or long)
    )


@dataclass(frozen=True)
class Curve:
    """The runs of one sketch at one step size: a row of losses a seed."""

    rounds: Array
    loss: Array

    def _over(self, begin: float, end: float) -> Array:
        share = self.rounds / self.rounds[-1]
        return self.loss[:, (share > begin) & (share <= end)]

    @property
    def levels(self) -> Array:
        """Where each seed ends: the median over the last tenth of the run; infinite if it diverged."""
        levels: Array = np.median(self._over(1 - LAST, 1), axis=1)
        return levels

    @property
    def level(self) -> float:
        """The median of that over seeds."""
        return float(np.median(self.levels))

    @property
    def falls(self) -> Array:
        """By which share of itself the loss falls in the second half of the run; NaN if it diverged."""
        middle = np.median(self._over(MIDDLE - LAST, MIDDLE), axis=1)
        with np.errstate(invalid="ignore"):
            falls: Array = 1 - self.levels / middle
        return falls

    @property
    def deviations(self) -> Array:
        """How much f changes from one measured round to the next in the last quarter, its trend taken out.

        Second differences over the square root of 6: the standard deviation, if f is a trend plus noise.
        """
        late = self._over(1 - FLUCTUATING, 1)
        found = np.full(len(late), np.inf)
        whole = np.isfinite(late).all(axis=1)
        found[whole] = np.sqrt(np.mean(np.diff(late[whole], n=2, axis=1) ** 2, axis=1) / 6)
        return found

    @property
    def fluctuations(self) -> Array:
        """The standard deviation of log f about its linear trend in the last quarter, a number a seed."""
        late = self._over(1 - FLUCTUATING, 1)
        found = np.full(len(late), np.inf)
        place = np.linspace(-1, 1, late.shape[1])
        for seed, row in enumerate(late):
            if np.isfinite(row).all():
                logs = np.log(row)
                trend = np.polynomial.polynomial.polyfit(place, logs, 1)
                found[seed] = float(np.std(logs - np.polynomial.polynomial.polyval(place, trend)))
        return found

    @property
    def settled(self) -> NDArray[np.bool_]:
        """Whether each seed ended below half its start, its loss late changing by less than a factor of 3."""
        late = self._over(1 - FLUCTUATING, 1)
        with np.errstate(invalid="ignore"):
            calm = late.max(axis=1) < UNSETTLED * late.min(axis=1)
        settled: NDArray[np.bool_] = np.isfinite(self.levels) & (self.levels < HIGH * self.loss[:, 0]) & calm
        return settled

    def said(self) -> str:
        """The level with its range over seeds."""
        if len(self.levels) == 1 or not np.isfinite(self.levels).any():
            return f"{self.level:.3g}"
        return f"{self.level:.3g} ({self.levels.min():.3g} to {self.levels.max():.3g})"


def curve(done: Sequence[Done], dataset: str, keep: float, lane: float | str, scaled: bool = True) -> Curve:
    """The seeds of one curve; the lane is a step size or "advised"."""
    mine = [
        d
        for d in done
        if d.cell.compute is run
        and d.cell.dataset.name == dataset
        and d["keep"] == keep
        and d["scaled"] == scaled
    ]
    places = [-1 if lane == "advised" else d["step_sizes"].index(lane) for d in mine]
    return Curve(
        mine[0]["round"].astype(float),
        np.array([d["loss"][place] for d, place in zip(mine, places, strict=True)]),
    )


def advised(done: Sequence[Done], dataset: str, keep: float) -> float:
    """The step size that `advise` proposes, the median over seeds."""
    found = [
        d["advice"]
        for d in done
        if d.cell.compute is run and d.cell.dataset.name == dataset and d["keep"] == keep and d["scaled"]
    ]
    return float(np.median(found))
