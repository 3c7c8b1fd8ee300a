"""What a run of the server has reached: the point, rounds, bytes. It is what a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mast.distributed.messages import Values, checked_dtype
from mast.distributed.optimizers import Optimizer
from mast.errors import ArgumentError
from mast.support import files
from mast.support.checkpoint import Checkpoint, check_fields, fill_arrays

#: the numbers of a checkpoint, and their types
NUMBERS: dict[str, tuple[type, ...]] = {"round": (int,), "seconds": (int, float), "extra": (dict,)}
#: what is counted for each node: bytes, messages and values to it, bytes and answers from it
COUNTS = ("received", "asked", "values", "sent", "answered")


class ServerState:
    """All that the rest of a run depends on, and nothing else.

    Attributes
    ----------
    x : the point.
    t : rounds done.
    seconds : how long they took.
    received, asked, values : bytes, messages and values to each node.
    sent, answered : bytes and answers from each node.
    """

    def __init__(self, x0: Values, optimizer: Optimizer, nodes: int) -> None:
        self.x: Values = np.array(x0, dtype=checked_dtype(np.asarray(x0).dtype))
        if self.x.ndim != 1:
            raise ArgumentError(f"x0 must be a vector, got shape {self.x.shape}")
        self.optimizer = optimizer
        optimizer.start(self.x)
        self.t = 0
        self.seconds = 0.0
        counts = np.zeros((len(COUNTS), nodes), dtype=np.int64)
        self.received, self.asked, self.values, self.sent, self.answered = counts

    def save(self, path: str | Path, identity: Mapping[str, str], extra: Mapping[str, Any]) -> None:
        """Write a checkpoint: the old one stays until the new one is whole."""
        numbers = {"round": self.t, "seconds": self.seconds, "extra": dict(extra)}
        Checkpoint(path, "server", identity).write(numbers, self._arrays())

    def load(self, path: str | Path, identity: Mapping[str, str]) -> dict[str, Any] | None:
        """Continue from a file if there is one; returns its `extra`, or None."""
        there = files.as_path("checkpoint", path).exists()
        stored = Checkpoint(path, "server", identity).read() if there else None
        if stored is None:
            return None
        numbers, arrays = stored
        check_fields(numbers, NUMBERS, str(path))
        fill_arrays(self._arrays(), arrays)
        self.t, self.seconds = numbers["round"], float(numbers["seconds"])
        extra: dict[str, Any] = numbers["extra"]
        return extra

    def _arrays(self) -> dict[str, NDArray[Any]]:
        memory = {f"optimizer_{name}": array for name, array in self.optimizer.arrays.items()}
        return {"x": self.x, **{name: getattr(self, name) for name in COUNTS}} | memory
