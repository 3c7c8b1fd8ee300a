"""Running a model on an example while each of its operations says what it does with units."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from mast.nn.structure.following import entries, rules
from mast.nn.structure.following.atoms import Atoms
from mast.nn.structure.following.marks import Marking, Marks, Operand
from mast.nn.structure.following.modes import Arguments, ForwardPass, Options


class Watching(ForwardPass, Marking):
    """A mode in which operations carry marks from their inputs to their outputs."""

    def __init__(self, atoms: Atoms, model: nn.Module, living: Collection[int]) -> None:
        ForwardPass.__init__(self, model)
        Marking.__init__(self, atoms)
        self._marks: Any = WeakIdKeyDictionary()
        self._operation = ""
        self._living = living  # the numbers of operations that matter
        self._number = -1
        #: lengths of marked dimensions that the code of a module has met: their atoms, by name and length
        self.lengths: dict[tuple[str, int], list[Tensor]] = {}
        #: the operations, with what they are told by True and False; dropout is left out
        self.operations: list[tuple[str, ...]] = []
        for name, t in [*model.named_buffers(), *model.named_parameters()]:
            layers = []
            for dim, size in enumerate(t.shape):
                if size > 1 and t.is_floating_point():
                    view = [1] * t.dim()
                    view[dim] = size
                    layers.append(atoms.of(name, dim, size).view(view).expand(t.shape))
            self._marks[t] = Marks(layers, weight=True)

    # ---- what rules use ----------------------------------------------------------------------

    def of(self, tensor: Tensor) -> Marks:
        """The marks of a value; what has none is made of the model's input, and stays."""
        found: Marks | None = self._marks.get(tensor)
        if found is None:
            found = Marks(constant=tensor.numel() <= 1)
        return found

    def part(self, tensor: Tensor) -> Operand:
        """A value that is combined with others; where it was expanded it is broadcast."""
        marks = self.of(tensor)
        sizes = [
            1 if tensor.stride(d) == 0 or d in marks.loose else size for d, size in enumerate(tensor.shape)
        ]
        return Operand(marks, tuple(sizes))

    def put(self, tensor: Any, marks: Marks) -> None:
        """Remember the marks of a result."""
        if isinstance(tensor, Tensor):
            self._marks[tensor] = marks
            if marks.layers and not marks.weight:
                self._note_lengths(marks)

    def where(self) -> str:
        """The operation, and the module whose code calls it."""
        name = self.names.get(id(self.open[-1]), "") if self.open else ""
        kind = type(self.open[-1]).__name__ if self.open else ""
        return f"{self._operation}() in " + (
            f"the module {name!r} ({kind})" if name else "the model's forward()"
        )

    def note_length(self, atoms: Tensor) -> None:
        """The code of the present module works with as many things as there are atoms."""
        name = self.names.get(id(self.open[-1])) if self.open else None
        if name is None:
            return
        known = self.lengths.setdefault((name, len(atoms)), [])
        if len(known) < 8 and not any(torch.equal(atoms, self.atoms.root[k]) for k in known):
            known.append(atoms)

    def _note_lengths(self, marks: Marks) -> None:
        for layer in marks.layers:
            core = self.core(layer)
            if core.dim() and core.numel() == max(core.shape):
                self.note_length(core.reshape(-1))

    # ---- running -----------------------------------------------------------------------------

    def see(self, func: Any, args: Arguments, options: Options, out: Any) -> None:
        """Follow the operation's rule, if its result matters."""
        self._operation = func.overloadpacket.__name__
        self._number += 1
        if "dropout" not in self._operation:
            self.operations.append((str(func), *(str(a) for a in args if isinstance(a, bool))))
        if self._number in self._living:
            try:
                rules.follow(self, func, args, options, out)
            except (IndexError, RuntimeError, TypeError, ValueError):  # a form of it without a rule
                entries.unknown(self, func, args, options, out)
