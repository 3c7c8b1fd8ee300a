"""Running a model on an example while each of its operations says what it does with units."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from mast.nn.units.following import entries, rules
from mast.nn.units.following.marks import (
    ANY,
    WHOLE,
    Atoms,
    Cluster,
    Marks,
    inside,
    narrowed,
    span,
)  # fmt: skip
from mast.nn.units.following.modes import Arguments, ForwardPass, Options


class Watching(ForwardPass):
    """A mode in which operations carry marks from their inputs to their outputs."""

    def __init__(self, atoms: Atoms, model: nn.Module, living: Collection[int]) -> None:
        super().__init__(model)
        self.atoms = atoms
        self._marks: Any = WeakIdKeyDictionary()
        self._operation = ""
        self._living = living  # the numbers of operations that matter
        self._number = -1
        #: the operations, with the parameters and the True and False that they are given, without dropout
        self.operations: list[tuple[Any, ...]] = []
        #: lengths of marked dimensions that the code of a module has met: their atoms, by name and length
        self.lengths: dict[tuple[str, int], list[Tensor]] = {}
        for name, t in [*model.named_buffers(), *model.named_parameters()]:
            layers = []
            for dim, size in enumerate(t.shape):
                if size > 1 and t.is_floating_point():
                    view = [1] * t.dim()
                    view[dim] = size
                    layers.append(atoms.of(name, dim, size).view(view).expand(t.shape))
            self._marks[t] = Marks(layers, weight=True)

    # ---- running -----------------------------------------------------------------------------

    def see(self, func: Any, args: Arguments, options: Options, out: Any) -> None:
        """Follow the operation's rule, if its result matters."""
        self._operation = func.overloadpacket.__name__
        self._number += 1
        if "dropout" not in self._operation:
            flags = (str(a) for a in args if isinstance(a, bool))
            self.operations.append((str(func), *flags, *(id(a) for a in args if isinstance(a, nn.Parameter))))
        if self._number in self._living:
            try:
                rules.follow(self, func, args, options, out)
            except (IndexError, RuntimeError, TypeError, ValueError):  # a form of it without a rule
                entries.unknown(self, func, args, options, out)

    # ---- what rules use ----------------------------------------------------------------------

    def of(self, tensor: Tensor) -> Marks:
        """The marks of a value; what has none is made of the model's input, and stays."""
        found: Marks | None = self._marks.get(tensor)
        if found is None:
            found = Marks(constant=tensor.numel() <= 1)
        return found

    def part(self, tensor: Tensor) -> Marks:
        """The marks of a value that meets others; where it was expanded it is broadcast."""
        marks = self.of(tensor)
        broadcast = [tensor.stride(d) == 0 or d in marks.loose for d in range(tensor.dim())]
        sizes = tuple(1 if b else n for b, n in zip(broadcast, tensor.shape, strict=True))
        return replace(marks, sizes=sizes)

    def put(self, tensor: Any, marks: Marks) -> None:
        """Remember the marks of a result."""
        if isinstance(tensor, Tensor):
            self._marks[tensor] = marks
            for layer in () if marks.weight else marks.layers:
                core = self.core(layer)
                if core.dim() and core.numel() == max(core.shape):
                    self.note_length(core.reshape(-1))

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
        if len(known) < 8 and not any(torch.equal(atoms, self.atoms.roots(k)) for k in known):
            known.append(atoms)

    # ---- layers ------------------------------------------------------------------------------

    def core(self, layer: Tensor) -> Tensor:
        """The layer's present roots, with length 1 along dimensions where they do not vary."""
        layer = self.atoms.roots(narrowed(layer))
        for d in range(layer.dim()):
            if layer.size(d) > 1:
                top = layer.amax(d, keepdim=True)
                if bool(((layer == top) | (layer == ANY)).all()):
                    layer = top
        return layer

    def tidy(self, layers: Iterable[Tensor], shape: Sequence[int]) -> list[Tensor]:
        """The layers that still tell units apart; a unit that has lost its place among others is pinned."""
        found = []
        for layer in layers:
            core = self.core(layer)
            if core.numel() > 1:
                found.append(core.expand(shape))
            else:
                self.atoms.pin(core, f"{self.where()} takes single ones apart")
        return found

    def fix(self, layer: Tensor, dims: Iterable[int], reason: str) -> Tensor:
        """What lies along these dimensions lives or dies together; if nothing else varies, it stays."""
        core = self.core(layer)
        for d in dims:
            if core.size(d) > 1:
                top = core.amax(d, keepdim=True)
                self.atoms.join(core, top)
                core = self.core(core)
        if core.numel() == 1:
            self.atoms.pin(core, reason)
        return core

    def fixed(self, tensor: Tensor, dims: Collection[int], verb: str) -> Marks:
        """The marks of a value whose layers are fixed along these dimensions: the operation `verb` them."""
        marks, reason = self.of(tensor), f"{self.where()} {verb}"
        cores = [self.fix(layer, dims, reason) for layer in marks.layers]
        return replace(marks, layers=[core.expand(tensor.shape) for core in cores if core.numel() > 1])

    def pin(self, marks: Marks, reason: str) -> None:
        """All that is marked stays."""
        for layer in marks.layers:
            self.atoms.pin(self.core(layer), reason)

    def along(self, marks: Marks, dim: int) -> Tensor | None:
        """The atoms along one dimension, if they vary along it and no other."""
        for layer in marks.layers:
            core = self.core(layer)
            if core.size(dim) > 1 and core.numel() == core.size(dim):
                return core.reshape(-1)
        return None

    def without(self, marks: Marks, dim: int) -> Marks:
        """The layers that do not vary along a dimension, with length 1 there.

        Those of a weight are told apart by its own atoms.
        """
        distinct = narrowed if marks.weight else self.core
        layers = [layer.narrow(dim, 0, 1) for layer in marks.layers if distinct(layer).size(dim) == 1]
        return replace(marks, layers=layers)

    # ---- combining ---------------------------------------------------------------------------

    def combine(self, parts: Sequence[Marks], shape: Sequence[int]) -> Marks:
        """Values that meet entry by entry, broadcast to this shape."""
        rank = len(shape)
        parts = [p.led_by(rank - len(p.sizes)) for p in parts]
        clusters: list[Cluster] = []
        for number, part in enumerate(parts):
            for layer in part.layers:
                if part.weight:
                    self.makes(layer)
                core = self.core(layer)
                if core.numel() == 1:
                    self.atoms.pin(core, f"{self.where()} takes single ones apart")
                    continue
                core = core.reshape((1,) * (rank - core.dim()) + tuple(core.shape))
                self._cluster(clusters, Cluster(core, {number: span(core)}, part.weight))
        layers = []
        for cluster in clusters:
            core = self._beside_whole(cluster, parts)
            if core.numel() > 1:
                layers.append(core.expand(tuple(shape)))
                self._note_meeting(core, parts)
        loose = {
            d: next((p.loose[d] for p in parts if d in p.loose), None)
            for d, size in enumerate(shape)
            if size > 1 and all(p.sizes[d] == 1 or p.constant for p in parts)
        }
        return Marks(layers, constant=all(p.constant for p in parts) and bool(parts), loose=loose)

    def _note_meeting(self, core: Tensor, parts: Sequence[Marks]) -> None:
        """There have to be as many of these units as a constant has entries beside them."""
        for d in span(core) if core.numel() == max(core.shape) else ():
            for length in {part.loose.get(d) for part in parts}:
                if length is not None:
                    self.atoms.met[length].append(core.reshape(-1))

    def makes(self, layer: Tensor) -> None:
        """These entries of a weight make units, or act on them."""
        self.atoms.makes[narrowed(layer)] = True

    def _cluster(self, clusters: list[Cluster], new: Cluster) -> None:
        """Add a layer to the clusters, merging those that vary along the same dimensions."""
        for other in list(clusters):
            apart = new.weight and other.weight and new.spans.keys() == other.spans.keys()
            if span(other.layer) & span(new.layer) and not apart:
                clusters.remove(other)
                new = self._merged(other, new)
        if new.layer.numel() > 1:
            clusters.append(new)

    def _merged(self, a: Cluster, b: Cluster) -> Cluster:
        within = f"{self.where()} acts on entries within units"
        if inside(a.layer, b.layer):
            a, b = b, a
        if inside(b.layer, a.layer):
            # A parameter per entry of a head, say: heads are the units, and the parameter stays.
            dims = span(b.layer)
            self.fix(b.layer, dims, within)
            layer = self.fix(a.layer, dims, within)
        else:
            self.atoms.join(a.layer, b.layer)
            layer = self.core(torch.where(a.layer > ANY, a.layer, b.layer))
        spans = {n: a.spans.get(n, set()) | b.spans.get(n, set()) for n in {*a.spans, *b.spans}}
        return Cluster(layer, spans)

    def _beside_whole(self, cluster: Cluster, parts: Sequence[Marks]) -> Tensor:
        """Along a dimension where another value has entries that stay, the cluster's stay as well."""
        core = cluster.layer
        for d in sorted(span(core), reverse=True):
            for number, part in enumerate(parts):
                if part.constant or part.sizes[d] == 1 or d in cluster.spans.get(number, ()):
                    continue
                core = self.fix(core, [d], f"{self.where()} combines them with values that stay")
                break
        return core

    # ---- contracting -------------------------------------------------------------------------

    def contract(self, a: Marks, dim_a: int, b: Marks, dim_b: int) -> None:
        """Sums of products over one dimension of each: a weight takes units, or units are mixed."""
        if a.weight and not b.weight:
            a, dim_a, b, dim_b = b, dim_b, a, dim_a
        where = self.where()
        if b.weight and not a.weight:
            columns = self._own_atoms(b, dim_b)
            units = self.along(a, dim_a)
            if columns is None or units is None:
                if not a.constant and columns is not None:
                    self.atoms.pin(columns, f"{where} takes the model's input, or values that stay")
                    self.atoms.join(columns, torch.tensor(WHOLE))
                for layer in a.layers:
                    if self.core(layer).size(dim_a) > 1:
                        self.fix(layer, [dim_a], f"{where} mixes them")
                return
            self.atoms.join(units, columns)
            self.atoms.takes[columns] = True
            return
        for marks, dim in ((a, dim_a), (b, dim_b)):
            for layer in marks.layers:
                if self.core(layer).size(dim) > 1:
                    self.fix(layer, [dim], f"{where} sums over them")

    def _own_atoms(self, weight: Marks, dim: int) -> Tensor | None:
        """The atoms of a weight itself, not their roots, along one dimension."""
        for layer in weight.layers:
            layer = narrowed(layer)
            others = [d for d in range(layer.dim()) if d != dim and layer.size(d) > 1]
            own = layer
            for d in others:
                own = own.narrow(d, 0, 1)
            if own.numel() > 1 and bool((own != own.reshape(-1)[0]).any()):
                if others and not bool((layer == own).all()):
                    self.fix(layer, others, f"{self.where()} mixes them")
                return own.reshape(-1)
        return None
