"""Sparsified training in Lightning: ``Trainer(callbacks=[MastCallback(mast.Bernoulli(0.7))])``."""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError("mast.nn.lightning needs Lightning: pip install lightning") from error

from mast.nn.factory import SparsifyingCallback


class LightningCallback(SparsifyingCallback, Callback):
    """Sparsifies the module when fitting starts; checkpoints carry the state of the draws.

    It takes the arguments of `mast.nn.sparsify` except the model; `per_rank=True` gives each process its own
    draws. After fitting, `sk` is the handle, for submodels and reports. Validation uses x, as always.
    """

    begins_in = "trainer.fit()"
    _pending: dict[str, Any] | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Sparsify, and continue where a loaded checkpoint was."""
        if self._sk is None or self._sk.model is not pl_module:
            self._sparsify(pl_module, trainer.global_rank)
        if self._pending is not None:
            self.sk.load_state_dict(self._pending | ({"node": self.sk.node} if self.per_rank else {}))
            self._pending = None

    def state_dict(self) -> dict[str, Any]:
        """Part of the trainer's checkpoint."""
        return {} if self._sk is None else self._sk.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Called before fitting starts: kept until then."""
        self._pending = state_dict or None


MastCallback = LightningCallback
