"""The cells of the neural experiments: runs of the distributed method, and the curves they leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.polynomial.polynomial import polyfit, polyval
from numpy.typing import NDArray

from mast.experiments.datasets import one_thread
from mast.experiments.experiment import Experiment, Request, Results, median_and_range
from mast.experiments.neural.data import Embedded, shares
from mast.experiments.neural.rounds import Lanes, Masks, squared_loss, student
from mast.nn import advise
from mast.sketches import Bernoulli, UnscaledBernoulli
from mast.support.cells import Cell, Done
from mast.support.checks import Array

NODES, HIDDEN = 10, 32
KEEPS = (0.5, 0.7, 0.9, 1.0)
STEP_SIZES = (0.01, 0.05, 0.1, 0.5, 1.0)
DIVERGED = 1e4  # times the loss at the start
LAST, MIDDLE = 0.1, 0.5  # a level is over the last tenth of a run, or over the tenth before its middle
FLUCTUATING = 0.25  # the last quarter
UNSETTLED = 3.0  # largest over smallest loss in the last quarter
HIGH = 0.5  # of the start's loss


@one_thread()
def distributed_run(config: Mapping[str, Any], dataset: Embedded) -> dict[str, Any]:
    """All step sizes with one sketch and seed: f with S = I along the runs, and how each ended.

    With ``advised``, the last lane runs at the step size that `mast.nn.advise` proposes at the start.
    """
    X, T, accuracy = shares(dataset, config["rows"], config["nodes"])
    network = student((X.shape[2], config["hidden"], T.shape[2]), config["seed"])
    sketch = (Bernoulli if config["scaled"] else UnscaledBernoulli)(config["keep"])
    step_sizes = list(config["step_sizes"])
    proposed: dict[str, Any] = {"advice": None, "curvature": None}
    if config["advised"]:  # for one draw per step
        rows = [(X.flatten(0, 1), T.flatten(0, 1))]
        given = {"draws": 3, "iterations": 20, "seed": config["seed"]}
        proposal = advise(network, squared_loss, rows, sketch, **given)
        proposed = {"advice": proposal.step_size, "curvature": proposal.smoothness}
        step_sizes.append(proposal.step_size)
    lanes = Lanes(network, step_sizes, X, T)
    masks = None if config["keep"] == 1 else Masks(sketch, network, config["nodes"], config["seed"])
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
    return result | proposed | {"accuracy": accuracy}


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


def seeds(request: Request) -> int:
    """How many seeds are run."""
    return int(request.pick(fast=1, normal=3, full=3))


def training_cells(
    experiment: Experiment,
    request: Request,
    keeps: Sequence[float],
    step_sizes: Sequence[float],
    scaled: bool = True,
) -> list[Cell]:
    """One cell per keep probability and seed, with the numbers that the effort allows."""
    varied = {"keep": keeps, "seed": range(seeds(request))}
    rounds, every = request.pick(fast=(200, 4), normal=(1500, 10), full=(1500, 10))
    rows = request.pick(fast=500, normal=2500, full=None)
    fixed = {"scaled": scaled, "advised": scaled, "step_sizes": list(step_sizes), "rounds": rounds}
    fixed |= {"every": every, "rows": rows, "nodes": NODES, "hidden": HIDDEN}
    (data,) = request.datasets
    inputs = (rows or 10_000) * (2048 if data.path else 256)  # about, of all rows
    seconds = 2 + rounds * 4e-11 * HIDDEN * inputs * (len(step_sizes) + scaled)
    return experiment.grid(distributed_run, data, seconds, varied, **fixed)


@dataclass(frozen=True)
class Curve:
    """The runs of one sketch at one step size: one row of losses per seed."""

    rounds: Array
    loss: Array

    def _over(self, begin: float, end: float) -> Array:
        share = self.rounds / self.rounds[-1]
        return self.loss[:, (share > begin) & (share <= end)]

    @property
    def levels(self) -> Array:
        """Where each seed ends: the median over the last tenth of the run; infinite if it diverged."""
        return np.asarray(np.median(self._over(1 - LAST, 1), axis=1))

    @property
    def level(self) -> float:
        """The median of that over seeds."""
        return float(np.median(self.levels))

    @property
    def falls(self) -> Array:
        """By which share of itself the loss falls in the second half of the run; NaN if it diverged."""
        middle = np.median(self._over(MIDDLE - LAST, MIDDLE), axis=1)
        with np.errstate(invalid="ignore"):
            return np.asarray(1 - self.levels / middle)

    @property
    def deviations(self) -> Array:
        """How much f changes from one measured round to the next in the last quarter, its trend taken out.

        Second differences over the square root of 6: the standard deviation, if f is a trend plus noise.
        """
        return self._late(lambda losses: float(np.sqrt(np.mean(np.diff(losses, n=2) ** 2) / 6)))

    @property
    def fluctuations(self) -> Array:
        """The standard deviation of log f about its linear trend in the last quarter, one number per seed."""

        def about_trend(losses: Array) -> float:
            logs, place = np.log(losses), np.linspace(-1, 1, losses.size)
            return float(np.std(logs - polyval(place, polyfit(place, logs, 1))))

        return self._late(about_trend)

    def _late(self, measure: Callable[[Array], float]) -> Array:
        """A measure of the last quarter of each seed; infinite if it diverged."""
        late = self._over(1 - FLUCTUATING, 1)
        return np.array([measure(losses) if np.isfinite(losses).all() else np.inf for losses in late])

    @property
    def settled(self) -> NDArray[np.bool_]:
        """Whether each seed ended below half its start, its loss late changing by less than a factor of 3."""
        late = self._over(1 - FLUCTUATING, 1)
        with np.errstate(invalid="ignore"):
            calm = late.max(axis=1) < UNSETTLED * late.min(axis=1)
        return np.asarray(np.isfinite(self.levels) & (self.levels < HIGH * self.loss[:, 0]) & calm)

    def summary(self) -> dict[str, float]:
        """The columns of a table about where the curve ends."""
        ends = {"level": self.level, "lowest": self.levels.min(), "highest": self.levels.max()}
        return ends | {"fluctuation": np.median(self.fluctuations)}

    def __str__(self) -> str:
        """The level with its range over seeds."""
        if len(self.levels) == 1 or not np.isfinite(self.levels).any():
            return f"{self.level:.3g}"
        return median_and_range(self.levels, ".3g")


def curve(
    results: Results, keep: float, lane: float | str, scaled: bool = True, measure: str = "loss"
) -> Curve:
    """The seeds of one curve of one data set; the lane is a step size or "advised"."""
    runs = results.of(distributed_run, keep=keep, scaled=scaled)
    places = [-1 if lane == "advised" else d["step_sizes"].index(lane) for d in runs]
    losses = np.array([d[measure][place] for d, place in zip(runs, places, strict=True)])
    return Curve(runs[0]["round"].astype(float), losses)


def advised(results: Results, keep: float) -> float:
    """The step size that `advise` proposes on one data set, the median over seeds."""
    return float(np.median(results.of(distributed_run, keep=keep, scaled=True).values("advice")))


def loss_table(results: Results) -> Any:
    """One row per measured point of the distributed runs."""

    def points(name: str) -> Callable[[Done], Any]:
        return lambda d: np.repeat(d[name], d["round"].size)

    return results.of(distributed_run).frame(
        "keep",
        "scaled",
        step_size=points("step_size"),
        advised=lambda d: np.repeat(np.arange(d["step_size"].size) >= len(d["step_sizes"]), d["round"].size),
        seed="seed",
        status=points("status"),
        round=lambda d: np.tile(d["round"], d["step_size"].size),
        loss=lambda d: d["loss"].ravel(),
    )
