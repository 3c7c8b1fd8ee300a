"""Which operations of a forward pass its output needs.

Some are for nothing, such as the mean over heads of attention weights that nobody looks at. What they do
with units does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from mast.nn.structure.following import entries
from mast.nn.structure.following.examples import run_in, tensors_in
from mast.nn.tensors.torch_private import OperationMode


class Living(OperationMode):
    """A mode that numbers the operations, and remembers what each is made of."""

    def __init__(self) -> None:
        super().__init__()
        self._inputs: list[list[int]] = []
        self._makers: Any = WeakIdKeyDictionary()
        self._needed: list[int] = []
        self._recurrent = 0  # depth of calls of layers all of whose steps are one, whichever are needed

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation and write it down."""
        given = entries.tensors(args, dict(kwargs or {}))
        out = func(*args, **(kwargs or {}))
        number = len(self._inputs)
        self._inputs.append([n for t in given if (n := self._makers.get(t)) is not None])
        results = entries.tensors(out)
        # What else shares memory that was written to is not known, nor what Python does with a number.
        if func._schema.is_mutable or not results or self._recurrent:
            self._needed.append(number)
        for result in results:
            self._makers[result] = number
        return out

    def run(self, call: Callable[[], Any]) -> set[int]:
        """Call the model: the numbers of the operations that matter."""
        output = run_in(self, self._enter, self._leave, call)
        waiting = [*self._needed, *(n for t in tensors_in(output) if (n := self._makers.get(t)) is not None)]
        found: set[int] = set()
        while waiting:
            number = waiting.pop()
            if number not in found:
                found.add(number)
                waiting += self._inputs[number]
        return found

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        self._recurrent += isinstance(module, nn.RNNBase)

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._recurrent -= isinstance(module, nn.RNNBase)
