"""A draw for each row of the batch: units are dropped from what layers take, as dropout does it.

The scale of a unit is on its outgoing weights. A row that drops it may as well drop it from the input of the
layer that has these weights: then every row can have a draw of its own in one pass, which weights cannot.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mast.errors import ArgumentError, MastError
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
        self._handles: list[RemovableHandle] = []
        self._waiting: set[str] = set()  # weights whose layer was not called yet
        self._last: tuple[Any, int, dict[str, Tensor]] | None = None  # of which pass, rows, scales by weight
        if not isinstance(sk.drawing, UnitDrawing) or sk.shift is not None:
            raise ArgumentError(
                'draws="row" is for sketches of units (mast.nn.Neurons) without a shift: single weights have '
                "one draw per forward pass. mast.nn.Average(sk, draws=m, split=True) gives parts of a batch "
                "draws of their own"
            )
        owners = _owners(sk.model)
        for scaled in sk.drawing.scaled:
            for module in self._takers(scaled, owners):
                hook = _RowMask(self, scaled, _channel_dim(module))
                self._handles.append(module.register_forward_pre_hook(hook))
                self._waiting.add(scaled.tensor)
        self._handles.append(sk.model.register_forward_hook(_AllCalled(self)))

    def _takers(self, scaled: Scaled, owners: dict[str, list[nn.Module]]) -> list[nn.Module]:
        found = owners[scaled.tensor]
        for module in found:
            if scaled.dim != _input_dim(module):
                raise ArgumentError(
                    f'draws="row": the weight {scaled.tensor!r} belongs to {type(module).__name__}, and only '
                    "what linear and ungrouped convolutional layers take can be dropped row by row. Leave "
                    "its units out with keep=, or use one draw per batch"
                )
        return found

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

    def called(self, tensor: str) -> None:
        """The layer of this weight was called."""
        self._waiting.discard(tensor)

    def check(self) -> None:
        """An error after the first forward pass, if the model uses a weight without calling its layer."""
        if self.active and self._waiting:
            raise MastError(
                f'draws="row": the layer of the weight {min(self._waiting)!r} is not called by the model, '
                "which uses the weight by itself. Leave its units out with keep=, or use one draw per batch"
            )

    def remove(self) -> None:
        """Leave no trace."""
        for handle in self._handles:
            handle.remove()


def row_key(key: Key, row: int) -> Key:
    """The key of one row's draw: that of the step for the first, as in `mast.nn.Average`."""
    return key if row == 0 else Key(Key(key.seed).child(row, Purpose.ESTIMATE).seed, key.step, key.node)


class _Hook:
    """A hook that copies of the model do not have: there it is something that does nothing."""

    def __init__(self, draws: RowDraws) -> None:
        self.draws = draws

    def __deepcopy__(self, memo: Any) -> Any:
        return nullcontext().__exit__

    def __reduce__(self) -> Any:
        return getattr, (nullcontext(), "__exit__")  # takes anything, and is in the standard library


class _RowMask(_Hook):
    """Multiplies the first input of a layer."""

    def __init__(self, draws: RowDraws, scaled: Scaled, dim: int) -> None:
        super().__init__(draws)
        self.scaled, self.dim = scaled, dim

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The input times the scales of its rows."""
        if not self.draws.active:
            return None
        self.draws.called(self.scaled.tensor)
        x = args[0]
        scales = self.draws.scales(self.scaled, x.shape[0]).to(x)
        shape = [1] * x.dim()
        shape[0], shape[self.dim] = scales.shape
        return (x * scales.view(shape), *args[1:])


class _AllCalled(_Hook):
    """Looks, after a forward pass, whether every layer was called."""

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        """Refuse what would be left dense in silence."""
        self.draws.check()


def _owners(model: nn.Module) -> dict[str, list[nn.Module]]:
    """The modules that have a parameter, by the name under which it is listed."""
    names = {id(p): name for name, p in model.named_parameters()}
    found: dict[str, list[nn.Module]] = {}
    for module in model.modules():
        for p in module._parameters.values():
            if p is not None:
                found.setdefault(names[id(p)], []).append(module)
    return found


def _input_dim(module: nn.Module) -> int | None:
    """The dimension of a layer's weight along which it takes its input; None where rows cannot be cut."""
    if isinstance(module, ConvTranspose) or is_conv1d(module):
        return 0 if getattr(module, "groups", 1) == 1 else None
    if isinstance(module, nn.Linear) or (isinstance(module, Conv) and module.groups == 1):
        return 1
    return None


def _channel_dim(module: nn.Module) -> int:
    """The dimension of a layer's input that has its channels or features."""
    return 1 if isinstance(module, Conv) else -1
