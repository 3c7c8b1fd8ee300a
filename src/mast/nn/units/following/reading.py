"""The unit spaces that joined atoms amount to."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mast.arrays import Indices
from mast.nn.units.drawing import Axis, Space
from mast.nn.units.following.marks import WHOLE, Atoms

Units = Indices  # one row per unit: the atoms that live or die together


@dataclass(frozen=True)
class Length:
    """A length that the code of a module works with, and how it follows from the kept units."""

    module: str
    before: int
    runs: tuple[tuple[str, int], ...]  # the names of spaces, and how many entries of it one unit has
    attribute: str = ""  # the number in the module that says it


@dataclass
class Found:
    """What was found: spaces, reasons for the rest, and lengths in modules."""

    spaces: list[Space]
    others: dict[str, str]
    units: dict[str, int]  # of those others
    lengths: list[Length]
    modes: tuple[bool, ...] = (False, True)  # of training, in which the model does different things


def read(
    atoms: Atoms, order: Mapping[str, int], lengths: Mapping[tuple[str, int], Sequence[Tensor]]
) -> Found:
    """Sort the atoms into spaces: units that own entries of the same dimensions of the same tensors."""
    reading = _Reading(atoms, order)
    spaces = [(space, part) for units in reading.groups() for space, part in reading.spaces(units)]
    spaces.sort(key=lambda pair: order[pair[0].name])
    named: list[Space] = []
    seen: Counter[str] = Counter()  # spaces that share their first tensor are told apart by a number
    owners = np.full(len(reading.root), -1)  # of roots: the number of the space
    for space, part in spaces:
        owners[reading.root[part[:, 0]]] = len(named)
        again = seen[space.name]
        named.append(replace(space, name=f"{space.name}[{again}]") if again else space)
        seen[space.name] += 1
    names = {space.name for space in named}
    others = {name: reading.others[name] for name in sorted(reading.others, key=order.__getitem__)}
    others = {name: reason for name, reason in others.items() if name not in names}
    owners = owners[reading.root]
    return Found(_tied(named, atoms.met, owners), others, reading.sizes, _lengths(lengths, owners, named))


class _Reading:
    """The atoms, by dimension and place, and the reasons for those that stay.

    Units that own as many entries of the same dimensions are one array, with a row of atoms for each unit.
    A column of it has one dimension, and atoms that all make units or all take them.
    """

    def __init__(self, atoms: Atoms, order: Mapping[str, int]) -> None:
        self.atoms, self.order = atoms, order
        self.root = atoms.roots(torch.arange(atoms.count)).numpy()
        self.makes, self.takes = atoms.makes.numpy(), atoms.takes.numpy()
        sizes = [d.size for d in atoms.dimensions]
        #: of each atom, the number of its dimension and its place along that; ANY and WHOLE have none
        self.numbers = np.concatenate([[-1, -1], np.repeat(np.arange(len(sizes)), sizes)]).astype(int)
        self.places = np.concatenate([[0, 0], *(np.arange(size) for size in sizes)]).astype(int)
        self.others: dict[str, str] = {}
        self.sizes: dict[str, int] = {}

    def groups(self) -> list[Units]:
        """The units that can be dropped; those of one group own as many entries of the same dimensions."""
        atoms = np.flatnonzero(self.makes | self.takes)
        atoms = atoms[atoms > WHOLE]
        _, first, unit = np.unique(self.root[atoms], return_index=True, return_inverse=True)
        unit = first[unit]  # in the order of their first atoms
        ordered = np.lexsort((self.makes[atoms], self.takes[atoms], self.numbers[atoms], unit))
        atoms, unit = atoms[ordered], unit[ordered]
        kinds = 4 * self.numbers[atoms] + 2 * self.takes[atoms] + self.makes[atoms]
        starts = np.flatnonzero(np.diff(unit, prepend=-1))
        pinned, roots = self.atoms.pinned(), self.root[atoms[starts]].tolist()
        problems: dict[bytes, str] = {}
        groups: dict[bytes, list[Units]] = defaultdict(list)
        noted: set[bytes] = set()
        for root, begin, end in zip(roots, starts.tolist(), [*starts[1:].tolist(), len(atoms)], strict=True):
            own, kind = atoms[begin:end], kinds[begin:end].tobytes()
            if kind not in problems:
                problems[kind] = self._problem(own)
            reason = pinned.get(root) or problems[kind]
            if not reason:
                groups[kind].append(own)
            elif kind not in noted:
                self._note(own, reason)
                noted.add(kind)
        return [np.stack(units) for units in groups.values() if self.makes[units[0]].any()]

    def _problem(self, unit: Indices) -> str:
        for atom in unit[self.makes[unit] & self.takes[unit]].tolist():
            tensor = self.atoms.dimensions[self.numbers[atom]].tensor
            return f"{tensor} is tied: it both makes and takes them along one dimension"
        return "" if self.takes[unit].any() else "nothing takes them"

    def _note(self, unit: Indices, reason: str) -> None:
        """Weights whose rows stay, with the reason."""
        for number in dict.fromkeys(self.numbers[unit[self.makes[unit]]].tolist()):
            d = self.atoms.dimensions[number]
            if d.tensor not in self.others and self.atoms.ranks[d.tensor] > 1:
                self.others[d.tensor], self.sizes[d.tensor] = reason, d.size

    def spaces(self, units: Units) -> list[tuple[Space, Units]]:
        """The spaces of a group, with their units."""
        spaces = []
        for part in self._contiguous(units):
            space = self._space(part)
            if space is None:
                self._note(part[0], "their entries lie in no regular order")
            elif space.units == 1:
                self._note(part[0], "they are one unit only")
            else:
                spaces.append((space, part))
        return spaces

    def _contiguous(self, units: Units) -> list[Units]:
        """Units in the order of the first tensor that makes them, apart where others lie between them."""
        dimensions, numbers = self.atoms.dimensions, self.numbers[units[0]]
        made = set(numbers[self.makes[units[0]]].tolist())
        first = min(made, key=lambda n: (self.order[dimensions[n].tensor], dimensions[n].dim))
        starts = self.places[units[:, numbers == first]].min(axis=1)
        ordered = np.argsort(starts, kind="stable")
        steps = np.diff(starts[ordered]).tolist()
        bounds = [0]
        for n, step in enumerate(steps):
            if step != steps[bounds[-1]]:
                bounds.append(n + 1)
        return [units[part] for part in np.split(ordered, bounds[1:])]

    def _space(self, units: Units) -> Space | None:
        """The space of these units, if their entries lie in runs."""
        producers: list[Axis] = []
        consumers: list[Axis] = []
        whole: list[Axis] = []  # producers of all entries along their dimension
        numbers, takes = self.numbers[units[0]], self.takes[units[0]]
        for number, taken in dict.fromkeys(zip(numbers.tolist(), takes.tolist(), strict=True)):
            d = self.atoms.dimensions[number]
            runs = _runs(self.places[units[:, (numbers == number) & (takes == taken)]])
            if runs is None:
                return None
            axes = [Axis(d.tensor, d.dim, run, offset) for run, offset in runs]
            (consumers if taken else producers).extend(axes)
            if not taken and sum(run for run, _ in runs) * len(units) == d.size:
                whole += axes
        for some in (producers, consumers, whole):
            some.sort(key=lambda a: (self.order[a.tensor], a.dim, a.offset))
        weights = [a for a in producers if self.atoms.ranks[a.tensor] > 1]
        name = (whole or weights or producers)[0].tensor
        return Space(name, len(units), tuple(producers), tuple(consumers))


def _runs(entries: Indices) -> list[tuple[int, int]] | None:
    """Entries of each unit (one row per unit) as runs, like those of an `Axis`: pairs of run and offset."""
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
    lengths: Mapping[tuple[str, int], Sequence[Tensor]], owners: Indices, spaces: Sequence[Space]
) -> list[Length]:
    """The lengths that change with a draw; `owners` has the number of the space of each atom, or -1."""
    found: dict[Length, None] = {}
    for (module, size), versions in lengths.items():
        for flat in versions:
            own = owners[flat.numpy()]
            numbers, counts = (found.tolist() for found in np.unique(own[own >= 0], return_counts=True))
            pairs = [(spaces[n], count) for n, count in zip(numbers, counts, strict=True)]
            if pairs and not any(count % space.units for space, count in pairs):
                runs = ((space.name, count // space.units) for space, count in pairs)
                found[Length(module, size, tuple(runs))] = None
    return list(found)


def _tied(spaces: list[Space], met: Sequence[Sequence[Tensor]], owners: Indices) -> list[Space]:
    """Spaces that meet one length of a constant say which of them came first."""
    first = list(range(len(spaces)))
    for atoms in met:
        found = {int(owners[some[0]]) for some in atoms if np.ptp(owners[some.numpy()]) == 0}
        for units in {spaces[n].units for n in found if n >= 0}:
            same = {first[n] for n in found if n >= 0 and spaces[n].units == units}
            first = [min(same) if n in same else n for n in first]
    return [
        space if own == number else replace(space, as_many_as=spaces[own].name)
        for number, (space, own) in enumerate(zip(spaces, first, strict=True))
    ]
