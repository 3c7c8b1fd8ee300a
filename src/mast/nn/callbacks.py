"""What the callbacks of both trainers have in common: the sketch, and the handle once training has begun."""

from __future__ import annotations

from typing import Any

from torch import nn

from mast.errors import MastError
from mast.nn.factory import sparsify
from mast.nn.sparsifier import Sparsifier
from mast.sketches import Sketch


class SparsifyingCallback:
    """Sparsifies a trainer's model when training starts, with the arguments of `mast.nn.sparsify`."""

    begins_in = "the trainer's start"  #: where training starts

    def __init__(self, sketch: Sketch | str, *, per_rank: bool = False, **options: Any) -> None:
        self.sketch, self.per_rank, self.options = sketch, per_rank, options
        self._sk: Sparsifier | None = None

    @property
    def sk(self) -> Sparsifier:
        """The handle that `sparsify` returned."""
        if self._sk is None:
            raise MastError(f"the model is sparsified in {self.begins_in}; there is no handle before")
        return self._sk

    def _sparsify(self, model: nn.Module, rank: int) -> Sparsifier:
        own: dict[str, Any] = {"node": rank} if self.per_rank else {}
        self._sk = sparsify(model, self.sketch, **self.options, **own)
        return self._sk
