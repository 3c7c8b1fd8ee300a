"""What is cut of a model and what stays whole, as one table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mast.errors import ArgumentError

if TYPE_CHECKING:
    from mast.nn.structure.structures import Structure

#: what reasons say if units could perhaps be dropped, and it is not known how
UNFOLLOWED = ("has no rule", "a smaller model", "in no regular order")


def rows_of(structure: Structure) -> list[tuple[str, str, str]]:
    """One row per space: its name, how many units it has, and whether they are cut."""
    rows = [("units of", "units", "cut")]
    rows += [(space.name, str(space.units), "yes") for space in structure.spaces]
    for name, reason in structure.others.items():
        units = structure.other_units.get(name)
        rows.append((name, "" if units is None else str(units), f"no: {reason}"))
    return rows


def text_of(structure: Structure) -> str:
    """The table, with aligned columns."""
    rows = rows_of(structure)
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join("  " + line.rstrip() for line in lines)


def refuse_unfollowed(structure: Structure) -> None:
    """An error if units stay whole for no better reason than that they could not be followed."""
    unknown = [n for n, reason in structure.others.items() if any(word in reason for word in UNFOLLOWED)]
    if unknown:
        raise ArgumentError(
            f"strict: {len(unknown)} of the model's layers have units that could not be followed, such as "
            f"{unknown[0]!r}:\n{text_of(structure)}"
        )
