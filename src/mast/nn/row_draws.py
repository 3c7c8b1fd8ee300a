"""A draw for each row of the batch: units are dropped from what layers take, as dropout does it.

The scale of a unit is on its outgoing weights. A row that drops it may as well drop it from the input of the
layer that has these weights: then every row can have a draw of its own in one pass, which weights cannot.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from mast.errors import ArgumentError, MastError
from mast.nn.passes.calls import Hook
from mast.nn.structure.drawing import Scaled, UnitDrawing, along
from mast.nn.structure.resizing import is_conv1d
from mast.nn.tensors.torch_private import Conv, ConvTranspose
from mast.randomness import Key, Purpose

if TYPE_CHECKING:
    from mast.nn.sparsifier import Sparsifier


class RowDraws:
    """Multiplies what layers take by the scales of each row's draw, while the model trains."""

    def __init__(self, sk: Sparsifier) -> None:
        self.sk = sk
        self._hooks = ExitStack()
        self._waiting: set[str] = set()  # weights whose layer was not called yet
        self._last: tuple[Any, int, dict[str, Tensor]] | None = None  # of which pass, rows, scales by weight
        if not isinstance(sk.drawing, UnitDrawing) or sk.shift is not None:
            raise ArgumentError(
                'draws="row" is for sketches of units (mast.nn.Neurons) without a shift: single weights have '
                "one draw per forward pass. mast.nn.Average(sk, draws=m, split=True) gives parts of a batch "
                "draws of their own"
            )
        names = {id(p): name for name, p in sk.model.named_parameters()}
        scaled = {s.tensor: s for s in sk.drawing.scaled}
        self._takers = [
            (module, scaled[names[id(p)]])
            for module in sk.model.modules()
            for p in module._parameters.values()
            if p is not None and names[id(p)] in scaled
        ]
        for module, weight in self._takers:
            if weight.dim != _input_dim(module):
                raise ArgumentError(
                    f'draws="row": the weight {weight.tensor!r} belongs to {type(module).__name__}, and only '
                    "what linear and ungrouped convolutional layers take can be dropped row by row. Leave "
                    "its units out with keep=, or use one draw per batch"
                )

    def watch(self) -> None:
        """Start."""
        for module, weight in self._takers:
            channels = 1 if isinstance(module, Conv) else -1  # the dimension of the input that has them
            hook = Hook(partial(self._multiply, weight, channels))
            self._hooks.enter_context(module.register_forward_pre_hook(hook))
            self._waiting.add(weight.tensor)
        self._hooks.enter_context(self.sk.model.register_forward_hook(Hook(self._check)))

    def _multiply(
        self, scaled: Scaled, dim: int, module: nn.Module, args: tuple[Any, ...]
    ) -> tuple[Any, ...] | None:
        """The first input of a layer times the scales of its rows."""
        if not self.active:
            return None
        self._waiting.discard(scaled.tensor)
        x = args[0]
        scales = self.scales(scaled, x.shape[0]).to(x)
        shape = [1] * x.dim()
        shape[0], shape[dim] = scales.shape
        return (x * scales.view(shape), *args[1:])

    def _check(self, module: nn.Module, args: Any, output: Any) -> None:
        """An error after the first forward pass, if the model uses a weight without calling its layer."""
        if self.active and self._waiting:
            raise MastError(
                f'draws="row": the layer of the weight {min(self._waiting)!r} is not called by the model, '
                "which uses the weight by itself. Leave its units out with keep=, or use one draw per batch"
            )

    @property
    def active(self) -> bool:
        """Whether forward passes are sketched now."""
        return self.sk.model.training and not self.sk._calls.sampling

    def scales(self, scaled: Scaled, rows: int) -> Tensor:
        """One row for each row of the batch, with a scale for each entry that the layer takes."""
        forward_pass = (self.sk.key, self.sk._calls.count)
        if self._last is None or self._last[0] != forward_pass:
            self._last = (forward_pass, rows, self._drawn(self.sk.key, rows))
        if self._last[1] != rows:
            raise MastError(
                f'draws="row": layers take {self._last[1]} and {rows} rows in one forward pass, so that rows '
                "of the batch cannot be told apart. Use one draw per batch"
            )
        return self._last[2][scaled.tensor]

    def _drawn(self, key: Key, rows: int) -> dict[str, Tensor]:
        drawing = self.sk.drawing
        assert isinstance(drawing, UnitDrawing)
        found = {s.tensor: np.zeros((rows, s.shape[s.dim or 0]), dtype=np.float32) for s in drawing.scaled}
        for i in range(rows):
            draw = drawing.draw(row_key(key, i))
            units = [draw[space.name] for space in drawing.spaces]
            for scaled in drawing.scaled:
                indices, scales = along(scaled.pieces, units)
                found[scaled.tensor][i, indices] = scales
        return {name: torch.from_numpy(scales) for name, scales in found.items()}

    def remove(self) -> None:
        """Leave no trace."""
        self._hooks.close()


def row_key(key: Key, row: int) -> Key:
    """The key of one row's draw: that of the step for the first, as in `mast.nn.Average`."""
    return key if row == 0 else Key(Key(key.seed).child(row, Purpose.ESTIMATE).seed, key.step, key.node)


def _input_dim(module: nn.Module) -> int | None:
    """The dimension of a layer's weight along which it takes its input; None where rows cannot be cut."""
    if isinstance(module, ConvTranspose) or is_conv1d(module):
        return 0 if getattr(module, "groups", 1) == 1 else None
    if isinstance(module, nn.Linear) or (isinstance(module, Conv) and module.groups == 1):
        return 1
    return None
