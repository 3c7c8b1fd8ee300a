"""Sparsified training in Hugging Face's Trainer: ``Trainer(..., callbacks=[MastCallback(sketch)])``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError("mast.nn.transformers needs Transformers: pip install transformers") from error

from mast.nn.factory import SparsifyingCallback
from mast.nn.files.state import read_state, write_state
from mast.sketches import Sketch


class TransformersCallback(SparsifyingCallback, TrainerCallback):
    """Sparsifies the model when training starts; checkpoints carry the draws' state in mast.safetensors.

    It takes the arguments of `mast.nn.sparsify` except the model; `per_rank=True` gives each process its own
    draws. After training, `sk` is the handle, for submodels and reports. Evaluation uses x, as always.

    Parameters
    ----------
    resume_from
        The checkpoint folder to continue from, where it is not ``<output_dir>/checkpoint-<step>``.
    """

    begins_in = "trainer.train()"

    def __init__(
        self, sketch: Sketch | str, *, resume_from: str | Path | None = None, **options: Any
    ) -> None:
        super().__init__(sketch, **options)
        self.resume_from = resume_from

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Sparsify, and continue where a loaded checkpoint was."""
        if self._sk is not None:
            self._sk.remove()
        sk = self._sparsify(kwargs["model"], args.process_index)
        if state.global_step > 0:
            folder = Path(self.resume_from or _folder(args, state))
            read_state(sk, folder, sk.node if self.per_rank else None)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Add the state of the draws to the checkpoint."""
        if self._sk is not None and state.is_world_process_zero:
            write_state(self._sk, _folder(args, state))


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"


MastCallback = TransformersCallback
