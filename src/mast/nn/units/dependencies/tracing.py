"""Running a model on an example while each operation says which slices depend on each other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from mast.nn.units.dependencies import layer_rules, tensor_rules
from mast.nn.units.dependencies.graph import (
    ANY,
    INPUT,
    Arguments,
    Cluster,
    DependencyGraph,
    Labels,
    Options,
    inside,
    unexpanded,
    varying_dims,
)
from mast.nn.units.dependencies.recording import Recording


class DependencyTrace(Recording):
    """A recording in which operations carry labels from their inputs to their outputs, and couple slices.

    Rules (`layer_rules`, `tensor_rules`) say what each operation does; what they use is below.
    """

    def __init__(self, graph: DependencyGraph, model: nn.Module, needed: Collection[int]) -> None:
        super().__init__(model)
        self.graph = graph
        self._labels: Any = WeakIdKeyDictionary()
        self._operation = ""
        self._needed = needed  # the numbers of operations that the output needs
        #: the operations, with the parameters and the True and False that they are given, without dropout
        self.signature: list[tuple[Any, ...]] = []
        #: lengths of labelled dimensions that the code of a module has met: their slices, by name and length
        self.lengths: dict[tuple[str, int], list[Tensor]] = {}
        for name, t in [*model.named_buffers(), *model.named_parameters()]:
            arrays = []
            for dim, size in enumerate(t.shape):
                if size > 1 and t.is_floating_point():
                    view = [1] * t.dim()
                    view[dim] = size
                    arrays.append(graph.slices_of(name, dim, size).view(view).expand(t.shape))
            self._labels[t] = Labels(arrays, weight=True)

    # ---- running -----------------------------------------------------------------------------

    def on_operation(self, func: Any, args: Arguments, options: Options, out: Any) -> None:
        """Follow the operation's rule, if its result matters."""
        super().on_operation(func, args, options, out)
        self._operation = func.overloadpacket.__name__
        if "dropout" not in self._operation:
            flags = (str(a) for a in args if isinstance(a, bool))
            self.signature.append((str(func), *flags, *(id(a) for a in args if isinstance(a, nn.Parameter))))
        if len(self._numbers) - 1 in self._needed:
            try:
                layer_rules.follow(self, func, args, options, out)
            except (IndexError, RuntimeError, TypeError, ValueError):  # a form of it without a rule
                tensor_rules.no_rule(self, func, args, options, out)

    # ---- what rules use ----------------------------------------------------------------------

    def labels_of(self, tensor: Tensor) -> Labels:
        """The labels of a value; what has none is made of the model's input, and stays."""
        found: Labels | None = self._labels.get(tensor)
        if found is None:
            found = Labels(constant=tensor.numel() <= 1)
        return found

    def operand(self, tensor: Tensor) -> Labels:
        """The labels of a value as an operand beside others; where it was expanded it is broadcast."""
        labels = self.labels_of(tensor)
        broadcast = [tensor.stride(d) == 0 or d in labels.constant_lengths for d in range(tensor.dim())]
        sizes = tuple(1 if b else n for b, n in zip(broadcast, tensor.shape, strict=True))
        return replace(labels, sizes=sizes)

    def set_labels(self, tensor: Any, labels: Labels) -> None:
        """Remember the labels of a result."""
        if isinstance(tensor, Tensor):
            self._labels[tensor] = labels
            for array in () if labels.weight else labels.arrays:
                core = self.core(array)
                if core.dim() and core.numel() == max(core.shape):
                    self.note_length(core.reshape(-1))

    def is_mask_of_heads(self, tensor: Tensor) -> bool:
        """Whether it is a mask of `nn.MultiheadAttention`: a submodel takes those of its own heads."""
        attends = bool(self.open) and isinstance(self.open[-1], nn.MultiheadAttention)
        return attends and not self.labels_of(tensor).arrays

    def location(self) -> str:
        """The operation, and the module whose code calls it."""
        name = self.names.get(id(self.open[-1]), "") if self.open else ""
        kind = type(self.open[-1]).__name__ if self.open else ""
        return f"{self._operation}() in " + (
            f"the module {name!r} ({kind})" if name else "the model's forward()"
        )

    def note_length(self, slices: Tensor) -> None:
        """The code of the present module works with as many things as there are slices."""
        name = self.names.get(id(self.open[-1])) if self.open else None
        if name is None:
            return
        known = self.lengths.setdefault((name, len(slices)), [])
        if len(known) < 8 and not any(torch.equal(slices, self.graph.roots(k)) for k in known):
            known.append(slices)

    # ---- labels ------------------------------------------------------------------------------

    def core(self, array: Tensor) -> Tensor:
        """The core of labels: their present roots, with length 1 along dimensions where these do not vary."""
        array = self.graph.roots(unexpanded(array))
        for d in range(array.dim()):
            if array.size(d) > 1:
                top = array.amax(d, keepdim=True)
                if bool(((array == top) | (array == ANY)).all()):
                    array = top
        return array

    def distinct(self, arrays: Iterable[Tensor], shape: Sequence[int]) -> list[Tensor]:
        """The arrays that still tell units apart; a unit that has lost its place among others is excluded."""
        found = []
        for array in arrays:
            core = self.core(array)
            if core.numel() > 1:
                found.append(core.expand(shape))
            else:
                self.graph.exclude(core, f"{self.location()} takes single ones apart")
        return found

    def couple_along(self, array: Tensor, dims: Iterable[int], reason: str) -> Tensor:
        """Couple what lies along these dimensions; if nothing else varies, it is excluded."""
        core = self.core(array)
        for d in dims:
            if core.size(d) > 1:
                top = core.amax(d, keepdim=True)
                self.graph.couple(core, top)
                core = self.core(core)
        if core.numel() == 1:
            self.graph.exclude(core, reason)
        return core

    def coupled_along(self, tensor: Tensor, dims: Collection[int], verb: str) -> Labels:
        """The labels of a value, coupled along these dimensions because the operation `verb` them."""
        labels, reason = self.labels_of(tensor), f"{self.location()} {verb}"
        cores = [self.couple_along(array, dims, reason) for array in labels.arrays]
        return replace(labels, arrays=[core.expand(tensor.shape) for core in cores if core.numel() > 1])

    def exclude(self, labels: Labels, reason: str) -> None:
        """All units of a value are excluded."""
        for array in labels.arrays:
            self.graph.exclude(self.core(array), reason)

    def slices_along(self, labels: Labels, dim: int) -> Tensor | None:
        """The slices along one dimension, if they vary along it and no other."""
        for array in labels.arrays:
            core = self.core(array)
            if core.size(dim) > 1 and core.numel() == core.size(dim):
                return core.reshape(-1)
        return None

    def without_dim(self, labels: Labels, dim: int) -> Labels:
        """The arrays that do not vary along a dimension, with length 1 there.

        Those of a weight are told apart by its own slices.
        """
        distinct = unexpanded if labels.weight else self.core
        arrays = [array.narrow(dim, 0, 1) for array in labels.arrays if distinct(array).size(dim) == 1]
        return replace(labels, arrays=arrays)

    # ---- combining ---------------------------------------------------------------------------

    def combine(self, parts: Sequence[Labels], shape: Sequence[int]) -> Labels:
        """Values that meet entry by entry, broadcast to this shape."""
        rank = len(shape)
        parts = [p.with_leading(rank - len(p.sizes)) for p in parts]
        clusters: list[Cluster] = []
        for number, part in enumerate(parts):
            for array in part.arrays:
                if part.weight:
                    self.mark_producers(array)
                core = self.core(array)
                if core.numel() == 1:
                    self.graph.exclude(core, f"{self.location()} takes single ones apart")
                    continue
                core = core.reshape((1,) * (rank - core.dim()) + tuple(core.shape))
                self._cluster(clusters, Cluster(core, {number: varying_dims(core)}, part.weight))
        arrays = []
        for cluster in clusters:
            core = self._beside_input(cluster, parts)
            if core.numel() > 1:
                arrays.append(core.expand(tuple(shape)))
                self._note_constant_length(core, parts)
        lengths = {
            d: next((p.constant_lengths[d] for p in parts if d in p.constant_lengths), None)
            for d, size in enumerate(shape)
            if size > 1 and all(p.sizes[d] == 1 or p.constant for p in parts)
        }
        constant = all(p.constant for p in parts) and bool(parts)
        return Labels(arrays, constant, constant_lengths=lengths)

    def _note_constant_length(self, core: Tensor, parts: Sequence[Labels]) -> None:
        """There have to be as many of these units as a constant has entries beside them."""
        for d in varying_dims(core) if core.numel() == max(core.shape) else ():
            for length in {part.constant_lengths.get(d) for part in parts}:
                if length is not None:
                    self.graph.constant_lengths[length].append(core.reshape(-1))

    def mark_producers(self, array: Tensor) -> None:
        """These slices of a weight make units, or act on them."""
        self.graph.produces[unexpanded(array)] = True

    def _cluster(self, clusters: list[Cluster], new: Cluster) -> None:
        """Add an array to the clusters, merging those that vary along the same dimensions."""
        for other in list(clusters):
            apart = new.weight and other.weight and new.spans.keys() == other.spans.keys()
            if varying_dims(other.array) & varying_dims(new.array) and not apart:
                clusters.remove(other)
                new = self._merged(other, new)
        if new.array.numel() > 1:
            clusters.append(new)

    def _merged(self, a: Cluster, b: Cluster) -> Cluster:
        within = f"{self.location()} acts on entries within units"
        if inside(a.array, b.array):
            a, b = b, a
        if inside(b.array, a.array):
            # A parameter per entry of a head, say: heads are the units, and the parameter stays.
            dims = varying_dims(b.array)
            self.couple_along(b.array, dims, within)
            array = self.couple_along(a.array, dims, within)
        else:
            self.graph.couple(a.array, b.array)
            array = self.core(torch.where(a.array > ANY, a.array, b.array))
        spans = {n: a.spans.get(n, set()) | b.spans.get(n, set()) for n in {*a.spans, *b.spans}}
        return Cluster(array, spans)

    def _beside_input(self, cluster: Cluster, parts: Sequence[Labels]) -> Tensor:
        """Along a dimension where another value has entries that stay, the cluster's stay as well."""
        core = cluster.array
        for d in sorted(varying_dims(core), reverse=True):
            for number, part in enumerate(parts):
                if part.constant or part.sizes[d] == 1 or d in cluster.spans.get(number, ()):
                    continue
                core = self.couple_along(core, [d], f"{self.location()} combines them with values that stay")
                break
        return core

    # ---- contracting -------------------------------------------------------------------------

    def contract(self, a: Labels, dim_a: int, b: Labels, dim_b: int) -> None:
        """Sums of products over one dimension of each: a weight takes units, or units are mixed."""
        if a.weight and not b.weight:
            a, dim_a, b, dim_b = b, dim_b, a, dim_a
        where = self.location()
        if b.weight and not a.weight:
            columns = self._own_slices(b, dim_b)
            units = self.slices_along(a, dim_a)
            if columns is None or units is None:
                if not a.constant and columns is not None:
                    self.graph.exclude(columns, f"{where} takes the model's input, or values that stay")
                    self.graph.couple(columns, torch.tensor(INPUT))
                for array in a.arrays:
                    if self.core(array).size(dim_a) > 1:
                        self.couple_along(array, [dim_a], f"{where} mixes them")
                return
            self.graph.couple(units, columns)
            self.graph.consumes[columns] = True
            return
        for labels, dim in ((a, dim_a), (b, dim_b)):
            for array in labels.arrays:
                if self.core(array).size(dim) > 1:
                    self.couple_along(array, [dim], f"{where} sums over them")

    def _own_slices(self, weight: Labels, dim: int) -> Tensor | None:
        """The slices of a weight itself, not their roots, along one dimension."""
        for array in weight.arrays:
            array = unexpanded(array)
            others = [d for d in range(array.dim()) if d != dim and array.size(d) > 1]
            own = array
            for d in others:
                own = own.narrow(d, 0, 1)
            if own.numel() > 1 and bool((own != own.reshape(-1)[0]).any()):
                if others and not bool((array == own).all()):
                    self.couple_along(array, others, f"{self.location()} mixes them")
                return own.reshape(-1)
        return None
