"""What is trained: the interface between the engine, which carries messages, and models with their data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mast import files
from mast.arrays import vector
from mast.cluster.settings import Settings
from mast.errors import ArgumentError, MastError, NoGuaranteeError
from mast.methods.distributed import Capacity, Roster, Worker, submodel_key
from mast.methods.distributed.messages import Values
from mast.nn.structure.sketches import parse
from mast.sketches import Sketch
from mast.theory import Guarantee


class Task(ABC):
    """A model, the capacities of all nodes, and the data of the nodes of this rank.

    A new kind of model is one subclass. `worker`, `data`, `facts` and scores are asked on a node's own rank,
    `start` and `save` on rank 0, and `capacity` of a node on both.
    """

    #: what each node can hold
    sketches: Sequence[Sketch]
    #: what a score is, for the table: "accuracy", "R²", ...
    metric: str = "score"

    @abstractmethod
    def capacity(self, node: int) -> Capacity:
        """What the node can hold of this model; nodes with the same sketch may share one."""

    @abstractmethod
    def start(self) -> Values:
        """Where x starts: a float64 or float32 vector."""

    @abstractmethod
    def worker(self, node: int, run: int) -> Worker:
        """The node, with its data."""

    @abstractmethod
    def identity(self) -> dict[str, str]:
        """What must be the same on all ranks, field by field, beside the version of MAST and of its keys."""

    def data(self, node: int) -> str:
        """A digest of the node's objective and data, so that a checkpoint does not continue on others."""
        return ""

    def facts(self, node: int) -> dict[str, Any] | None:
        """What theory needs to know of a node, as JSON; None if nothing is known."""
        return None

    def guarantee(self, facts: Sequence[Any], roster: Roster, settings: Settings) -> Guarantee:
        """The statement that applies, from the facts of all nodes; `NoGuaranteeError` if there is none."""
        raise NoGuaranteeError(
            "no guarantee: the smoothness of this model is not known; of networks mast.nn.advise measures it"
        )

    def score(self, node: int, model: Any) -> float:
        """The score of a submodel as the node's worker makes it, for `scores`; higher is better."""
        raise ArgumentError(f"{type(self).__name__} has neither score() nor scores(): nothing can be scored")

    def scores(self, node: int, values: Values, draws: int, seed: int) -> list[float]:
        """The scores of `draws` submodels of the node's capacity made from x = `values`."""
        worker, capacity = self.worker(node, run=0), self.capacity(node)
        parts = [capacity.largest(submodel_key(seed, draw, node)) for draw in range(draws)]
        return [self.score(node, worker.submodel(part, part.gather(values))) for part in parts]

    @abstractmethod
    def full_score(self, node: int, values: Values) -> float:
        """The score of the whole model, on the same rows."""

    def save(self, values: Values, folder: Path) -> None:  # noqa: B027
        """Write the model in a form of its own beside x.npy; nothing by default."""


def sketches_of(settings: Settings) -> list[Sketch]:
    """One per node; nodes with the same text share one, and what it remembers."""
    made = {text: parse(text) for text in dict.fromkeys(settings.capacities)}
    return [made[text] for text in settings.capacities]


def shift_of(settings: Settings, dim: int) -> Values | None:
    """The shift v of the file that [model] names."""
    if settings.model.shift is None:
        return None
    path = settings.path(settings.model.shift)
    try:
        return vector("shift", files.load_array(path), dim)
    except MastError as error:
        raise ArgumentError(f"shift in [model], {path}: {error}") from None
