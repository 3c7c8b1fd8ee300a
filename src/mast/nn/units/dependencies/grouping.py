"""The unit groups of a model: its coupled slices, sorted by the tensors that they are slices of."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from mast.nn.tensors.torch_private import NormBase
from mast.nn.units.cuts import is_conv1d
from mast.nn.units.dependencies.examples import Example, shadow
from mast.nn.units.dependencies.graph import INPUT, DependencyGraph
from mast.nn.units.dependencies.recording import Recording
from mast.nn.units.dependencies.tracing import DependencyTrace
from mast.nn.units.groups import OUTPUT, UnitGroup, UnitSlices
from mast.support.checks import Indices

Units = Indices  # one row per unit: the slices that are kept or dropped together

# Numbers in modules that are no lengths of dimensions of units, even where they are equal to one.
_OTHER_NUMBERS = (
    "group", "layer", "idx", "index", "window", "kernel", "stride", "pad", "seq", "vocab", "max_", "drop",
    "head_dim", "head_size", "proj_dim", "d_kv", "training", "patch", "image", "position", "bucket", "eps",
    "num_labels", "block", "step", "rank", "alpha", "rotary", "ratio", "factor", "top_k", "level",
    "depth",
)  # fmt: skip


@dataclass(frozen=True)
class ModuleLength:
    """A length that the code of a module works with, and how it follows from the kept units."""

    module: str
    before: int
    runs: tuple[tuple[str, int], ...]  # the names of groups, and how many entries of it one unit has
    attribute: str = ""  # the number in the module that says it


def find_groups(model: nn.Module, examples: Sequence[Example]) -> tuple[Grouping, Recording]:
    """The groups of a model and the lengths that its modules work with, as all examples have it.

    Besides, the record of a forward pass on the first example, in eval mode.

    >>> import torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> found, _ = find_groups(model, [Example.of(torch.ones(4, 3))])
    >>> [(s.name, s.units) for s in found.groups], found.excluded
    ([('0.weight', 8)], {'2.weight': "they are the model's output"})
    """
    twin = shadow(model)
    tensors: dict[str, Tensor] = dict(twin.named_parameters())
    tensors |= {name: b for name, b in twin.named_buffers() if b.is_floating_point()}
    graph = DependencyGraph(tensors)
    lengths: dict[tuple[str, int], list[Tensor]] = {}
    records: list[Recording] = []
    same = True  # in both modes of training
    for example in examples:
        signatures = []
        for training in (False, True):  # the second time it is known which slices the first has coupled
            twin.train(training)
            records.append(record := Recording(twin))
            record.run(example)
            trace = DependencyTrace(graph, twin, record.needed())
            for tensor in trace.run(example):
                trace.exclude(trace.labels_of(tensor), OUTPUT)
            signatures.append(trace.signature)
            for key, found in trace.lengths.items():
                lengths.setdefault(key, []).extend(found)
        same &= signatures[0] == signatures[1]
    return Grouping(graph, list(tensors), lengths, (False,) if same else (False, True)), records[0]


class Grouping:
    """The units of a dependency graph, in groups that own entries of the same dimensions of the same tensors.

    Units that own as many entries of the same dimensions are one array, with a row of slices for each unit.
    A column of it has one dimension, and slices that all make units or all take them.
    """

    def __init__(
        self,
        graph: DependencyGraph,
        tensors: Sequence[str],
        lengths: Mapping[tuple[str, int], Sequence[Tensor]],
        modes: tuple[bool, ...],
    ) -> None:
        self.graph, self.modes = graph, modes  # of training, in which the model does different things
        self.order = {name: number for number, name in enumerate(tensors)}
        self.root = graph.roots(torch.arange(graph.count)).numpy()
        self.produces, self.consumes = graph.produces.numpy(), graph.consumes.numpy()
        sizes = [d.size for d in graph.dimensions]
        #: of each slice, the number of its dimension and its place along that; ANY and INPUT have none
        self.numbers = np.concatenate([[-1, -1], np.repeat(np.arange(len(sizes)), sizes)]).astype(int)
        self.places = np.concatenate([[0, 0], *(np.arange(size) for size in sizes)]).astype(int)
        self._reasons: dict[str, str] = {}
        self.excluded_units: dict[str, int] = {}  # how many the excluded ones are
        found = [pair for units in self._unit_arrays() for pair in self._groups(units)]
        found.sort(key=lambda pair: self.order[pair[0].name])
        named: list[UnitGroup] = []
        seen: Counter[str] = Counter()  # groups that share their first tensor are told apart by a number
        owners = np.full(len(self.root), -1)  # of roots: the number of the group
        for group, part in found:
            owners[self.root[part[:, 0]]] = len(named)
            again = seen[group.name]
            named.append(replace(group, name=f"{group.name}[{again}]") if again else group)
            seen[group.name] += 1
        owners = owners[self.root]
        self.groups = _tied(named, graph.constant_lengths, owners)
        self.lengths = _lengths(lengths, owners, named)  # that the code of modules works with
        left = sorted(self._reasons.keys() - {group.name for group in named}, key=self.order.__getitem__)
        self.excluded = {name: self._reasons[name] for name in left}

    def _unit_arrays(self) -> list[Units]:
        """The units that can be dropped; those of one array own as many entries of the same dimensions."""
        slices = np.flatnonzero(self.produces | self.consumes)
        slices = slices[slices > INPUT]
        _, first, unit = np.unique(self.root[slices], return_index=True, return_inverse=True)
        unit = first[unit]  # in the order of their first slices
        ordered = np.lexsort((self.produces[slices], self.consumes[slices], self.numbers[slices], unit))
        slices, unit = slices[ordered], unit[ordered]
        kinds = 4 * self.numbers[slices] + 2 * self.consumes[slices] + self.produces[slices]
        starts = np.flatnonzero(np.diff(unit, prepend=-1))
        excluded, roots = self.graph.exclusions(), self.root[slices[starts]].tolist()
        problems: dict[bytes, str] = {}
        arrays: dict[bytes, list[Units]] = defaultdict(list)
        noted: set[bytes] = set()
        for root, (begin, end) in zip(roots, pairwise([*starts.tolist(), len(slices)]), strict=True):
            own, kind = slices[begin:end], kinds[begin:end].tobytes()
            if kind not in problems:
                problems[kind] = self._problem(own)
            reason = excluded.get(root) or problems[kind]
            if not reason:
                arrays[kind].append(own)
            elif kind not in noted:
                self._note(own, reason)
                noted.add(kind)
        return [np.stack(units) for units in arrays.values() if self.produces[units[0]].any()]

    def _problem(self, unit: Indices) -> str:
        for number in unit[self.produces[unit] & self.consumes[unit]].tolist():
            tensor = self.graph.dimensions[self.numbers[number]].tensor
            return f"{tensor} is tied: it both makes and takes them along one dimension"
        return "" if self.consumes[unit].any() else "nothing takes them"

    def _note(self, unit: Indices, reason: str) -> None:
        """Weights whose rows stay, with the reason."""
        for number in dict.fromkeys(self.numbers[unit[self.produces[unit]]].tolist()):
            d = self.graph.dimensions[number]
            if d.tensor not in self._reasons and self.graph.ranks[d.tensor] > 1:
                self._reasons[d.tensor], self.excluded_units[d.tensor] = reason, d.size

    def _groups(self, units: Units) -> list[tuple[UnitGroup, Units]]:
        """The groups that these units, which own the same dimensions, fall into, with their units."""
        groups = []
        for part in self._contiguous(units):
            group = self._group(part)
            if group is None:
                self._note(part[0], "their entries lie in no regular order")
            elif group.units == 1:
                self._note(part[0], "they are one unit only")
            else:
                groups.append((group, part))
        return groups

    def _contiguous(self, units: Units) -> list[Units]:
        """Units in the order of the first tensor that makes them, apart where others lie between them."""
        dimensions, numbers = self.graph.dimensions, self.numbers[units[0]]
        made = set(numbers[self.produces[units[0]]].tolist())
        first = min(made, key=lambda n: (self.order[dimensions[n].tensor], dimensions[n].dim))
        starts = self.places[units[:, numbers == first]].min(axis=1)
        ordered = np.argsort(starts, kind="stable")
        steps = np.diff(starts[ordered]).tolist()
        bounds = [0]
        for n, step in enumerate(steps):
            if step != steps[bounds[-1]]:
                bounds.append(n + 1)
        return [units[part] for part in np.split(ordered, bounds[1:])]

    def _group(self, units: Units) -> UnitGroup | None:
        """The group of these units, if their entries lie in runs."""
        producers: list[UnitSlices] = []
        consumers: list[UnitSlices] = []
        whole: list[UnitSlices] = []  # producers of all entries along their dimension
        numbers, takes = self.numbers[units[0]], self.consumes[units[0]]
        for number, taken in dict.fromkeys(zip(numbers.tolist(), takes.tolist(), strict=True)):
            d = self.graph.dimensions[number]
            runs = _runs(self.places[units[:, (numbers == number) & (takes == taken)]])
            if runs is None:
                return None
            found = [UnitSlices(d.tensor, d.dim, run, offset) for run, offset in runs]
            (consumers if taken else producers).extend(found)
            if not taken and sum(run for run, _ in runs) * len(units) == d.size:
                whole += found
        for some in (producers, consumers, whole):
            some.sort(key=lambda a: (self.order[a.tensor], a.dim, a.offset))
        weights = [a for a in producers if self.graph.ranks[a.tensor] > 1]
        name = (whole or weights or producers)[0].tensor
        return UnitGroup(name, len(units), tuple(producers), tuple(consumers))


def _runs(entries: Indices) -> list[tuple[int, int]] | None:
    """The entries of units (one row each) as runs, like those of `UnitSlices`: pairs of run and offset."""
    units, count = entries.shape
    found, column = [], 0
    while column < count:
        run = int(entries[1, column] - entries[0, column]) if units > 1 else count - column
        if run < 1 or column + run > count:
            return None
        offset = int(entries[0, column])
        expected = offset + np.arange(units)[:, None] * run + np.arange(run)
        if not np.array_equal(entries[:, column : column + run], expected):
            return None
        found.append((run, offset))
        column += run
    return found


def _lengths(
    lengths: Mapping[tuple[str, int], Sequence[Tensor]], owners: Indices, groups: Sequence[UnitGroup]
) -> list[ModuleLength]:
    """The lengths that change with a draw; `owners` has the number of the group of each slice, or -1."""
    found: dict[ModuleLength, None] = {}
    for (module, size), versions in lengths.items():
        for flat in versions:
            own = owners[flat.numpy()]
            numbers, counts = (found.tolist() for found in np.unique(own[own >= 0], return_counts=True))
            pairs = [(groups[n], count) for n, count in zip(numbers, counts, strict=True)]
            if pairs and not any(count % group.units for group, count in pairs):
                runs = ((group.name, count // group.units) for group, count in pairs)
                found[ModuleLength(module, size, tuple(runs))] = None
    return list(found)


def _tied(
    groups: list[UnitGroup], constant_lengths: Sequence[Sequence[Tensor]], owners: Indices
) -> list[UnitGroup]:
    """Groups whose units lie along one length of a constant say which of them came first."""
    first = list(range(len(groups)))
    for slices in constant_lengths:
        found = {int(owners[some[0]]) for some in slices if np.ptp(owners[some.numpy()]) == 0}
        for units in {groups[n].units for n in found if n >= 0}:
            same = {first[n] for n in found if n >= 0 and groups[n].units == units}
            first = [min(same) if n in same else n for n in first]
    return [
        group if own == number else replace(group, as_many_as=groups[own].name)
        for number, (group, own) in enumerate(zip(groups, first, strict=True))
    ]


# ---- numbers in modules ------------------------------------------------------------------------------


def module_numbers(
    skeleton: nn.Module, lengths: Sequence[ModuleLength], usable: Callable[[str], bool]
) -> list[ModuleLength]:
    """The lengths of dimensions of units that are numbers in modules, with the names of those numbers."""
    found: dict[tuple[str, str], ModuleLength] = {}
    modules = dict(skeleton.named_modules())
    for length in lengths:
        module = modules[length.module]
        for name, value in () if _follows_from_tensors(module) else vars(module).items():
            number = type(value) is int and value == length.before and not name.startswith("_")
            if number and usable(name):
                found.setdefault((length.module, name), replace(length, attribute=name))
    return list(found.values())


def _follows_from_tensors(module: nn.Module) -> bool:
    """Whether the sizes of a module follow from its tensors: all layers of torch but norms without them."""
    if isinstance(module, NormBase | nn.GroupNorm):
        return module.weight is not None or getattr(module, "running_mean", None) is not None
    return type(module).__module__.startswith("torch.nn") or is_conv1d(module)


def is_a_size(name: str) -> bool:
    """Whether a number of this name in a module can be a number of units."""
    return name in ("num_groups", "all_head_size") or not any(word in name for word in _OTHER_NUMBERS)
