"""The search for a contender's setting: ladders without ends, climbed until the best has tried neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Setting = dict[str, float]
KEEPS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.85, 1.0)
PARTS = (1.0, 4.0, 16.0, 64.0)  # draws per batch of 64 rows: one for all, ..., one for each row
LISTS = {"keep": KEEPS, "parts": PARTS}
SCANS = {"decay": range(8), "keep": range(len(KEEPS))}  # places of a scan: 0 to 100, and all keeps
START = {"rate": 1, "decay": 2, "keep": 3, "parts": 1}  # places: 3e-3, 0.3, 0.5, 4


def rung(axis: str, place: int) -> float | None:
    """The value at a place of a ladder; None where there is none.

    Learning rates go on for ever in both directions. Weight decay begins with 0. Keep probabilities end at 1,
    and below 10 % nothing is tried. Draws per batch go from one for all rows to one for each row.

    >>> [rung("rate", place) for place in (-1, 0, 1, 2)]
    [0.0003, 0.001, 0.003, 0.01]
    >>> [rung("decay", place) for place in (-1, 0, 1, 2, 3)]
    [None, 0.0, 0.1, 0.3, 1.0]
    """
    if axis in LISTS:
        return LISTS[axis][place] if 0 <= place < len(LISTS[axis]) else None
    if axis == "rate":
        return _one_or_three(place - 6)
    return None if place < 0 else 0.0 if place == 0 else _one_or_three(place - 3)


def _one_or_three(place: int) -> float:
    """..., 0.1, 0.3, 1, 3, 10, ...: 1 at place 0."""
    return float(f"{(1, 3)[place % 2]}e{place // 2}")


def place(axis: str, value: float) -> int:
    """Where a value stands on its ladder.

    >>> place("rate", 0.01), place("decay", 0.0)
    (2, 0)
    """
    return next(at for at in range(-40, 40) if rung(axis, at) == value)


def climb(
    score: Callable[[Setting], float],
    axes: Sequence[str],
    trained: Sequence[Setting] = (),
    scanned: Sequence[str] = (),
) -> tuple[Setting, list[tuple[Setting, float]]]:
    """The setting that no neighbour on any axis beats, and all that were tried, with their scores.

    A ladder is followed as long as its last rung is the best, so that no optimum lies at the edge of a grid.
    Of equal settings the earlier one stays. The climb begins in the middle of the ladders, or at the best of
    those settings whose networks are `trained` already, which cost only their scores. A `scanned` axis is
    tried from end to end first, so that no small hill in the middle hides a higher one.

    >>> climb(lambda s: -abs(s["rate"] - 0.1), ["rate"])[0]
    {'rate': 0.1}
    """
    known: dict[tuple[int, ...], float] = {}
    tried: list[tuple[Setting, float]] = []

    def value(places: tuple[int, ...]) -> float:
        if places not in known:
            values = [rung(axis, place) for axis, place in zip(axes, places, strict=True)]
            setting = {axis: v for axis, v in zip(axes, values, strict=True) if v is not None}
            known[places] = score(setting) if len(setting) == len(axes) else -1.0
            if len(setting) == len(axes):
                tried.append((setting, known[places]))
        return known[places]

    middle = tuple(START[axis] for axis in axes)
    starts = [tuple(place(axis, s[axis]) for axis in axes) for s in trained]
    for axis in scanned:
        number = list(axes).index(axis)
        starts += [(*middle[:number], at, *middle[number + 1 :]) for at in SCANS[axis]]
    best = max([middle, *starts], key=value)
    moved = True
    while moved:
        moved = False
        for number in range(len(axes)):
            for way in (-1, 1):
                while value(after := (*best[:number], best[number] + way, *best[number + 1 :])) > value(best):
                    best, moved = after, True
    return max(tried, key=lambda pair: pair[1])[0], tried
