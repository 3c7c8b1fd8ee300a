"""The unit spaces that joined atoms amount to."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from mast.arrays import Indices
from mast.nn.structure.drawing import Axis, Space
from mast.nn.structure.following.marks import WHOLE, Atoms

Unit = list[int]  # the atoms that live or die together


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
        owners[reading.root[[members[0] for members in part]]] = len(named)
        again = seen[space.name]
        named.append(replace(space, name=f"{space.name}[{again}]") if again else space)
        seen[space.name] += 1
    names = {space.name for space in named}
    others = {name: reading.others[name] for name in sorted(reading.others, key=order.__getitem__)}
    others = {name: reason for name, reason in others.items() if name not in names}
    owners = owners[reading.root]
    return Found(_tied(named, atoms.met, owners), others, reading.sizes, _lengths(lengths, owners, named))


class _Reading:
    """The atoms, by dimension and place, and the reasons for those that stay."""

    def __init__(self, atoms: Atoms, order: Mapping[str, int]) -> None:
        self.atoms, self.order = atoms, order
        self.root, self.makes, self.takes = (t.numpy() for t in (atoms.root, atoms.makes, atoms.takes))
        sizes = [d.size for d in atoms.dimensions]
        #: of each atom, the number of its dimension and its place along that; ANY and WHOLE have none
        self.numbers = np.concatenate([[-1, -1], np.repeat(np.arange(len(sizes)), sizes)]).astype(int)
        self.places = np.concatenate([[0, 0], *(np.arange(size) for size in sizes)]).astype(int)
        self.others: dict[str, str] = {}
        self.sizes: dict[str, int] = {}

    def groups(self) -> list[list[Unit]]:
        """The units that can be dropped; those of one group own as many entries of the same dimensions."""
        pinned = self.atoms.pinned()
        units: dict[int, Unit] = defaultdict(list)
        for atom in np.flatnonzero(self.makes | self.takes).tolist():
            if atom > WHOLE:
                units[int(self.root[atom])].append(atom)
        groups: dict[tuple[tuple[tuple[int, bool], int], ...], list[Unit]] = defaultdict(list)
        for root, unit in units.items():
            reason = pinned.get(root) or self._problem(unit)
            if reason:
                self._note(unit, reason)
            elif self.makes[unit].any():
                counts = Counter((int(self.numbers[a]), bool(self.takes[a])) for a in unit)
                groups[tuple(sorted(counts.items()))].append(unit)
        return list(groups.values())

    def _problem(self, unit: Unit) -> str:
        for atom in unit:
            if self.makes[atom] and self.takes[atom]:
                tensor = self.atoms.dimensions[self.numbers[atom]].tensor
                return f"{tensor} is tied: it both makes and takes them along one dimension"
        return "" if self.takes[unit].any() else "nothing takes them"

    def _note(self, unit: Unit, reason: str) -> None:
        """Weights whose rows stay, with the reason."""
        for number in dict.fromkeys(int(self.numbers[a]) for a in unit if self.makes[a]):
            d = self.atoms.dimensions[number]
            if d.tensor not in self.others and self.atoms.ranks[d.tensor] > 1:
                self.others[d.tensor], self.sizes[d.tensor] = reason, d.size

    def spaces(self, units: list[Unit]) -> list[tuple[Space, list[Unit]]]:
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

    def _contiguous(self, units: list[Unit]) -> list[list[Unit]]:
        """Units in the order of the first tensor that makes them, apart where others lie between them."""
        made = {int(self.numbers[a]) for a in units[0] if self.makes[a]}
        dimensions = self.atoms.dimensions
        first = min(made, key=lambda n: (self.order[dimensions[n].tensor], dimensions[n].dim))
        starts = [min(int(self.places[a]) for a in unit if self.numbers[a] == first) for unit in units]
        ordered = [units[n] for n in np.argsort(starts, kind="stable")]
        starts.sort()
        parts: list[list[Unit]] = [[]]
        step = starts[1] - starts[0] if len(starts) > 1 else 0
        for n, unit in enumerate(ordered):
            if n and starts[n] - starts[n - 1] != step:
                parts.append([])
                step = starts[n + 1] - starts[n] if n + 1 < len(starts) else 0
            parts[-1].append(unit)
        return parts

    def _space(self, units: list[Unit]) -> Space | None:
        """The space of these units, if their entries lie in runs."""
        entries: dict[tuple[int, bool], list[list[int]]] = defaultdict(lambda: [[] for _ in units])
        for u, unit in enumerate(units):
            for a in unit:
                entries[int(self.numbers[a]), bool(self.takes[a])][u].append(int(self.places[a]))
        producers: list[Axis] = []
        consumers: list[Axis] = []
        whole: list[Axis] = []  # producers of all entries along their dimension
        for (number, taken), places in entries.items():
            d = self.atoms.dimensions[number]
            runs = _runs(np.sort(np.array(places), axis=1))
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
            counts = Counter(n for n in owners[flat.numpy()].tolist() if n >= 0)
            if counts and not any(count % spaces[n].units for n, count in counts.items()):
                runs = ((spaces[n].name, count // spaces[n].units) for n, count in sorted(counts.items()))
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
