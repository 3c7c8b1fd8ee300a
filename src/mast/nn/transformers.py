"""Sparsified training in Hugging Face's Trainer: ``Trainer(..., callbacks=[MastCallback(sketch)])``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError("mast.nn.transformers needs Transformers: pip install transformers") from error

from mast.errors import MastError
from mast.nn import state as saved_state
from mast.nn.sparsifier import Sparsifier, sparsify
from mast.sketches import Sketch


class MastCallback(TrainerCallback):
    """Sparsifies the model when training starts; checkpoints carry the draws' state in mast.safetensors.

    It takes the arguments of `mast.nn.sparsify` except the model; `per_rank=True` gives each process its own
    draws. After training, `sk` is the handle, for submodels and reports. Evaluation uses x, as always in eval
    mode.

    Parameters
    ----------
    resume_from
        The checkpoint folder to continue from, where it is not ``<output_dir>/checkpoint-<step>``.
    """

    def __init__(
        self, sketch: Sketch, *, per_rank: bool = False, resume_from: str | Path | None = None, **options: Any
    ) -> None:
        self.sketch = sketch
        self.per_rank = per_rank
        self.resume_from = resume_from
        self.options = options
        self._sk: Sparsifier | None = None

    @property
    def sk(self) -> Sparsifier:
        """The handle that `sparsify` returned."""
        if self._sk is None:
            raise MastError("the model is sparsified when trainer.train() starts; there is no handle before")
        return self._sk

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Sparsify, and continue where a loaded checkpoint was."""
        options = self.options
        if self.per_rank:
            options = options | {"node": args.process_index}
        if self._sk is not None:
            self._sk.remove()
        self._sk = sparsify(kwargs["model"], self.sketch, **options)
        if state.global_step > 0:
            folder = Path(self.resume_from or _folder(args, state))
            saved_state.read(self._sk, folder, self._sk.node if self.per_rank else None)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Add the state of the draws to the checkpoint."""
        if self._sk is not None and state.is_world_process_zero:
            saved_state.write(self._sk, _folder(args, state))


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"
