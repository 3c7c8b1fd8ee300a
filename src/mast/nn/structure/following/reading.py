"""The unit spaces that joined atoms amount to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from mast.arrays import Indices
from mast.nn.structure.following.atoms import Atoms
from mast.nn.structure.spaces import Axis, Role, Space

_IRREGULAR = "their entries lie in no regular order"


@dataclass(frozen=True)
class Length:
    """A length that the code of a module works with, and how it follows from the kept units."""

    module: str
    before: int
    stays: int  # entries that no draw drops
    runs: tuple[tuple[int, int], ...]  # the numbers of spaces, and how many entries one unit has


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
    root = atoms.root.numpy()
    makes, takes = atoms.makes.numpy(), atoms.takes.numpy()
    pinned = atoms.pinned()
    everything = np.arange(2, len(root))
    numbers, places = atoms.places(everything)
    used = makes[2:] | takes[2:]
    others: dict[str, str] = {}
    sizes: dict[str, int] = {}
    by_unit: dict[int, list[int]] = defaultdict(list)
    for i in np.flatnonzero(used).tolist():
        by_unit[int(root[i + 2])].append(i)
    groups: dict[tuple[tuple[int, int, bool], ...], list[list[int]]] = defaultdict(list)
    for unit, members in by_unit.items():
        reason = pinned.get(unit, "")
        both = [i for i in members if makes[i + 2] and takes[i + 2]]
        if not reason and both:
            tensor = atoms.dimensions[numbers[both[0]]].tensor
            reason = f"{tensor} is tied: it both makes and takes them along one dimension"
        if not reason and not any(takes[i + 2] for i in members):
            reason = "nothing takes them"
        if not reason and not any(makes[i + 2] for i in members):
            continue
        if reason:
            _note(others, sizes, atoms, [numbers[i] for i in members if makes[i + 2]], reason)
            continue
        counts: dict[tuple[int, bool], int] = defaultdict(int)
        for i in members:
            counts[int(numbers[i]), bool(takes[i + 2])] += 1
        groups[tuple(sorted((n, c, t) for (n, t), c in counts.items()))].append(members)
    spaces: list[Space] = []
    owner = np.full(len(root), -1)
    for units in groups.values():
        for part in _contiguous(units, order, atoms, numbers, places, makes):
            space = _space(part, order, atoms, numbers, places, takes)
            first = [numbers[i] for i in part[0] if makes[i + 2]]
            if space is None:
                _note(others, sizes, atoms, first, _IRREGULAR)
            elif space.units == 1:
                _note(others, sizes, atoms, first, "they are one unit only")
            else:
                for members in part:
                    owner[[i + 2 for i in members]] = len(spaces)
                spaces.append(space)
    rank = sorted(range(len(spaces)), key=lambda n: order[spaces[n].name])
    place = {n: i for i, n in enumerate(rank)}
    found = _lengths(atoms, lengths, owner, [s.units for s in spaces], place)
    spaces = _named_once([spaces[n] for n in rank])
    names = {space.name for space in spaces}
    others = {name: reason for name, reason in others.items() if name not in names}
    return Found(spaces, dict(sorted(others.items(), key=lambda item: order[item[0]])), sizes, found)


def _note(
    others: dict[str, str], sizes: dict[str, int], atoms: Atoms, numbers: Sequence[int], reason: str
) -> None:
    """Weights whose rows stay, with the reason."""
    for number in dict.fromkeys(int(n) for n in numbers):
        d = atoms.dimensions[number]
        if d.tensor not in others and atoms.ranks[d.tensor] > 1:
            others[d.tensor] = reason
            sizes[d.tensor] = d.size


def _first(
    members: list[int], order: Mapping[str, int], atoms: Atoms, numbers: Indices, makes: Indices
) -> int:
    """The dimension that names a unit: the first that makes it."""
    made = {int(numbers[i]) for i in members if makes[i + 2]}
    return min(made, key=lambda n: (order[atoms.dimensions[n].tensor], atoms.dimensions[n].dim))


def _contiguous(
    units: list[list[int]],
    order: Mapping[str, int],
    atoms: Atoms,
    numbers: Indices,
    places: Indices,
    makes: Indices,
) -> list[list[list[int]]]:
    """Units in the order of the first tensor that makes them, apart where others lie between them."""
    first = _first(units[0], order, atoms, numbers, makes)
    starts = [min(int(places[i]) for i in members if numbers[i] == first) for members in units]
    ordered = [units[n] for n in np.argsort(starts, kind="stable")]
    starts.sort()
    parts: list[list[list[int]]] = [[]]
    step = starts[1] - starts[0] if len(starts) > 1 else 0
    for n, members in enumerate(ordered):
        if n and starts[n] - starts[n - 1] != step:
            parts.append([])
            step = starts[n + 1] - starts[n] if n + 1 < len(starts) else 0
        parts[-1].append(members)
    return parts


def _space(
    units: list[list[int]],
    order: Mapping[str, int],
    atoms: Atoms,
    numbers: Indices,
    places: Indices,
    takes: Indices,
) -> Space | None:
    """The space of these units, if their entries lie in runs."""
    axes: list[Axis] = []
    rows: dict[tuple[int, bool], list[list[int]]] = defaultdict(lambda: [[] for _ in units])
    for u, members in enumerate(units):
        for i in members:
            rows[int(numbers[i]), bool(takes[i + 2])][u].append(int(places[i]))
    for (number, taken), found in rows.items():
        d = atoms.dimensions[number]
        runs = _runs(np.sort(np.array(found), axis=1))
        if runs is None:
            return None
        role = Role.CONSUMES if taken else Role.PRODUCES
        axes += [Axis(d.tensor, d.dim, run, offset, role) for run, offset in runs]
    axes.sort(key=lambda a: (order[a.tensor], a.dim, a.offset))
    producers = tuple(a for a in axes if a.role is Role.PRODUCES)
    consumers = tuple(a for a in axes if a.role is Role.CONSUMES)
    sizes = {(d.tensor, d.dim): d.size for d in atoms.dimensions}
    covered: dict[tuple[str, int], int] = defaultdict(int)
    for a in producers:
        covered[a.tensor, a.dim] += a.run * len(units)
    own = [a.tensor for a in producers if covered[a.tensor, a.dim] == sizes[a.tensor, a.dim]]
    weights = [a.tensor for a in producers if atoms.ranks[a.tensor] > 1]
    return Space((own or weights or [producers[0].tensor])[0], len(units), producers, consumers)


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
    atoms: Atoms,
    lengths: Mapping[tuple[str, int], Sequence[Tensor]],
    owner: Indices,
    units: Sequence[int],
    place: Mapping[int, int],
) -> list[Length]:
    """The lengths that change with a draw."""
    root = atoms.root.numpy()
    owners = np.full(len(root), -1)
    owned = owner >= 0
    owners[root[owned]] = owner[owned]
    found: dict[Length, None] = {}
    for (module, size), versions in lengths.items():
        for flat in versions:
            entries = owners[root[flat.numpy()]]
            spaces, counts = np.unique(entries[entries >= 0], return_counts=True)
            if len(spaces) == 0 or any(c % units[s] for s, c in zip(spaces, counts, strict=True)):
                continue
            runs = tuple(
                sorted((place[int(s)], int(c) // units[s]) for s, c in zip(spaces, counts, strict=True))
            )
            found[Length(module, size, int((entries < 0).sum()), runs)] = None
    return list(found)


def _named_once(spaces: list[Space]) -> list[Space]:
    """Spaces that share their first tensor are told apart by a number."""
    seen: dict[str, int] = {}
    named = []
    for space in spaces:
        number = seen.get(space.name, 0)
        seen[space.name] = number + 1
        named.append(space if number == 0 else replace(space, name=f"{space.name}[{number}]"))
    return named
