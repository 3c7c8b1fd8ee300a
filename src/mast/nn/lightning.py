"""Sparsified training in Lightning: ``Trainer(callbacks=[MastCallback(mast.Bernoulli(0.7))])``."""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError("mast.nn.lightning needs Lightning: pip install lightning") from error

from mast.errors import MastError
from mast.nn.sparsifier import Sparsifier, sparsify
from mast.sketches import Sketch


class MastCallback(Callback):
    """Sparsifies the module when fitting starts; checkpoints carry the state of the draws.

    It takes the arguments of `mast.nn.sparsify` except the model; `per_rank=True` gives each process its own
    draws. After fitting, `sk` is the handle, for submodels and reports. Validation uses x, as always in eval
    mode.
    """

    def __init__(self, sketch: Sketch, *, per_rank: bool = False, **options: Any) -> None:
        self.sketch = sketch
        self.per_rank = per_rank
        self.options = options
        self._sk: Sparsifier | None = None
        self._pending: dict[str, Any] | None = None

    @property
    def sk(self) -> Sparsifier:
        """The handle that `sparsify` returned."""
        if self._sk is None:
            raise MastError("the model is sparsified when trainer.fit() starts; there is no handle before")
        return self._sk

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Sparsify, and continue where a loaded checkpoint was."""
        if self._sk is None or self._sk.model is not pl_module:
            options = self.options
            if self.per_rank:
                options = options | {"node": trainer.global_rank}
            self._sk = sparsify(pl_module, self.sketch, **options)
        if self._pending is not None:
            self._sk.load_state_dict(self._pending | ({"node": self._sk.node} if self.per_rank else {}))
            self._pending = None

    def state_dict(self) -> dict[str, Any]:
        """Part of the trainer's checkpoint."""
        return {} if self._sk is None else self._sk.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Called before fitting starts: kept until then."""
        self._pending = state_dict or None
